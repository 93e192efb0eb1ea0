package planner

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"allocsim/policies"
	"allocsim/policies/torch/conf"
	"allocsim/traces"
)

const mib = 1 << 20

// space is the settable options and the values that can matter for some
// traces.
type space struct {
	version conf.Version
	base    conf.Config // what is set now; options outside the search stay
	splits  []int64     // max_split_size values between the traces' own sizes
	used    [conf.Intervals]bool
	sizes   []int64 // distinct request sizes, ascending
	// warnings is how many objections conf has to the options of base that are
	// outside the search.
	warnings int
	// collect reports that garbage collection can work: there is a limit, or
	// one can be set by a fraction.
	collect bool
	// noExpandable leaves expandable segments out.
	noExpandable bool
	// fractions are memory fractions worth trying; empty when the program
	// sets its own or the device's size is unknown.
	fractions []float64
}

// newSpace looks at the sizes of the jobs' requests.
func newSpace(jobs []Case, base conf.Config, v conf.Version) *space {
	s := &space{version: v, base: base}
	s.warnings = len(conf.Check(s.plain(), v).Warnings)
	seen, distinct := make(map[int64]bool), make(map[int64]bool)
	for _, j := range jobs {
		for i := range j.Trace.Events {
			e := &j.Trace.Events[i]
			if e.Kind != traces.Alloc && e.Kind != traces.OOM {
				continue
			}
			if distinct[e.Size] {
				continue
			}
			distinct[e.Size] = true
			s.used[conf.RoundupInterval(e.Size)] = true
			// max_split_size is in whole MiB and at least one segment size.
			if m := (e.Size + mib - 1) / mib * mib; m > 20*mib {
				seen[m] = true
			}
		}
	}
	for m := range seen {
		s.splits = append(s.splits, m)
	}
	slices.Sort(s.splits)
	for n := range distinct {
		s.sizes = append(s.sizes, n)
	}
	slices.Sort(s.sizes)
	return s
}

// effect identifies what a configuration does to these traces: two with the
// same effect give the same blocks and segments.
type effect struct {
	blocks   uint64 // hash of the block size for each distinct request size
	segments uint64 // hash of the segment sizes of those block sizes
	conf     conf.Config
}

// effectOf works out the effect of a configuration: options that change
// nothing for the traces' sizes are left out of it.
func (s *space) effectOf(c conf.Config, spec *policies.Spec) effect {
	e := effect{conf: c}
	for _, n := range s.sizes {
		block, segment := spec.Sizes(n)
		e.blocks = mix(e.blocks, block)
		e.segments = mix(e.segments, segment)
	}
	e.conf.Roundup = [conf.Intervals]int64{}
	if !c.ExpandableSegments {
		e.conf.LargeSegmentSize = 0 // its effect is in segments
		if c.MaxSplitSize == conf.Unlimited {
			e.conf.MaxNonSplitRounding = 0
		}
	}
	return e
}

// mix takes a number into a hash: a multiplication of which the upper half
// comes back into the lower, which spreads every bit over all others.
func mix(h uint64, n int64) uint64 {
	hi, lo := bits.Mul64(h^uint64(n)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// thin picks at most n values spread evenly over the ranks of sorted xs, the
// first and last included.
func thin(xs []int64, n int) []int64 {
	if len(xs) <= n {
		return xs
	}
	var out []int64
	for k := range n {
		out = append(out, xs[k*(len(xs)-1)/(n-1)])
	}
	return slices.Compact(out)
}

// plain is the base without any of the options that are searched.
func (s *space) plain() conf.Config {
	c := s.base
	d := conf.Default(s.version)
	c.Backend = d.Backend
	c.MaxSplitSize, c.MaxNonSplitRounding = d.MaxSplitSize, d.MaxNonSplitRounding
	c.GCThreshold, c.Roundup = 0, d.Roundup
	c.ExpandableSegments, c.LargeSegmentSize = false, d.LargeSegmentSize
	c.PerProcessMemoryFraction = d.PerProcessMemoryFraction
	return c
}

// isPlain reports that a configuration sets no option of the search, except
// perhaps expandable segments.
func (s *space) isPlain(c conf.Config) bool {
	p := s.plain()
	p.ExpandableSegments = c.ExpandableSegments
	return c == p
}

// coarse is the first grid: every combination of a few values of each option.
func (s *space) coarse() []conf.Config {
	cs := &configs{s: s}
	plain := s.plain()
	thresholds := []float64{0}
	if s.collect {
		thresholds = append(thresholds, 0.6, 0.8)
	}
	fractions := append([]float64{1}, s.fractions...)
	for _, divisions := range []int64{0, 2, 4, 8, 16} {
		c := plain
		for i := range c.Roundup {
			c.Roundup[i] = divisions
		}
		e := c
		e.ExpandableSegments = true
		cs.add(e)
		for _, split := range append([]int64{conf.Unlimited}, thin(s.splits, 7)...) {
			for _, gc := range thresholds {
				n := c
				n.MaxSplitSize, n.GCThreshold = split, gc
				cs.add(n)
			}
		}
		for _, f := range fractions[1:] {
			for _, gc := range []float64{0, 0.8} {
				n := c
				n.PerProcessMemoryFraction, n.GCThreshold = f, gc
				cs.add(n)
			}
			e.PerProcessMemoryFraction = f
			cs.add(e)
		}
	}
	for _, large := range []int64{12 * mib, 32 * mib, 64 * mib, 128 * mib} {
		for _, expandable := range []bool{false, true} {
			c := plain
			c.LargeSegmentSize, c.MaxNonSplitRounding = large, large
			c.ExpandableSegments = expandable
			cs.add(c)
		}
	}
	return cs.list
}

// neighbours are the configurations one step away from c, finer than the
// coarse grid.
func (s *space) neighbours(c conf.Config) []conf.Config {
	cs := &configs{s: s}
	with := func(change func(*conf.Config)) {
		n := c
		change(&n)
		cs.add(n)
	}
	// Leaving an option away is a step, too: simpler is better.
	plain := s.plain()
	with(func(n *conf.Config) { n.Roundup = plain.Roundup })
	with(func(n *conf.Config) {
		n.MaxSplitSize, n.MaxNonSplitRounding = plain.MaxSplitSize, n.LargeSegmentSize
	})
	with(func(n *conf.Config) { n.GCThreshold = 0 })
	with(func(n *conf.Config) { n.PerProcessMemoryFraction = 1 })
	with(func(n *conf.Config) { n.ExpandableSegments = !n.ExpandableSegments })
	for i, used := range s.used {
		if used {
			for _, d := range []int64{0, 2, 4, 8, 16, 32} {
				with(func(n *conf.Config) { n.Roundup[i] = d })
			}
		}
	}
	if !c.ExpandableSegments {
		for _, split := range s.near(c.MaxSplitSize) {
			with(func(n *conf.Config) { n.MaxSplitSize = split })
		}
		if c.MaxSplitSize != conf.Unlimited {
			for _, r := range []int64{32, 64, 128, 256, 512, 1024, 4096} {
				with(func(n *conf.Config) { n.MaxNonSplitRounding = r * mib })
			}
		}
		if s.collect {
			for _, gc := range []float64{0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95} {
				with(func(n *conf.Config) { n.GCThreshold = gc })
			}
		}
	}
	for _, f := range s.fractions {
		with(func(n *conf.Config) { n.PerProcessMemoryFraction = f })
	}
	for _, large := range []int64{12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256} {
		with(func(n *conf.Config) {
			if n.MaxNonSplitRounding == n.LargeSegmentSize {
				n.MaxNonSplitRounding = large * mib
			}
			n.LargeSegmentSize = large * mib
		})
	}
	return cs.list
}

// near returns split sizes around one: its neighbours among the traces' own
// sizes and, from "unlimited", a spread of all.
func (s *space) near(split int64) []int64 {
	if split == conf.Unlimited {
		return thin(s.splits, 12)
	}
	k, _ := slices.BinarySearch(s.splits, split)
	return s.splits[max(k-3, 0):min(k+4, len(s.splits))]
}

// configs collects distinct configurations that the release takes.
type configs struct {
	s    *space
	list []conf.Config
}

func (cs *configs) add(c conf.Config) {
	if c.ExpandableSegments && cs.s.noExpandable {
		return
	}
	if c.ExpandableSegments {
		// max_split_size with expandable segments lets a segment grow without
		// bound (R02); collection does not touch expandable segments.
		c.MaxSplitSize, c.MaxNonSplitRounding, c.GCThreshold = conf.Unlimited, c.LargeSegmentSize, 0
	}
	if c.GCThreshold > 0 && !cs.s.collect && c.PerProcessMemoryFraction == 1 {
		return
	}
	if c.MaxSplitSize < c.LargeSegmentSize || c.MaxNonSplitRounding < c.LargeSegmentSize {
		return
	}
	if slices.Contains(cs.list, c) {
		return
	}
	// What conf would warn about is no advice.
	if res := conf.Check(c, cs.s.version); !res.OK || len(res.Warnings) > cs.s.warnings {
		return
	}
	cs.list = append(cs.list, c)
}

// optionCount is how many options a configuration sets, each entry of a list
// counted: fewer is simpler.
func optionCount(c conf.Config, v conf.Version) int {
	n := 0
	for _, o := range conf.Check(c, v).Options {
		n += 1 + strings.Count(o.Value, ",")
	}
	return n
}

// compareConfs orders configurations by their string, the last tie-break.
func compareConfs(a, b *Candidate) int { return cmp.Compare(a.Conf, b.Conf) }
