package report

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"html/template"
	"slices"

	"allocsim/plots"
	"allocsim/traces"
	"allocsim/traces/inspect"
)

// Streams of numbers travel as base64 of varints, which is small and takes ten
// lines to read in the browser. Sizes and addresses are in units of 512 bytes,
// PyTorch's block granularity.
const unit = 512

type stream []byte

// put appends x ≥ 0.
func (s *stream) put(x int64) { *s = binary.AppendUvarint(*s, uint64(max(x, 0))) }

// zig appends a number of either sign.
func (s *stream) zig(x int64) { *s = binary.AppendVarint(*s, x) }

func (s stream) String() string { return base64.StdEncoding.EncodeToString(s) }

// MarshalText makes a stream a JSON string.
func (s stream) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// deltas is a list as differences.
func deltas(xs []int64) stream {
	var s stream
	last := int64(0)
	for _, x := range xs {
		s.zig(x - last)
		last = x
	}
	return s
}

// interactive is what the browser needs for one trace.
type interactive struct {
	Events   int    `json:"events"`
	Clock    bool   `json:"clock"`
	Time     stream `json:"time,omitempty"` // µs of each event, differences
	Duration int64  `json:"duration"`
	Bound    int64  `json:"bound"`
	// Blocks, those of the largest size × lifetime: start and life in events,
	// requested bytes, site.
	Start    stream         `json:"start"`
	Life     stream         `json:"life"`
	Request  stream         `json:"request"`
	Site     stream         `json:"site"`
	Sites    []string       `json:"sites"`
	Blocks   int            `json:"blocks"`
	AllBlock int            `json:"allBlocks"`
	Policies []policyCurves `json:"policies"`
}

// policyCurves is one policy's part of interactive.
type policyCurves struct {
	Name    string            `json:"name"`
	Limit   int64             `json:"limit"`
	Columns int               `json:"columns"`
	Curves  map[string]stream `json:"curves"` // differences, in units
	Top     int64             `json:"top"`    // highest value of any curve, bytes
	Height  int64             `json:"height"` // of the map, bytes
	OOMs    []int64           `json:"ooms"`   // events
	Retries []int64           `json:"retries"`
	// Offset + 1 (0 = not placed) and charged units less the rounded request,
	// of each block.
	Offset stream `json:"offset"`
	Charge stream `json:"charge"`
	// Ranges: start, length, offset, size.
	Segments stream `json:"segments"`
	Cached   stream `json:"cached"`
}

// maxMarks is how many OOMs and retries the interactive timeline marks.
const maxMarks = 2000

// pick chooses the n blocks that cover most of a map, in order of their start.
func pick(tr *traces.Trace, n int) (ids []traces.BlockID, start, end []int64) {
	start, end = make([]int64, tr.NumBlocks), make([]int64, tr.NumBlocks)
	size := make([]int64, tr.NumBlocks)
	for i := range tr.Events {
		e := &tr.Events[i]
		switch e.Kind {
		case traces.Alloc:
			start[e.ID], end[e.ID], size[e.ID] = int64(i), int64(len(tr.Events)), e.Size
			ids = append(ids, e.ID)
		case traces.Free, traces.FreeCompleted:
			end[e.ID] = int64(i)
		}
	}
	if len(ids) > n {
		area := func(id traces.BlockID) float64 { return float64(size[id]) * float64(end[id]-start[id]) }
		slices.SortFunc(ids, func(a, b traces.BlockID) int { return cmp.Or(cmp.Compare(area(b), area(a)), cmp.Compare(a, b)) })
		ids = ids[:n]
		slices.Sort(ids)
	}
	return ids, start, end
}

// encode makes the browser's data of a trace and its runs.
func encode(tr *traces.Trace, runs []*run, bound int64, maxBlocks int) (template.JS, int, int, error) {
	d := interactive{Events: len(tr.Events), Clock: tr.Duration() > 0, Duration: tr.Duration(), Bound: bound, Policies: []policyCurves{}, Sites: []string{}}
	if d.Clock {
		last := int64(0)
		for i := range tr.Events {
			d.Time.put(tr.Events[i].TimeUS - last)
			last = tr.Events[i].TimeUS
		}
	}
	ids, start, end := pick(tr, maxBlocks)
	d.Blocks, d.AllBlock = len(ids), 0
	place := make([]int32, tr.NumBlocks)
	for i := range place {
		place[i] = -1
	}
	sites := newSites(tr)
	request := make([]int64, len(ids))
	last := int64(0)
	for k, id := range ids {
		place[id] = int32(k)
		d.Start.put(start[id] - last)
		last = start[id]
		d.Life.put(end[id] - start[id])
		request[k] = tr.Events[start[id]].Size
		d.Request.put(request[k])
		d.Site.put(int64(sites.of(id)))
	}
	d.Sites = append(d.Sites, sites.names...)
	for i := range tr.Events {
		if tr.Events[i].Kind == traces.Alloc {
			d.AllBlock++
		}
	}
	for _, r := range runs {
		p := policyCurves{
			Name: r.Name, Limit: r.Limit, Columns: r.byEvent.Scale.Columns, Height: r.layout.Height,
			OOMs: []int64{}, Retries: []int64{}, Curves: map[string]stream{},
		}
		for name, c := range map[string]plots.Curve{"reserved": r.byEvent.Reserved, "allocated": r.byEvent.Allocated} {
			p.Top = max(p.Top, c.Max())
			low, high, lastv := make([]int64, len(c)), make([]int64, len(c)), make([]int64, len(c))
			for i := range c {
				low[i], high[i], lastv[i] = c[i].Min/unit, c[i].Max/unit, c[i].Last/unit
			}
			p.Curves[name+"Min"], p.Curves[name+"Max"], p.Curves[name+"Last"] = deltas(low), deltas(high), deltas(lastv)
		}
		for _, m := range r.byEvent.OOMs[:min(len(r.byEvent.OOMs), maxMarks)] {
			p.OOMs = append(p.OOMs, m.X)
		}
		for _, m := range r.byEvent.Retries[:min(len(r.byEvent.Retries), maxMarks)] {
			p.Retries = append(p.Retries, m.X)
		}
		offset, charge := make([]int64, len(ids)), make([]int64, len(ids))
		for i := range r.layout.Blocks {
			b := &r.layout.Blocks[i]
			if b.ID >= traces.BlockID(len(place)) || place[b.ID] < 0 {
				continue
			}
			k := place[b.ID]
			offset[k] = b.Offset/unit + 1
			charge[k] = b.Size/unit - (request[k]+unit-1)/unit
		}
		for k := range ids {
			p.Offset.put(offset[k])
			p.Charge.zig(charge[k])
		}
		p.Segments, p.Cached = ranges(r.layout.Segments, maxBlocks), ranges(r.layout.Cached, maxBlocks)
		d.Policies = append(d.Policies, p)
	}
	b, err := json.Marshal(d) // escapes <, > and &, so that no text ends the script
	return template.JS(b), d.Blocks, d.AllBlock, err
}

// ranges encodes those of most area, in order of their start.
func ranges(spans []plots.RangeSpan, most int) stream {
	if len(spans) > most {
		spans = slices.Clone(spans)
		area := func(s plots.RangeSpan) float64 { return float64(s.Size) * float64(s.X1-s.X0) }
		slices.SortStableFunc(spans, func(a, b plots.RangeSpan) int { return cmp.Compare(area(b), area(a)) })
		spans = spans[:most]
	}
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b plots.RangeSpan) int { return cmp.Compare(a.X0, b.X0) })
	var s stream
	last := int64(0)
	for _, r := range spans {
		s.put(r.X0 - last)
		last = r.X0
		s.put(r.X1 - r.X0)
		s.put(r.Offset / unit)
		s.put(r.Size / unit)
	}
	return s
}

// sites gives call sites small numbers; 0 is none.
type sites struct {
	tr    *traces.Trace
	names []string
	index map[traces.StackID]int
}

func newSites(tr *traces.Trace) *sites {
	return &sites{tr: tr, names: []string{""}, index: make(map[traces.StackID]int)}
}

// maxSites is how many call sites a report names.
const maxSites = 3000

func (s *sites) of(id traces.BlockID) int {
	st := s.tr.Stacks
	if st == nil || int(id) >= len(st.ByBlock) || st.ByBlock[id] == traces.NoStack {
		return 0
	}
	stack := st.ByBlock[id]
	if k, ok := s.index[stack]; ok {
		return k
	}
	k := 0
	if name := inspect.CallSite(st, stack); name != "" && len(s.names) < maxSites {
		k = len(s.names)
		s.names = append(s.names, name)
	}
	s.index[stack] = k
	return k
}
