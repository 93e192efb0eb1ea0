package diagnose

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/internal/bytesize"
)

// A sample is a message of testdata/messages: in the wording of the program,
// with a verdict worked out by hand from its account (in the comment above it).
type sample struct {
	name      string
	verdict   Verdict
	framework Framework
	text      string
}

func samples(t testing.TB) (list []sample) {
	files, err := filepath.Glob("testdata/messages/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no messages: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		for i, part := range strings.Split(strings.TrimSuffix(string(data), "====\n"), "====\n") {
			why, rest, ok1 := strings.Cut(part, "\nwant ")
			want, text, ok2 := strings.Cut(rest, "\n")
			verdict, framework, ok3 := strings.Cut(want, " | ")
			if !ok1 || !ok2 || !ok3 || !strings.HasPrefix(why, "# ") {
				t.Fatalf("%s: message %d is no \"# why, want VERDICT | FRAMEWORK, text\"", file, i+1)
			}
			list = append(list, sample{fmt.Sprintf("%s/%d", name, i+1), Verdict(verdict), Framework(framework), text})
		}
	}
	return list
}

// TestMessages holds every message to the verdict worked out by hand.
func TestMessages(t *testing.T) {
	list := samples(t)
	if len(list) < 150 {
		t.Errorf("%d messages", len(list))
	}
	for _, s := range list {
		m, err := Parse(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		r := Diagnose(m, Options{})
		checkReport(t, m, r)
		if r.Verdict != s.verdict || r.Framework != s.framework {
			t.Errorf("%s: %s (%s), by hand %s (%s)\n%s\n%s", s.name, r.Verdict, r.Framework, s.verdict, s.framework, r.Reason, s.text)
		}
	}
}

// TestTable prints all messages as one table: framework, account, verdict and
// first advice.
func TestTable(t *testing.T) {
	datadriven.RunTest(t, "testdata/table.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		for _, s := range samples(t) {
			m, err := Parse(s.text)
			if err != nil {
				fmt.Fprintf(&b, "%s: %v\n", s.name, err)
				continue
			}
			r := Diagnose(m, Options{})
			fmt.Fprintf(&b, "%s | %s | %s | %s | %s\n", s.name, r.Framework, account(m), r.Verdict, r.Advice[0])
		}
		return b.String()
	})
}

// account writes the parts of the card that a message gives or determines.
func account(m Message) string {
	l := solve(m)
	if l.Problem != "" {
		return fmt.Sprintf("%s by %s", l.Problem, about(l.Excess))
	}
	var parts []string
	for _, x := range []struct {
		name string
		q    Quantity
	}{{"asked", m.Requested}, {"total", l.Total}, {"tensors", l.Tensors}, {"cached", l.Cached}, {"private", l.Private}, {"context", l.Context}, {"others", l.Others}, {"rest", l.Rest}, {"free", l.Free}, {"allowed", m.Allowed}} {
		if x.q.Known && (x.name != "rest" || !l.Context.Known) {
			parts = append(parts, x.name+" "+about(x.q))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no figures")
}

// TestAdvice demands of the advice to every message that it does not
// contradict itself, that it is in the order of its effect, that it fits what
// the message proves, and that it fits 80 columns.
func TestAdvice(t *testing.T) {
	for _, s := range samples(t) {
		m, err := Parse(s.text)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		for _, m.Around = range []Around{{}, {Windows: true}, {Jetson: true}, {Doze: true, VLLM: true}, {MemPool: true}, {Graphs: true, Compile: true}, {Distributed: true}, {SGLang: true}} {
			checkAdvice(t, s.name, m, Diagnose(m, Options{}))
		}
	}
}

func checkAdvice(t *testing.T, name string, m Message, r Report) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s\n%s", name, fmt.Sprintf(format, args...), strings.Join(r.Advice, "\n"))
	}
	does := map[topic]bool{}
	for _, a := range r.advice {
		if a.kind == helps {
			does[a.topic] = true
		}
	}
	seen := map[string]bool{}
	for i, a := range r.advice {
		if a.kind == useless && does[a.topic] {
			fail("does and does not help: %s", a.topic)
		}
		if a.kind == useless && a.topic == settings && (does[expandable] || does[splitSize]) {
			fail("no setting helps, but one does")
		}
		if seen[a.text] {
			fail("twice: %s", a.text)
		}
		seen[a.text] = true
		if i > 0 {
			b := r.advice[i-1]
			if a.kind < b.kind || a.kind == b.kind && a.effect > b.effect {
				fail("not in the order of effect")
			}
		}
	}
	if len(r.advice) == 0 || r.advice[0].kind != helps {
		fail("no help first")
	}
	all := strings.Join(r.Advice, "\n")
	recommended := func(what string) bool {
		return slices.ContainsFunc(r.advice, func(a advice) bool {
			return a.kind == helps && strings.Contains(a.text, what) && !strings.Contains(a.text, "remove "+what) && !strings.Contains(a.text, "without "+what) && !strings.Contains(a.text, "upgrade")
		})
	}
	switch {
	case m.Before21 && recommended("expandable_segments:True"):
		fail("expandable segments before 2.1")
	case m.Before14 && strings.Contains(all, "max_split_size_mb"):
		fail("a configuration before there was one")
	case (m.Around.Jetson || m.Around.Windows || m.Around.Doze) && recommended("expandable_segments:True"):
		fail("expandable segments where there are none")
	case strings.Contains(strings.ReplaceAll(all, "leave backend:cudaMallocAsync out", ""), "backend:cudaMallocAsync"):
		fail("recommends cudaMallocAsync")
	}
	foreign := map[Framework][]string{
		PyTorchHIP: {"nvidia-smi", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF"},
		PyTorchNPU: {"nvidia-smi", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "torch.cuda.empty_cache"},
		PyTorchXPU: {"nvidia-smi", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "torch.cuda.empty_cache"},
		PyTorchMPS: {"nvidia-smi", "CUDA_VISIBLE_DEVICES"},
		Host:       {"nvidia-smi", "expandable"}, DataLoader: {"nvidia-smi", "expandable"},
		HIP: {"nvidia-smi"}, LevelZero: {"nvidia-smi"}, MLX: {"nvidia-smi"},
	}
	for _, word := range foreign[m.Framework] {
		if strings.Contains(all, word) {
			fail("names %s for %s", word, m.Framework)
		}
	}
	if r.Verdict == OtherProcess && !strings.Contains(all, "-smi") && !strings.Contains(all, "mthreads-gmi") && !strings.Contains(all, "cnmon") {
		fail("no tool that shows the others")
	}
}

// TestSwaps exchanges any two figures of every account: the result must be
// refused as impossible, or get another verdict, or be worked out again by a
// second, plain reading of the account.
func TestSwaps(t *testing.T) {
	var refused, changed, same int
	for _, s := range samples(t) {
		m, err := Parse(s.text)
		if err != nil || !m.Framework.caching() || m.Truncated || !m.Requested.Known || !m.Allocated.Known || !m.Free.Known || solve(m).Problem != "" || s.verdict == Undecidable {
			continue
		}
		fields := func(m *Message) map[string]*Quantity {
			f := map[string]*Quantity{"requested": &m.Requested, "total": &m.Total, "free": &m.Free, "allocated": &m.Allocated}
			if m.Before21 && !m.Before14 || m.Framework == PyTorchNPU {
				f["reserved"] = &m.Reserved
			} else {
				f["unallocated"] = &m.Unallocated
			}
			if m.PrivatePools.Known {
				f["private"] = &m.PrivatePools
			}
			if m.Process.Known {
				f["process"] = &m.Process
			}
			if m.Allowed.Known {
				f["allowed"] = &m.Allowed
			}
			return f
		}
		names := []string{"requested", "total", "free", "allocated", "reserved", "unallocated", "private", "process", "allowed"}
		for i, a := range names {
			for _, b := range names[i+1:] {
				x := m
				f := fields(&x)
				if f[a] == nil || f[b] == nil || !f[a].Known || !f[b].Known {
					continue
				}
				*f[a], *f[b] = *f[b], *f[a]
				if f["reserved"] != nil {
					x.Unallocated = roundedUp(x.Reserved.minus(x.Allocated))
				} else {
					x.Reserved = x.Allocated.plus(x.Unallocated)
				}
				r := Diagnose(x, Options{})
				switch {
				case !r.Consistent:
					refused++
				case r.Verdict != s.verdict:
					changed++
				default:
					same++
					if want := plainly(x); want != r.Verdict {
						t.Errorf("%s with %s and %s exchanged: still %s, plainly %s\n%s\n%s", s.name, a, b, r.Verdict, want, account(x), r.Reason)
					}
				}
			}
		}
	}
	t.Logf("%d exchanges refused, %d change the verdict, %d keep it and are right to", refused, changed, same)
	if all := refused + changed + same; all < 500 || same*4 > all {
		t.Errorf("of %d exchanges %d keep the verdict", all, same)
	}
}

// plainly decides an account in exact numbers, by trying each remedy: what
// would the request get if the holes were joined, the pools opened, the others
// gone, the rest of the process gone? The remedy that gives most of the card
// is the verdict; if none gives a twentieth of it, the card is full.
func plainly(m Message) Verdict {
	l := solve(m)
	asked, total := m.Requested.Bytes, m.Total.Bytes
	reserved := m.Allocated.Bytes + m.Unallocated.Bytes
	free := l.Free.Bytes
	switch {
	case asked > total:
		return Capacity
	case m.Allowed.Known && (asked > m.Allowed.Bytes || asked <= free && reserved+asked > m.Allowed.Bytes):
		return Limit
	case asked <= free && m.Allowed.Known:
		return Undecidable
	case asked <= free && free-asked >= max(total/50, 64<<20):
		return Limit
	}
	type remedy struct {
		v            Verdict
		gives, least int64 // of the card; from how much on it counts
		serves       int64 // beside what is free and unused
	}
	remedies := []remedy{{Fragmentation, m.Unallocated.Bytes, total / 20, 0}}
	if m.PrivatePools.Known {
		remedies = append(remedies, remedy{PrivatePool, m.PrivatePools.Bytes, total / 20, m.PrivatePools.Bytes})
	}
	const context = 3 * bytesize.GiB / 2
	switch {
	case m.Process.Known:
		others, outside := total-m.Process.Bytes-free, m.Process.Bytes-reserved-context
		remedies = append(remedies, remedy{OtherProcess, others, max(total/10, bytesize.GiB), others}, remedy{OutsideAllocator, outside, total / 20, outside})
	case l.Others.Known:
		remedies = append(remedies, remedy{OtherProcess, l.Others.Bytes, max(total/10, bytesize.GiB), l.Others.Bytes})
	default:
		// This process's context is in it.
		rest := total - reserved - free
		remedies = append(remedies, remedy{OtherProcess, rest, max(total/4, context), rest - context})
	}
	does := func(r remedy) bool { return r.gives >= r.least && asked <= m.Unallocated.Bytes+free+r.serves }
	best := remedy{v: Capacity}
	for _, r := range remedies {
		if does(r) && r.gives > best.gives {
			best = r
		}
	}
	// Holes first, unless others hold half of the card.
	if best.v == OtherProcess && best.gives < total/2 {
		for _, r := range remedies {
			if (r.v == Fragmentation || r.v == PrivatePool) && does(r) {
				return r.v
			}
		}
	}
	return best.v
}
