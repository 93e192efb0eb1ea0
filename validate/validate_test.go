package validate

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/klauspost/compress/zstd"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
	"allocsim/validate/cuda"
	"allocsim/validate/cuda/cudatest"
	"allocsim/validate/torchengine"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

func policy(t testing.TB, s string) *policies.Spec {
	t.Helper()
	spec, err := policies.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// workload grows over two streams to some hundred MiB, frees in odd orders
// (some frees pending), empties its cache and grows again.
func workload(t testing.TB) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(0)
	s := []uint16{b.Stream(0), b.Stream(0x5500)}
	var live, pending []traces.BlockID
	time := int64(0)
	for round := range 3 {
		for i := range 40 {
			time += 10
			live = append(live, b.Alloc(time, int64(1+i*i*7919%(12*mib)), s[i%2], 0))
			if i%3 == 2 {
				k := (i * 7) % len(live)
				b.Free(time, live[k])
				live = slices.Delete(live, k, k+1)
			}
			if i%8 == 5 {
				b.FreeRequested(time, live[0])
				pending = append(pending, live[0])
				live = live[1:]
			}
			if i%8 == 1 && len(pending) > 1 {
				b.FreeCompleted(time, pending[1])
				b.FreeCompleted(time, pending[0])
				pending = pending[2:]
			}
		}
		if round == 1 {
			b.EmptyCache(time)
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "workload"
	return tr
}

func options(t testing.TB, tr *traces.Trace, o Options) Options {
	t.Helper()
	o, err := o.prepare(tr)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

var policyNames = []string{
	"torch", "torch:expandable_segments:True", "torch:max_split_size_mb:21", "torch:roundup_power2_divisions:4", "direct",
}

// On a card that behaves as modelled, every policy's figures are confirmed.
func TestOnDriver(t *testing.T) {
	tr := workload(t)
	for _, name := range policyNames {
		for _, card := range []int64{0, 600 * mib, 60 * mib} {
			t.Run(fmt.Sprintf("%s/%d", name, card/mib), func(t *testing.T) {
				drv := cudatest.New(16 * gib)
				o := options(t, tr, Options{Engine: EngineCUDA, Config: sim.Config{Policy: policy(t, name)}, Card: card})
				r, err := onDriver(context.Background(), tr, o, drv)
				if err != nil {
					t.Fatal(err)
				}
				if !r.Pass || !r.Confirmed || drv.Leaks() != "" || drv.Closed != 1 {
					t.Errorf("pass %v, confirmed %v, leaks %s: %+v", r.Pass, r.Confirmed, drv.Leaks(), r)
				}
				if (r.Measured.OOMs > 0) != (card == 60*mib) {
					t.Errorf("%d OOMs on a card of %d MiB", r.Measured.OOMs, card/mib)
				}
				if r.Measured.ReservedPeak == 0 || r.Measured.ReservedPeak != r.Predicted.ReservedPeak && name != "direct" {
					t.Errorf("reserved %d, predicted %d", r.Measured.ReservedPeak, r.Predicted.ReservedPeak)
				}
				if r.Memory.After != 0 || len(r.Driver) == 0 {
					t.Errorf("memory %+v, %d latencies", r.Memory, len(r.Driver))
				}
				if strings.HasPrefix(name, "torch") && card != 60*mib {
					if len(r.Checkpoints) < 8 {
						t.Errorf("%d checkpoints", len(r.Checkpoints))
					}
					for _, c := range r.Checkpoints {
						if c.Predicted != c.Measured {
							t.Errorf("checkpoint %+v", c)
						}
					}
				}
			})
		}
	}
}

// A card that has less than it says makes the prediction wrong, and the report
// says so.
func TestOnDriverDeviates(t *testing.T) {
	tr := workload(t)
	drv := cudatest.New(16 * gib)
	drv.Unusable = 16*gib - 60*mib
	o := options(t, tr, Options{Engine: EngineCUDA, Config: sim.Config{Policy: policy(t, "torch")}})
	r, err := onDriver(context.Background(), tr, o, drv)
	if err != nil {
		t.Fatal(err)
	}
	if r.Pass || r.Measured.OOMs == 0 || r.Predicted.OOMs != 0 || r.Deviation.ReservedPeak >= 0 || len(r.Mismatches) == 0 || r.Mismatches[0].What != "oom" {
		t.Errorf("report %+v", r)
	}
	if r.AtRealAddresses != nil {
		t.Error("addresses are said to explain a card that is too small")
	}
}

// Whatever driver call fails, and whenever: the run ends with that error and
// nothing leaks.
func TestOnDriverFails(t *testing.T) {
	tr := workload(t)
	for _, name := range policyNames[:2] {
		clean := cudatest.New(16 * gib)
		o := options(t, tr, Options{Config: sim.Config{Policy: policy(t, name)}, Card: 100 * mib})
		if _, err := onDriver(context.Background(), tr, o, clean); err != nil {
			t.Fatal(err)
		}
		for call, times := range clean.Calls {
			for k := 1; k <= times; k += 1 + times/40 {
				drv := cudatest.New(16 * gib)
				drv.FailCall, drv.FailAt = call, k
				r, err := onDriver(context.Background(), tr, o, drv)
				if !drv.Failed {
					t.Errorf("%s %s %d: the failure never came", name, call, k)
				}
				if drv.Leaks() != "" {
					t.Errorf("%s %s %d: leaks %s", name, call, k, drv.Leaks())
				}
				if err != nil && !errors.Is(err, cudatest.ErrInjected) {
					t.Errorf("%s %s %d: %v", name, call, k, err)
				}
				// A release that works at the second try, in the end, is no
				// error; a MemInfo for an OOM's report is not either.
				if err == nil && (r == nil || !strings.Contains("MemFree MemUnmap MemRelease AddressFree MemInfo", call)) {
					t.Errorf("%s %s %d: nobody heard of it", name, call, k)
				}
			}
		}
	}
}

// cancelling cancels a context at the n-th allocation.
type cancelling struct {
	*cudatest.Driver
	cancel context.CancelFunc
	n      int
}

func (c *cancelling) MemAlloc(size int64) (uint64, error) {
	if c.n--; c.n == 0 {
		c.cancel()
	}
	return c.Driver.MemAlloc(size)
}

func TestOnDriverCancelled(t *testing.T) {
	tr := workload(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	drv := &cancelling{cudatest.New(16 * gib), cancel, 5}
	_, err := onDriver(ctx, tr, options(t, tr, Options{Config: sim.Config{Policy: policy(t, "torch")}}), drv)
	if !errors.Is(err, context.Canceled) || drv.Leaks() != "" || drv.Closed != 1 || drv.Calls["MemAlloc"] != 5 {
		t.Errorf("error %v, leaks %s, calls %v", err, drv.Leaks(), drv.Calls)
	}
}

func TestOnDriverInUse(t *testing.T) {
	tr := workload(t)
	drv := cudatest.New(16 * gib)
	drv.Device.Users = 2
	o := options(t, tr, Options{Config: sim.Config{Policy: policy(t, "torch")}})
	if _, err := onDriver(context.Background(), tr, o, drv); !errors.Is(err, cuda.ErrInUse) || drv.Closed != 1 {
		t.Errorf("error %v", err)
	}
	drv = cudatest.New(16 * gib)
	drv.Device.Users = 2
	o.Force = true
	r, err := onDriver(context.Background(), tr, o, drv)
	if err != nil || !r.Pass || !strings.Contains(strings.Join(r.Notes, " "), "2 other process") {
		t.Errorf("forced: %v, %+v", err, r)
	}
}

func TestRun(t *testing.T) {
	tr := workload(t)
	ctx := context.Background()
	r, err := Run(ctx, tr, Options{Engine: EngineSim, Config: sim.Config{Policy: policy(t, "torch")}})
	if err != nil || !r.Pass || r.Confirmed || !strings.Contains(strings.Join(r.Notes, " "), "nothing real was confirmed") {
		t.Errorf("sim: %v, %+v", err, r)
	}
	if !cuda.Built {
		r, err = Run(ctx, tr, Options{Config: sim.Config{Policy: policy(t, "torch")}})
		if err != nil || r.Engine != EngineSim || !strings.Contains(strings.Join(r.Notes, " "), "-tags cuda") {
			t.Errorf("default: %v, %+v", err, r)
		}
		if _, err = Run(ctx, tr, Options{Engine: EngineCUDA, Config: sim.Config{Policy: policy(t, "torch")}}); !errors.Is(err, cuda.ErrNotBuilt) {
			t.Errorf("cuda: %v", err)
		}
	}
	for say, o := range map[string]Options{
		"no policy":      {Engine: EngineSim},
		"unknown engine": {Engine: "hip", Config: sim.Config{Policy: policy(t, "torch")}},
		"contradict":     {Engine: EngineSim, Card: gib, Config: sim.Config{Policy: policy(t, "torch"), Machine: sim.Machine{Capacity: 2 * gib}}},
		"names a device": {Engine: EngineSim, Config: sim.Config{Policy: policy(t, "torch"), Device: sim.NewDevice(sim.DeviceConfig{})}},
		"cannot confirm": {Engine: EngineTorch, Config: sim.Config{Policy: policy(t, "direct")}},
	} {
		if _, err := Run(ctx, tr, o); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", say, err)
		}
	}
	var names []string
	for _, e := range Engines() {
		names = append(names, e.Name)
		if e.BuiltIn != (e.Name != EngineCUDA || cuda.Built) {
			t.Errorf("%+v", e)
		}
	}
	if fmt.Sprint(names) != "[cuda torch sim]" {
		t.Errorf("engines %v", names)
	}
}

// A capacity must not change what a memory fraction means.
func TestPrepareTotal(t *testing.T) {
	tr := workload(t)
	tr.Meta.DeviceTotal = 80 * gib
	for _, c := range []struct {
		o           Options
		total, card int64
	}{
		{Options{}, 80 * gib, 0},
		{Options{Card: 10 * gib}, 80 * gib, 10 * gib},
		{Options{Config: sim.Config{Machine: sim.Machine{Capacity: 10 * gib}}}, 10 * gib, 10 * gib},
		{Options{Config: sim.Config{Machine: sim.Machine{Capacity: 10 * gib, Total: 24 * gib}}}, 24 * gib, 10 * gib},
	} {
		c.o.Config.Policy = policy(t, "torch")
		o := options(t, tr, c.o)
		if o.Config.Total != c.total || o.Card != c.card || o.Config.Capacity != c.card {
			t.Errorf("%+v: total %d, card %d, capacity %d", c.o, o.Config.Total, o.Card, o.Config.Capacity)
		}
	}
}

// answerTo makes up the answer of a PyTorch that does exactly what is
// predicted, at other addresses and with another order of joint completions.
func answerTo(p *torchPrediction) *torchengine.Answer {
	a := &torchengine.Answer{Torch: "2.11.0", Device: "Fake GPU", Total: 16 * gib, Stats: p.res.Stats.Flat()}
	events := slices.Clone(p.rec.events)
	for i := 1; i < len(events); i++ {
		if events[i].action == policies.ActionFreeCompleted && events[i-1].action == policies.ActionFreeCompleted {
			events[i], events[i-1] = events[i-1], events[i]
		}
	}
	for _, e := range events {
		addr := e.addr + 1<<30
		if e.action == policies.ActionOOM {
			addr = 0
		}
		if e.action == policies.ActionRetry {
			continue
		}
		a.Events.Action = append(a.Events.Action, e.action.String())
		a.Events.Addr = append(a.Events.Addr, addr)
		a.Events.Size = append(a.Events.Size, e.size)
		a.Events.Stream = append(a.Events.Stream, int(e.stream))
	}
	for range p.job.Measure {
		a.Samples = append(a.Samples, 1)
	}
	return a
}

func TestTorchReport(t *testing.T) {
	tr := workload(t)
	tr.Meta.DeviceTotal = 16 * gib
	ctx := context.Background()
	for _, name := range []string{"torch", "torch:expandable_segments:True"} {
		for _, limit := range []int64{0, 60 * mib} {
			o := options(t, tr, Options{Engine: EngineTorch, Config: sim.Config{Policy: policy(t, name), Machine: sim.Machine{Limit: limit}}})
			p, err := predictTorch(ctx, tr, o)
			if err != nil {
				t.Fatal(err)
			}
			r := p.report(ctx, answerTo(p))
			if !r.Pass || len(r.Mismatches) > 0 || r.StatsCompared != len(p.res.Stats.Flat()) || r.EventsCompared < 150 || (r.Measured.OOMs > 0) != (limit > 0) {
				t.Errorf("%s, limit %d: pass %v, %d statistics, %d events, %v", name, limit, r.Pass, r.StatsCompared, r.EventsCompared, r.Mismatches)
			}
			if len(r.Checkpoints) == 0 {
				t.Error("no checkpoints")
			}

			// Each thing bent by itself is found.
			bend := map[string]func(a *torchengine.Answer){
				"statistic": func(a *torchengine.Answer) { a.Stats["inactive_split.all.freed"]++ },
				"segment event": func(a *torchengine.Answer) {
					i := slices.IndexFunc(a.Events.Action, func(s string) bool { return strings.HasPrefix(s, "segment_") })
					a.Events.Size[i] += 2 * mib
				},
				"block": func(a *torchengine.Answer) {
					i := slices.Index(a.Events.Action, "alloc")
					a.Events.Addr[i] += 512
				},
			}
			for what, f := range bend {
				a := answerTo(p)
				f(a)
				r := p.report(ctx, a)
				if r.Pass || len(r.Mismatches) == 0 || r.Mismatches[0].What != what && len(r.Mismatches) < 2 {
					t.Errorf("%s bent: pass %v, %v", what, r.Pass, r.Mismatches)
				}
			}
			a := answerTo(p)
			n := a.Events.Len() - 1
			a.Events.Action, a.Events.Addr, a.Events.Size, a.Events.Stream = a.Events.Action[:n], a.Events.Addr[:n], a.Events.Size[:n], a.Events.Stream[:n]
			if r := p.report(ctx, a); r.Pass {
				t.Error("a missing event was not missed")
			}
		}
	}
}

// The requests that the script must expect to wait are those that flush or
// release while a free is pending.
func TestWaits(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	x := b.Alloc(0, 40*mib, s, 0)
	b.FreeRequested(1, x)
	b.Alloc(2, 50*mib, s, 0) // 3: does not fit: flush, which completes x
	b.Alloc(3, 50*mib, s, 0) // 4: does not fit; nothing pending any more
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, tr, Options{Config: sim.Config{Policy: policy(t, "torch"), Machine: sim.Machine{Limit: 60 * mib}}})
	p, err := predictTorch(context.Background(), tr, o)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for k := range tr.Events {
		if p.job.Waits(k) {
			got = append(got, k)
		}
	}
	if fmt.Sprint(got) != "[2]" {
		t.Errorf("waits at %v", got)
	}
}

// small is a recording of an H200 (two streams, pending frees) and the run that
// repeats it.
func small(t *testing.T) (*traces.Trace, sim.Config) {
	t.Helper()
	ctx := context.Background()
	rec, err := formats.Open(ctx, filepath.Join("..", "testdata", "recordings", "fuzz0174.pickle.zst"), formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rec.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	found, err := recovery.Recover(ctx, tr, recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Trace, found.Config()
}

// PyTorch's own answer, recorded on an H200, agrees in everything.
func TestRecordedAnswer(t *testing.T) {
	ctx := context.Background()
	tr, cfg := small(t)
	p, err := predictTorch(ctx, tr, options(t, tr, Options{Engine: EngineTorch, Config: cfg}))
	if err != nil {
		t.Fatal(err)
	}
	r := p.report(ctx, readAnswer(t, filepath.Join("testdata", "fuzz0174.answer.json.zst")))
	if !r.Pass || len(r.Mismatches) > 0 || r.StatsCompared != 122 || r.EventsCompared < 500 {
		t.Errorf("pass %v, %d statistics, %d events, %v", r.Pass, r.StatsCompared, r.EventsCompared, r.Mismatches)
	}
	// The same answer does not confirm another configuration.
	cfg.Policy = policy(t, "torch:roundup_power2_divisions:2")
	if p, err = predictTorch(ctx, tr, options(t, tr, Options{Engine: EngineTorch, Config: cfg})); err != nil {
		t.Fatal(err)
	}
	if r := p.report(ctx, readAnswer(t, filepath.Join("testdata", "fuzz0174.answer.json.zst"))); r.Pass {
		t.Error("another configuration is confirmed")
	}
}

// A driver with another rule for addresses decides ties otherwise; the report
// finds that out.
func TestOtherAddresses(t *testing.T) {
	tr, cfg := small(t)
	drv := cudatest.New(tr.Meta.DeviceTotal) // its addresses ascend
	r, err := onDriver(context.Background(), tr, options(t, tr, Options{Engine: EngineCUDA, Config: cfg}), drv)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Mismatches) == 0 || r.AtRealAddresses == nil || !r.Pass || !strings.Contains(strings.Join(r.Notes, " "), "tie between free blocks") {
		t.Errorf("pass %v, %v, %v", r.Pass, r.Mismatches, r.Notes)
	}
}

// report is a small one that neither engine nor address can change.
func report(pass bool, engine string) *Report {
	r := &Report{
		Source: "train.pickle", Policy: "torch:max_split_size_mb:128", Device: "NVIDIA <H200>", Engine: engine,
		Confirmed: engine != EngineSim, Tolerance: 1, Slack: 4 * mib,
		Predicted:  Figures{ReservedPeak: 1000 * mib, AllocatedPeak: 900 * mib, Segments: 40, OOMs: 1},
		Measured:   Figures{ReservedPeak: 1004 * mib, AllocatedPeak: 900 * mib, Segments: 40, OOMs: 1},
		Mismatches: []Mismatch{}, Notes: []string{"A note."}, EventsCompared: 7, StatsCompared: 122,
	}
	if !pass {
		r.Measured.OOMs, r.Measured.ReservedPeak, r.Tolerance = 3, 1040*mib, 0
		r.mismatch("statistic", "num_ooms", "1", "3")
	}
	r.Predicted.fragment()
	r.Measured.fragment()
	r.judge(r.Slack)
	return r
}

func TestJUnitAndJSON(t *testing.T) {
	datadriven.RunTest(t, "testdata/report.txt", func(t *testing.T, d *datadriven.TestData) string {
		var engine string
		d.ScanArgs(t, "engine", &engine)
		r := report(!d.HasArg("fails"), engine)
		var buf bytes.Buffer
		var err error
		switch d.Cmd {
		case "junit":
			if err = WriteJUnit(&buf, r); err == nil {
				err = xml.Unmarshal(buf.Bytes(), new(junitSuites))
			}
		case "json":
			enc := json.NewEncoder(&buf)
			enc.SetIndent("", " ")
			err = enc.Encode(r)
		}
		if err != nil {
			return err.Error()
		}
		return buf.String()
	})
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		p, m int64
		want float64
	}{{0, 0, 0}, {10, 10, 0}, {10, 11, 10}, {10, 0, -100}, {0, 1, 100}} {
		if got := percent(c.p, c.m); got != c.want {
			t.Errorf("percent(%d, %d) = %v", c.p, c.m, got)
		}
	}
}

// Two mappings in one reservation are told from two reservations, and a
// reservation that was given back from its successor at the same address.
func TestPlaces(t *testing.T) {
	const base, next = 0x302000000, 0x302000000 + 18*gib
	m, u := policies.ActionSegmentMap, policies.ActionSegmentUnmap
	got := placeAll([]event{
		{action: m, addr: base, size: 2 * mib}, {action: m, addr: next, size: 2 * mib},
		{action: m, addr: base + 10*mib, size: 2 * mib}, {action: u, addr: base, size: 2 * mib},
		{action: u, addr: base + 10*mib, size: 2 * mib}, {action: m, addr: base, size: 2 * mib},
	}, 16*gib)
	var text []string
	for _, e := range got {
		text = append(text, fmt.Sprintf("%d+%d", e.segment, e.offset/mib))
	}
	if s := strings.Join(text, " "); s != "1+0 2+0 1+10 1+0 1+10 3+0" {
		t.Error(s)
	}
}

func readAnswer(t *testing.T, path string) *torchengine.Answer {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	if data, err = dec.DecodeAll(data, nil); err != nil {
		t.Fatal(err)
	}
	a := new(torchengine.Answer)
	if err := json.Unmarshal(data, a); err != nil {
		t.Fatal(err)
	}
	return a
}

// The simulator reads the cost table that MeasureCost writes; this one is of an
// H200.
func TestCostTable(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "driver_cost_h200.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := sim.ReadCostTable(f)
	if err != nil {
		t.Fatal(err)
	}
	if us := table.Malloc(20 * mib); us < 40 || us > 60 {
		t.Errorf("cudaMalloc of 20 MiB costs %v µs", us)
	}
	if us := table.Map(5, 20*mib); us < 100 || us > 300 {
		t.Errorf("mapping 5 pages of 20 MiB costs %v µs", us)
	}
	if table.Source == "" {
		t.Error("no source")
	}
}
