package conf

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestTranscripts runs testdata/*.txt. The commands read one string per input
// line (Go-quoted if it starts with a double quote and contains a backslash):
//
//	check [version=V]    what Parse finds, with the position marked
//	torch [version=V]    what ParseLenient, as PyTorch, makes of it
//	golden               both readers, old (2.9) and new (2.11), in one line
//	table [version=V]    the 16 rounding entries
//	env [version=V] [rocm]  NAME=VALUE lines: which variable counts
//	explain              two lines per option
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			v := Latest
			if d.HasArg("version") {
				var s string
				d.ScanArgs(t, "version", &s)
				var err error
				if v, err = ParseVersion(s); err != nil {
					t.Fatal(err)
				}
			}
			var b strings.Builder
			if d.Cmd == "env" {
				env := map[string]string{}
				for _, line := range strings.Split(d.Input, "\n") {
					name, value, _ := strings.Cut(line, "=")
					env[name] = value
				}
				e := FromEnv(env, v, d.HasArg("rocm"))
				fmt.Fprintf(&b, "%s=%s\n", e.Variable, e.Value)
				if len(e.Ignored) > 0 {
					fmt.Fprintf(&b, "ignored: %s\n", strings.Join(e.Ignored, " "))
				}
				for _, w := range e.Warnings {
					fmt.Fprintf(&b, "warning: %s\n", w)
				}
				return b.String()
			}
			if d.Cmd == "explain" {
				_, r := Parse(d.Input, v)
				for _, e := range r.Explain() {
					fmt.Fprintf(&b, "%s:%s (default %s, since %s)\n  %s\n  %s\n", e.Key, e.Value, e.Default, e.Since, e.Does, e.Hurts)
				}
				return b.String()
			}
			lines := strings.Split(d.Input, "\n")
			for i, s := range lines {
				if strings.HasPrefix(s, `"`) && (strings.Contains(s, `\`) || s == `""`) {
					var err error
					if s, err = strconv.Unquote(s); err != nil {
						t.Fatalf("%s: %v", d.Pos, err)
					}
				}
				switch d.Cmd {
				case "check":
					if i > 0 {
						b.WriteByte('\n')
					}
					_, r := Parse(s, v)
					check(&b, s, r)
				case "torch":
					c, err := ParseLenient(s, v)
					fmt.Fprintf(&b, "%-40s %s\n", s, verdict(c, err, v))
				case "golden":
					old, errOld := ParseLenient(s, Version{2, 9})
					now, errNow := ParseLenient(s, Latest)
					_, r := Parse(s, Latest)
					fmt.Fprintf(&b, "%s\n  old: %s\n  new: %s\n  allocsim: %s\n", s, verdict(old, errOld, Version{2, 9}), verdict(now, errNow, Latest), summary(r))
				case "table":
					c, r := Parse(s, v)
					if !r.OK {
						t.Fatalf("%s: %+v", d.Pos, r.Errors)
					}
					fmt.Fprintf(&b, "%s\n  %v = %s\n", s, c.Roundup, c.Format(v))
				default:
					t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
				}
			}
			return b.String()
		})
	})
}

func verdict(c Config, err error, v Version) string {
	if err != nil {
		return "error: " + err.Error()
	}
	if s := c.Format(v); s != "" {
		return s
	}
	return "(defaults)"
}

func summary(r Result) string {
	switch {
	case !r.OK:
		return "error: " + r.Errors[0].Message + "; " + r.Errors[0].Hint
	case len(r.Warnings) > 0:
		return "warning: " + r.Warnings[0].Message
	}
	return "ok"
}

func check(b *strings.Builder, s string, r Result) {
	state := "not ok"
	if r.OK {
		state = "ok, normal form " + strconv.Quote(r.Normalized)
	}
	fmt.Fprint(b, state)
	if r.Since != "" {
		fmt.Fprintf(b, ", since %s", r.Since)
	}
	if r.Fixable {
		fmt.Fprintf(b, ", fixed %q", r.Fixed)
	}
	b.WriteByte('\n')
	show := func(kind string, ps []Problem) {
		for _, p := range ps {
			mark := strings.ReplaceAll(Mark(s, p), "\n", "\n  ")
			fmt.Fprintf(b, "  %s\n%s: %s\n  hint: %s\n", mark, kind, p.Message, p.Hint)
		}
	}
	show("error", r.Errors)
	show("warning", r.Warnings)
	if !r.OK && r.PyTorchError != "" {
		fmt.Fprintf(b, "PyTorch %s: %s\n", r.Version, r.PyTorchError)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
}

// genConfig draws a Config that release v can express.
func genConfig(t *rapid.T, v Version) Config {
	c := Default(v)
	boolean := func(name string) bool { return rapid.Bool().Draw(t, name) }
	maybe := func(name string) bool { return rapid.IntRange(0, 2).Draw(t, name) == 0 }
	known := func(key string) bool { return lookup(key).knownTo(v) }
	if known("backend") && maybe("async") {
		c.Backend = CudaMallocAsync
	}
	if known("expandable_segments") {
		c.ExpandableSegments = boolean("expandable")
	}
	if known("large_segment_size_mb") && maybe("large") {
		c.LargeSegmentSize = rapid.Int64Range(11, 4096).Draw(t, "large size") * mib
	}
	c.MaxNonSplitRounding = c.LargeSegmentSize
	least := v.minSplitMiB(c.LargeSegmentSize)
	if known("max_split_size_mb") && maybe("split") {
		c.MaxSplitSize = rapid.Int64Range(least, 1<<30).Draw(t, "split size") * mib
	}
	if known("max_non_split_rounding_mb") && maybe("rounding") {
		c.MaxNonSplitRounding = rapid.Int64Range(least, 1<<20).Draw(t, "rounding size") * mib
	}
	if known("garbage_collection_threshold") && maybe("gc") {
		c.GCThreshold = rapid.Float64Range(minNormal, 0.9999999999).Draw(t, "gc threshold")
	}
	if known("per_process_memory_fraction") && maybe("fraction") {
		c.PerProcessMemoryFraction = rapid.Float64Range(minNormal, 1).Draw(t, "fraction value")
	}
	if known("roundup_power2_divisions") {
		values := []int64{0, 1, 2, 4, 8, 16}
		switch {
		case v.AtLeast(2, 0) && maybe("list"):
			// Runs, so that ">" and gaps are met often.
			d := rapid.SampledFrom(values).Draw(t, "d")
			for i := range c.Roundup {
				if maybe("change") {
					d = rapid.SampledFrom(values).Draw(t, "d")
				}
				c.Roundup[i] = d
			}
		case maybe("scalar"):
			d := rapid.SampledFrom(values[1:]).Draw(t, "d")
			for i := range c.Roundup {
				c.Roundup[i] = d
			}
		}
	}
	if known("release_lock_on_cudamalloc") {
		c.ReleaseLockOnCudaMalloc = boolean("release")
		c.PinnedUseCudaHostRegister = boolean("register")
	}
	if known("pinned_num_register_threads") && maybe("threads") {
		c.PinnedNumRegisterThreads = 1 << rapid.IntRange(0, 7).Draw(t, "log threads")
	}
	if known("pinned_reserve_segment_size_mb") && maybe("reserve") {
		c.PinnedReserveSegmentSize = rapid.Int64Range(0, 1<<20).Draw(t, "reserve size") * mib
	}
	if known("graph_capture_record_stream_reuse") {
		c.GraphCaptureRecordStreamReuse = boolean("graph")
	}
	return c
}

func genVersion(t *rapid.T) Version {
	return rapid.SampledFrom([]Version{{1, 12}, {2, 0}, {2, 3}, {2, 6}, {2, 9}, {2, 10}, {2, 11}}).Draw(t, "version")
}

// TestNormalForm: what Format writes, both readers read back as the same
// Config, and Parse gives it as its own normal form.
func TestNormalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genVersion(t)
		c := genConfig(t, v)
		s := c.Format(v)
		got, r := Parse(s, v)
		if !r.OK {
			t.Fatalf("%q for %s: %+v", s, v, r.Errors)
		}
		if got != c {
			t.Fatalf("%q for %s:\n%s", s, v, cmp.Diff(c, got))
		}
		if r.Normalized != s {
			t.Fatalf("normal form of %q is %q", s, r.Normalized)
		}
		lenient, err := ParseLenient(s, v)
		if err != nil || lenient != c {
			t.Fatalf("lenient %q for %s: %v\n%s", s, v, err, cmp.Diff(c, lenient))
		}
	})
}

// checkString holds for any string: the readers agree on what Parse accepts,
// its normal form is a fixed point, places lie in the string, and a repair
// is OK.
func checkString(t interface{ Fatalf(string, ...any) }, s string, v Version) {
	c, r := Parse(s, v)
	if r.OK != (len(r.Errors) == 0) {
		t.Fatalf("%q: OK is %v with errors %+v", s, r.OK, r.Errors)
	}
	for _, p := range append(r.Errors[:len(r.Errors):len(r.Errors)], r.Warnings...) {
		if p.Offset < 0 || p.Length < 0 || p.Offset+p.Length > len(s) {
			t.Fatalf("%q: place of %+v", s, p)
		}
		if p.Message == "" || p.Hint == "" {
			t.Fatalf("%q: message or hint missing in %+v", s, p)
		}
		if !utf8.ValidString(p.Message) || !utf8.ValidString(p.Hint) {
			t.Fatalf("%q: broken text in %+v", s, p)
		}
		if m := Mark(s, p); strings.Count(m, "\n") != 1 || !strings.Contains(m, "^") {
			t.Fatalf("%q: mark %q", s, m)
		}
	}
	lenient, err := ParseLenient(s, v)
	if r.OK {
		if err != nil || lenient != c {
			t.Fatalf("%q for %s: Parse accepts %q, PyTorch reads %v %v", s, v, c.Format(v), lenient.Format(v), err)
		}
		again, r2 := Parse(r.Normalized, v)
		if !r2.OK || again != c || r2.Normalized != r.Normalized {
			t.Fatalf("%q for %s: normal form %q reads as %+v", s, v, r.Normalized, r2)
		}
		if since, err := ParseVersion(r.Since); err != nil || since.Compare(v) > 0 {
			t.Fatalf("%q is OK for %s but since %q", s, v, r.Since)
		}
	} else if r.Normalized != "" {
		t.Fatalf("%q: normal form %q although not OK", s, r.Normalized)
	}
	if r.Fixable {
		if _, r3 := Parse(r.Fixed, v); !r3.OK {
			t.Fatalf("%q: repair %q is not OK: %+v", s, r.Fixed, r3.Errors)
		}
	}
}

// TestAnyString checks strings made of the pieces that real ones are made of.
func TestAnyString(t *testing.T) {
	pieces := []string{",", ":", "[", "]", "=", ";", " ", "\t", "\n", ">", "True", "False", "true", "1", "0", "20", "21", "128", "512MB", "0.8", "80%", "-1", "1e3", "99999999999999999999", "\"", "'", "{", "}", "：", "é", "\x00", "\xff", "C:\\x", "export PYTORCH_CUDA_ALLOC_CONF=", "native", "cudaMallocAsync", "64:8", ">:1", "1.5", "0x10", "MB", "+3"}
	for _, k := range keys {
		pieces = append(pieces, k.Name, k.Name+":")
	}
	for name := range future {
		pieces = append(pieces, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := genVersion(t)
		s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 8).Draw(t, "pieces"), "")
		checkString(t, s, v)
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "max_split_size_mb:128,expandable_segments:True", "roundup_power2_divisions:[64:8,256:4,>:1]", "max_split_size_mb=512", "garbage_collection_threshold:0,8", `set "PYTORCH_CUDA_ALLOC_CONF=backend:native"`} {
		f.Add(s, byte(11))
	}
	f.Fuzz(func(t *testing.T, s string, minor byte) {
		checkString(t, s, Version{2, int(minor % 16)})
	})
}

func TestParseVersion(t *testing.T) {
	for s, want := range map[string]Version{
		"2.11.0+cu130": {2, 11}, "2.6": {2, 6}, "v1.13.1": {1, 13}, "2.12.0a0+git1": {2, 12}, " 2.9.1 ": {2, 9}, "2.10-dev": {2, 10},
	} {
		if got, err := ParseVersion(s); err != nil || got != want {
			t.Errorf("%q: %v %v", s, got, err)
		}
	}
	for _, s := range []string{"", "2", "two.one", "2.x", "-1.2", "2.", "99999999.1", "2.1b"} {
		if got, err := ParseVersion(s); err == nil {
			t.Errorf("%q: %v, want an error", s, got)
		}
	}
}

// TestAgainstPyTorch compares ParseLenient with what torch 2.11.0+cu130 really
// did with each string on an NVIDIA H200: testdata/torch-2.11.jsonl holds the
// exception of torch._C._accelerator_setAllocatorSettings and the
// allocator_settings that a snapshot showed afterwards, defaults left out.
func TestAgainstPyTorch(t *testing.T) {
	f, err := os.Open("testdata/torch-2.11.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type settings struct {
		S           string  `json:"s"`
		Error       string  `json:"error"`
		MaxSplit    int64   `json:"max_split_size"`
		GC          float64 `json:"garbage_collection_threshold"`
		Expandable  bool    `json:"expandable_segments"`
		Threads     int64   `json:"pinned_num_register_threads"`
		ReleaseLock bool    `json:"release_lock_on_cudamalloc"`
		Register    bool    `json:"pinned_use_cuda_host_register"`
		Graph       bool    `json:"graph_capture_record_stream_reuse"`
		Roundup     []int64 `json:"roundup_power2_divisions"`
	}
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); n++ {
		want := settings{MaxSplit: -1, Threads: 1, Roundup: make([]int64, Intervals)}
		if err := json.Unmarshal(sc.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		c, err := ParseLenient(want.S, Latest)
		// The load-time check of the backend is not a matter of the string.
		if strings.Contains(want.Error, "tokenizer[i] == get()->name()") {
			if err != nil || c.Backend != CudaMallocAsync {
				t.Errorf("%q: %v, %v", want.S, c, err)
			}
			continue
		}
		if (err != nil) != (want.Error != "") || err != nil && !strings.HasSuffix(want.Error, strings.TrimSuffix(err.Error(), " ")) && !strings.HasSuffix(want.Error, err.Error()) {
			t.Errorf("%q: error %v, PyTorch %q", want.S, err, want.Error)
			continue
		}
		if err != nil {
			continue
		}
		got := settings{S: want.S, MaxSplit: c.MaxSplitSize, GC: c.GCThreshold, Expandable: c.ExpandableSegments, Threads: c.PinnedNumRegisterThreads,
			ReleaseLock: c.ReleaseLockOnCudaMalloc, Register: c.PinnedUseCudaHostRegister, Graph: c.GraphCaptureRecordStreamReuse, Roundup: c.Roundup[:]}
		// Sizes that no int64 holds are all the same to us.
		if c.MaxSplitSize == Unlimited && want.MaxSplit < 0 {
			got.MaxSplit = want.MaxSplit
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q:\n%s", want.S, diff)
		}
	}
	if n < 200 {
		t.Errorf("only %d strings", n)
	}
}
