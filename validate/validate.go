// Package validate turns a simulated answer into a fact: it runs the same
// policy on a real device, or the same requests inside PyTorch's own allocator,
// and compares what was predicted with what was measured.
//
// There are three engines:
//
//   - cuda: the very policy code of the simulation takes its segments from a
//     real GPU (package validate/cuda, build tag cuda): real addresses, real
//     "out of memory", device memory as the driver counts it.
//   - torch: PyTorch's own caching allocator serves the requests under the
//     configuration string (package validate/torchengine); every statistic and
//     every segment event is compared.
//   - sim: the modelled device once more, for machines without a GPU. It
//     confirms nothing real, and the report says so.
package validate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/validate/cuda"
)

// The engines.
const (
	EngineCUDA  = "cuda"
	EngineTorch = "torch"
	EngineSim   = "sim"
)

// Options say how to validate.
type Options struct {
	// Engine is EngineCUDA, EngineTorch or EngineSim; empty = cuda where this
	// program has it and finds a GPU, else sim.
	Engine string
	// Config is the run to confirm. Its Device must be nil. A Capacity is
	// emulated on the real card like Card.
	Config sim.Config
	// Card emulates a card that has exactly so many bytes free, to the
	// driver's granule, by setting the rest of the memory aside. 0 = the card
	// as it is.
	Card int64
	// Tolerance is the largest deviation of a figure that passes, in percent
	// of the prediction. With 0, the torch engine must agree in every
	// statistic and event, too.
	Tolerance float64
	// Force allows a card that other processes use.
	Force bool
	// Reserve is the free bytes of the card that are never taken; 0 =
	// cuda.DefaultReserve. It does not apply with Card, which fills the card.
	Reserve int64
	// Device is the CUDA device number.
	Device int
	// Python is the interpreter of the torch engine; empty = python3.
	Python string
	// Checkpoints is how many times memory in use is compared on the way; 0 =
	// 10.
	Checkpoints int
}

// Engine describes one engine.
type Engine struct {
	Name string
	Doc  string
	// BuiltIn reports that this program can run it, if the machine can.
	BuiltIn bool
}

// Engines lists the engines.
func Engines() []Engine {
	return []Engine{
		{EngineCUDA, "the policy's own decisions on a real GPU (needs a build with -tags cuda)", cuda.Built},
		{EngineTorch, "the requests inside PyTorch's own allocator (needs python3 with torch and a GPU)", true},
		{EngineSim, "the modelled device; confirms nothing real", true},
	}
}

// Run predicts, measures and compares. The error says why nothing could be
// measured; a deviation out of tolerance is not an error but a Report that
// does not pass. Everything taken from a card is given back before Run
// returns, also when ctx ends.
func Run(ctx context.Context, tr *traces.Trace, o Options) (*Report, error) {
	o, err := o.prepare(tr)
	if err != nil {
		return nil, err
	}
	switch o.Engine {
	case EngineCUDA:
		drv, err := cuda.Open(o.Device)
		if err != nil {
			return nil, err
		}
		return onDriver(ctx, tr, o, drv)
	case EngineTorch:
		return onTorch(ctx, tr, o)
	case EngineSim:
		return onModel(ctx, tr, o, "")
	case "":
		drv, err := cuda.Open(o.Device)
		if err != nil {
			return onModel(ctx, tr, o, err.Error())
		}
		return onDriver(ctx, tr, o, drv)
	}
	return nil, fmt.Errorf("validate: unknown engine %q; there are cuda, torch and sim", o.Engine)
}

// MeasureCost times the driver calls of a CUDA device by size, for the
// simulator's cost table. It takes some seconds and gives everything back.
func MeasureCost(ctx context.Context, device int, force bool) (*cuda.Cost, error) {
	drv, err := cuda.Open(device)
	if err != nil {
		return nil, err
	}
	dev, err := cuda.NewDevice(ctx, drv, cuda.Options{Force: force})
	if err != nil {
		return nil, err
	}
	cost, err := cuda.MeasureCost(ctx, dev)
	if err := errors.Join(err, dev.Close()); err != nil {
		return nil, fmt.Errorf("measure driver calls on %s: %w", dev.Card().Name, err)
	}
	return cost, nil
}

// prepare checks the options and settles what they leave open.
func (o Options) prepare(tr *traces.Trace) (Options, error) {
	if o.Config.Policy == nil {
		return o, errors.New("validate: no policy")
	}
	if o.Config.Device != nil {
		return o, errors.New("validate: the configuration names a device already")
	}
	if o.Checkpoints <= 0 {
		o.Checkpoints = 10
	}
	if o.Card == 0 {
		o.Card = o.Config.Capacity
	} else if o.Config.Capacity != 0 && o.Config.Capacity != o.Card {
		return o, fmt.Errorf("validate: a card of %d bytes and a capacity of %d contradict each other", o.Card, o.Config.Capacity)
	}
	// The base of a memory fraction must not change when a capacity is added.
	if o.Config.Total == 0 {
		o.Config.Total = o.Config.Capacity
	}
	if o.Config.Total == 0 {
		o.Config.Total = tr.Meta.DeviceTotal
	}
	o.Config.Capacity = o.Card
	o.Config.StopAtOOM, o.Config.MaxReserved, o.Config.Detail = false, 0, false
	return o, nil
}

// predict runs the simulation and records what the engines need of it.
func predict(ctx context.Context, tr *traces.Trace, o Options) (*sim.Result, *recorder, error) {
	rec := newRecorder(tr, o.Checkpoints)
	res, err := sim.Run(ctx, tr, o.Config, rec)
	if err != nil {
		return nil, nil, fmt.Errorf("predict: %w", err)
	}
	return res, rec, nil
}

// event is one entry of a policy's history.
type event struct {
	action policies.Action
	addr   uint64
	size   int64
	stream uint16
	at     int // index in Trace.Events
}

// recorder keeps the history of a run and samples memory at checkpoints.
type recorder struct {
	events   []event // segment and OOM events in order, or all of them
	all      bool
	reserved int64
	peak     int64
	peakAt   int // trace event of the first peak
	step     int // trace events between checkpoints
	next     int // trace event of the next checkpoint
	points   []sample
	measure  func() (int64, error) // of a real device; nil = reserved
	err      error                 // first of measure
	retries  []int                 // trace events that flushed the cache
}

// sample is the bytes in use at a checkpoint.
type sample struct {
	at    int // trace event
	bytes int64
}

// newRecorder samples at about as many checkpoints.
func newRecorder(tr *traces.Trace, checkpoints int) *recorder {
	step := max(len(tr.Events)/(checkpoints+1), 1)
	return &recorder{step: step, next: step}
}

// Observe implements sim.Observer.
func (r *recorder) Observe(at sim.At, e *policies.Event) {
	switch e.Action {
	case policies.ActionSegmentAlloc, policies.ActionSegmentMap, policies.ActionSegmentFree, policies.ActionSegmentUnmap:
		r.reserved += e.Action.Reserves(e.Size)
		if r.reserved > r.peak {
			r.peak, r.peakAt = r.reserved, at.Event
		}
		r.keep(at, e)
	case policies.ActionOOM:
		r.keep(at, e)
	case policies.ActionRetry:
		r.retries = append(r.retries, at.Event)
	case policies.ActionAlloc:
		if r.all {
			r.keep(at, e)
		}
		// The request is served, so nothing is half done on the device.
		if at.Event >= r.next {
			r.sample(at.Event)
		}
	default:
		if r.all {
			r.keep(at, e)
		}
	}
}

func (r *recorder) keep(at sim.At, e *policies.Event) {
	size := e.Size
	switch e.Action {
	case policies.ActionAlloc, policies.ActionFreeRequested, policies.ActionFreeCompleted:
		size = e.Requested // as PyTorch's history has it
	}
	r.events = append(r.events, event{e.Action, e.Addr, size, e.Stream, at.Event})
}

func (r *recorder) sample(at int) {
	bytes := r.reserved
	if r.measure != nil {
		var err error
		if bytes, err = r.measure(); err != nil {
			r.err = errors.Join(r.err, err)
			return
		}
	}
	r.points = append(r.points, sample{at, bytes})
	r.next = (at/r.step + 1) * r.step
}

// onModel is the engine sim.
func onModel(ctx context.Context, tr *traces.Trace, o Options, why string) (*Report, error) {
	predicted, _, err := predict(ctx, tr, o)
	if err != nil {
		return nil, err
	}
	measured, err := sim.Run(ctx, tr, o.Config)
	if err != nil {
		return nil, err
	}
	r := newReport(tr, o, EngineSim, predicted)
	r.Device = "modelled device"
	r.Measured = figures(measured)
	r.Notes = append(r.Notes, "The modelled device was run; nothing real was confirmed.")
	if why != "" {
		r.Notes = append(r.Notes, "No GPU was used: "+why)
	}
	r.compareOOMs(predicted.OOMs, measured.OOMs)
	r.judge(0)
	return r, nil
}

// onDriver is the engine cuda on an open driver, which it closes.
func onDriver(ctx context.Context, tr *traces.Trace, o Options, drv cuda.Driver) (report *Report, err error) {
	if o.Config.Total == 0 {
		o.Config.Total = drv.Card().Total
	}
	dev, err := cuda.NewDevice(ctx, drv, cuda.Options{Total: o.Config.Total, Card: o.Card, Reserve: o.Reserve, Force: o.Force})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := dev.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}()
	o.Config.Capacity = dev.Available()
	predicted, rec, err := predict(ctx, tr, o)
	if err != nil {
		return nil, err
	}
	real := o.Config
	real.Device = dev
	mrec := newRecorder(tr, o.Checkpoints)
	mrec.measure = dev.InUse
	measured, err := sim.Run(ctx, tr, real, mrec)
	if err == nil {
		err = mrec.err
	}
	if err != nil {
		return nil, fmt.Errorf("on %s: %w", dev.Card().Name, err)
	}
	if err := dev.GiveBack(); err != nil {
		return nil, err
	}

	r := newReport(tr, o, EngineCUDA, predicted)
	r.Confirmed = true
	r.Device = dev.Card().String()
	r.Measured = figures(measured)
	u := dev.Usage()
	r.Memory = &u
	r.Measured.ReservedPeak = u.Peak
	r.Measured.fragment()
	r.Granule = dev.Card().Granularity
	r.Driver = dev.Latencies().Table()
	r.Notes = append(r.Notes, dev.Notes()...)
	r.checkpoints(rec.points, mrec.points)
	r.compareOOMs(predicted.OOMs, measured.OOMs)
	r.compareEvents(rec.events, mrec.events, o.Config.Total)
	if u.After != 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d bytes more are in use on the card after the run than before; all of the run's own memory was given back.", u.After))
	}
	if len(r.Mismatches) > 0 {
		r.AtRealAddresses = explain(ctx, tr, o, mrec.events)
		r.noteAddresses()
	}
	// cuMemGetInfo counts whole granules, so each segment may show one more.
	r.judge(r.Granule * int64(u.PeakPieces))
	return r, nil
}

// explain repeats the simulation with the addresses that the real device
// chose. If it then does what was measured, its figures come back; else nil.
func explain(ctx context.Context, tr *traces.Trace, o Options, events []event) *Figures {
	var addrs []uint64
	for _, e := range events {
		if e.action == policies.ActionSegmentAlloc {
			addrs = append(addrs, e.addr)
		}
	}
	pinned := o.Config
	pinned.Device = &pinnedDevice{
		Device: sim.NewDevice(sim.DeviceConfig{Capacity: o.Config.Capacity, Total: o.Config.Total}),
		addrs:  addrs,
	}
	rec := newRecorder(tr, o.Checkpoints)
	res, err := sim.Run(ctx, tr, pinned, rec)
	if err != nil {
		return nil
	}
	if !slices.Equal(placeAll(rec.events, o.Config.Total), placeAll(events, o.Config.Total)) {
		return nil
	}
	f := figures(res)
	return &f
}

// pinnedDevice is the modelled device with the addresses that a real one gave.
type pinnedDevice struct {
	*sim.Device
	addrs []uint64
}

// Malloc implements policies.Device.
func (d *pinnedDevice) Malloc(size int64) (uint64, error) {
	addr, err := d.Device.Malloc(size)
	if err == nil && len(d.addrs) > 0 {
		addr, d.addrs = d.addrs[0], d.addrs[1:]
	}
	return addr, err
}
