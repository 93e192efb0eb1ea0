package validate

import (
	"context"
	"fmt"
	"slices"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/validate/cuda"
	"allocsim/validate/torchengine"
)

// onTorch is the engine torch.
func onTorch(ctx context.Context, tr *traces.Trace, o Options) (*Report, error) {
	if c, _, ok := torch.ConfigOf(o.Config.Policy); !ok || c.Backend != conf.Native {
		return nil, fmt.Errorf("validate: the engine torch runs PyTorch's own native allocator, so it cannot confirm the policy %s", o.Config.Policy.Name)
	}
	p, err := predictTorch(ctx, tr, o)
	if err != nil {
		return nil, err
	}
	answer, err := torchengine.Replay(ctx, p.job)
	if err != nil {
		return nil, err
	}
	return p.report(ctx, answer), nil
}

// torchPrediction is a prediction and the job that puts it to the test.
type torchPrediction struct {
	tr  *traces.Trace
	o   Options
	res *sim.Result
	rec *recorder
	job torchengine.Job
}

func predictTorch(ctx context.Context, tr *traces.Trace, o Options) (*torchPrediction, error) {
	p := &torchPrediction{tr: tr, o: o, rec: newRecorder(tr, o.Checkpoints)}
	p.rec.all = true
	waits := newWaits(tr)
	var err error
	if p.res, err = sim.Run(ctx, tr, o.Config, p.rec, waits); err != nil {
		return nil, fmt.Errorf("predict: %w", err)
	}
	reserve := o.Reserve
	if reserve == 0 {
		reserve = cuda.DefaultReserve
	}
	measure := []int{p.rec.peakAt}
	for _, s := range p.rec.points {
		measure = append(measure, s.at)
	}
	slices.Sort(measure)
	p.job = torchengine.Job{
		Trace: tr, Conf: o.Config.Policy.Options, Limit: p.res.Limit,
		Card: o.Card, Need: p.rec.peak, Reserve: reserve,
		Force: o.Force, Device: o.Device, Waits: waits.waits,
		Measure: slices.Compact(measure), Python: o.Python,
	}
	return p, nil
}

// report compares the prediction with PyTorch's answer.
func (p *torchPrediction) report(ctx context.Context, a *torchengine.Answer) *Report {
	rec := p.rec
	r := newReport(p.tr, p.o, EngineTorch, p.res)
	r.Confirmed = true
	r.Device = fmt.Sprintf("%s (%d bytes)", a.Device, a.Total)
	r.Torch = a.Torch
	r.Notes = append(r.Notes, a.Notes...)
	r.Measured = Figures{
		ReservedPeak:  a.Stats["reserved_bytes.all.peak"],
		AllocatedPeak: a.Stats["allocated_bytes.all.peak"],
		Segments:      a.Stats["num_device_alloc"],
		OOMs:          a.Stats["num_ooms"],
	}
	r.Measured.fragment()

	events := make([]event, a.Events.Len())
	for i := range events {
		events[i] = event{
			action: actions[a.Events.Action[i]], addr: a.Events.Addr[i], size: a.Events.Size[i],
			stream: uint16(a.Events.Stream[i]), at: -1,
		}
	}
	r.compareEvents(rec.events, events, a.Total)
	r.compareStats(p.res.Stats.Flat(), a.Stats)
	for i, at := range p.job.Measure {
		if j := slices.IndexFunc(rec.points, func(s sample) bool { return s.at == at }); j >= 0 && i < len(a.Samples) {
			r.Checkpoints = append(r.Checkpoints, Checkpoint{at, rec.points[j].bytes, a.Samples[i]})
		}
		if at == rec.peakAt && i < len(a.Samples) {
			r.Notes = append(r.Notes, fmt.Sprintf("Device memory in use at the predicted peak: %d bytes by cuMemGetInfo, %d predicted.", a.Samples[i], rec.peak))
		}
	}
	if len(r.Mismatches) > 0 {
		r.AtRealAddresses = explain(ctx, p.tr, p.o, segmentEvents(events))
		r.noteAddresses()
	}
	r.judge(0)
	return r
}

var actions = func() map[string]policies.Action {
	m := make(map[string]policies.Action)
	for a := policies.ActionAlloc; a <= policies.ActionRetry; a++ {
		m[a.String()] = a
	}
	return m
}()

// compareStats compares every statistic that both sides have.
func (r *Report) compareStats(predicted, measured map[string]int64) {
	keys := make([]string, 0, len(measured))
	for k := range measured {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		p, known := predicted[k]
		if !known {
			r.Notes = append(r.Notes, fmt.Sprintf("PyTorch has a statistic %s that is not simulated.", k))
			continue
		}
		r.StatsCompared++
		if m := measured[k]; m != p {
			r.mismatch("statistic", k, fmt.Sprint(p), fmt.Sprint(m))
		}
	}
}

// waits observes which requests wait for pending frees of other streams: those
// that give memory back to the driver, or flush, while some are pending.
type waits struct {
	tr      *traces.Trace
	pending map[traces.BlockID]bool
	seen    int // events before this one are counted in pending
	at      map[int]bool
}

func newWaits(tr *traces.Trace) *waits {
	return &waits{tr: tr, pending: make(map[traces.BlockID]bool), at: make(map[int]bool)}
}

// Observe implements sim.Observer.
func (w *waits) Observe(at sim.At, e *policies.Event) {
	for ; w.seen < at.Event; w.seen++ {
		switch ev := w.tr.Events[w.seen]; ev.Kind {
		case traces.FreeRequested:
			w.pending[ev.ID] = true
		case traces.FreeCompleted:
			delete(w.pending, ev.ID)
		}
	}
	if len(w.pending) == 0 {
		return
	}
	switch e.Action {
	case policies.ActionRetry, policies.ActionSegmentFree, policies.ActionSegmentUnmap:
		w.at[at.Event] = true
	}
	if e.Action == policies.ActionRetry {
		clear(w.pending) // a flush completes them all
	}
}

func (w *waits) waits(event int) bool { return w.at[event] }

// segmentEvents are the entries that a recorder keeps without all.
func segmentEvents(all []event) []event {
	return slices.DeleteFunc(slices.Clone(all), func(e event) bool {
		return e.action != policies.ActionOOM && !entry{action: e.action}.ofSegment()
	})
}
