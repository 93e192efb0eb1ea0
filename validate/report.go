package validate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/validate/cuda"
)

// Report is the outcome of a validation. Its JSON is what `allocsim validate
// --json` prints.
type Report struct {
	Source string `json:"source"`
	Policy string `json:"policy"`
	// Device is the card, or "modelled device".
	Device string `json:"device"`
	Engine string `json:"engine"`
	// Confirmed reports that something real was measured.
	Confirmed bool `json:"confirmed"`
	// Capacity is the bytes the allocator could take, Limit its own limit; 0 =
	// none.
	Capacity bytesize.OrNone `json:"capacity"`
	Limit    bytesize.OrNone `json:"limit"`

	Predicted Figures `json:"predicted"`
	Measured  Figures `json:"measured"`
	// AtRealAddresses is the prediction repeated with the addresses that the
	// real driver chose, if it then agrees with what was measured in every
	// segment event; nil when that was not needed or does not help. Addresses
	// decide ties between free blocks of equal size, and the driver's choice
	// varies from process to process.
	AtRealAddresses *Figures `json:"predicted_at_real_addresses,omitempty"`
	// Deviation is how far each figure is off, in percent of the prediction.
	Deviation Deviation `json:"deviation"`
	// Tolerance is the deviation allowed, in percent.
	Tolerance float64 `json:"tolerance"`
	// Slack is the bytes by which reserved_peak may differ besides: on a real
	// card, one granule of the driver for each segment.
	Slack int64 `json:"slack"`
	Pass  bool  `json:"pass"`

	// StatsCompared and EventsCompared count what was compared one by one;
	// Mismatches lists what differs, at most maxMismatches of each sort.
	StatsCompared  int        `json:"stats_compared"`
	EventsCompared int        `json:"events_compared"`
	Mismatches     []Mismatch `json:"mismatches"`

	// Checkpoints compare memory in use on the way.
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	// Memory is the device memory in use (engine cuda); Granule is the
	// driver's unit in bytes.
	Memory  *cuda.Usage `json:"memory,omitempty"`
	Granule int64       `json:"granule,omitempty"`
	// Driver are the times of the driver calls of the run (engine cuda).
	Driver []cuda.Latency `json:"driver,omitempty"`
	// Torch is the version of PyTorch (engine torch).
	Torch string `json:"torch,omitempty"`

	Notes []string `json:"notes"`
}

// Figures are what is compared first.
type Figures struct {
	// ReservedPeak is the most bytes taken from the device. Measured by the
	// engine cuda, it is device memory in use as cuMemGetInfo shows it.
	ReservedPeak int64 `json:"reserved_peak"`
	// AllocatedPeak is the most bytes in blocks that the program held.
	AllocatedPeak int64 `json:"allocated_peak"`
	// Segments is how often memory was taken from the driver: cudaMalloc
	// calls, and map calls of expandable segments.
	Segments int64 `json:"segments"`
	// Fragmentation is the share of the reserved peak that the allocated peak
	// does not account for: 1 − allocated_peak/reserved_peak.
	Fragmentation float64 `json:"fragmentation"`
	// OOMs is the number of requests that failed.
	OOMs int64 `json:"ooms"`
}

// Deviation has, for each of the Figures, (measured − predicted) in percent of
// the prediction; for Fragmentation, a share already, in percentage points.
type Deviation struct {
	ReservedPeak  float64 `json:"reserved_peak"`
	AllocatedPeak float64 `json:"allocated_peak"`
	Segments      float64 `json:"segments"`
	Fragmentation float64 `json:"fragmentation"`
	OOMs          float64 `json:"ooms"`
}

// Mismatch is one thing that was predicted otherwise than measured.
type Mismatch struct {
	// What is "statistic", "segment event", "block", "oom" or "final segment".
	What string `json:"what"`
	// Where is the statistic's key or the place in the trace.
	Where     string `json:"where"`
	Predicted string `json:"predicted"`
	Measured  string `json:"measured"`
}

// Checkpoint is memory in use at the same place of the trace.
type Checkpoint struct {
	Event     int   `json:"event"` // index in the trace
	Predicted int64 `json:"predicted"`
	Measured  int64 `json:"measured"`
}

// checkOneByOne names the comparison of statistics and events.
const checkOneByOne = "one_by_one"

// maxMismatches is how many mismatches of one sort a Report lists.
const maxMismatches = 20

func newReport(tr *traces.Trace, o Options, engine string, predicted *sim.Result) *Report {
	return &Report{
		Source: tr.Source, Policy: o.Config.Policy.String(), Engine: engine,
		Capacity: bytesize.OrNone(predicted.Capacity), Limit: bytesize.OrNone(predicted.Limit),
		Predicted: figures(predicted), Tolerance: o.Tolerance,
		Mismatches: []Mismatch{}, Notes: append([]string{}, predicted.Notes...),
	}
}

func figures(r *sim.Result) Figures {
	f := Figures{
		ReservedPeak:  r.Stats.ReservedBytes[policies.All].Peak,
		AllocatedPeak: r.Stats.AllocatedBytes[policies.All].Peak,
		Segments:      r.Stats.NumDeviceAlloc,
		OOMs:          r.Stats.NumOOMs,
	}
	f.fragment()
	return f
}

func (f *Figures) fragment() {
	f.Fragmentation = 0
	if f.ReservedPeak > 0 {
		f.Fragmentation = 1 - float64(f.AllocatedPeak)/float64(f.ReservedPeak)
	}
}

// noteAddresses says what AtRealAddresses means.
func (r *Report) noteAddresses() {
	if r.AtRealAddresses != nil {
		r.Notes = append(r.Notes, "With the addresses that the real driver chose, the simulation agrees in every segment event: the difference is a tie between free blocks of equal size, which the lower address wins.")
	}
}

func percent(predicted, measured int64) float64 {
	switch {
	case predicted == measured:
		return 0
	case predicted == 0:
		return math.Copysign(100, float64(measured))
	}
	return 100 * float64(measured-predicted) / float64(predicted)
}

func (r *Report) mismatch(what, where, predicted, measured string) {
	n := 0
	for _, m := range r.Mismatches {
		if m.What == what {
			n++
		}
	}
	if n < maxMismatches {
		r.Mismatches = append(r.Mismatches, Mismatch{what, where, predicted, measured})
	}
}

// Check is one verdict of a report: a figure, or the comparison one by one.
type Check struct {
	Name                string
	Predicted, Measured string
	// Deviation is in percent (percentage points for fragmentation); NaN when
	// it has no meaning.
	Deviation float64
	Pass      bool
	// Why says what is wrong when Pass is false.
	Why string
}

// Checks are the report's verdicts in a fixed order; it passes when all do.
func (r *Report) Checks() []Check {
	p, m, d := r.Predicted, r.Measured, r.Deviation
	// With the engine cuda, what the driver's addresses explain is no
	// deviation of the device's behaviour, which is what is confirmed.
	at := p
	if r.Engine == EngineCUDA && r.AtRealAddresses != nil {
		at = *r.AtRealAddresses
	}
	figure := func(name string, p, at, m int64, dev float64, slack int64) Check {
		c := Check{Name: name, Predicted: fmt.Sprint(p), Measured: fmt.Sprint(m), Deviation: dev}
		near := func(p int64) bool {
			return math.Abs(percent(p, m)) <= r.Tolerance || max(m-p, p-m) <= slack
		}
		if c.Pass = near(p) || near(at); !c.Pass {
			c.Why = fmt.Sprintf("%s: predicted %d, measured %d, off by %+.3f %%", name, p, m, dev)
		}
		return c
	}
	checks := []Check{
		figure("reserved_peak", p.ReservedPeak, at.ReservedPeak, m.ReservedPeak, d.ReservedPeak, r.Slack),
		figure("allocated_peak", p.AllocatedPeak, at.AllocatedPeak, m.AllocatedPeak, d.AllocatedPeak, 0),
		figure("segments", p.Segments, at.Segments, m.Segments, d.Segments, 0),
	}
	frag := Check{
		Name: "fragmentation", Predicted: fmt.Sprintf("%.6f", p.Fragmentation), Measured: fmt.Sprintf("%.6f", m.Fragmentation),
		Deviation: d.Fragmentation,
	}
	// What the slack allows of the reserved peak moves the share by as much.
	slack := 0.0
	if p.ReservedPeak > 0 {
		slack = 100 * float64(r.Slack) / float64(p.ReservedPeak)
	}
	off := min(math.Abs(d.Fragmentation), 100*math.Abs(m.Fragmentation-at.Fragmentation))
	if frag.Pass = off <= max(r.Tolerance, slack); !frag.Pass {
		frag.Why = fmt.Sprintf("fragmentation: predicted %.4f, measured %.4f", p.Fragmentation, m.Fragmentation)
	}
	checks = append(checks, frag, figure("ooms", p.OOMs, at.OOMs, m.OOMs, d.OOMs, 0))
	if r.Engine == EngineTorch {
		// A tolerance is for figures; events either agree or not, so they
		// count only when none is given. With the engine cuda, the driver's
		// choice of addresses decides ties, so its events are for information.
		c := Check{
			Name: checkOneByOne, Deviation: math.NaN(),
			Predicted: fmt.Sprintf("%d statistics, %d events", r.StatsCompared, r.EventsCompared),
			Measured:  fmt.Sprintf("%d differ", len(r.Mismatches)),
			Pass:      len(r.Mismatches) == 0 || r.Tolerance > 0,
		}
		if !c.Pass {
			m := r.Mismatches[0]
			c.Why = fmt.Sprintf("%s %s: predicted %s, measured %s", m.What, m.Where, m.Predicted, m.Measured)
			if n := len(r.Mismatches); n > 1 {
				c.Why += fmt.Sprintf(" (and %d more)", n-1)
			}
		}
		checks = append(checks, c)
	}
	return checks
}

// judge fills in the deviations and the verdict.
func (r *Report) judge(slack int64) {
	p, m := r.Predicted, r.Measured
	r.Slack = slack
	r.Deviation = Deviation{
		ReservedPeak:  percent(p.ReservedPeak, m.ReservedPeak),
		AllocatedPeak: percent(p.AllocatedPeak, m.AllocatedPeak),
		Segments:      percent(p.Segments, m.Segments),
		Fragmentation: 100 * (m.Fragmentation - p.Fragmentation),
		OOMs:          percent(p.OOMs, m.OOMs),
	}
	r.Pass = true
	for _, c := range r.Checks() {
		r.Pass = r.Pass && c.Pass
	}
}

// checkpoints pairs samples; after a divergence the runs may sample at other
// events, which are then left out.
func (r *Report) checkpoints(predicted, measured []sample) {
	for i := 0; i < len(predicted) && i < len(measured); i++ {
		if predicted[i].at == measured[i].at {
			r.Checkpoints = append(r.Checkpoints, Checkpoint{predicted[i].at, predicted[i].bytes, measured[i].bytes})
		}
	}
}

func (r *Report) compareOOMs(predicted, measured []sim.OOM) {
	text := func(os []sim.OOM, i int) string {
		if i >= len(os) {
			return "none"
		}
		return fmt.Sprintf("%d bytes at event %d", os[i].Requested, os[i].Event)
	}
	for i := range max(len(predicted), len(measured)) {
		if i >= len(predicted) || i >= len(measured) || predicted[i].Event != measured[i].Event {
			r.mismatch("oom", fmt.Sprintf("number %d", i+1), text(predicted, i), text(measured, i))
			return
		}
	}
}

// compareEvents compares two histories entry by entry up to the first
// difference, after which nothing can be paired. total is the card's bytes.
func (r *Report) compareEvents(predicted, measured []event, total int64) {
	ps, ms := placeAll(predicted, total), placeAll(measured, total)
	for i := range max(len(ps), len(ms)) {
		var p, m entry
		if i < len(ps) {
			p = ps[i]
		}
		if i < len(ms) {
			m = ms[i]
		}
		if p == m {
			r.EventsCompared++
			continue
		}
		where := fmt.Sprintf("entry %d", i)
		if i < len(predicted) {
			where += fmt.Sprintf(", at event %d of the trace", predicted[i].at)
		}
		what := "block"
		if p.ofSegment() || m.ofSegment() {
			what = "segment event"
		}
		r.mismatch(what, where, p.String(), m.String())
		return
	}
}

// entry is an event without absolute addresses: two runs did the same exactly
// when their entries are equal.
type entry struct {
	action  policies.Action
	size    int64
	stream  uint16
	segment int // number of the segment, in the order of their appearance; 0 = none
	offset  int64
}

func (e entry) ofSegment() bool {
	switch e.action {
	case policies.ActionSegmentAlloc, policies.ActionSegmentFree, policies.ActionSegmentMap, policies.ActionSegmentUnmap:
		return true
	}
	return false
}

func (e entry) String() string {
	switch {
	case e.action == 0:
		return "nothing"
	case e.segment == 0:
		return fmt.Sprintf("%s of %d bytes on stream %d", e.action, e.size, e.stream)
	}
	return fmt.Sprintf("%s of %d bytes on stream %d, at %d in segment %d", e.action, e.size, e.stream, e.offset, e.segment)
}

// placeAll turns a history into entries. Pending frees that complete together
// are put in the order of their places: PyTorch notices the streams that have
// finished in the order of a hash table, so their order says nothing.
func placeAll(events []event, total int64) []entry {
	p := newPlaces(total)
	out := make([]entry, len(events))
	run := 0 // entries at the end that are completions
	for i, e := range events {
		out[i] = p.place(e)
		if e.action == policies.ActionFreeCompleted {
			run++
			continue
		}
		sortEntries(out[i-run : i])
		run = 0
	}
	sortEntries(out[len(out)-run:])
	return out
}

func sortEntries(es []entry) {
	if len(es) > 1 {
		slices.SortFunc(es, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.offset, b.offset))
		})
	}
}

// places names addresses independently of where the driver put things:
// segments by number, blocks by their offset in a segment.
type places struct {
	segs []place // live segments and reservations, ascending by address
	next int
	span int64 // least size of a reservation of an expandable segment
}

type place struct {
	addr   uint64
	size   int64
	number int
	mapped int64 // bytes of a reservation that are mapped
}

func newPlaces(total int64) *places {
	p := &places{span: total + total/8} // spec pytorch-allocator A3.9
	if p.span <= 0 {
		p.span = 1 << 40
	}
	return p
}

// find is the place of the last segment that begins at or below addr, and
// whether it contains addr.
func (p *places) find(addr uint64) (int, bool) {
	i, exact := slices.BinarySearchFunc(p.segs, addr, func(s place, a uint64) int { return cmp.Compare(s.addr, a) })
	if !exact {
		i--
	}
	return i, i >= 0 && addr-p.segs[i].addr < uint64(p.segs[i].size)
}

func (p *places) add(addr uint64, size int64) {
	p.next++
	i, _ := p.find(addr)
	p.segs = slices.Insert(p.segs, i+1, place{addr: addr, size: size, number: p.next})
}

func (p *places) place(e event) entry {
	out := entry{action: e.action, size: e.size, stream: e.stream}
	if e.action == policies.ActionOOM {
		return out
	}
	i, in := p.find(e.addr)
	switch {
	case e.action == policies.ActionSegmentAlloc:
		p.add(e.addr, e.size)
		i, in = p.find(e.addr)
	case e.action == policies.ActionSegmentMap && !in:
		// A reservation is mapped from its start, and never moves.
		p.add(e.addr, p.span)
		i, in = p.find(e.addr)
	}
	if !in {
		return out
	}
	s := &p.segs[i]
	out.segment, out.offset = s.number, int64(e.addr-s.addr)
	switch e.action {
	case policies.ActionSegmentMap:
		s.mapped += e.size
	case policies.ActionSegmentUnmap:
		s.mapped -= e.size
	}
	// A reservation without memory is given back; its addresses may serve the
	// next one.
	if e.action == policies.ActionSegmentFree || e.action == policies.ActionSegmentUnmap && s.mapped == 0 {
		p.segs = slices.Delete(p.segs, i, i+1)
	}
	return out
}
