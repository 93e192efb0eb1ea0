package diagnose

import (
	"fmt"
	"strings"
	"testing"

	"allocsim/internal/bytesize"
	"allocsim/policies/torch/conf"
)

// TestParts works out the order of causes on a card of 100 GiB, where
// percentages are GiB.
func TestParts(t *testing.T) {
	for _, c := range []struct {
		name                                           string
		tensors, cached, private, context, others, ask int64
		want                                           Verdict
		also                                           string
	}{
		// tensors + cached + private + context + others; the rest of 100 is free.
		{"holes", 60, 20, 0, 1, 0, 19 + 1, Fragmentation, "[]"},
		{"holes that leave nothing", 79, 20, 0, 1, 0, 20, Fragmentation, "[capacity]"},
		{"slack of 4 %", 94, 4, 0, 1, 0, 2, Capacity, "[fragmentation]"},
		{"slack of 5 %", 93, 5, 0, 1, 0, 2, Fragmentation, "[]"},
		{"slack that leaves 1 %", 94, 4, 0, 1, 0, 4, Capacity, "[]"},
		{"nothing", 98, 0, 0, 1, 0, 4, Capacity, "[]"},
		{"holes too small", 80, 10, 0, 1, 0, 30, Capacity, "[fragmentation]"},
		{"pool", 50, 1, 40, 1, 0, 10, PrivatePool, "[]"},
		{"pool and holes", 50, 10, 30, 1, 0, 10, PrivatePool, "[fragmentation]"},
		{"pool too small", 86, 1, 10, 1, 0, 30, Capacity, "[private-pool]"},
		{"others", 20, 1, 0, 1, 70, 10, OtherProcess, "[]"},
		{"others and holes", 30, 10, 0, 1, 49, 10 + 5, Fragmentation, "[other-process]"},
		{"others with more than half, and holes", 15, 10, 0, 1, 70, 10, OtherProcess, "[fragmentation]"},
		{"others too few", 70, 1, 0, 1, 20, 50, Capacity, "[other-process]"},
		{"others of 9 %", 86, 1, 0, 1, 9, 8, Capacity, "[]"},
		{"beside the allocator", 70, 1, 0, 20, 0, 15, OutsideAllocator, "[]"},
		{"beside it, but a context", 93, 1, 0, 5, 0, 3, Capacity, "[]"},
		{"beside it and others", 30, 1, 0, 30, 30, 20, OtherProcess, "[outside-allocator]"},
	} {
		gib := func(n int64) Quantity { return Exact(n * bytesize.GiB) }
		m := Message{Framework: PyTorch, GPU: -1, Rank: -1, Requested: gib(c.ask), Total: gib(100),
			Allocated: gib(c.tensors + c.private), Unallocated: gib(c.cached), Process: gib(c.tensors + c.private + c.cached + c.context)}
		m.Free = gib(100 - c.tensors - c.private - c.cached - c.context - c.others)
		if c.private > 0 {
			m.PrivatePools = gib(c.private)
		}
		if c.ask*bytesize.GiB <= m.Free.Bytes {
			t.Fatalf("%s: the request is free", c.name)
		}
		m.complete()
		r := Diagnose(m, Options{})
		if r.Verdict != c.want || fmt.Sprint(r.Also) != c.also || !r.Consistent {
			t.Errorf("%s: %s %v, by hand %s %s\n%s", c.name, r.Verdict, r.Also, c.want, c.also, r.Reason)
		}
		if n := r.Numbers; *n.Context != c.context*bytesize.GiB || *n.OtherProcesses != c.others*bytesize.GiB {
			t.Errorf("%s: context %d, others %d", c.name, *n.Context, *n.OtherProcesses)
		}
	}
}

// TestOutlook works out by hand what choices leave: 100 GiB = tensors 60 +
// cached 20 + context 1 + free 19; 20 are asked.
func TestOutlook(t *testing.T) {
	m, err := Parse("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 100.00 GiB of which 19.00 GiB is free. Including non-PyTorch memory, this process has 81.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 20.00 GiB is reserved by PyTorch but unallocated.")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, o := range Diagnose(m, Options{}).Outlook {
		name, _, _ := strings.Cut(o.Choice, " of ")
		fmt.Fprintf(&got, "%s: %.1f to %.1f\n", name, float64(o.Low)/bytesize.GiB, float64(o.High)/bytesize.GiB)
	}
	// No hole used: 19 − 20 = −1; all used: 19 + 20 − 20 = 19. A batch smaller
	// by a quarter gives at most 15 of the tensors and 5 of the request. The
	// next device is that of 139.80 GiB.
	const want = "a device: 38.8 to 58.8\na batch smaller by 25 %: -1.0 to 39.0\nexpandable_segments: -1.0 to 19.0\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// TestReleases: what is recommended fits the release and the configuration.
func TestReleases(t *testing.T) {
	const text = "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by PyTorch but unallocated."
	m, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version, conf string
		first         string
	}{
		{"", "", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
		{"2.1.0", "", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
		{"2.0.1", "", "upgrade to PyTorch 2.1"},
		{"2.6.0", "expandable_segments:True", "free the small tensors"},
		{"2.6.0", "expandable_segments:True,max_split_size_mb:128", "drop max_split_size_mb"},
		{"2.6.0", "backend:cudaMallocAsync", "leave backend:cudaMallocAsync out and set expandable_segments:True"},
	} {
		var o Options
		if c.version != "" {
			if o.Version, err = conf.ParseVersion(c.version); err != nil {
				t.Fatal(err)
			}
		}
		if c.conf != "" {
			o.Conf, _ = conf.ParseLenient(c.conf, o.Version)
		}
		r := Diagnose(m, o)
		if !strings.HasPrefix(r.Advice[0], c.first) {
			t.Errorf("%s %s: %s; want %s", c.version, c.conf, r.Advice[0], c.first)
		}
		checkAdvice(t, c.version+" "+c.conf, m, r)
	}
}

// TestUnknownProcess: NVML prints the largest number where it does not know.
func TestUnknownProcess(t *testing.T) {
	m, err := Parse("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Process 77 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by PyTorch but unallocated.")
	if err != nil {
		t.Fatal(err)
	}
	r := Diagnose(m, Options{})
	if r.Verdict != Fragmentation || r.Numbers.OtherProcesses != nil || r.Numbers.Process != nil {
		t.Errorf("%s %+v", r.Verdict, r.Numbers)
	}
	if strings.Contains(strings.Join(append(r.Advice, r.Reason), " "), "TiB") {
		t.Errorf("%v", r.Advice)
	}
}

// TestSizes: numbers as programs of the world print them.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		number, unit string
		bytes, half  int64
	}{
		{"20.00", "MiB", 20 << 20, 5243},
		{"1.5", "GB", 3 << 29, 53687092},
		{"1,024", "MiB", 1 << 30, 1 << 19},
		{"1,024.00", "MiB", 1 << 30, 5243},
		{"1,5", "GiB", 3 << 29, 53687092},
		{"0,125", "GiB", 1 << 27, 536871},
		{"12345", "bytes", 12345, 0},
		{"25,600,000", "bytes", 25600000, 0},
		{"512", "kB", 512 << 10, 512},
		{"2", "G", 2 << 30, 1 << 29},
	} {
		q := parseSize(c.number, c.unit)
		if !q.Known || q.Bytes != c.bytes || q.Rounding != c.half {
			t.Errorf("%s %s: %+v, by hand %d ± %d", c.number, c.unit, q, c.bytes, c.half)
		}
	}
}
