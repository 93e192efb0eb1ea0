package plots

import (
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// Axis is what a figure has from left to right.
type Axis uint8

// The axes.
const (
	// ByTime is the trace's clock; a trace without one is drawn by event.
	ByTime Axis = iota
	// ByEvent is the number of the event.
	ByEvent
)

// Scale is an axis cut into columns of equal width.
type Scale struct {
	Axis Axis
	// Span is the axis's length: µs, or events.
	Span int64
	// Columns is the number of columns.
	Columns int
}

// NewScale is the scale of a trace.
func NewScale(tr *traces.Trace, axis Axis, columns int) Scale {
	s := Scale{Axis: axis, Span: tr.Duration(), Columns: max(columns, 1)}
	if s.Axis == ByEvent || s.Span <= 0 {
		s.Axis, s.Span = ByEvent, int64(len(tr.Events))
	}
	s.Span = max(s.Span, 1)
	return s
}

// x is where an event lies: from 0 to Span.
func (s *Scale) x(at sim.At) int64 {
	if s.Axis == ByTime {
		return min(max(at.TimeUS, 0), s.Span)
	}
	return min(int64(at.Event), s.Span)
}

// column is the column of x.
func (s *Scale) column(x int64) int {
	return min(int(float64(x)/float64(s.Span)*float64(s.Columns)), s.Columns-1)
}

// Column sums up what a quantity did within one column.
type Column struct {
	First, Min, Max, Last int64
}

// Curve is a quantity over the columns of a scale.
type Curve []Column

// Max is the curve's highest value; 0 when it is empty.
func (c Curve) Max() int64 {
	m := int64(0)
	for i := range c {
		m = max(m, c[i].Max)
	}
	return m
}

// Fold is the curve with fewer columns; lowest and highest values are kept.
func (c Curve) Fold(columns int) Curve {
	if columns >= len(c) || columns < 1 {
		return c
	}
	out := make(Curve, columns)
	for j := range out {
		from, to := j*len(c)/columns, (j+1)*len(c)/columns
		o := c[from]
		for _, d := range c[from+1 : to] {
			o.Min, o.Max, o.Last = min(o.Min, d.Min), max(o.Max, d.Max), d.Last
		}
		out[j] = o
	}
	return out
}

// tracer follows one quantity into a Curve.
type tracer struct {
	curve Curve
	at    int // column in use
	value int64
}

func newTracer(columns int) tracer { return tracer{curve: make(Curve, columns)} }

// move goes on to a column; the value stays what it was.
func (t *tracer) move(column int) {
	for t.at < column {
		t.at++
		t.curve[t.at] = Column{t.value, t.value, t.value, t.value}
	}
}

// set changes the value within the present column.
func (t *tracer) set(v int64) {
	t.value = v
	c := &t.curve[t.at]
	c.Last = v
	if v < c.Min {
		c.Min = v
	}
	if v > c.Max {
		c.Max = v
	}
}

// Mark is a moment that a figure points out.
type Mark struct {
	X    int64 // on the scale
	Size int64 // bytes asked for
}

// maxMarks is how many marks of a kind are kept; all are counted.
const maxMarks = 10000

// Memory is an allocator's memory over time.
type Memory struct {
	Scale                       Scale
	Reserved, Allocated, Active Curve
	OOMs, Retries               []Mark
	NumOOMs, NumRetries         int
}

// Recorder is an observer that records Memory.
type Recorder struct {
	scale                       Scale
	reserved, allocated, active tracer
	held                        policies.Held
	m                           Memory
	event                       int // trace event of the last move
}

// NewRecorder makes a recorder for runs of a trace.
func NewRecorder(tr *traces.Trace, axis Axis, columns int) *Recorder {
	s := NewScale(tr, axis, columns)
	return &Recorder{scale: s, reserved: newTracer(s.Columns), allocated: newTracer(s.Columns), active: newTracer(s.Columns), event: -1}
}

// Observe follows a run.
func (r *Recorder) Observe(at sim.At, e *policies.Event) {
	if at.Event != r.event {
		r.event = at.Event
		c := r.scale.column(r.scale.x(at))
		r.reserved.move(c)
		r.allocated.move(c)
		r.active.move(c)
	}
	switch e.Action {
	case policies.ActionOOM:
		r.m.NumOOMs++
		if len(r.m.OOMs) < maxMarks {
			r.m.OOMs = append(r.m.OOMs, Mark{r.scale.x(at), e.Requested})
		}
	case policies.ActionRetry:
		r.m.NumRetries++
		if len(r.m.Retries) < maxMarks {
			r.m.Retries = append(r.m.Retries, Mark{r.scale.x(at), e.Requested})
		}
	default:
		if r.held.See(e) {
			r.reserved.set(r.held.Reserved)
			r.allocated.set(r.held.Allocated)
			r.active.set(r.held.Active)
		}
	}
}

// Memory is what was recorded, up to the scale's end.
func (r *Recorder) Memory() *Memory {
	last := r.scale.Columns - 1
	for _, t := range []*tracer{&r.reserved, &r.allocated, &r.active} {
		t.move(last)
	}
	m := r.m
	m.Scale = r.scale
	m.Reserved, m.Allocated, m.Active = r.reserved.curve, r.allocated.curve, r.active.curve
	return &m
}
