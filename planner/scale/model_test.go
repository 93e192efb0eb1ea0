package scale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/sim"
	"allocsim/traces"
)

func torchSpec(t testing.TB, options string) *policies.Spec {
	spec, err := torch.Registration.Parse(options)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// trainer writes the requests of a small training run, in the way of PyTorch:
// parameters, then in each step activations, a loss, a backward pass with
// gradients and the buffers of reductions, and an optimizer with state from
// the first step on.
type trainer struct {
	batch, tokens, hidden, layers, steps, accumulate int64
	grid                                             grid
}

func (c trainer) trace(t testing.TB) *traces.Trace {
	b := traces.NewBuilder(0)
	b.Stream(0)
	now := int64(0)
	alloc := func(size int64) traces.BlockID { now++; return b.Alloc(now, size, 0, 0) }
	free := func(id traces.BlockID) { now++; b.Free(now, id) }
	rows := c.batch * c.tokens
	var state, params []int64
	for range c.layers {
		params = append(params, 2*c.hidden*c.hidden, 2*c.hidden)
	}
	for _, p := range params {
		alloc(p)
	}
	for range c.steps {
		var grads []traces.BlockID
		for range c.accumulate {
			var saved []traces.BlockID
			input := alloc(8 * rows)
			for range c.layers {
				free(alloc(2*rows*c.hidden + 4096))
				saved = append(saved, alloc(2*rows*c.hidden), alloc(4*c.batch*(c.tokens+1)))
			}
			loss := alloc(4)
			for i := len(saved) - 2; i >= 0; i -= 2 {
				if len(grads) < len(params) {
					grads = append(grads, alloc(params[i]), alloc(params[i+1]))
				}
				grad := alloc(2 * rows * c.hidden)
				r := reduction{columns: c.hidden, unit: 4 * c.hidden * 128, grid: ceilDiv(c.hidden, 128), by: 4}
				if n := r.blocksFor(rows, c.grid.cap(r)); n > 0 {
					buffer, sem := alloc(n*r.unit), alloc(4*r.grid)
					free(sem)
					free(buffer)
				}
				free(saved[i])
				free(saved[i+1])
				free(grad)
			}
			free(loss)
			free(input)
		}
		if state == nil {
			for _, p := range params {
				alloc(2 * p)
				alloc(2 * p)
			}
			state = params
		}
		for _, g := range grads {
			free(g)
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = fmt.Sprintf("batch%d", c.batch)
	tr.Meta.DeviceName = "NVIDIA H200"
	return tr
}

func bert(batch int64) trainer {
	return trainer{batch: batch, tokens: 197, hidden: 768, layers: 6, steps: 3, accumulate: 1, grid: grid{132, 2048}}
}

func fitBatches(t testing.TB, opt Options, program func(int64) trainer, values ...int64) (*Model, error) {
	var in []Input
	for _, v := range values {
		in = append(in, Input{v, program(v).trace(t)})
	}
	return Fit(context.Background(), in, opt)
}

// TestOddValues: the generated trace is the program's own, request by request,
// at values far from and unlike those recorded.
func TestOddValues(t *testing.T) {
	for _, values := range [][]int64{{5, 11}, {11, 5}, {7, 12, 19}, {16, 32}} {
		m, err := fitBatches(t, Options{Vary: "batch"}, bert, values...)
		if err != nil {
			t.Fatal(err)
		}
		if m.Aligned() < 0.8 {
			t.Errorf("%v: aligned %.3f", values, m.Aligned())
		}
		for _, x := range []int64{6, 37, 64, 129} {
			tr, _, err := m.Generate(x)
			if err != nil {
				t.Errorf("%v at %d: %v", values, x, err)
				continue
			}
			want := bert(x).trace(t)
			sizes := func(tr *traces.Trace) (out []int64) {
				for _, e := range tr.Events {
					out = append(out, e.Size)
				}
				return out
			}
			if diff := cmp.Diff(sizes(want), sizes(tr)); diff != "" {
				t.Errorf("%v at %d: %s", values, x, diff[:min(len(diff), 600)])
			}
			p, err := m.Predict(context.Background(), x, sim.Config{Policy: torchSpec(t, "")})
			if err != nil {
				t.Fatal(err)
			}
			truth, err := sim.Run(context.Background(), want, sim.Config{Policy: torchSpec(t, "")})
			if err != nil {
				t.Fatal(err)
			}
			if a := truth.Stats.AllocatedBytes[policies.All].Peak; p.AllocatedPeak != a {
				t.Errorf("%v at %d: allocated %d, want %d", values, x, p.AllocatedPeak, a)
			}
			if r := truth.Stats.ReservedBytes[policies.All].Peak; r < p.ReservedPeakLow || r > p.ReservedPeakHigh {
				t.Errorf("%v at %d: reserved %d…%d, want %d", values, x, p.ReservedPeakLow, p.ReservedPeakHigh, r)
			}
		}
	}
}

// TestRecordedValue: at a value that was recorded the recording comes back.
func TestRecordedValue(t *testing.T) {
	m, err := fitBatches(t, Options{}, bert, 4, 8, 16)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range m.Values() {
		tr, _, err := m.Generate(x)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(bert(x).trace(t).Events, tr.Events); diff != "" {
			t.Errorf("%d: %s", x, diff)
		}
	}
}

// TestRandomPrograms: any program whose sizes follow exact laws is generated
// to the byte.
func TestRandomPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type template struct {
			constant, slope int64
			life            int
		}
		ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) template {
			o := template{life: rapid.IntRange(0, 12).Draw(t, "life")}
			if rapid.Bool().Draw(t, "constant?") {
				o.constant = 512 * rapid.Int64Range(1, 1<<14).Draw(t, "constant")
			} else {
				o.slope = rapid.Int64Range(1, 1<<20).Draw(t, "slope")
			}
			return o
		}), 1, 60).Draw(t, "operations")
		ops[0].constant, ops[0].slope = 0, max(ops[0].slope, 1) // something varies
		build := func(x int64) *traces.Trace {
			b := traces.NewBuilder(0)
			due := map[int][]traces.BlockID{}
			for i, o := range ops {
				id := b.Alloc(int64(i), o.constant+o.slope*x, b.Stream(uint64(i%2)), 0)
				due[i+o.life] = append(due[i+o.life], id)
				for _, f := range due[i] {
					b.Free(int64(i), f)
				}
			}
			tr, _, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			return tr
		}
		values := rapid.SliceOfNDistinct(rapid.Int64Range(1, 300), 2, 3, rapid.ID).Draw(t, "values")
		x := rapid.Int64Range(1, 1000).Draw(t, "x")
		var in []Input
		for _, v := range values {
			in = append(in, Input{v, build(v)})
		}
		m, err := Fit(context.Background(), in, Options{Vary: "batch"})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := m.Generate(x)
		if err != nil {
			t.Fatal(err)
		}
		if m.Aligned() < 1 {
			t.Skip("two operations look alike at these values") // no law can tell them apart
		}
		if diff := cmp.Diff(build(x).Events, got.Events); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestRefusals: each answer that cannot be given is refused with its reason.
func TestRefusals(t *testing.T) {
	steps := func(n int64) trainer {
		c := bert(8)
		c.accumulate, c.layers = n, 24
		return c
	}
	broken := func(change func(*traces.Trace)) []Input {
		in := []Input{{4, bert(4).trace(t)}, {8, bert(8).trace(t)}}
		change(in[1].Trace)
		return in
	}
	var accumulation []Input
	for _, n := range []int64{1, 2} {
		accumulation = append(accumulation, Input{n, steps(n).trace(t)})
	}
	var long []Input
	for _, n := range []int64{7, 8} {
		c := bert(8)
		c.layers, c.steps, c.accumulate = 24, 20, n
		long = append(long, Input{n, c.trace(t)})
	}
	var small []Input
	for _, n := range []int64{2, 3} {
		c := bert(8)
		c.layers, c.steps = 1, n
		small = append(small, Input{n, c.trace(t)})
	}
	oom := traces.NewBuilder(0)
	oom.OOM(0, 512, oom.Stream(0), 0)
	failed, _, _ := oom.Build()
	for _, c := range []struct {
		name, want string
		in         []Input
		refusal    bool
	}{
		{"one", "at least two recordings", accumulation[:1], false},
		{"twice", "two recordings at 4", []Input{{4, bert(4).trace(t)}, {4, bert(4).trace(t)}}, false},
		{"zero", "must be positive", []Input{{0, bert(4).trace(t)}, {4, bert(4).trace(t)}}, false},
		{"accumulation", "how often something runs", accumulation, true},
		{"accumulation of a long program", "how often something runs", long, true},
		{"steps of a small program", "how often something runs", small, true},
		{"start", "does not start at the program's start", broken(func(tr *traces.Trace) { tr.StartEvents = 1 }), true},
		{"oom", "ran out of memory", []Input{{4, bert(4).trace(t)}, {8, failed}}, true},
		{"one recording at two values", "between the recordings at 16 and 32, none varies in size", []Input{{16, bert(8).trace(t)}, {32, bert(8).trace(t)}}, true},
		{"one of three twice", "between the recordings at 16 and 32, none varies in size", []Input{{8, bert(8).trace(t)}, {16, bert(16).trace(t)}, {32, bert(16).trace(t)}}, true},
		{"empty", "has no allocations", broken(func(tr *traces.Trace) { tr.Events = nil }), true},
	} {
		_, err := Fit(context.Background(), c.in, Options{Vary: "batch"})
		var r *Refusal
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &r) != c.refusal {
			t.Errorf("%s: %v", c.name, err)
		}
	}

	conf := broken(func(tr *traces.Trace) { tr.Meta.ConfKnown, tr.Meta.Conf = true, "expandable_segments:True" })
	conf[0].Trace.Meta.ConfKnown = true
	m, err := Fit(context.Background(), conf, Options{Vary: "batch"})
	if err != nil || !strings.Contains(strings.Join(m.Notes(), "\n"), `different configurations ("" at 4, "expandable_segments:True" at 8)`) {
		t.Errorf("two configurations: %v, %v", m.Notes(), err)
	}

	// Sizes that follow no law at all.
	lawless := func(seed uint64) *traces.Trace {
		b := traces.NewBuilder(0)
		b.Stream(0)
		for i := range 200 {
			seed = seed*6364136223846793005 + 1442695040888963407
			b.Alloc(int64(i), int64(1<<20+seed>>44), 0, 0)
		}
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	m, err = Fit(context.Background(), []Input{{4, lawless(1)}, {8, lawless(2)}}, Options{Vary: "batch"})
	if err == nil {
		_, _, err = m.Generate(16)
	}
	var r *Refusal
	if !errors.As(err, &r) {
		t.Errorf("lawless sizes: %v", err)
	}
	if _, _, err := m.Generate(0); err == nil {
		t.Error("a value of 0 is taken")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Fit(ctx, []Input{{4, steps(4).trace(t)}, {8, steps(4).trace(t)}}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestLargest finds what trying every value finds.
func TestLargest(t *testing.T) {
	ctx := context.Background()
	m, err := fitBatches(t, Options{Vary: "batch"}, bert, 5, 11)
	if err != nil {
		t.Fatal(err)
	}
	cfg := sim.Config{Policy: torchSpec(t, ""), Machine: sim.Machine{Capacity: 400 << 20}}
	got, err := m.Largest(ctx, cfg, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for x := int64(1); x <= 176; x++ {
		r, err := sim.Run(ctx, bert(x).trace(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Stats.NumOOMs > 0 {
			break
		}
		want = x
	}
	if got.Value != want || got.Next != want+1 || !got.NextFails || got.Safe > want || got.Safe < want*9/10 {
		t.Errorf("largest %+v, want %d", got, want)
	}
	if got.At == nil || !got.At.Completed || got.After == nil || got.After.NumOOMs == 0 {
		t.Errorf("predictions %+v, %+v", got.At, got.After)
	}

	m.opt.Step = 8
	got, err = m.Largest(ctx, cfg, 0, 0)
	if err != nil || got.Value != want/8*8 || got.Next != want/8*8+8 {
		t.Errorf("in steps of 8: %+v, %v", got, err)
	}
	cfg.Capacity = 1 << 20
	if got, err = m.Largest(ctx, cfg, 0, 0); err != nil || got.Value != 0 || got.Next != 8 || !got.NextFails {
		t.Errorf("nothing fits: %+v, %v", got, err)
	}
	cfg.Capacity = 1 << 40
	if got, err = m.Largest(ctx, cfg, 0, 0); err != nil || got.Value != 176 || got.Next != 0 || len(got.Notes) == 0 {
		t.Errorf("all fit: %+v, %v", got, err)
	}
	if _, err = m.Largest(ctx, sim.Config{Policy: cfg.Policy}, 0, 0); err == nil {
		t.Error("no capacity is taken")
	}
}

// TestDeterministic: the number of workers does not show.
func TestDeterministic(t *testing.T) {
	var first Prediction
	for workers := 1; workers <= 3; workers++ {
		m, err := fitBatches(t, Options{Vary: "batch", Workers: workers}, bert, 4, 9, 16)
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Predict(context.Background(), 50, sim.Config{Policy: torchSpec(t, "")})
		if err != nil {
			t.Fatal(err)
		}
		if p.UncertainAllocations == 0 {
			t.Error("nothing was varied")
		}
		if workers == 1 {
			first = p
		} else if diff := cmp.Diff(first, p); diff != "" {
			t.Error(diff)
		}
	}
}

// TestBacktest: with three recordings the largest is predicted without it.
func TestBacktest(t *testing.T) {
	cfg := sim.Config{Policy: torchSpec(t, "")}
	for _, values := range [][]int64{{8, 16, 32}, {8, 16}} {
		m, err := fitBatches(t, Options{Vary: "batch"}, bert, values...)
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.Backtest(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if b.LeftOut != (len(values) > 2) || b.AllocatedError() != 0 || b.ReservedError() > 0.05 || b.ReservedError() < -0.05 {
			t.Errorf("%v: %+v", values, b)
		}
	}
}

// TestWindows: an alignment too large for one piece is put together from
// windows without a seam.
func TestWindows(t *testing.T) {
	var a, b []alloc
	for i := range 9 * maxPiece / 8 {
		size := int64(1+i%97) * 512
		a = append(a, alloc{size: size, life: int32(i % 7)})
		b = append(b, alloc{size: 2 * size, life: int32(i % 7)})
		if i%5000 == 0 {
			b = append(b, alloc{size: 1 << 30, life: forever})
		}
	}
	pairs, err := align(context.Background(), a, b, ratio{from: 1, to: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, j := range pairs {
		if j < 0 || b[j].size != 2*a[i].size {
			t.Fatalf("allocation %d goes with %d", i, j)
		}
	}
}

func TestLengthOf(t *testing.T) {
	for vary, want := range map[string]bool{"": false, "batch": false, "batch_size": false, "bs": false, "micro-batch": false, "samples": false, "seq": true, "image": true, "tokens": true} {
		if got := (Options{Vary: vary}).length(); got != want {
			t.Errorf("%q: %v", vary, got)
		}
	}
}
