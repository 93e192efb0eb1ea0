package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
	"allocsim/traces/snapshot/snapshottest"
)

// TestConsistency asks every command about every bundled recording, whole and
// cut to the end of its history, on devices from the bound to the peak, and
// demands that no two answers contradict each other and none contradicts the
// whole recording. The relations stand in docs/accuracy.md.
//
// By default only some recordings are asked about; ALLOCSIM_LONG=1 takes all but
// the longest at three sizes, ALLOCSIM_LONG=2 all at ten.
//
// The searches are given small budgets: what they find differs then, but not
// whether the commands agree on it.
func TestConsistency(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "recordings", "*.pickle.zst"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no bundled recordings: %v", err)
	}
	// The whole takes half an hour, so it is for those who ask for it.
	sizes, every, longest := 3, 6, 6_000
	switch os.Getenv("ALLOCSIM_LONG") {
	case "":
	case "1":
		every, longest = 1, 12_000
	default:
		sizes, every, longest = 10, 1, math.MaxInt
	}
	for k, f := range files {
		tr := formatstest.Load(t, f)
		switch {
		case len(tr.Pools) > 1 || tr.Start != nil || len(tr.Events) == 0:
			continue // private pools are not written back; cut already
		case k%every != 0, len(tr.Events) > longest:
			continue
		}
		name := strings.TrimSuffix(filepath.Base(f), ".pickle.zst")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &suite{t: t, dir: t.TempDir(), sidecar: strings.TrimSuffix(f, ".pickle.zst") + ".json"}
			whole := s.write("whole", tr, -1)
			truth := s.replay(whole)
			s.exact(whole)
			_, entries := snapshottest.Cut(tr, -1)
			bound, peak := truth.Bound, truth.Stats["reserved_bytes.all.peak"]
			for i := range sizes {
				size := bound + (peak-bound)*int64(i)/int64(max(sizes-1, 1))
				if i == 0 {
					size = bound - 1
				}
				s.agree(whole, max(size, 4<<20))
			}
			for _, n := range []int{10, 1000, entries / 2, entries * 9 / 10} {
				if n >= entries || n < 2 {
					continue
				}
				cut := s.write(fmt.Sprint("last", n), tr, n)
				s.window(cut, tr, truth)
				for i, steps := 0, max(sizes/3, 1); i <= steps; i++ {
					s.cutAgrees(cut, whole, max(bound+(peak-bound)*int64(i)/int64(steps), 4<<20))
				}
			}
		})
	}
}

// suite is the commands' answers about the forms of one recording.
type suite struct {
	t       *testing.T
	dir     string
	sidecar string
	plans   map[string]planDoc
}

type replayDoc struct {
	Completed bool             `json:"completed"`
	Bound     int64            `json:"bound"`
	Stats     map[string]int64 `json:"stats"`
}

type tuneDoc struct {
	Verdict  string `json:"verdict"`
	Export   string `json:"export"`
	Bound    int64  `json:"bound"`
	Baseline struct {
		Completed    bool  `json:"completed"`
		ReservedPeak int64 `json:"reserved_peak"`
		NumOOMs      int64 `json:"num_ooms"`
	} `json:"baseline"`
	Evidence struct {
		Missing []string `json:"missing"`
	} `json:"evidence"`
	code int
}

type planDoc struct {
	Min struct {
		Bound, Baseline, Best int64
		Safe                  int64 `json:"baseline_safe"`
	} `json:"min_capacity"`
	GPUs []struct {
		Verdict, Reason string
		WithBaseline    string `json:"with_baseline"`
	} `json:"gpus"`
	code int
}

// write makes the file of the last n entries, with the sidecar if there is one.
func (s *suite) write(name string, tr *traces.Trace, n int) string {
	s.t.Helper()
	data, _ := snapshottest.Cut(tr, n)
	path := filepath.Join(s.dir, name+".pickle")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if side, err := os.ReadFile(s.sidecar); err == nil {
		if err := os.WriteFile(filepath.Join(s.dir, name+".json"), side, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return path
}

// ask runs a command with --json and reads its answer.
func (s *suite) ask(doc any, args ...string) int {
	s.t.Helper()
	out, errs, code := execute(s.t, "", append(args, "--json")...)
	if code > 1 {
		s.t.Fatalf("allocsim %s: exit code %d: %s", strings.Join(args, " "), code, errs)
	}
	if err := json.Unmarshal([]byte(out), doc); err != nil {
		s.t.Fatalf("allocsim %s: %v", strings.Join(args, " "), err)
	}
	return code
}

func (s *suite) replay(path string, more ...string) (d replayDoc) {
	s.t.Helper()
	s.ask(&d, append([]string{"replay", path}, more...)...)
	return d
}

func (s *suite) tune(path, size string) (d tuneDoc) {
	s.t.Helper()
	d.code = s.ask(&d, "tune", path, "--capacity", size, "--budget", "24")
	return d
}

func (s *suite) plan(path, size string) (d planDoc) {
	s.t.Helper()
	if p, ok := s.plans[path+size]; ok {
		return p
	}
	d.code = s.ask(&d, "plan", path, "--capacity", size, "--budget", "24")
	if s.plans == nil {
		s.plans = make(map[string]planDoc)
	}
	s.plans[path+size] = d
	return d
}

// exact: what was written back is the recording.
func (s *suite) exact(path string) {
	s.t.Helper()
	var d struct {
		Exact bool `json:"exact"`
	}
	if code := s.ask(&d, "check", path); !d.Exact || code != 0 {
		s.t.Errorf("check: the recording written back is not exact")
	}
}

// agree holds the relations between commands on a whole recording.
func (s *suite) agree(path string, size int64) {
	s.t.Helper()
	c := fmt.Sprint(size)
	r := s.replay(path, "--capacity", c)
	tu := s.tune(path, c)
	p := s.plan(path, c)
	var cmp struct {
		Bound   int64
		Results []replayDoc
	}
	s.ask(&cmp, "compare", path, "--capacity", c)
	say := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf("%s in %d bytes: %s", filepath.Base(path), size, fmt.Sprintf(format, args...))
	}
	works := r.Completed && r.Stats["num_ooms"] == 0
	peak := r.Stats["reserved_bytes.all.peak"]
	if got := cmp.Results[0]; got.Completed != r.Completed || got.Stats["reserved_bytes.all.peak"] != peak {
		say("compare says %v, %d; replay %v, %d", got.Completed, got.Stats["reserved_bytes.all.peak"], r.Completed, peak)
	}
	if b := tu.Baseline; b.Completed != r.Completed || b.ReservedPeak != peak || b.NumOOMs != r.Stats["num_ooms"] {
		say("tune's present setting: %+v; replay %v, %d, %d OOMs", b, r.Completed, peak, r.Stats["num_ooms"])
	}
	if tu.Bound != r.Bound || cmp.Bound != r.Bound || p.Min.Bound != r.Bound {
		say("bounds: tune %d, replay %d, compare %d", tu.Bound, r.Bound, cmp.Bound)
	}
	g := p.GPUs[0]
	if now := g.WithBaseline == "fits" || g.WithBaseline == "tight"; g.WithBaseline != "undecidable" && now != works {
		say("plan says %s for the present setting, replay that it works: %v", g.WithBaseline, works)
	}
	yes := g.Verdict == "fits" || g.Verdict == "tight"
	if yes != (p.code == 0) || yes != (tu.code == 0) {
		say("plan says %s (exit code %d: %s), tune %s (exit code %d)", g.Verdict, p.code, g.Reason, tu.Verdict, tu.code)
	}
	if size < p.Min.Bound && (g.Verdict != "no" || tu.Verdict != "cannot-fit") {
		say("below the bound of %d plan says %s, tune %s", p.Min.Bound, g.Verdict, tu.Verdict)
	}
	if works && size >= p.Min.Safe && size < p.Min.Baseline {
		say("safe from %d on, but needs %d", p.Min.Safe, p.Min.Baseline)
	}
	if !works && size >= p.Min.Safe && g.WithBaseline != "undecidable" {
		say("safe from %d on, but replay fails", p.Min.Safe)
	}
	if works && size < p.Min.Baseline/(2<<20)*(2<<20) {
		say("needs %d, but replay works", p.Min.Baseline)
	}
	_, _, code := execute(s.t, "", "replay", path, "--capacity", c, "--fail-on", "ooms>0", "-q")
	if (code == 1) != (r.Stats["num_ooms"] > 0) {
		say("--fail-on ooms>0 ends with %d, replay has %d OOMs", code, r.Stats["num_ooms"])
	}
}

// window: a replay of a cut recording under the recorded setting reserves in
// its window what really was reserved there.
func (s *suite) window(path string, tr *traces.Trace, truth replayDoc) {
	s.t.Helper()
	r := s.replay(path)
	most := int64(0)
	var held int64
	_, entries := snapshottest.Cut(tr, -1)
	var last int
	fmt.Sscanf(filepath.Base(path), "last%d", &last)
	_ = entries
	for _, h := range heldIn(tr, last) {
		held = h
		most = max(most, held)
	}
	if got := r.Stats["reserved_bytes.all.peak"]; got != most {
		s.t.Errorf("%s: %d bytes reserved in the window, recorded were %d", filepath.Base(path), got, most)
	}
	if all := truth.Stats["reserved_bytes.all.peak"]; most > all {
		s.t.Fatalf("the window reserves more than the run: %d, %d", most, all)
	}
}

// heldIn is what the recorded allocator held from the time on at which the last
// n entries of its history begin: first what it held then.
func heldIn(tr *traces.Trace, n int) []int64 {
	// Entries are those of snapshottest.Cut: two for a free that completes at
	// once, none for an empty_cache.
	var held []int64
	var now int64
	driver := tr.Recorded.Driver
	step := func(entries int) {
		for range entries {
			held = append(held, now)
		}
	}
	before := func(k int) {
		for ; len(driver) > 0 && int(driver[0].Before) <= k; driver = driver[1:] {
			switch d := driver[0]; d.Action {
			case traces.SegmentAlloc, traces.SegmentMap:
				now += d.Size
			default:
				now -= d.Size
			}
			step(1)
		}
	}
	for k, e := range tr.Events {
		if e.Kind != traces.EmptyCache {
			before(k)
		}
		switch e.Kind {
		case traces.Free:
			step(2)
		case traces.EmptyCache, traces.ReleasePool:
		default:
			step(1)
		}
	}
	before(math.MaxInt)
	start := int64(0)
	if len(held) > n {
		start = held[len(held)-n-1]
		held = held[len(held)-n:]
	}
	return slices.Insert(held, 0, start)
}

// cutAgrees: nothing is said of a part of a recording that the whole
// contradicts.
func (s *suite) cutAgrees(cut, whole string, size int64) {
	s.t.Helper()
	c := fmt.Sprint(size)
	p, truth := s.plan(cut, c), s.plan(whole, c)
	g, want := p.GPUs[0], truth.GPUs[0]
	if g.Verdict == "fits" && want.Verdict == "no" || g.Verdict == "no" && want.Verdict != "no" {
		s.t.Errorf("%s in %d bytes: %s (%s), but the whole recording says %s", filepath.Base(cut), size, g.Verdict, g.Reason, want.Verdict)
	}
	tu := s.tune(cut, c)
	if tu.Export != "" || tu.code == 0 || len(tu.Evidence.Missing) == 0 {
		s.t.Errorf("%s in %d bytes: tune says %s, %q, exit code %d, missing %q", filepath.Base(cut), size, tu.Verdict, tu.Export, tu.code, tu.Evidence.Missing)
	}
	if (tu.Verdict == "cannot-fit") != (g.Verdict == "no") {
		s.t.Errorf("%s in %d bytes: tune says %s, plan %s", filepath.Base(cut), size, tu.Verdict, g.Verdict)
	}
}
