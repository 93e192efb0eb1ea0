package recovery

import (
	"fmt"
	"math"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// The kinds of explanation: what set the bound at which the recorded allocator
// gave memory back or failed.
const (
	KindNone     = "none"            // nothing that the run met
	KindFraction = "memory fraction" // set_per_process_memory_fraction: the allocator refuses, and may collect garbage
	KindCard     = "full card"       // the device had no more for this allocator: the driver refuses
)

// Explanation is one world that fits a recording: what its program called, what
// its machine was. All of a recording's explanations are consistent with every
// recorded event; no replay of the recording itself can tell them apart, while
// another configuration may come out differently under each.
type Explanation struct {
	// Trace has the EmptyCache calls and the private pools of this explanation
	// in place.
	Trace *traces.Trace
	// Machine is the capacity or limit in force; its Total is the device's where
	// that is known.
	Machine sim.Machine
	// Kind is KindNone, KindFraction or KindCard.
	Kind string
	// Low and High bracket the bound in bytes: every value in between explains
	// the recording as well. With KindNone, Low is the most that was asked of
	// the device at once, and a bound of Low or more that was never met is as
	// good as none; High is math.MaxInt64 where nothing bounds it.
	Low, High int64
	// Known reports that kind and bound are recorded or given, not inferred.
	Known bool
	// EmptyCaches counts the EmptyCache calls of Trace that are inferred.
	EmptyCaches int
	// Says is the explanation in one sentence.
	Says string
}

// Limited reports that the explanation has a bound.
func (e *Explanation) Limited() bool { return e.Kind != KindNone }

// At is the explanation with its bound at another value of the bracket.
func (e Explanation) At(bound int64) Explanation {
	switch e.Kind {
	case KindFraction:
		e.Machine.Limit = bound
	case KindCard:
		e.Machine.Capacity = bound
	}
	e.Says = e.sentence(bound)
	return e
}

func (e *Explanation) sentence(bound int64) string {
	var text string
	switch e.Kind {
	case KindFraction:
		text = fmt.Sprintf("a memory limit of %s (set_per_process_memory_fraction)", bytesize.Format(bound))
	case KindCard:
		text = fmt.Sprintf("a card with %s for this allocator", bytesize.Format(bound))
	default:
		text = "no limit that the run met"
	}
	if n := e.EmptyCaches; n > 0 {
		text += " and " + plural.Of(n, "empty_cache call")
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Unmet is the world of the tightest bound that the recorded run would not have
// met, as a limit by fraction: nothing in a recording tells it from no bound at
// all. It is false where a bound was met or its absence is known.
func (r *Recovered) Unmet() (Explanation, bool) {
	e := r.Explanations[0]
	if e.Limited() || e.Known || e.Low == 0 {
		return e, false
	}
	e.Kind, e.Machine.Limit = KindFraction, e.Low
	e.Says = fmt.Sprintf("A memory limit of %s that the run just never met.", bytesize.Format(e.Low))
	return e, true
}

// maxExplanations bounds how many worlds a question is asked in.
const maxExplanations = 10

// explain takes over what the search found.
func (r *Recovered) explain(s *search, worlds []*found) {
	worlds = order(worlds)
	for _, w := range worlds {
		r.Explanations = append(r.Explanations, r.explanation(w))
	}
	first := worlds[0]
	r.Trace, r.Check = first.tr, first.check
	r.Exact = first.exact()
	e := &r.Explanations[0]
	r.Limit, r.Capacity = e.Machine.Limit, e.Machine.Capacity
	if e.Kind == KindFraction {
		r.LimitLow, r.LimitHigh = e.Low, e.High
	}
	r.sayInferred(s, first)
	r.sayOpen(s, worlds)
	if r.Exact {
		r.addEdges()
	} else {
		r.Doubt = r.doubt()
	}
	r.Check.Contradicted = r.contradicted(s.known)
	r.Check.Inferred = r.Inferred
	r.Check.Open = r.Open
	r.Check.Notes = append(r.Check.Notes, r.Trace.Notes...)
}

func (r *Recovered) explanation(w *found) Explanation {
	e := Explanation{
		Trace: w.tr, Machine: w.machine, Kind: w.kind, Low: w.low, High: w.high, Known: w.known, EmptyCaches: w.empty,
	}
	e.Says = e.sentence(e.bound())
	return e
}

// bound is the bytes in force.
func (e *Explanation) bound() int64 {
	if e.Kind == KindFraction {
		return e.Machine.Limit
	}
	return e.Machine.Capacity
}

// addEdges adds the first world with a bracket at the ends of its bracket: in
// between, other configurations may come out differently.
func (r *Recovered) addEdges() {
	for _, e := range r.Explanations {
		if !e.Limited() || e.Known || e.Low == e.High {
			continue
		}
		for _, at := range []int64{e.Low, e.High} {
			if len(r.Explanations) < maxExplanations && at != e.bound() && at != math.MaxInt64 {
				r.Explanations = append(r.Explanations, e.At(at))
			}
		}
		return
	}
}

// sayInferred lists what the first world has that the recording does not say.
func (r *Recovered) sayInferred(s *search, w *found) {
	named := 0
	for _, b := range s.ev.bursts {
		if b.caller == traces.CallerEmptyCache && !b.called {
			named++
		}
	}
	if named = min(named, w.empty); named > 0 {
		r.infer("%s, named by the call stacks of %s releases.", plural.Of(named, "empty_cache call"), plural.Noun(named, "its", "their"))
	}
	if n := w.empty - named; n > 0 {
		where := "the recording does not note them"
		if r.Trace.Meta.Sidecar {
			where = "the sidecar does not note them; torch.cuda.graph empties the cache on entry"
		}
		r.infer("%s, from releases that nothing else explains (%s).", plural.Of(n, "empty_cache call"), where)
	}
	made := make(map[uint8]bool)
	ended := 0
	for _, e := range r.Trace.Events {
		if int(e.Pool) >= s.pools {
			made[e.Pool] = true
		}
		if e.Kind == traces.ReleasePool {
			ended++
		}
	}
	if n := len(made); n > 0 {
		r.infer("%s, from requests that ignore cached blocks of their stream. Segments that behave alike in both may be taken for the default pool's.", plural.Of(n, "private memory pool"))
		r.open("%s that the recording does not name: each may be several in turn (a CUDA graph's or a MemPool's), if nothing tells their requests apart.", plural.Of(n, "private memory pool"))
	}
	if ended > 0 {
		r.infer("The %s of %s, from releases of their segments.", plural.Noun(ended, "end", "ends"), plural.Of(ended, "private memory pool"))
	}
	e := &r.Explanations[0]
	switch {
	case !e.Limited() || e.Known:
	case s.ev.card > 0 && e.Kind == KindCard:
		r.infer("The device was full: it had %s (%d bytes) for this allocator, by every oom entry.", bytesize.Format(s.ev.card), s.ev.card)
		if e.Low != s.ev.card {
			r.infer("Of that %s could really be had: the driver shows a little more than it gives.", bytesize.Format(e.Low))
		}
	case r.Exact:
		what := "A memory limit"
		if e.Kind == KindCard {
			what = "A card that was full: a memory limit"
		}
		if e.High == math.MaxInt64 {
			r.infer("%s of at least %d bytes (%s is used): every one explains the recording.", what, e.Low, bytesize.Format(e.bound()))
		} else if e.Low != e.High {
			r.infer("%s between %d and %d bytes (%s is used): every one in between explains the recording.", what, e.Low, e.High, bytesize.Format(e.bound()))
		}
	}
	if s.ev.card < 0 {
		r.infer("The device was full at some oom entry, but its capacity for this allocator changed (other processes); it is not modelled.")
	}
}

// sayOpen says what tells the worlds apart.
func (r *Recovered) sayOpen(s *search, worlds []*found) {
	if !r.Exact {
		return
	}
	kinds := make(map[string]bool)
	low, high := int64(math.MaxInt64), int64(0)
	for _, w := range worlds {
		kinds[w.kind] = true
		if w.kind != KindNone && !w.known {
			low, high = min(low, w.low), max(high, w.high)
		}
	}
	bracket := fmt.Sprintf("%s–%s", bytesize.Format(low), bytesize.Format(high))
	if high == math.MaxInt64 {
		bracket = bytesize.Format(low) + " or more"
	}
	if kinds[KindFraction] && kinds[KindCard] {
		r.open("A limit of %s: memory fraction or full card, the recording cannot tell (--memory-fraction, --capacity or --assume decides).", bracket)
	}
	if kinds[KindNone] && len(kinds) > 1 {
		n := 0
		for _, w := range worlds {
			if w.kind == KindNone {
				n = w.empty
			}
		}
		r.open("Whether a limit of %s was met at all: with %s directly in front of requests there was none (--assume none).", bracket, plural.Of(n-worlds[0].empty, "more empty_cache call"))
	}
	if n := s.intervalCount; n > 1 {
		r.open("Which of the releases in front of requests are flushes at a limit and which empty_cache calls: %d ways fit, each with another limit between %s.", n, bracket)
	}
	if s.budget < 0 {
		r.open("The search for explanations ended at its bound of replayed events; there may be more.")
	}
	if r.Since != (conf.Version{}) && r.Trace.Meta.Torch == "" && lastBefore(r.Before) != r.Since {
		text := fmt.Sprintf("The PyTorch release: at least %s", r.Since)
		if r.Before != (conf.Version{}) {
			text += fmt.Sprintf(" and older than %s", r.Before)
		}
		r.open("%s, by the fields of the file; the rules of %s are used.", text, r.Version)
	}
}

// contradicted says which of the known bounds the recording exceeds, and where.
func (r *Recovered) contradicted(k knowledge) (all []string) {
	if r.Exact {
		return nil
	}
	exceeds := func(what string, bound int64) {
		if bound == 0 {
			return
		}
		done := false
		recordedOps(r.Trace, func(at int, group []traces.DriverEvent, held int64) {
			for _, d := range group {
				held += d.Reserves()
				if held > bound && !done {
					done = true
					all = append(all, fmt.Sprintf("%s of %s: at event %d the recorded allocator held %s (%d bytes).", what, bytesize.Format(bound), at, bytesize.Format(held), held))
				}
			}
		})
	}
	exceeds("A memory limit", k.limit)
	exceeds("A capacity", k.capacity)
	return all
}

// doubt is the first sentence of every answer about a recording that its replay
// does not follow.
func (r *Recovered) doubt() string {
	d := r.Check.FirstDivergence
	where := fmt.Sprintf("event %d of %d", d.Event, len(r.Trace.Events))
	if d.Event >= len(r.Trace.Events) {
		where = "its end"
	}
	if name := otherBackend(r.Trace, r.Conf, r.Version); name != "" {
		return fmt.Sprintf("The replay is not exact from %s on: sizes do not fit CUDA's rounding, but %s; every figure is that of CUDA's allocator and not of the recorded one.", where, name)
	}
	if r.Trace.Meta.NoCompletions && len(r.Trace.Streams) > 1 {
		return fmt.Sprintf("The replay is not exact from %s on: the recording has several streams and does not say when frees completed (skip_actions); record without skip_actions.", where)
	}
	return fmt.Sprintf("The replay is not exact: from %s on the recorded allocator did not do what PyTorch's rules say, so every figure is in doubt.", where)
}

// sayKnown lists what need not be found out.
func (r *Recovered) sayKnown(k knowledge) {
	m := &r.Trace.Meta
	say := func(format string, args ...any) { r.Known = append(r.Known, fmt.Sprintf(format, args...)) }
	from := "the snapshot"
	if m.Sidecar {
		from = "the sidecar"
	}
	switch {
	case m.Torch != "":
		say("PyTorch %s.", m.Torch)
	case r.Since != (conf.Version{}) && lastBefore(r.Before) == r.Since:
		say("PyTorch %s, by the fields of the file.", r.Since)
	}
	if m.ConfKnown {
		say("The configuration %q, by %s.", m.Conf, from)
	}
	if m.DeviceTotal > 0 {
		say("The device has %s.", bytesize.Format(m.DeviceTotal))
	}
	switch {
	case k.limit != 0:
		say("A memory limit of %s (%d bytes).", bytesize.Format(k.limit), k.limit)
	case k.noFraction:
		say("No memory fraction was set.")
	}
	if k.capacity != 0 {
		say("The device has %s for this allocator.", bytesize.Format(k.capacity))
	}
	calls := 0
	for _, e := range r.Trace.Events {
		if e.Kind == traces.EmptyCache {
			calls++
		}
	}
	if m.Sidecar {
		say("%s noted.", plural.Of(calls, "empty_cache call"))
	}
	if n := len(r.Trace.Pools) - 1; n > 0 {
		var kinds []string
		for _, id := range r.Trace.Pools[1:] {
			kinds = append(kinds, PoolKind(id))
		}
		say("%s: %s.", plural.Of(n, "private memory pool"), strings.Join(kinds, ", "))
	}
}

// PoolKind says what a pool's id shows of its kind: PyTorch numbers the pools of
// CUDA graphs in the first place and those of users in the second.
func PoolKind(id traces.PoolID) string {
	switch {
	case id == traces.PoolID{}:
		return "the default pool"
	case id[0] < 0:
		return "a pool that was inferred"
	case id[0] == 0:
		return fmt.Sprintf("(0, %d), a MemPool or graph_pool_handle", id[1])
	case id[1] == 0:
		return fmt.Sprintf("(%d, 0), a CUDA graph's", id[0])
	}
	return fmt.Sprintf("(%d, %d)", id[0], id[1])
}
