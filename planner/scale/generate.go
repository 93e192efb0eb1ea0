package scale

import (
	"fmt"
	"math"
	"math/bits"

	"allocsim/internal/plural"
	"allocsim/traces"
)

// Notes are caveats, one sentence each.
type Notes []string

// The limits of what was tested, from spec/scaling.md section 5.
const (
	// beyondFactor is the distance above the largest recording, as a factor.
	beyondFactor = 16
	// refuseShare and warnShare are the shares of the bytes alive at the
	// predicted peak that may be without an exact law.
	refuseShare, warnShare = 0.25, 0.05
	// manyScratches is the number of different sizes of scratch from which a
	// library is taken to choose algorithms: BERT was seen to have up to 6,
	// ResNet-50 22 and more.
	manyScratches = 10
	// MaxValue bounds the values that can be asked for.
	MaxValue = 1 << 40
)

// scenario is the program at a value nobody ran.
type scenario struct {
	value int64
	ref   int
	fits  []fit
	trace *traces.Trace
	// event gives the index in trace.Events of each allocation of the
	// reference, -1 if it does not happen.
	event []int32
	peak  peak
	// switches reports that a library chooses between algorithms: some scratch
	// jumps between the recordings, or there is scratch of many sizes without
	// an exact law.
	switches bool
	notes    Notes
}

// peak is the moment of the most requested bytes.
type peak struct {
	event int   // in the scenario's trace
	bytes int64 // requested
	byLaw [numLaws]int64
	// moved reports that the reference's own peak is at another operation.
	moved bool
	// doubtful is the largest allocation alive without an exact law; 0 = none.
	doubtful int64
}

// Generate writes the trace of the program at a value nobody ran: the requests
// of the nearest recording in their order, with each size as its law gives it.
// A *Refusal says why the recordings do not determine it.
func (m *Model) Generate(value int64) (*traces.Trace, Notes, error) {
	s, err := m.scenario(value)
	if err != nil {
		return nil, nil, err
	}
	return s.trace, s.notes, nil
}

func (m *Model) scenario(value int64) (*scenario, error) {
	if value <= 0 || value > MaxValue {
		return nil, fmt.Errorf("the value to predict must be between 1 and %d, not %d", int64(MaxValue), value)
	}
	return m.scenarioFrom(value, m.reference(value))
}

// scenarioFrom is the program at a value with the order of requests of program
// ref.
func (m *Model) scenarioFrom(value int64, ref int) (*scenario, error) {
	s := &scenario{value: value, ref: ref}
	p := m.programs[s.ref]
	s.fits = m.fitAll(s.ref, value)
	if err := s.build(p); err != nil {
		return nil, err
	}
	groups := make(map[uint32]bool)
	for a := range s.fits {
		if f := &s.fits[a]; p.allocs[a].short() && !f.certain() {
			s.switches = s.switches || f.jump
			groups[f.group] = true
		}
	}
	s.switches = s.switches || len(groups) >= manyScratches
	s.findPeak(p)
	s.notes = append(s.notes, m.notes...)
	m.rangeNotes(s)
	if doubt := s.inexactShare(); value != p.value {
		switch {
		case doubt > refuseShare:
			return nil, refuse("at %d, %.0f %% of the bytes alive at the peak follow no exact law between the recordings; record values nearer to %d, or of one program with fixed shapes", value, 100*doubt, value)
		case doubt > warnShare:
			s.notes = append(s.notes, fmt.Sprintf("At %d, %.0f %% of the bytes alive at the peak follow no exact law between the recordings.", value, 100*doubt))
		}
	}
	s.trace.Notes = append([]string{
		fmt.Sprintf("Extrapolated to %d from recordings at %v with the order of requests of %d; nobody ran this.", value, m.Values(), p.value)}, s.notes...)
	return s, nil
}

// build writes the reference's requests with the predicted sizes.
func (s *scenario) build(p *program) error {
	t := p.trace
	b := traces.NewBuilder(len(t.Events))
	for _, h := range t.Streams {
		b.Stream(h)
	}
	for _, id := range t.Pools {
		b.Pool(id)
	}
	ids := make([]traces.BlockID, t.NumBlocks)
	s.event = make([]int32, len(p.allocs))
	var total int64
	for _, e := range t.Events {
		var at int32
		if e.Kind != traces.EmptyCache {
			at = p.block[e.ID]
			if s.fits[at].size == 0 {
				s.event[at] = -1
				continue
			}
		}
		switch e.Kind {
		case traces.Alloc:
			size := s.fits[at].size
			if total += size; size > 1<<50 || total < 0 {
				return fmt.Errorf("at %d an allocation of %d bytes would be needed", s.value, size)
			}
			s.event[at] = int32(b.Len())
			ids[e.ID] = b.Alloc(e.TimeUS, size, e.Stream, e.Pool)
		case traces.Free:
			b.Free(e.TimeUS, ids[e.ID])
		case traces.FreeRequested:
			b.FreeRequested(e.TimeUS, ids[e.ID])
		case traces.FreeCompleted:
			b.FreeCompleted(e.TimeUS, ids[e.ID])
		case traces.EmptyCache:
			b.EmptyCache(e.TimeUS)
		}
	}
	out, _, err := b.Build()
	if err != nil {
		return fmt.Errorf("generate %d from %s: %w", s.value, t.Source, err)
	}
	out.Source = fmt.Sprintf("%s scaled from %d to %d", t.Source, p.value, s.value)
	out.Format = "scale"
	out.Device = t.Device
	out.Meta = t.Meta
	out.StartUS = t.StartUS
	s.trace = out
	return nil
}

// findPeak finds when the most requested bytes are alive, and under which laws.
func (s *scenario) findPeak(p *program) {
	var recordedPeak int64
	recordedAt := -1
	now, recorded := p.trace.Live(), p.trace.Live()
	for i, e := range p.trace.Events {
		recorded.See(&e)
		if e.Kind == traces.Alloc {
			e.Size = s.fits[p.block[e.ID]].size
		}
		now.See(&e)
		if now.Allocated > s.peak.bytes {
			s.peak.bytes, s.peak.event = now.Allocated, i
		}
		if recorded.Allocated > recordedPeak {
			recordedPeak, recordedAt = recorded.Allocated, i
		}
	}
	s.peak.moved = recordedAt != s.peak.event
	alive := make([]bool, len(p.allocs))
	for _, e := range p.trace.Events[:s.peak.event+1] {
		switch e.Kind {
		case traces.Alloc:
			alive[p.block[e.ID]] = true
		case traces.Free, traces.FreeRequested:
			alive[p.block[e.ID]] = false
		}
	}
	for a, live := range alive {
		if !live {
			continue
		}
		f := &s.fits[a]
		s.peak.byLaw[f.law] += f.size
		if !f.law.Exact() {
			s.peak.doubtful = max(s.peak.doubtful, f.size)
		}
	}
	s.peak.event = int(s.event[p.block[p.trace.Events[s.peak.event].ID]])
}

// inexactShare is the share of the bytes alive at the peak without exact law.
func (s *scenario) inexactShare() float64 {
	var bytes int64
	for l, n := range s.peak.byLaw {
		if !Law(l).Exact() {
			bytes += n
		}
	}
	return float64(bytes) / float64(max(s.peak.bytes, 1))
}

// rangeNotes says where the value lies relative to the recordings.
func (m *Model) rangeNotes(s *scenario) {
	first, last := m.programs[0].value, m.programs[len(m.programs)-1].value
	switch {
	case s.value < first:
		s.notes = append(s.notes, fmt.Sprintf("%d is below the smallest recording (%d): libraries switch to other algorithms there, which no larger recording shows. Record %d or less for a dependable answer.", s.value, first, s.value))
	case s.value > beyondFactor*last:
		s.notes = append(s.notes, fmt.Sprintf("%d is more than %d times the largest recording (%d), farther than this method was tested.", s.value, beyondFactor, last))
	}
	if m.indivisible(s.value) {
		s.notes = append(s.notes, fmt.Sprintf("%d is not divisible by %d as all recorded values are: sizes that are rounded up to tiles or halved repeatedly may differ.", s.value, m.commonPower()))
	}
	if m.grid.sms == 0 && s.value != m.programs[s.ref].value {
		for a := range s.fits {
			if f := &s.fits[a]; f.law == Reduction && !f.certain() {
				s.notes = append(s.notes, "The recorded GPU is unknown, and with it how large the buffers of reductions grow; name it for narrower bars.")
				break
			}
		}
	}
	alone := 0
	for _, k := range m.pairs {
		if k.From == m.programs[s.ref].value {
			alone = max(alone, k.UnmatchedFrom)
		}
		if k.To == m.programs[s.ref].value {
			alone = max(alone, k.UnmatchedTo)
		}
	}
	if share := float64(alone) / float64(len(m.programs[s.ref].allocs)); share > 0.02 && s.value != m.programs[s.ref].value {
		s.notes = append(s.notes, fmt.Sprintf("%s (%.0f %%) of the recording at %d %s missing in another: the program takes other paths there. Recordings on one side of that change would say more.", plural.Of(alone, "allocation"), 100*share, m.programs[s.ref].value, plural.Are(alone)))
	}
}

// commonPower is the largest power of two that divides all recorded values.
func (m *Model) commonPower() int64 {
	zeros := 62
	for _, p := range m.programs {
		zeros = min(zeros, bits.TrailingZeros64(uint64(p.value)))
	}
	return 1 << zeros
}

// indivisible reports that the recordings are all of a roundness that the
// value lacks, where the varied quantity is a length.
func (m *Model) indivisible(value int64) bool {
	return m.opt.length() && value%m.commonPower() != 0
}

// perturbed returns the scenario's trace with every uncertain size varied, each
// group of equal sizes by one factor, drawn from seed.
func (s *scenario) perturbed(seed uint64) *traces.Trace {
	t := *s.trace
	t.Events = append([]traces.Event(nil), s.trace.Events...)
	for a := range s.fits {
		f := &s.fits[a]
		if f.certain() || s.event[a] < 0 {
			continue
		}
		size := math.Round(float64(f.size) * f.factor(seed))
		t.Events[s.event[a]].Size = max(int64(size), 1)
	}
	return &t
}

// factor draws a factor for the allocation's group. A quarter of the draws lie
// at each end of the range, because the cliffs do.
func (f *fit) factor(seed uint64) float64 {
	// SplitMix64 of seed and group.
	z := seed*0x9e3779b97f4a7c15 + uint64(f.group)*0xd1342543de82ef95
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	u := float64(z>>11)/(1<<53)*2 - 0.5 // −0.5 … 1.5
	return f.low + (f.high-f.low)*min(max(u, 0), 1)
}
