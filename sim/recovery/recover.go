package recovery

import (
	"context"
	"fmt"
	"math"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// Options override what a recording says or leaves open.
type Options struct {
	// Conf replaces the recorded configuration string when ConfSet.
	Conf    string
	ConfSet bool
	// Version replaces the recorded PyTorch release when not zero.
	Version conf.Version
	// Fraction, Limit and Capacity replace the recorded or inferred ones when
	// not 0 (see Config).
	Fraction float64
	Limit    int64
	Capacity int64
	// Assume restricts the explanations to one kind: "fraction", "capacity" (a
	// full card) or "none"; empty = whatever fits the recording.
	Assume string
}

// Recovered is a recording with what it does not say found out: the
// environment its program ran in.
type Recovered struct {
	// Trace has EmptyCache events and private pools in place.
	Trace *traces.Trace
	// Policy is the recorded configuration, as PyTorch understood it; Conf is
	// the same as a value, Version the release whose rules hold.
	Policy  *policies.Spec
	Conf    conf.Config
	Version conf.Version
	// Limit is the memory limit in bytes, 0 = none. LimitLow and LimitHigh
	// bracket an inferred one: any limit in between explains the recording.
	Limit, LimitLow, LimitHigh int64
	// Capacity is the bytes the device had for the allocator, 0 = unknown.
	Capacity int64
	// Fraction is the recorded memory fraction, 0 = none or unknown.
	Fraction float64
	// Check is the comparison with the recording under all this; nil when
	// there is nothing to compare with.
	Check *CheckResult
	// Inferred lists what was found out.
	Inferred []string
	// Explanations are the worlds that fit every recorded event, at least one,
	// the most plausible first. Trace, Limit, Capacity and Check are those of
	// the first.
	Explanations []Explanation
	// Open says, one sentence each, what the recording cannot tell.
	Open []string
}

// Machine is the machine of the recorded run, as far as it is known.
func (r *Recovered) Machine() sim.Machine {
	return sim.Machine{Capacity: r.Capacity, Total: r.Trace.Meta.DeviceTotal, Limit: r.Limit}
}

// Config is the run that repeats the recording on a modelled device.
func (r *Recovered) Config() sim.Config {
	return sim.Config{Policy: r.Policy, Machine: r.Machine()}
}

// Recover finds out what a PyTorch recording does not say (spec
// verification.md sections 3 and 6): with a sidecar, configuration, limit and
// empty_cache calls are known; otherwise they are inferred from the segment
// events. Traces without recorded segment events come back as they are.
func Recover(ctx context.Context, tr *traces.Trace, opts Options) (*Recovered, error) {
	rec := &Recovered{Trace: tr, Version: conf.Latest}
	if v, err := conf.ParseVersion(tr.Meta.Torch); err == nil {
		rec.Version = min2(v, conf.Latest)
	}
	if opts.Version != (conf.Version{}) {
		rec.Version = opts.Version
	}
	text := tr.Meta.Conf
	if opts.ConfSet {
		text = opts.Conf
	} else if !tr.Meta.ConfKnown {
		rec.infer("%s does not say which allocator it ran under; PyTorch's with its defaults is assumed.", tr.Source)
	}
	c, err := conf.ParseLenient(text, rec.Version)
	if err != nil {
		return nil, fmt.Errorf("%s: the recorded configuration %q: %w", tr.Source, text, err)
	}
	rec.Conf = c
	if rec.Policy, err = torch.Spec(c, rec.Version); err != nil {
		return nil, err
	}
	if err := rec.limits(opts); err != nil {
		return nil, err
	}
	if tr.Recorded == nil || len(tr.Recorded.Addr) == 0 || c.Backend != conf.Native {
		rec.explain()
		return rec, nil
	}
	s := &settler{rec: rec}
	rec.Capacity = opts.Capacity
	known := opts.Limit != 0 || opts.Fraction != 0 || tr.Meta.Sidecar
	if rec.Capacity == 0 {
		rec.fullDevice()
	}
	if known || rec.Capacity != 0 {
		if err = s.settle(ctx); err == nil && rec.Capacity != 0 && opts.Capacity == 0 && s.check.FirstDivergence != nil {
			err = s.narrowCapacity(ctx)
		}
	} else {
		err = s.settleUnknownLimit(ctx)
	}
	if err != nil {
		return nil, err
	}
	rec.Inferred = append(rec.Inferred, s.inferred()...)
	rec.Trace = s.tr
	rec.Check = s.check
	rec.explain()
	if rec.Check != nil {
		rec.Check.Inferred = rec.Inferred
		rec.Check.Notes = append(rec.Check.Notes, tr.Notes...)
	}
	return rec, nil
}

// Check replays a recording under its own configuration and compares every
// event with what the real allocator did. The error says so when the source
// has nothing to compare with.
func Check(ctx context.Context, tr *traces.Trace, opts Options) (*CheckResult, error) {
	if tr.Recorded == nil || len(tr.Events) == 0 || len(tr.Recorded.Addr) == 0 {
		return nil, fmt.Errorf("%s (%s) does not say what its allocator did, so there is nothing to check; a PyTorch snapshot with history does", tr.Source, tr.Format)
	}
	rec, err := Recover(ctx, tr, opts)
	if err != nil {
		return nil, err
	}
	if rec.Check == nil {
		return nil, fmt.Errorf("%s was recorded with %s, which leaves no history to check", tr.Source, rec.Policy)
	}
	return rec.Check, nil
}

func min2(a, b conf.Version) conf.Version {
	if b.Compare(a) < 0 {
		return b
	}
	return a
}

func (r *Recovered) infer(format string, args ...any) {
	r.Inferred = append(r.Inferred, fmt.Sprintf(format, args...))
}

// limits takes over a limit that is given or recorded.
func (r *Recovered) limits(opts Options) error {
	r.Fraction = r.Trace.Meta.Fraction
	if opts.Fraction != 0 {
		r.Fraction = opts.Fraction
	}
	m := sim.Machine{Limit: opts.Limit, Fraction: r.Fraction}
	if r.Trace.Meta.DeviceTotal > 0 || opts.Limit != 0 {
		m, err := m.Resolve(r.Policy, r.Trace.Meta.DeviceTotal)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Trace.Source, err)
		}
		r.Limit = m.Limit
	}
	r.LimitLow, r.LimitHigh = r.Limit, r.Limit
	return nil
}

// recordedOps calls f for every request (Alloc or OOM) with the recorded
// driver events that belong to it and the bytes held before them.
func recordedOps(tr *traces.Trace, f func(k int, group []traces.DriverEvent, held int64)) {
	held := tr.Start.Reserved()
	driver := tr.Recorded.Driver
	for k := tr.StartEvents; k <= len(tr.Events); k++ {
		n := 0
		for n < len(driver) && int(driver[n].Before) <= k {
			n++
		}
		if n > 0 || k == len(tr.Events) || tr.Events[k].Kind == traces.OOM {
			f(k, driver[:n], held)
		}
		for _, d := range driver[:n] {
			held += d.Reserves()
		}
		driver = driver[n:]
	}
}

// fullDevice recognises a device that was really full: at every OOM entry what
// the allocator held and what the device had free add up to the same number.
func (r *Recovered) fullDevice() {
	tr := r.Trace
	var capacity int64
	ooms, constant, full := 0, true, false
	recordedOps(tr, func(k int, group []traces.DriverEvent, held int64) {
		if k == len(tr.Events) || tr.Events[k].Kind != traces.OOM {
			return
		}
		free := int64(-1)
		if ooms < len(tr.Recorded.OOMDeviceFree) {
			free = tr.Recorded.OOMDeviceFree[ooms]
		}
		ooms++
		if free < 0 {
			constant = false
			return
		}
		for _, d := range group {
			held += d.Reserves()
		}
		if free < torch.SegmentSize(r.Conf, r.Version, tr.Events[k].Size) {
			full = true
		}
		if capacity == 0 {
			capacity = held + free
		}
		constant = constant && capacity == held+free
	})
	switch {
	case !full:
	case constant:
		r.Capacity = capacity
		r.infer("The device was full: it had %s (%d bytes) for this allocator, by every oom entry.", bytesize.Format(capacity), capacity)
	default:
		r.infer("The device was full at some oom entry, but its capacity for this allocator changed (other processes); it is not modelled.")
	}
}

// settler looks for the EmptyCache calls and pools that explain a recording.
type settler struct {
	rec    *Recovered
	runner sim.Runner
	tr     *traces.Trace // with what has been found so far
	check  *CheckResult
	empty  int     // calls that were inferred
	layout *layout // which segment each block lived in; made when needed
	rough  bool    // the limit is the best of a few tried
}

func (s *settler) compare(ctx context.Context, tr *traces.Trace) (*CheckResult, error) {
	return compare(ctx, &s.runner, tr, s.rec.Config())
}

// maxEdits bounds the search of settle.
const maxEdits = 4000

// settle replays, and at each divergence tries what could explain it: an
// empty_cache call at the start of the operation (rule M of spec
// verification.md section 3.1), a segment that belongs to another pool (section
// 3.3), a private pool that ended there. Of the edits with which the replay
// gets further, the most plausible stays, and of equals the one that gets
// furthest.
func (s *settler) settle(ctx context.Context) error {
	var err error
	if s.tr == nil {
		s.tr = s.rec.Trace
	}
	if s.check, err = s.compare(ctx, s.tr); err != nil {
		return err
	}
	for range maxEdits {
		d := s.check.FirstDivergence
		if d == nil {
			return s.mergePools(ctx)
		}
		if d.Event >= len(s.tr.Events) && d.recorded == noStep {
			return nil
		}
		var best *edit
		var bestCheck *CheckResult
		furthest := 0
		var odds plausibility
		for _, e := range s.candidates(d) {
			check, err := s.compare(ctx, e.tr)
			if err != nil {
				return err
			}
			reach := math.MaxInt
			if next := check.FirstDivergence; next != nil {
				// The events inserted at the divergence are part of it.
				if reach = next.Event; reach > d.Event {
					reach = max(reach-e.shift, d.Event)
				}
			}
			if reach < d.Event || reach == d.Event && check.SegmentEventsMatched <= s.check.SegmentEventsMatched {
				continue
			}
			o := plausible(e.tr)
			if c := o.compare(odds); best == nil || c < 0 || c == 0 && reach > furthest {
				best, bestCheck, furthest, odds = &e, check, reach, o
			}
		}
		if best == nil {
			return nil
		}
		s.tr, s.check = best.tr, bestCheck
		s.empty += best.empty
		if best.layout != nil {
			s.layout = best.layout
		}
	}
	return nil
}

// mergePools makes one of two pools that were made up where that explains the
// recording as well.
func (s *settler) mergePools(ctx context.Context) error {
	if s.layout == nil {
		return nil
	}
	for p := s.layout.known; p < s.layout.pools; p++ {
		for q := s.layout.pools - 1; q > p; q-- {
			l := s.layout.merged(uint8(p), uint8(q))
			tr := l.apply(s.tr)
			check, err := s.compare(ctx, tr)
			if err != nil {
				return err
			}
			if check.FirstDivergence == nil {
				s.tr, s.check, s.layout = tr, check, l
			}
		}
	}
	return nil
}

// edit is one change to the trace that could explain a divergence.
type edit struct {
	tr     *traces.Trace
	shift  int     // events inserted in front of the divergence
	empty  int     // empty_cache calls inserted
	layout *layout // with another pool for a segment; nil = unchanged
}

func (s *settler) candidates(d *Divergence) []edit {
	es := []edit{{tr: traces.WithEmptyCaches(s.tr, []int{d.Event}), shift: 1, empty: 1}}
	if s.layout == nil {
		s.layout = newLayout(s.tr)
	}
	return append(es, s.layout.edits(s.tr, d)...)
}

func (s *settler) inferred() []string {
	var out []string
	if n := s.empty; n > 0 {
		where := "the recording does not note them"
		if s.rec.Trace.Meta.Sidecar {
			where = "the sidecar does not note them; torch.cuda.graph empties the cache on entry"
		}
		out = append(out, fmt.Sprintf("%s, from releases that nothing else explains (%s).", plural.Of(n, "empty_cache call"), where))
	}
	made := make(map[uint8]bool)
	for _, e := range s.tr.Events {
		if int(e.Pool) >= len(s.rec.Trace.Pools) {
			made[e.Pool] = true
		}
	}
	if n := len(made); n > 0 {
		out = append(out, fmt.Sprintf("%s, from requests that ignore cached blocks of their stream. Segments that behave alike in both may be taken for the default pool's.", plural.Of(n, "private memory pool")))
	}
	ended := 0
	for _, e := range s.tr.Events {
		if e.Kind == traces.ReleasePool {
			ended++
		}
	}
	if ended > 0 {
		out = append(out, fmt.Sprintf("The %s of %s, from releases of their segments.", plural.Noun(ended, "end", "ends"), plural.Of(ended, "private memory pool")))
	}
	if low, high := s.rec.LimitLow, s.rec.LimitHigh; low != high {
		text := fmt.Sprintf("A memory limit of at least %d bytes", low)
		if high != math.MaxInt64 {
			text = fmt.Sprintf("A memory limit between %d and %d bytes", low, high)
		}
		if s.rough {
			text += fmt.Sprintf("; %s explains the recording best.", bytesize.Format(s.rec.Limit))
		} else {
			text += fmt.Sprintf(" (%s is used): every limit in between explains the recording.", bytesize.Format(s.rec.Limit))
		}
		out = append(out, text)
	}
	return out
}

// cudaMemGetInfo may show some MiB more than can be had (3 to 5 on an H200).
const overstated = 16 << 20

// narrowCapacity looks for the capacity a little below what the oom entries
// show, with which the recording replays furthest.
func (s *settler) narrowCapacity(ctx context.Context) error {
	shown := s.rec.Capacity
	best, bestAt := s, shown
	for less := int64(sim.Granule); less <= overstated; less += sim.Granule {
		s.rec.Capacity = shown - less
		t := &settler{rec: s.rec}
		if err := t.settle(ctx); err != nil {
			return err
		}
		if t.check.FirstDivergence == nil || best.check.FirstDivergence != nil && t.further(best) {
			best, bestAt = t, s.rec.Capacity
		}
		if best.check.FirstDivergence == nil {
			break
		}
	}
	s.rec.Capacity = bestAt
	if bestAt != shown {
		s.tr, s.check, s.empty, s.layout = best.tr, best.check, best.empty, best.layout
		s.rec.infer("Of that %s could really be had: the driver shows a little more than it gives.", bytesize.Format(bestAt))
	}
	return nil
}

// settleUnknownLimit settles a recording without sidecar: whether there was a
// memory limit, and which, is part of the question (spec verification.md
// section 3.2).
func (s *settler) settleUnknownLimit(ctx context.Context) error {
	b := s.bounds()
	if s.rec.Conf.GCThreshold > 0 {
		return s.bisect(ctx, b)
	}
	if b.assume {
		s.rec.LimitLow, s.rec.LimitHigh = b.lo, max(b.lo, b.hi)
		s.rec.Limit = b.lo + (s.rec.LimitHigh-b.lo)/2
	}
	return s.settle(ctx)
}

// bounds is what the trace alone says of a limit.
type limitBounds struct {
	lo, hi  int64 // the limit is in [lo, hi] if there is one
	assume  bool
	certain []int // events before which a release can only be an empty_cache
}

func (s *settler) bounds() limitBounds {
	tr := s.rec.Trace
	b := limitBounds{hi: math.MaxInt64}
	var needs []int64
	ooms := 0
	oomWithRoom := false
	recordedOps(tr, func(k int, group []traces.DriverEvent, held int64) {
		isOOM := k < len(tr.Events) && tr.Events[k].Kind == traces.OOM
		var segment int64
		if k < len(tr.Events) && (isOOM || tr.Events[k].Kind == traces.Alloc) {
			segment = torch.SegmentSize(s.rec.Conf, s.rec.Version, tr.Events[k].Size)
		}
		before, released, grew := held, false, false
		for _, d := range group {
			switch {
			case d.Action.Releases():
				released = true
			case d.Action == traces.SegmentAlloc:
				grew = true
				b.lo = max(b.lo, held+d.Size)
			case !grew:
				grew = true
				b.lo = max(b.lo, held+segment)
			}
			held += d.Reserves()
		}
		switch {
		case isOOM:
			free := int64(-1)
			if ooms < len(tr.Recorded.OOMDeviceFree) {
				free = tr.Recorded.OOMDeviceFree[ooms]
			}
			ooms++
			if free >= segment {
				oomWithRoom = true
				b.hi = min(b.hi, held+segment-1)
			}
		case released && grew:
			// With garbage collection such a release need not be a flush.
			if s.rec.Conf.GCThreshold == 0 {
				needs = append(needs, before+segment)
			}
		case released:
			b.certain = append(b.certain, k)
		}
	})
	flushes := 0
	for _, n := range needs {
		if n > b.lo {
			flushes++
			b.hi = min(b.hi, n-1)
		}
	}
	b.assume = oomWithRoom || flushes >= 2 || flushes == 1 && len(b.certain) == 0
	return b
}

// bisect finds a limit for a recording with garbage collection, which exists
// only with one: whoever releases first at the divergence says whether the
// limit is too small or too large.
func (s *settler) bisect(ctx context.Context, b limitBounds) error {
	tr := traces.WithEmptyCaches(s.rec.Trace, b.certain)
	empty := len(b.certain)
	lo, hi := b.lo, b.hi
	if hi == math.MaxInt64 {
		hi = max(s.rec.Trace.Meta.DeviceTotal, 4*b.lo, 1<<40)
	}
	top := hi
	// Without a limit nothing is ever collected; if that explains everything,
	// there is no reason to assume one.
	if check, err := s.compare(ctx, tr); err != nil || check.FirstDivergence == nil {
		s.tr, s.check, s.empty = tr, check, empty
		return err
	}
	for range maxEdits {
		if lo > hi {
			break
		}
		s.rec.Limit = lo + (hi-lo)/2
		check, err := s.compare(ctx, tr)
		if err != nil {
			return err
		}
		d := check.FirstDivergence
		if d == nil {
			s.tr, s.check, s.empty = tr, check, empty
			s.rec.LimitLow, s.rec.LimitHigh = lo, hi
			if hi == top && b.hi == math.MaxInt64 {
				s.rec.LimitHigh = math.MaxInt64
			}
			return nil
		}
		if d.recorded == release {
			// An empty_cache directly in front of an allocation, which no rule
			// tells from a collection, releases everything in one order.
			with := traces.WithEmptyCaches(tr, []int{d.Event})
			check, err := s.compare(ctx, with)
			if err != nil {
				return err
			}
			if next := check.FirstDivergence; next == nil || next.Event-1 > d.Event {
				tr, empty = with, empty+1
				continue
			}
		}
		if d.simulated == release && d.recorded != release {
			lo = s.rec.Limit + 1
		} else if d.recorded == release && d.simulated != release {
			hi = s.rec.Limit - 1
		} else {
			break
		}
	}
	// Ambiguous: keep the limit that needs the fewest inferred calls.
	const tries = 30
	lo, hi = b.lo, top
	var best *settler
	var bestLimit int64
	for k := range int64(tries + 1) {
		s.rec.Limit = lo + (hi-lo)/tries*k
		t := &settler{rec: s.rec}
		if err := t.settle(ctx); err != nil {
			return err
		}
		switch {
		case best == nil, t.further(best):
			best, bestLimit = t, s.rec.Limit
		}
	}
	s.rec.Limit = bestLimit
	s.rec.LimitLow, s.rec.LimitHigh, s.rough = b.lo, b.hi, true
	s.tr, s.check, s.empty, s.layout = best.tr, best.check, best.empty, best.layout
	return nil
}

// further reports that s explains more of the recording than t, or as much
// with fewer inferred calls.
func (s *settler) further(t *settler) bool {
	x, y := s.check.AddressesMatched, t.check.AddressesMatched
	return x > y || x == y && s.empty < t.empty
}
