package recovery

import (
	"cmp"
	"context"
	"math"
	"slices"

	"allocsim/sim"
	"allocsim/traces"
)

// search finds the worlds that fit a recording. In this order, what decides is:
// what the sidecar or the user says; who the call stacks of releases name; what
// oom entries show of the device; the structure of each burst of releases; and
// the replay, which must reproduce every event. Nothing depends on time or
// chance, and the number of events replayed is bounded.
type search struct {
	rec    *Recovered
	ev     evidence
	known  knowledge
	runner sim.Runner
	budget int
	layout *layout // pools that the first world needed
	pools  int     // pools that the recording names, with the default one
	// intervalCount is how many ways there are to tell flushes from empty_cache
	// calls, under the kind of bound that has most.
	intervalCount int
}

// knowledge is what need not be inferred.
type knowledge struct {
	limit      int64 // bytes; 0 = not known
	capacity   int64 // of the device for the allocator; 0 = not known
	total      int64 // of the device; 0 = not known
	noFraction bool  // no memory fraction limits the allocator
	assume     string
}

// found is a world that was tried.
type found struct {
	*settler
	kind      string
	low, high int64
	known     bool
}

// Bounds of the search.
const (
	replayBudget = 1 << 27 // events
	maxIntervals = 5       // ways to tell empty_cache calls from flushes
	maxClasses   = 3       // the same under garbage collection
)

// fit settles the recording on machine m, with EmptyCache calls in front of
// the given events to begin with.
func (s *search) fit(ctx context.Context, m sim.Machine, calls []int) (*settler, error) {
	start := func(calls []int) (*settler, error) {
		t := &settler{rec: s.rec, machine: m, runner: &s.runner, budget: &s.budget, tr: s.rec.Trace, empty: len(calls)}
		if s.layout != nil {
			t.layout = s.layout
			t.tr = s.layout.apply(t.tr)
		}
		t.tr = traces.WithEmptyCaches(t.tr, calls)
		return t, t.settle(ctx)
	}
	t, err := start(calls)
	if err != nil || t.exact() || len(calls) == 0 {
		return t, err
	}
	// Some of those bursts may be the ends of private pools.
	u, err := start(nil)
	if err == nil && u.further(t) {
		t = u
	}
	return t, err
}

// calls are the events in front of which a release can only be an empty_cache
// call if nothing less than a bound makes a request release.
func (s *search) calls(kind string, bound int64) []int {
	var at []int
	if kind == KindCard && s.rec.Conf.ExpandableSegments {
		bound = -1 // how much of a request was mapped already is not known
	}
	for _, b := range s.ev.bursts {
		need := b.need
		if kind == KindCard {
			need = b.cardNeed
		}
		if !b.called && b.caller != traces.CallerRequest && (b.certain() || b.grew && need <= bound) {
			at = append(at, b.event)
		}
	}
	return at
}

// certain are the events in front of which a release can only be an
// empty_cache call, whatever the bound.
func (s *search) certain() []int { return s.calls(KindNone, -1) }

// machine is the machine of a world.
func (s *search) machine(kind string, bound int64) sim.Machine {
	m := sim.Machine{Capacity: s.known.capacity, Total: s.known.total}
	switch kind {
	case KindFraction:
		m.Limit = bound
	case KindCard:
		m.Capacity = bound
	}
	if m.Total == 0 {
		m.Space = anySpace // others may hold most of the device
	}
	return m
}

// anySpace is more memory than any device has.
const anySpace = 1 << 42

// run finds the worlds, the most plausible first. If none fits every event,
// it returns the one that explains most.
func (s *search) run(ctx context.Context) ([]*found, error) {
	s.ev = s.rec.evidenceOf(s.rec.Trace)
	s.pools = len(s.rec.Trace.Pools)
	switch {
	case s.known.limit != 0:
		f, err := s.atLimit(ctx)
		return []*found{f}, err
	case s.ev.card > 0 && s.known.assume != KindNone && s.known.assume != KindFraction:
		f, err := s.fullCard(ctx)
		if err != nil || f.exact() {
			return []*found{f}, err
		}
		rest, err := s.unknown(ctx)
		return best(append(rest, f)), err
	}
	fs, err := s.unknown(ctx)
	return best(fs), err
}

// best keeps the worlds that fit every event or, if there are none, the one
// that explains most.
func best(fs []*found) []*found {
	var exact []*found
	var most *found
	for _, f := range fs {
		if f.exact() {
			exact = append(exact, f)
		}
		if most == nil || f.further(most.settler) {
			most = f
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return []*found{most}
}

// atLimit is the world whose limit is known.
func (s *search) atLimit(ctx context.Context) (*found, error) {
	calls := s.certain()
	if s.rec.Conf.GCThreshold == 0 {
		calls = s.calls(KindFraction, s.known.limit)
	}
	f := &found{kind: KindFraction, low: s.known.limit, high: s.known.limit, known: true}
	m := s.machine(KindFraction, s.known.limit)
	var err error
	if s.ev.card > 0 && s.known.capacity == 0 {
		f.settler, _, err = s.narrow(ctx, m, calls)
		return f, err
	}
	f.settler, err = s.fit(ctx, m, calls)
	return f, err
}

// fullCard is the world whose device was full by its oom entries.
func (s *search) fullCard(ctx context.Context) (*found, error) {
	shown := s.ev.card
	f := &found{kind: KindCard, low: shown, high: shown}
	var err error
	if c := s.known.capacity; c != 0 && c < shown {
		f.low, f.high, f.known = c, c, true
		f.settler, err = s.fit(ctx, s.machine(KindCard, c), s.calls(KindCard, c))
		return f, err
	}
	m := s.machine(KindCard, shown)
	f.settler, f.low, err = s.narrow(ctx, m, s.calls(KindCard, shown))
	return f, err
}

// overstated is how much more than can be had cudaMemGetInfo may show: 3 to 5
// MiB on an H200.
const overstated = 16 << 20

// narrow looks for the capacity, that which the oom entries show or a little
// less, with which the recording replays furthest, and returns it.
func (s *search) narrow(ctx context.Context, m sim.Machine, calls []int) (*settler, int64, error) {
	var best *settler
	var at int64
	for c := s.ev.card; c >= s.ev.card-overstated && c > 0; c -= sim.Granule {
		m.Capacity = c
		t, err := s.fit(ctx, m, calls)
		if err != nil {
			return nil, 0, err
		}
		if best == nil || t.exact() || t.further(best) {
			best, at = t, c
		}
		if best.exact() {
			break
		}
	}
	return best, at, nil
}

// unknown are the worlds of a recording whose limit is not known.
func (s *search) unknown(ctx context.Context) ([]*found, error) {
	fraction := !s.known.noFraction && (s.known.assume == "" || s.known.assume == KindFraction)
	card := s.ev.roomy == 0 && s.known.capacity == 0 && (s.known.assume == "" || s.known.assume == KindCard)
	none, err := s.unbounded(ctx)
	if err != nil {
		return nil, err
	}
	s.keepPools(none)
	open := slices.ContainsFunc(s.ev.bursts, func(b burst) bool { return b.flush() || b.oom && b.caller != traces.CallerEmptyCache })
	if none.exact() && (!open || s.confirmed(none) || none.kind == KindCard) {
		return []*found{none}, nil
	}
	var bounded []*found
	if fraction && s.rec.Conf.GCThreshold > 0 {
		if bounded, err = s.collected(ctx); err != nil {
			return nil, err
		}
		fraction = false
	}
	kinds := make([]string, 0, 2)
	if card {
		kinds = append(kinds, KindCard)
	}
	if fraction {
		kinds = append(kinds, KindFraction)
	}
	more, likely, err := s.intervals(ctx, kinds)
	if err != nil {
		return nil, err
	}
	if len(best(bounded)) > 0 && len(bounded) > 0 && bounded[0].exact() {
		likely = true
	}
	bounded = append(bounded, more...)
	if s.known.assume == KindFraction || s.known.assume == KindCard {
		if len(bounded) > 0 && best(bounded)[0].exact() {
			return bounded, nil
		}
	}
	if likely || !none.exact() {
		return append(bounded, none), nil
	}
	return append([]*found{none}, bounded...), nil
}

// confirmed reports that the statistics of a sidecar bear out a world: as many
// requests were tried again after a flush.
func (s *search) confirmed(f *found) bool {
	if s.rec.Trace.Recorded.Stats == nil || s.rec.Trace.Start != nil {
		return false
	}
	return !slices.ContainsFunc(f.check.StatsMismatched, func(m StatMismatch) bool { return m.Key == "num_alloc_retries" || m.Key == "num_ooms" })
}

// keepPools lets the next worlds start with the pools of one that fits.
func (s *search) keepPools(f *found) {
	if f.exact() && f.layout != nil && f.layout.pools > f.layout.known {
		s.layout = f.layout
	}
}

// unbounded is the world in which no request was refused: each burst is an
// empty_cache call, at least those that need not be a flush at the capacity.
func (s *search) unbounded(ctx context.Context) (*found, error) {
	bound := int64(math.MaxInt64)
	f := &found{kind: KindNone, low: s.ev.limitLow, high: bound, known: s.known.noFraction}
	kind := KindNone
	if c := s.known.capacity; c != 0 {
		bound, kind = c, KindCard
	}
	t, err := s.fit(ctx, s.machine(KindNone, 0), s.calls(kind, bound))
	if err != nil {
		return nil, err
	}
	f.settler = t
	if s.known.capacity != 0 && t.exact() {
		for _, b := range s.rec.evidenceOf(t.tr).bursts {
			if b.flush() {
				f.kind, f.low, f.high, f.known = KindCard, bound, bound, true
			}
		}
	}
	return f, nil
}

// intervals are the worlds with a bound and without garbage collection. Which
// bursts are flushes depends on the bound alone: those that needed more. So
// each interval between two needs is a world. Likely reports that the bound
// explains more than an accident would.
func (s *search) intervals(ctx context.Context, kinds []string) (fs []*found, likely bool, err error) {
	for i, kind := range kinds {
		some, l, err := s.intervalsOf(ctx, kind)
		if err != nil {
			return nil, false, err
		}
		// The same bound of the other kind comes right after its twin.
		if i == 0 {
			fs, likely = some, l
			continue
		}
		likely = likely || l
		fs = interleave(fs, some)
	}
	return fs, likely, nil
}

func interleave(a, b []*found) []*found {
	var out []*found
	for i := range max(len(a), len(b)) {
		if i < len(a) {
			out = append(out, a[i])
		}
		if i < len(b) {
			out = append(out, b[i])
		}
	}
	return out
}

func (s *search) intervalsOf(ctx context.Context, kind string) (fs []*found, likely bool, err error) {
	low := s.ev.limitLow
	need := func(b burst) int64 { return b.need }
	if kind == KindCard {
		low = s.ev.cardLow
		need = func(b burst) int64 { return b.cardNeed }
	}
	must := s.ev.limitHigh
	// needs are the bounds above which a burst is no flush.
	needsOf := func(bursts []burst) (needs []int64) {
		for _, b := range bursts {
			switch n := need(b); {
			case !b.flush() || n <= low:
			case b.caller == traces.CallerRequest:
				must = min(must, n-1)
			default:
				needs = append(needs, n)
			}
		}
		slices.Sort(needs)
		needs = slices.Compact(needs)
		for len(needs) > 0 && needs[len(needs)-1] > must {
			needs = needs[:len(needs)-1]
		}
		return needs
	}
	needs := needsOf(s.ev.bursts)
	if len(needs) == 0 && must == math.MaxInt64 {
		return nil, false, nil
	}
	high := must
	if len(needs) > 0 {
		high = needs[0] - 1
	}
	if high < low {
		return nil, false, nil
	}
	first, err := s.interval(ctx, kind, low, high)
	if err != nil || !first.exact() {
		return []*found{first}, true, err
	}
	s.keepPools(first)
	// What the replay needed an empty_cache for was no flush, because the
	// request found a cached block.
	must = s.ev.limitHigh
	bursts := s.rec.evidenceOf(first.tr).bursts
	needs = needsOf(bursts)
	flushes, others := 0, 0
	for _, b := range bursts {
		switch {
		case b.flush():
			flushes++
		case !b.oom:
			others++
		}
	}
	if flushes == 0 && must == math.MaxInt64 {
		return nil, false, nil
	}
	likely = s.ev.ooms > 0 || must != math.MaxInt64 || flushes > 2*others
	edges := append(append([]int64{low}, needs...), math.MaxInt64)
	if must != math.MaxInt64 {
		edges[len(edges)-1] = must + 1
	}
	count := len(edges) - 1
	if must == math.MaxInt64 {
		count--
	}
	s.intervalCount = max(s.intervalCount, count)
	for i, k := range spread(count, maxIntervals) {
		from, to := edges[k], edges[k+1]-1
		f := first
		if i > 0 || to != high {
			if f, err = s.interval(ctx, kind, from, to); err != nil {
				return nil, false, err
			}
		}
		fs = append(fs, f)
		if s.budget < 0 {
			break
		}
	}
	return fs, likely, nil
}

// spread picks at most most of n numbers from 0, always the first and the last.
func spread(n, most int) []int {
	var ks []int
	for k := range min(n, most) {
		if n <= most {
			ks = append(ks, k)
		} else {
			ks = append(ks, k*(n-1)/(most-1))
		}
	}
	return ks
}

// interval is the world whose bound lies in [low, high].
func (s *search) interval(ctx context.Context, kind string, low, high int64) (*found, error) {
	f := &found{kind: kind, low: low, high: high}
	at := low + (high-low)/2
	var err error
	if f.settler, err = s.fit(ctx, s.machine(kind, at), s.calls(kind, at)); err != nil || f.exact() || !s.rec.Conf.ExpandableSegments {
		return f, err
	}
	// How many pages of expandable segments a request would have mapped is not
	// known: the bracket may be too wide.
	const tries = 8
	for k := range int64(tries + 1) {
		if s.budget < 0 {
			break
		}
		at := low + (high-low)/tries*k
		t, err := s.fit(ctx, s.machine(kind, at), s.calls(kind, at))
		if err != nil {
			return nil, err
		}
		if t.exact() {
			f.settler = t
			f.low, f.high, err = s.edges(ctx, t, kind, low, at, high)
			return f, err
		}
		if t.further(f.settler) {
			f.settler = t
		}
	}
	return f, nil
}

// edges are the least and the largest bound in [low, high] around at under
// which the trace of t replays exactly.
func (s *search) edges(ctx context.Context, t *settler, kind string, low, at, high int64) (from, to int64, err error) {
	exact := func(bound int64) bool {
		if err != nil {
			return false
		}
		u := *t
		u.machine = s.machine(kind, bound)
		u.check, err = u.compare(ctx, u.tr)
		return err == nil && u.exact()
	}
	from, to = at, at
	if exact(low) {
		from = low
	} else {
		for bad := low; from-bad > 1 && s.budget > 0 && err == nil; {
			if mid := bad + (from-bad)/2; exact(mid) {
				from = mid
			} else {
				bad = mid
			}
		}
	}
	if exact(high) {
		to = high
	} else {
		for bad := high; bad-to > 1 && s.budget > 0 && err == nil; {
			if mid := to + (bad-to)/2; exact(mid) {
				to = mid
			} else {
				bad = mid
			}
		}
	}
	return from, to, err
}

// collected are the worlds with a memory fraction under which garbage is
// collected. The first is that of the least inferred calls, which is that of
// the smallest limits; larger ones collect less and leave more to empty_cache
// calls.
func (s *search) collected(ctx context.Context) ([]*found, error) {
	low, high := s.ev.limitLow, s.ev.limitHigh
	top := high
	if high == math.MaxInt64 {
		top = max(s.known.total, 4*low, 1<<40)
	}
	t, err := s.bisect(ctx, low, top, false)
	if err == nil && t == nil {
		t, err = s.bisect(ctx, low, top, true)
	}
	if err == nil && t == nil {
		t, err = s.grid(ctx, low, top)
	}
	if err != nil {
		return nil, err
	}
	var fs []*found
	for range maxClasses {
		f := &found{settler: t, kind: KindFraction, low: low, high: top}
		if !t.exact() {
			return append(fs, f), nil
		}
		s.keepPools(f)
		if f.low, f.high, err = s.edges(ctx, t, KindFraction, low, t.machine.Limit, top); err != nil {
			return nil, err
		}
		next := f.high + 1
		if f.high == top && high == math.MaxInt64 {
			f.high = math.MaxInt64
		}
		fs = append(fs, f)
		if next > top || s.budget < 0 {
			break
		}
		if t, err = s.fit(ctx, s.machine(KindFraction, next), s.certain()); err != nil {
			return nil, err
		}
		if !t.exact() {
			break
		}
		low = next
	}
	return fs, nil
}

// bisect looks for a limit between low and high under which the recording
// replays, by who releases first where it does not: the model if the limit is
// too small, the recording if it is too large. With calls, what the recording
// releases may also be an empty_cache call, and the smallest limit is found
// under which nothing contradicts that. It returns nil if there is none.
func (s *search) bisect(ctx context.Context, low, high int64, calls bool) (*settler, error) {
	var best *settler
	for low <= high && s.budget > 0 {
		m := s.machine(KindFraction, low+(high-low)/2)
		var t *settler
		var err error
		if calls {
			t, err = s.fit(ctx, m, s.certain())
		} else {
			t = &settler{rec: s.rec, machine: m, runner: &s.runner, budget: &s.budget, layout: s.layout}
			t.tr = s.rec.Trace
			if s.layout != nil {
				t.tr = s.layout.apply(t.tr)
			}
			at := s.certain()
			t.tr, t.empty = traces.WithEmptyCaches(t.tr, at), len(at)
			t.check, err = t.compare(ctx, t.tr)
		}
		if err != nil {
			return nil, err
		}
		if t.exact() {
			best = t
			if !calls {
				return t, nil
			}
			high = m.Limit - 1
			continue
		}
		switch d := t.check.FirstDivergence; {
		case d.simulated == release && d.recorded != release:
			low = m.Limit + 1
		case d.recorded == release && d.simulated != release:
			high = m.Limit - 1
		case calls && best == nil:
			high = m.Limit - 1
		default:
			return best, nil
		}
	}
	return best, nil
}

// grid tries limits between low and high and keeps the one that explains most
// with the fewest inferred calls.
func (s *search) grid(ctx context.Context, low, high int64) (*settler, error) {
	const tries = 30
	var best *settler
	for k := range int64(tries + 1) {
		t, err := s.fit(ctx, s.machine(KindFraction, low+(high-low)/tries*k), nil)
		if err != nil {
			return nil, err
		}
		if best == nil || t.further(best) {
			best = t
		}
		if s.budget < 0 {
			break
		}
	}
	return best, nil
}

// order puts equal worlds in a fixed order and drops doubles.
func order(fs []*found) []*found {
	seen := make(map[[3]int64]bool)
	return slices.DeleteFunc(fs, func(f *found) bool {
		k := [3]int64{int64(cmp.Compare(f.kind, KindFraction)), f.low, f.high}
		was := seen[k]
		seen[k] = true
		return was
	})
}
