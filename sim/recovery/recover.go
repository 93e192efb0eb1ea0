// Package recovery finds out what a recording does not say and holds replays
// against it.
//
// A PyTorch snapshot without a sidecar names no memory limit, no empty_cache
// call and often no release. Recover searches for the worlds that fit every
// recorded event, its [Explanation]s, and says what tells them apart. Check
// compares the replay of the first with what the real allocator did.
package recovery

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

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
	// Fraction is the memory fraction in place of the recorded one, Limit the
	// memory limit in bytes; 0 = as recorded. A Fraction limits to bytes where
	// the device's size is known, by Capacity, Total or the recording; elsewhere
	// it says that there was a limit by fraction.
	Fraction float64
	Limit    int64
	// Capacity is the bytes that the device had for the allocator, Total all of
	// its bytes; 0 = not said.
	Capacity, Total int64
	// Assume restricts the explanations to one kind: AssumeFraction,
	// AssumeCapacity, AssumeNone; empty = whatever fits the recording.
	Assume string
}

// What Options.Assume takes.
const (
	AssumeFraction = "fraction" // a memory fraction was what the run met
	AssumeCapacity = "capacity" // a full card was
	AssumeNone     = "none"     // nothing was
)

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
	// Since and Before bound the release that made the recording, by its
	// version or else by the fields of the file: at least Since, older than
	// Before; the zero Version = no bound.
	Since, Before conf.Version
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
	// Exact reports that the replay follows every recorded event. Doubt is the
	// sentence to say first where it does not, because every answer that builds
	// on the recording is then in doubt; empty where it does, and for traces
	// that say nothing of their allocator.
	Exact bool
	Doubt string
	// Inferred lists what was found out.
	Inferred []string
	// Explanations are the worlds that fit every recorded event, at least one,
	// the most plausible first. Trace, Limit, Capacity and Check are those of
	// the first. Where none fits, there is the one that fits most.
	Explanations []Explanation
	// Open says, one sentence each, what the recording cannot tell.
	Open []string
	// Known says, one sentence each, what the file, its sidecar or the user
	// says of the run.
	Known []string
}

// Machine is the machine of the recorded run, as far as it is known.
func (r *Recovered) Machine() sim.Machine { return r.Explanations[0].Machine }

// Config is the run that repeats the recording on a modelled device.
func (r *Recovered) Config() sim.Config {
	return sim.Config{Policy: r.Policy, Machine: r.Machine()}
}

// Recover finds out what a PyTorch recording does not say (spec
// verification.md sections 3 and 6): with a sidecar, configuration, limit and
// empty_cache calls are known; otherwise they are inferred from the segment
// events. Traces without recorded segment events come back as they are.
func Recover(ctx context.Context, tr *traces.Trace, opts Options) (*Recovered, error) {
	rec := &Recovered{Trace: tr}
	rec.release(opts)
	if err := rec.configuration(opts); err != nil {
		return nil, err
	}
	known, err := rec.knowledge(opts)
	if err != nil {
		return nil, err
	}
	rec.sayKnown(known)
	if tr.Start != nil && rec.Conf.GCThreshold > 0 {
		rec.open("The ages of the blocks that were free when the recording began are unknown, so garbage collection may have chosen others than the replay does.")
	}
	if tr.Recorded == nil || len(tr.Recorded.Addr) == 0 || rec.Conf.Backend != conf.Native {
		rec.asItIs(known)
		return rec, nil
	}
	s := &search{rec: rec, known: known, budget: replayBudget}
	worlds, err := s.run(ctx)
	if err != nil {
		return nil, err
	}
	rec.explain(s, worlds)
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
	switch c := rec.Check; {
	case c.Allocs+c.SegmentEvents+c.OOMs == 0:
		return nil, fmt.Errorf("%s has no allocation and no segment event in its history, so there is nothing to compare", tr.Source)
	case !rec.Exact && !grows(tr):
		return nil, fmt.Errorf("%s has no segment_alloc or segment_map entry (was it recorded with skip_actions?), so where its segments came from is unknown and there is nothing to compare", tr.Source)
	}
	return rec.Check, nil
}

// grows reports that a recording says when segments were made.
func grows(tr *traces.Trace) bool {
	return slices.ContainsFunc(tr.Recorded.Driver, func(d traces.DriverEvent) bool { return !d.Action.Releases() })
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

func (r *Recovered) open(format string, args ...any) {
	r.Open = append(r.Open, fmt.Sprintf(format, args...))
}

// release finds the release whose rules hold: the user's, the recorded one, or
// the newest that the fields of the file allow.
func (r *Recovered) release(opts Options) {
	m := &r.Trace.Meta
	r.Version = conf.Latest
	if v, err := conf.ParseVersion(m.Torch); err == nil {
		r.Since, r.Before = v, conf.Version{Major: v.Major, Minor: v.Minor + 1}
		r.Version = min2(v, conf.Latest)
	} else {
		r.Since, _ = conf.ParseVersion(m.TorchSince)
		r.Before, _ = conf.ParseVersion(m.TorchBefore)
		if r.Before != (conf.Version{}) {
			r.Version = min2(lastBefore(r.Before), conf.Latest)
		}
	}
	if opts.Version != (conf.Version{}) {
		r.Version = opts.Version
	}
}

// lastBefore is the release before another one.
func lastBefore(v conf.Version) conf.Version {
	if v.Minor > 0 {
		return conf.Version{Major: v.Major, Minor: v.Minor - 1}
	}
	return conf.Version{Major: v.Major - 1, Minor: 13} // 2.0 followed 1.13
}

// configuration takes over the configuration that is given, recorded or, where
// neither is, that the segment events prove.
func (r *Recovered) configuration(opts Options) error {
	tr := r.Trace
	text := tr.Meta.Conf
	switch {
	case opts.ConfSet:
		text = opts.Conf
	case tr.Meta.ConfKnown:
	case mapsPages(tr):
		text = "expandable_segments:True"
		r.infer("%s does not say which configuration it ran under; its segment_map events prove expandable_segments:True, for the rest PyTorch's defaults are assumed.", tr.Source)
	default:
		r.infer("%s does not say which allocator it ran under; PyTorch's with its defaults is assumed.", tr.Source)
	}
	c, err := conf.ParseLenient(text, r.Version)
	if err != nil && !opts.ConfSet {
		c, err = r.newerConfiguration(text, err)
	}
	if err != nil {
		return fmt.Errorf("%s: the recorded configuration %q: %w", tr.Source, text, err)
	}
	r.Conf = c
	r.Policy, err = torch.Spec(c, r.Version)
	return err
}

// newerConfiguration reads a configuration that the release r.Version refuses:
// by the rules of the latest release or, if it has options that none of the
// known releases has, without these.
func (r *Recovered) newerConfiguration(text string, refused error) (conf.Config, error) {
	if c, err := conf.ParseLenient(text, conf.Latest); err == nil {
		r.infer("PyTorch %s would refuse the recorded configuration (%v), so the recording is of a newer release; the rules of %s are used.", r.Version, refused, conf.Latest)
		r.Version = conf.Latest
		return c, nil
	}
	var known, dropped []string
	for _, part := range options(text) {
		if _, err := conf.ParseLenient(part, conf.Latest); err != nil {
			dropped = append(dropped, part)
		} else {
			known = append(known, part)
		}
	}
	c, err := conf.ParseLenient(strings.Join(known, ","), conf.Latest)
	if err != nil || len(known) == 0 && len(dropped) < 1 {
		return c, refused
	}
	r.Version = conf.Latest
	r.infer("The recorded configuration has what PyTorch %s, the latest release known here, does not take: %s. It is left out.", conf.Latest, strings.Join(dropped, ", "))
	return c, nil
}

// options cuts a configuration string at the commas that are not in a list.
func options(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if last := strings.TrimSpace(s[from:]); last != "" {
		out = append(out, last)
	}
	return out
}

// mapsPages reports that a recording has expandable segments.
func mapsPages(tr *traces.Trace) bool {
	if tr.Recorded == nil {
		return false
	}
	for _, d := range tr.Recorded.Driver {
		if d.Action == traces.SegmentMap {
			return true
		}
	}
	return false
}

// knowledge is what the sidecar and the user say of the machine.
func (r *Recovered) knowledge(opts Options) (knowledge, error) {
	m := &r.Trace.Meta
	k := knowledge{capacity: opts.Capacity, assume: opts.Assume}
	switch opts.Assume {
	case "":
	case AssumeFraction:
		k.assume = KindFraction
	case AssumeCapacity:
		k.assume = KindCard
	case AssumeNone:
		k.assume = KindNone
	default:
		return k, fmt.Errorf("%q can't be assumed; give %s, %s or %s", opts.Assume, AssumeFraction, AssumeCapacity, AssumeNone)
	}
	k.total = opts.Total
	if k.total == 0 {
		k.total = m.DeviceTotal
	}
	r.Fraction = m.Fraction
	if opts.Fraction != 0 {
		r.Fraction = opts.Fraction
	}
	fraction := r.Fraction
	if fraction == 0 {
		fraction = r.Policy.Fraction
	}
	switch {
	case opts.Limit != 0:
		k.limit = opts.Limit
	case opts.Fraction < 0 || opts.Fraction > 1 || math.IsNaN(opts.Fraction):
		return k, fmt.Errorf("a memory fraction is between 0 and 1, not %v", opts.Fraction)
	case fraction == 0 && m.Sidecar:
		k.noFraction = true
	case fraction == 0:
	case k.total > 0 || k.capacity > 0:
		// As everywhere, a fraction is one of the device that the user names.
		machine, err := sim.Machine{Capacity: opts.Capacity, Total: opts.Total, Fraction: fraction}.Resolve(r.Policy, m.DeviceTotal)
		if err != nil {
			return k, fmt.Errorf("%s: %w", r.Trace.Source, err)
		}
		k.limit, k.noFraction = machine.Limit, machine.Limit == 0
	case fraction >= 1:
		k.noFraction = true
	case k.assume == "":
		k.assume = KindFraction
	}
	if k.noFraction && k.assume == KindFraction {
		k.assume = ""
	}
	return k, nil
}

// asItIs is the result for what leaves nothing to find out.
func (r *Recovered) asItIs(k knowledge) {
	r.Limit, r.LimitLow, r.LimitHigh, r.Capacity = k.limit, k.limit, k.limit, k.capacity
	e := Explanation{
		Trace: r.Trace, Kind: KindNone, High: math.MaxInt64, Known: r.Trace.Meta.Sidecar, Says: "No limit is known.",
		Machine: sim.Machine{Capacity: k.capacity, Total: k.total, Limit: k.limit},
	}
	switch {
	case k.limit != 0:
		e.Kind, e.Low, e.High, e.Known = KindFraction, k.limit, k.limit, true
		e.Says = fmt.Sprintf("A memory limit of %s.", bytesize.Format(k.limit))
	case k.capacity != 0:
		e.Kind, e.Low, e.High, e.Known = KindCard, k.capacity, k.capacity, true
		e.Says = fmt.Sprintf("A device with %s for the allocator.", bytesize.Format(k.capacity))
	}
	if r.Fraction > 0 && k.limit == 0 && !k.noFraction {
		r.open("A memory fraction of %v was set, but of which device is not said, so its limit is not known (--capacity or --gpu decides).", r.Fraction)
	}
	r.Explanations = []Explanation{e}
	if e.Limited() {
		return
	}
	// What a conversion found out before it dropped the segment events.
	for i, b := range r.Trace.Meta.Bounds {
		w := Explanation{Trace: r.Trace, Machine: sim.Machine{Total: k.total}, Kind: b.Kind, Low: b.Low, High: b.High}
		if w.Kind != KindFraction && w.Kind != KindCard || k.noFraction && w.Kind == KindFraction {
			w.Kind = KindNone
		}
		if w.Kind == KindCard && k.total == 0 {
			w.Machine.Space = anySpace
		}
		w = w.At(b.At)
		if i == 0 {
			r.Explanations = nil
			r.Limit, r.LimitLow, r.LimitHigh, r.Capacity = w.Machine.Limit, w.Low, w.High, w.Machine.Capacity
		}
		r.Explanations = append(r.Explanations, w)
	}
}

// Portable is the trace of the first explanation for a format that has no place
// for what the allocator did: EmptyCache events are in place, Meta.Bounds has
// what bounded it and the notes say what was inferred.
func (r *Recovered) Portable() *traces.Trace {
	t := *r.Trace
	t.Notes = slices.Concat(t.Notes, r.Inferred, r.Open)
	t.Meta.Bounds = nil
	if r.Check == nil || r.Explanations[0].Known && r.Explanations[0].Kind != KindCard {
		return &t
	}
	others := 0
	for _, e := range r.Explanations {
		if e.Trace != r.Trace && e.EmptyCaches != r.Explanations[0].EmptyCaches {
			others++
			continue
		}
		if b := e.bound(); e.Limited() {
			t.Meta.Bounds = append(t.Meta.Bounds, traces.Bound{Kind: e.Kind, Low: e.Low, High: e.High, At: b})
		}
	}
	if others > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("Of the explanations that fit the recording, %s with other empty_cache calls; the conversion keeps the calls of the first.", plural.Count(others, "comes", "come")))
	}
	return &t
}
