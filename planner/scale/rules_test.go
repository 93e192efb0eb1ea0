package scale

import (
	"context"
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
	"allocsim/policies/direct"
	"allocsim/sim"
	"allocsim/traces"
)

// tensors is a program of one tensor that stays and a library's scratch that
// comes and goes while it is there, of the sizes given by value.
func tensors(t testing.TB, stays, scratch int64) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(0)
	stream := b.Stream(0)
	b.Alloc(1, stays, stream, 0)
	b.Free(3, b.Alloc(2, scratch, stream, 0))
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func directSpec(t testing.TB) *policies.Spec {
	t.Helper()
	spec, err := direct.Registration.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestFitsByEnumeration: with requests that go straight to the driver each
// run has a smallest device on which it completes, so that what fits can be
// counted run by run, at every capacity that makes a difference.
//
// In the first world the scratch shrinks from one recording to the other, so
// that most of the runs need more than the laws' sizes; in the second it grows
// by a jump, and most need less.
func TestFitsByEnumeration(t *testing.T) {
	ctx := context.Background()
	for _, w := range []struct {
		name         string
		at, scratch  [2]int64 // values and sizes
		value        int64
		mostNeedLess bool
	}{
		{"shrinks", [2]int64{4, 8}, [2]int64{400e6, 300e6}, 16, false},
		{"jumps", [2]int64{4, 16}, [2]int64{100e6 + 7, 1300e6}, 15, true},
	} {
		const stays = 500e6 // for each unit of the value
		m, err := Fit(ctx, []Input{{w.at[0], tensors(t, w.at[0]*stays, w.scratch[0])}, {w.at[1], tensors(t, w.at[1]*stays, w.scratch[1])}}, Options{Vary: "batch"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.scenario(w.value)
		if err != nil {
			t.Fatal(err)
		}
		if !s.switches {
			t.Fatalf("%s: the library is not taken to choose an algorithm", w.name)
		}
		// needs is, by run, the smallest device on which it completes: the laws'
		// sizes first, then the twelve with varied ones.
		cfg := func(capacity int64) sim.Config {
			return sim.Config{Policy: directSpec(t), Machine: sim.Machine{Capacity: capacity}}
		}
		var needs, peaks []int64
		for seed := range uint64(1 + perturbedRuns) {
			tr := s.trace
			if seed > 0 {
				tr = s.perturbed(seed)
			}
			simulate := func(capacity int64) *sim.Result {
				r, err := sim.Run(ctx, tr, cfg(capacity))
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			peak := simulate(0).Stats.ReservedBytes[policies.All].Peak
			peaks = append(peaks, peak)
			const page = 2 << 20 // the driver's
			needs = append(needs, peak+int64(sort.Search(4*page, func(more int) bool {
				return simulate(peak+int64(more)).Stats.NumOOMs == 0
			})))
		}
		sorted := slices.Sorted(slices.Values(needs))
		if less := sorted[len(sorted)/2] < needs[0]; less != w.mostNeedLess {
			t.Fatalf("%s: the laws' sizes need %d of %v", w.name, needs[0], sorted)
		}
		for _, need := range sorted {
			for _, capacity := range []int64{need - 1, need} {
				completed := 0
				for _, n := range needs {
					if n <= capacity {
						completed++
					}
				}
				want := needs[0] <= capacity && 2*completed > len(needs)
				if got, err := m.fits(ctx, w.value, cfg(capacity), false); err != nil || got != want {
					t.Errorf("%s: %d bytes fit: %v, %v; %d of %d runs complete, the laws' sizes need %d", w.name, capacity, got, err, completed, len(needs), needs[0])
				}
			}
		}
		// Safe is what fits in every run on a device smaller by the 2 % that
		// measured predictions were off.
		most := slices.Max(needs)
		for capacity, want := range map[int64]bool{most: false, most * 101 / 100: false, most*102/100 + 100: true} {
			if got, err := m.fits(ctx, w.value, cfg(capacity), true); err != nil || got != want {
				t.Errorf("%s: %d bytes are safe: %v, %v; the runs need up to %d", w.name, capacity, got, err, most)
			}
		}

		// The prediction: the middle of the runs, and the range of all.
		p, err := m.Predict(ctx, w.value, cfg(sorted[3]))
		if err != nil {
			t.Fatal(err)
		}
		atMost := 0 // runs with varied addresses repeat the twelve
		for i, n := range needs {
			if n <= sorted[3] {
				atMost++
				if i > 0 {
					atMost++
				}
			}
		}
		if p.Runs != 1+perturbedRuns+orderRuns || p.RunsCompleted != atMost || p.Completed != (needs[0] <= sorted[3]) {
			t.Errorf("%s: %d of %d runs complete, want %d", w.name, p.RunsCompleted, p.Runs, atMost)
		}
		if p, err = m.Predict(ctx, w.value, cfg(0)); err != nil {
			t.Fatal(err)
		}
		slices.Sort(peaks)
		if p.ReservedPeak != peaks[6] {
			t.Errorf("%s: reserved %d, want the middle of %v", w.name, p.ReservedPeak, peaks)
		}
		low, high := float64(peaks[0])*0.98, float64(peaks[12])*1.02
		if math.Abs(float64(p.ReservedPeakLow)-low) > 1 || math.Abs(float64(p.ReservedPeakHigh)-high) > 1 {
			t.Errorf("%s: reserved %d to %d, want %.0f to %.0f", w.name, p.ReservedPeakLow, p.ReservedPeakHigh, low, high)
		}
	}
}

// TestSmaller: a share of what bounds the allocator, whichever that is; the
// device's own total stays, because a fraction is one of it.
func TestSmaller(t *testing.T) {
	half := smaller(sim.Config{Policy: directSpec(t), Machine: sim.Machine{Capacity: 1000, Limit: 600, Fraction: 0.5}}, 0.5)
	if half.Machine != (sim.Machine{Capacity: 500, Total: 1000, Limit: 300, Fraction: 0.25}) {
		t.Errorf("half of it is %+v", half.Machine)
	}
	if m := smaller(sim.Config{Policy: directSpec(t), Machine: sim.Machine{Capacity: 1000, Total: 1200}}, 0.5).Machine; m != (sim.Machine{Capacity: 500, Total: 1200}) {
		t.Errorf("half of a card with a total of its own is %+v", m)
	}
}

// TestSearch: the largest number that is ok, where all below it are.
func TestSearch(t *testing.T) {
	for lo := int64(1); lo < 5; lo++ {
		for hi := lo; hi < 9; hi++ {
			for limit := lo - 1; limit <= hi; limit++ {
				got, err := search(lo, hi, func(n int64) (bool, error) {
					if n < lo || n > hi {
						t.Errorf("%d is tried in %d to %d", n, lo, hi)
					}
					return n <= limit, nil
				})
				if err != nil || got != limit {
					t.Errorf("%d to %d: %d, %v; want %d", lo, hi, got, err, limit)
				}
			}
		}
	}
}

// TestLargestInARange: multiples of 8 in 9 to 30 are 16 and 24; a program of
// 1,000,000 bytes for each unit.
func TestLargestInARange(t *testing.T) {
	ctx := context.Background()
	m, err := Fit(ctx, []Input{{8, tensors(t, 8e6, 512)}, {16, tensors(t, 16e6, 512)}}, Options{Vary: "batch", Step: 8})
	if err != nil {
		t.Fatal(err)
	}
	for capacity, want := range map[int64][2]int64{15e6: {0, 16}, 20e6: {16, 24}, 28e6: {24, 0}} {
		l, err := m.Largest(ctx, sim.Config{Policy: directSpec(t), Machine: sim.Machine{Capacity: capacity}}, 9, 30)
		if err != nil || l.Value != want[0] || l.Next != want[1] || l.NextFails != (want[1] > 0) {
			t.Errorf("%d bytes: %+v, %v; want %d, then %d", capacity, l, err, want[0], want[1])
		}
	}
}

// TestAnswer: a program of 1,000,000 bytes for each unit, asked about 16 and 30
// on a device of 20,000,000 bytes, of which 18 fit (the driver takes whole
// granules of 2 MiB: 19 are 10 of them, 20,971,520 bytes).
func TestAnswer(t *testing.T) {
	ctx := context.Background()
	m, err := Fit(ctx, []Input{{8, tensors(t, 8e6, 512)}, {12, tensors(t, 12e6, 512)}}, Options{Vary: "batch"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := sim.Config{Policy: directSpec(t), Machine: sim.Machine{Capacity: 20e6}}
	var told []int64
	a, err := m.Answer(ctx, Question{Values: []int64{16, 30}, Config: cfg, Largest: true, Progress: func(done, total int64) { told = append(told, done, total) }})
	if err != nil {
		t.Fatal(err)
	}
	if a.Vary != "batch" || len(a.Predictions) != 2 || !a.Predictions[0].Completed || a.Predictions[1].Completed || a.Completes() || a.Aligned != 1 || len(a.Pairs) != 1 || a.Backtest == nil {
		t.Errorf("%+v", a)
	}
	if a.LargestFitting == nil || *a.LargestFitting != a.Largest.Value || a.Largest.Value < 16 || a.Largest.Value > 18 {
		t.Errorf("the largest is %+v", a.Largest)
	}
	if !slices.Equal(told, []int64{1, 2, 2, 2}) {
		t.Errorf("progress %v", told)
	}
	if a, err = m.Answer(ctx, Question{Values: []int64{16}, Config: cfg}); err != nil || !a.Completes() || a.Largest != nil || a.LargestFitting != nil {
		t.Errorf("16 alone: %+v, %v", a, err)
	}
}

// TestReference: the nearest recording in ratio, not in distance, and the
// larger of two equally near.
func TestReference(t *testing.T) {
	m := &Model{programs: []*program{{value: 4}, {value: 16}, {value: 64}}}
	m.partner = make([][][]int32, 3)
	for i := range m.partner {
		m.partner[i] = make([][]int32, 3)
	}
	for value, want := range map[int64]int64{1: 4, 4: 4, 7: 4, 8: 16, 9: 16, 16: 16, 31: 16, 32: 64, 40: 64, 1000: 64} {
		if got := m.programs[m.reference(value)].value; got != want {
			t.Errorf("%d: %d, want %d", value, got, want)
		}
	}
}

// TestPair: five allocations against four, of which three have partners.
func TestPair(t *testing.T) {
	m := &Model{programs: []*program{{value: 4}, {value: 8}}}
	pairs := []int32{0, -1, 1, -1, -1} // the third and fourth of b: one partner
	pairs[4] = 3
	m.partner = [][][]int32{{nil, pairs}, {invert(pairs, 4), nil}}
	if got, want := m.pair(0, 1), (Pair{From: 4, To: 8, Aligned: 0.6, UnmatchedFrom: 2, UnmatchedTo: 1, LongestRun: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	pairs = []int32{-1, -1, 0, -1, 1}
	m.partner = [][][]int32{{nil, pairs}, {invert(pairs, 3), nil}}
	if got, want := m.pair(0, 1), (Pair{From: 4, To: 8, Aligned: 0.4, UnmatchedFrom: 3, UnmatchedTo: 1, LongestRun: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestBacktestLeavesOut: sizes of 8 and 16 MB at 8 and 16 say 32 MB for 32,
// where 48 were recorded: a prediction without that recording is off by a
// third, one with it would not be off at all.
func TestBacktestLeavesOut(t *testing.T) {
	ctx := context.Background()
	m, err := Fit(ctx, []Input{{8, tensors(t, 8e6, 512)}, {16, tensors(t, 16e6, 512)}, {32, tensors(t, 48e6, 512)}}, Options{Vary: "batch"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Backtest(ctx, sim.Config{Policy: directSpec(t)})
	if err != nil {
		t.Fatal(err)
	}
	if !b.LeftOut || b.Value != 32 || math.Abs(b.AllocatedError()+1.0/3) > 0.01 || math.Abs(b.ReservedError()+1.0/3) > 0.1 {
		t.Errorf("%+v: allocated %+.3f, reserved %+.3f", b, b.AllocatedError(), b.ReservedError())
	}
}

// TestAlignmentByEnumeration tries every way to pair two short lists in order.
func TestAlignmentByEnumeration(t *testing.T) {
	draw := func(t *rapid.T, name string, sizes []int64) []alloc {
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) alloc {
			return alloc{
				size: rapid.SampledFrom(sizes).Draw(t, "size"), life: rapid.SampledFrom([]int32{0, 1, 3, 40, forever}).Draw(t, "life"),
				stream: uint16(rapid.IntRange(0, 1).Draw(t, "stream")), site: uint32(rapid.IntRange(0, 1).Draw(t, "site")),
			}
		}), 1, 6).Draw(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := ratio{from: 2, to: rapid.SampledFrom([]int64{3, 4, 8}).Draw(t, "to"), length: rapid.Bool().Draw(t, "length")}
		a := draw(t, "a", []int64{512, 1024, 4096, 1 << 20})
		b := draw(t, "b", []int64{512, 1024, 1536, 2048, 4096, 16384, 1 << 20, 3 << 19, 2 << 20, 4 << 20})
		score := func(i, j int) int32 { return r.scoreClasses(a[i].class(), b[j].class()) }
		var best func(i, j int) int32 // of a[i:] and b[j:]
		best = func(i, j int) int32 {
			if i == len(a) || j == len(b) {
				return gapScore * int32(len(a)-i+len(b)-j)
			}
			most := max(best(i+1, j), best(i, j+1)) + gapScore
			if s := score(i, j); s != never {
				most = max(most, s+best(i+1, j+1))
			}
			return most
		}
		pairs, err := align(context.Background(), a, b, r)
		if err != nil {
			t.Fatal(err)
		}
		got, last, paired := int32(0), int32(-1), 0
		for i, j := range pairs {
			if j < 0 {
				continue
			}
			if j <= last || a[i].stream != b[j].stream || a[i].site != b[j].site {
				t.Fatalf("pairs %v of %v and %v", pairs, a, b)
			}
			got += score(i, int(j))
			last = j
			paired++
		}
		got += gapScore * int32(len(a)+len(b)-2*paired)
		if want := best(0, 0); got != want {
			t.Fatalf("%v scores %d, the best pairing of %v and %v %d", pairs, got, a, b, want)
		}
	})
}

// TestScores: how two sizes at 4 and 8 look alike (spec scaling 3.2).
func TestScores(t *testing.T) {
	batch, length := ratio{from: 4, to: 8}, ratio{from: 4, to: 8, length: true}
	for _, c := range []struct {
		a, b          int64
		batch, length int32
	}{
		{1000, 1000, 3000, 3000}, // constant
		{1000, 2000, 3000, 3000}, // proportional
		{1000, 4000, 300, 2500},  // the square
		{1000, 1400, 2000, 2000}, // 100 for each unit
		{1000, 1401, 1000, 1000}, // in between, no whole slope
		{1000, 3000, 300, 300},   // steeper than proportional
		{1000, 4001, -700, -700}, // steeper than the square
		{1000, 999, -700, -700},  // shrinks
	} {
		if got := batch.score(c.a, c.b); got != c.batch {
			t.Errorf("%d to %d scores %d for a batch, want %d", c.a, c.b, got, c.batch)
		}
		if got := length.score(c.a, c.b); got != c.length {
			t.Errorf("%d to %d scores %d for a length, want %d", c.a, c.b, got, c.length)
		}
	}
	same := class{size: 1 << 20, life: 3}
	for _, c := range []struct {
		b    class
		want int32
	}{
		// 2^20 is eleven doublings above 2^9, but counted from 21 bits: 21 - 10
		// + 10 tenths.
		{same, (3000 + 500) * 21 / 10},
		{class{size: 1 << 20, life: 5}, (3000 + 500 - 2*250) * 21 / 10},
		{class{size: 1 << 20, life: 3, stream: 1}, never},
		{class{size: 1 << 20, life: 3, pool: 1}, never},
		{class{size: 1 << 20, life: 3, site: 1}, never},
	} {
		if got := batch.scoreClasses(same, c.b); got != c.want {
			t.Errorf("%+v scores %d, want %d", c.b, got, c.want)
		}
	}
}

// TestLawsByHand: sizes in bytes at the values recorded, and what they say for
// another (spec scaling 3.3).
func TestLawsByHand(t *testing.T) {
	for _, c := range []struct {
		name          string
		ps            []point
		x             int64
		short, length bool
		size          int64
		law           Law
		low, high     float64
	}{
		{"constant", []point{{4, 700}, {8, 700}}, 99, false, false, 700, Constant, 1, 1},
		{"proportional", []point{{3, 300}, {5, 500}}, 7, false, false, 700, Proportional, 1, 1},
		{"rounded to the nearest", []point{{2, 3}, {4, 6}}, 3, false, false, 5, Proportional, 1, 1}, // 4.5
		{"square", []point{{4, 160}, {8, 640}}, 10, false, true, 1000, Square, 1, 1},
		{"no square of a batch", []point{{4, 160}, {8, 640}}, 16, false, false, 1280, Steep, 0.8, 1.5},
		{"one more", []point{{4, 500}, {8, 900}}, 16, false, false, 1700, Affine, 1, 1},
		{"one less", []point{{4, 300}, {8, 700}}, 16, false, false, 1500, Affine, 1, 1},
		{"eight less", []point{{16, 800}, {32, 2400}}, 64, false, false, 5600, Affine, 1, 1},
		{"nine less is chance", []point{{16, 700}, {32, 2300}}, 64, false, false, 4600, Steep, 0.8, 1.5},
		{"affine below", []point{{4, 1001}, {8, 1401}, {16, 2201}}, 2, false, false, 801, Affine, 1, 1},
		{"affine above", []point{{4, 1001}, {8, 1401}, {16, 2201}}, 32, false, false, 3801, Affine, 1, 1},
		{"affine scratch", []point{{4, 1001}, {8, 1401}, {16, 2201}}, 32, true, false, 3801, Affine, 0.95, 1.25},
		{"quadratic", []point{{1, 6}, {2, 11}, {3, 18}}, 10, false, true, 123, Quadratic, 1, 1}, // x² + 2x + 3
		{"saturated", []point{{4, 500}, {8, 1000}, {16, 1000}}, 32, false, false, 1000, Saturated, 1, 1},
		{"line", []point{{4, 1000}, {8, 1501}}, 16, false, false, 2503, Line, 1, 1},
		{"line of scratch", []point{{4, 1000}, {8, 1501}}, 16, true, false, 2503, Line, 0.95, 1.25},
		{"slightly steep", []point{{4, 1000}, {8, 2101}}, 16, false, false, 4303, Line, 0.95, 1.25},
		{"steep", []point{{4, 1000}, {8, 2201}}, 16, false, false, 4402, Steep, 0.8, 1.5},
		{"shrinks", []point{{4, 1000}, {8, 900}}, 16, false, false, 900, Kept, 0.8, 1.5},
		{"a jump in between", []point{{4, 1002}, {8, 3004}}, 6, false, false, 2003, Line, 1002.0 / 2003, 3004.0 / 2003},
		// (10 + 3×10.02498)²: three times as far from 4 as 8 is.
		{"root", []point{{4, 100}, {8, 401}}, 16, false, true, 1606, Root, 1 - 0.04*math.Ln2, 1 + 0.04*math.Ln2},
	} {
		f := fitSizes(c.ps, c.x, c.short, c.length)
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if f.size != c.size || f.law != c.law || !near(f.low, c.low) || !near(f.high, c.high) {
			t.Errorf("%s: %d %s ×%g…%g, want %d %s ×%g…%g", c.name, f.size, f.law, f.low, f.high, c.size, c.law, c.low, c.high)
		}
	}
	// In one recording only: small is constant, else anything up to
	// proportional.
	m := new(Model)
	if f := m.fitPoints([]point{{8, 4096}}, 32, false); f.size != 4096 || !f.certain() {
		t.Errorf("4 KiB alone: %+v", f)
	}
	if f := m.fitPoints([]point{{8, 4097}}, 32, false); f.size != 4*4097 || f.low != 0.25 || f.high != 1 {
		t.Errorf("more alone: %+v", f)
	}
}

// TestFactors: a group of sizes gets one factor a run, all of them in the
// range, and about a quarter at each of its ends.
func TestFactors(t *testing.T) {
	const runs = 4000
	atLow, atHigh := 0, 0
	for seed := range uint64(runs) {
		a, b, c := fit{low: 0.8, high: 1.5, group: 7}, fit{low: 0.8, high: 1.5, group: 7}, fit{low: 0.8, high: 1.5, group: 8}
		x := a.factor(seed + 1)
		if x < 0.8 || x > 1.5 || x != b.factor(seed+1) {
			t.Fatalf("run %d: %g and %g", seed, x, b.factor(seed+1))
		}
		if x != 0.8 && x != 1.5 && x == c.factor(seed+1) {
			t.Fatalf("run %d: two groups go together", seed)
		}
		if x == 0.8 {
			atLow++
		}
		if x == 1.5 {
			atHigh++
		}
	}
	for _, n := range []int{atLow, atHigh} {
		if n < runs*22/100 || n > runs*28/100 {
			t.Errorf("%d and %d of %d draws are at the ends, want a quarter each", atLow, atHigh, runs)
		}
	}
}

// TestPeakOfSmallWorlds adds up the requested bytes after every event of small
// programs from scratch.
func TestPeakOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "allocations")
		type block struct {
			a, b       int64 // a·x + b bytes
			born, free int   // steps
		}
		blocks := make([]block, n)
		for i := range blocks {
			blocks[i] = block{a: rapid.Int64Range(0, 5).Draw(t, "slope") * 1000, b: rapid.Int64Range(0, 5).Draw(t, "constant") * 10000, born: i, free: i + rapid.IntRange(1, n).Draw(t, "life")}
			if blocks[i].a+blocks[i].b == 0 {
				blocks[i].b = 512
			}
		}
		blocks[0].a, blocks[0].b = 7000, 0 // something varies
		build := func(x int64) *traces.Trace {
			b := traces.NewBuilder(0)
			stream := b.Stream(0)
			ids := make([]traces.BlockID, n)
			for step := range 2*n + 1 {
				for i, k := range blocks {
					if k.free == step {
						b.Free(int64(step), ids[i])
					}
				}
				if step < n {
					ids[step] = b.Alloc(int64(step), blocks[step].a*x+blocks[step].b, stream, 0)
				}
			}
			tr, _, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			return tr
		}
		peakAt := func(x int64) (peak int64, at int) {
			for step := range n {
				var live int64
				for _, k := range blocks {
					if k.born <= step && step < k.free {
						live += k.a*x + k.b
					}
				}
				if live > peak {
					peak, at = live, step
				}
			}
			return peak, at
		}
		m, err := Fit(context.Background(), []Input{{4, build(4)}, {6, build(6)}, {10, build(10)}}, Options{Vary: "batch"})
		if err != nil || m.Aligned() < 1 {
			t.Skip("two operations look alike")
		}
		x := rapid.SampledFrom([]int64{1, 8, 30}).Draw(t, "x")
		s, err := m.scenario(x)
		if err != nil {
			t.Fatal(err)
		}
		for i := range blocks {
			if s.fits[i].size != blocks[i].a*x+blocks[i].b {
				t.Skip("two operations look alike")
			}
		}
		peak, at := peakAt(x)
		_, recordedAt := peakAt(m.programs[s.ref].value)
		var byLaw int64
		for _, bytes := range s.peak.byLaw {
			byLaw += bytes
		}
		if s.peak.bytes != peak || byLaw != peak || s.peak.moved != (at != recordedAt) || s.trace.Events[s.peak.event].TimeUS != int64(at) {
			t.Fatalf("at %d: %+v; want %d after step %d, recorded after step %d, of %+v", x, s.peak, peak, at, recordedAt, blocks)
		}
	})
}

// TestRangeOfTheAnswer: what a value below, far above or less round than the
// recordings adds to the bars and the notes.
func TestRangeOfTheAnswer(t *testing.T) {
	programs := []*program{{value: 8, allocs: make([]alloc, 1)}, {value: 16, allocs: make([]alloc, 1)}}
	for _, c := range []struct {
		vary  string
		value int64
		want  widths
		notes int
	}{
		{"batch", 16, widths{}, 0},
		{"batch", 12, widths{}, 0}, // counts need not be round
		{"batch", 256, widths{}, 0},
		{"batch", 257, widths{}, 1},
		{"batch", 4, widths{0.01, 0.03}, 1},
		{"seq", 24, widths{}, 0},
		{"seq", 20, widths{0.05, 0.05}, 1},
		{"seq", 4, widths{0.01 + 0.05, 0.03 + 0.05}, 2},
	} {
		m := &Model{opt: Options{Vary: c.vary}, programs: programs, grid: grid{132, 2048}}
		s := &scenario{value: c.value}
		m.rangeNotes(s)
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if got := m.extraBar(c.value); !near(got.allocated, c.want.allocated) || !near(got.reserved, c.want.reserved) || len(s.notes) != c.notes {
			t.Errorf("%s %d: %+v with %q, want %+v with %d notes", c.vary, c.value, got, s.notes, c.want, c.notes)
		}
	}
}

// TestLives: how many allocations were made while one was alive, from when it
// was given back.
func TestLives(t *testing.T) {
	b := traces.NewBuilder(0)
	s, other := b.Stream(0x10), b.Stream(0)
	first := b.Alloc(1, 1, other, 0)
	second := b.Alloc(2, 2, s, 0)
	b.Free(3, b.Alloc(3, 3, s, 0))
	b.FreeRequested(4, first)
	b.Alloc(5, 4, s, 0)
	b.FreeCompleted(6, first)
	b.Free(7, second)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	p, err := reduce(Input{Value: 1, Trace: tr}, &sites{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int32{2, 2, 0, forever} {
		if p.allocs[i].life != want {
			t.Errorf("allocation %d lives for %d others, want %d", i, p.allocs[i].life, want)
		}
	}
	// Streams are numbered by first use: handles differ from process to
	// process.
	if p.allocs[0].stream != 0 || p.allocs[1].stream != 1 {
		t.Errorf("streams %d and %d", p.allocs[0].stream, p.allocs[1].stream)
	}
}

// TestThreadsPerSM: CUDA programming guide, table of compute capabilities.
func TestThreadsPerSM(t *testing.T) {
	for device, want := range map[string]grid{
		"NVIDIA H200": {132, 2048}, "NVIDIA A100-SXM4-80GB": {108, 2048}, "NVIDIA GeForce RTX 3090": {82, 1536},
		"NVIDIA GeForce RTX 4090": {128, 1536}, "Tesla T4": {40, 1024}, "Tesla V100-SXM2-32GB": {80, 2048},
		"a card that nobody makes": {},
	} {
		p := []*program{{trace: &traces.Trace{Meta: traces.Meta{DeviceName: device}}}}
		if got := gridOf(Options{}, p); got != want {
			t.Errorf("%s: %+v, want %+v", device, got, want)
		}
		if got := gridOf(Options{SMs: 10, ThreadsPerSM: 512}, p); got != (grid{10, 512}) {
			t.Errorf("%s: what the user says is %+v", device, got)
		}
	}
}
