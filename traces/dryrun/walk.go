package dryrun

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"allocsim/internal/plural"
	"allocsim/traces"
	"allocsim/traces/kernels"
)

// walk turns the lines of a dry run into requests, one after the other.
type walk struct {
	h   *header
	dev kernels.Device
	b   *traces.Builder

	nowUS       int64
	annotations []traces.Annotation
	tensors     map[int64]*tensor
	storages    map[int64]*storage
	pools       []int64 // open pools, innermost last
	library     map[libraryKey]bool
	pending     []pendingFree
	fraction    float64

	frames  map[int64]uint32
	stackOf map[int64][]uint32
	stacks  stackTable

	steps   int
	crossed int            // frees that waited for other streams
	unknown map[string]int // operations without a rule
	odd     int            // lines of unknown kinds
	end     *end
}

// storage is a storage on the GPU.
type storage struct {
	block  traces.BlockID // NoBlock: it holds no memory now
	stream uint64
	stack  traces.StackID
	others []uint64 // streams that use it, too
}

type libraryKey struct {
	thread  int
	stream  uint64
	library int
}

type pendingFree struct {
	block   traces.BlockID
	streams []uint64
}

// eventUS is the time between events.
const eventUS = 5

func newWalk(h *header) *walk {
	w := &walk{
		h: h, dev: h.GPU.device(), b: traces.NewBuilder(1 << 12),
		tensors: make(map[int64]*tensor), storages: make(map[int64]*storage),
		library: make(map[libraryKey]bool), unknown: make(map[string]int),
		frames: make(map[int64]uint32), stackOf: make(map[int64][]uint32),
	}
	w.b.Stream(0)
	w.stacks.init()
	return w
}

func (w *walk) tick() int64 {
	w.nowUS += eventUS
	return w.nowUS
}

func (w *walk) tensor(id int64) (*tensor, error) {
	t := w.tensors[id]
	if t == nil {
		return nil, errRecord("tensor %%%d is not defined", id)
	}
	return t, nil
}

// line carries out one line.
func (w *walk) line(b []byte) error {
	switch kind := firstKey(b); kind {
	case "op":
		var c call
		if err := json.Unmarshal(b, &c); err != nil {
			return err
		}
		return w.call(&c)
	case "T":
		var r record
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		t, err := r.makeTensor()
		if err != nil {
			return err
		}
		w.tensors[*r.T] = t
	case "f", "resize", "rs":
		var l lives
		if err := json.Unmarshal(b, &l); err != nil {
			return err
		}
		return w.lives(&l)
	case "ev":
		var e event
		if err := json.Unmarshal(b, &e); err != nil {
			return err
		}
		w.event(&e)
	case "F":
		var r record
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		w.frames[*r.F] = w.stacks.frame(traces.Frame{Function: r.Fn, File: r.File, Line: r.Line})
	case "K":
		var r record
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		fr := make([]uint32, 0, len(r.Fr))
		for _, f := range r.Fr {
			i, ok := w.frames[f]
			if !ok {
				return errRecord("frame %d is not defined", f)
			}
			fr = append(fr, i)
		}
		w.stackOf[*r.K] = fr
	case "end":
		var t struct {
			End *end `json:"end"`
		}
		if err := json.Unmarshal(b, &t); err != nil {
			return err
		}
		w.end = t.End
	case "":
		return errRecord("it is no JSON object")
	default:
		w.odd++
	}
	return nil
}

// firstKey is the first key of a JSON object; empty when b is none.
func firstKey(b []byte) string {
	b = bytes.TrimLeft(b, " \t")
	if len(b) == 0 || b[0] != '{' {
		return ""
	}
	b = bytes.TrimLeft(b[1:], " \t")
	if len(b) == 0 || b[0] != '"' {
		return ""
	}
	k, _, ok := bytes.Cut(b[1:], []byte{'"'})
	if !ok {
		return ""
	}
	return string(k)
}

// call carries out an operation: its plan, then what it brought besides.
func (w *walk) call(c *call) error {
	op := kernels.Op{Name: c.Op, Args: make(map[string]kernels.Arg, len(c.Args))}
	onGPU := len(c.New) > 0
	for name := range c.Args {
		a := c.Args[name]
		k, err := w.resolve(&a)
		if err != nil {
			return err
		}
		op.Args[name] = k
	}
	var of []int64 // storage of each result
	if err := w.results(c.Result, &op, &of, 0); err != nil {
		return err
	}
	fresh := make(map[int64]int64, len(c.New))
	for _, n := range c.New {
		if n[1] <= 0 || n[1] > traces.MaxAlloc {
			return errRecord("storage %d has %d bytes", n[0], n[1])
		}
		if s := w.storages[n[0]]; s != nil && s.block != traces.NoBlock {
			return errRecord("storage %d exists already", n[0])
		}
		fresh[n[0]] = n[1]
	}
	stack := w.stackFor(c)
	take := func(id, most int64) {
		bytes, ok := fresh[id]
		if !ok {
			return
		}
		bytes = min(max(bytes, most), traces.MaxAlloc)
		delete(fresh, id)
		w.storages[id] = &storage{block: w.alloc(bytes, c.Stream, stack), stream: c.Stream, stack: stack}
	}
	plan, known := kernels.Of(&w.dev, &op)
	if !known && onGPU {
		w.unknown[c.Op]++
	}
	if !w.hostOnly(&op) {
		w.carry(plan, c, stack, of, take)
	}
	for _, n := range c.New {
		take(n[0], 0)
	}
	if waitsForGPU(c.Op) {
		w.complete(&c.Stream)
	}
	return nil
}

// hostOnly reports an operation without a tensor on the GPU.
func (w *walk) hostOnly(op *kernels.Op) bool {
	gpu := func(t *kernels.Tensor) bool { return t != nil && !t.Host }
	for _, a := range op.Args {
		if gpu(a.Tensor) || slices.ContainsFunc(a.Tensors, gpu) {
			return false
		}
	}
	return !slices.ContainsFunc(op.Results, gpu)
}

// carry carries out the plan of an operation.
func (w *walk) carry(p kernels.Plan, c *call, stack traces.StackID, of []int64, take func(id, bytes int64)) {
	var scratch []traces.BlockID
	for _, s := range p.Steps {
		switch s.Do {
		case kernels.Result:
			if s.N < len(of) {
				take(of[s.N], s.Bytes)
			}
		case kernels.Scratch:
			scratch = append(scratch, w.alloc(s.Bytes, c.Stream, stack))
		case kernels.Drop:
			w.b.Free(w.tick(), scratch[s.N])
		case kernels.Library:
			k := libraryKey{c.Thread, c.Stream, s.N}
			if !w.library[k] {
				w.library[k] = true
				w.alloc(s.Bytes, c.Stream, w.stacks.stack(c.Op, nil))
			}
		}
	}
}

// results flattens the results of a call.
func (w *walk) results(rs []arg, op *kernels.Op, of *[]int64, depth int) error {
	for i := range rs {
		r := &rs[i]
		switch {
		case r.isList:
			if err := w.results(r.list, op, of, depth+1); err != nil {
				return err
			}
		case r.tensor >= 0:
			t, err := w.tensor(r.tensor)
			if err != nil {
				return err
			}
			op.Results = append(op.Results, t.outside())
			*of = append(*of, t.storage)
		default:
			op.Results = append(op.Results, nil)
			*of = append(*of, 0)
		}
	}
	return nil
}

func (w *walk) alloc(bytes int64, stream uint64, stack traces.StackID) traces.BlockID {
	var pool uint8
	if n := len(w.pools); n > 0 {
		pool = w.b.Pool(traces.PoolID{0, w.pools[n-1]})
	}
	id := w.b.Alloc(w.tick(), bytes, w.b.Stream(stream), pool)
	w.stacks.record(id, stack)
	return id
}

// free gives a storage's block back, at once or when the other streams that use
// it have finished.
func (w *walk) free(s *storage) {
	if s.block == traces.NoBlock {
		return
	}
	if len(s.others) == 0 {
		w.b.Free(w.tick(), s.block)
	} else {
		w.b.FreeRequested(w.tick(), s.block)
		w.pending = append(w.pending, pendingFree{s.block, s.others})
		w.crossed++
	}
	s.block, s.others = traces.NoBlock, nil
}

// complete completes the frees that wait for a stream that the program has
// waited for; nil is all of them.
func (w *walk) complete(stream *uint64) {
	left := w.pending[:0]
	for _, p := range w.pending {
		if stream != nil {
			p.streams = slices.DeleteFunc(p.streams, func(s uint64) bool { return s == *stream })
		}
		if stream == nil || len(p.streams) == 0 {
			w.b.FreeCompleted(w.tick(), p.block)
			continue
		}
		left = append(left, p)
	}
	w.pending = left
}

// waitsForGPU reports an operation after which the program knows that the GPU
// has come this far.
func waitsForGPU(op string) bool {
	switch op {
	case "aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::nonzero", "aten::is_nonzero":
		return true
	}
	return false
}

func (w *walk) lives(l *lives) error {
	get := func(id int64) (*storage, error) {
		if id == 0 {
			return nil, nil // not on the GPU
		}
		s := w.storages[id]
		if s == nil {
			return nil, errRecord("storage %d is not known", id)
		}
		return s, nil
	}
	switch {
	case l.Resize != nil:
		s, err := get(*l.Resize)
		if err != nil || s == nil {
			return err
		}
		if l.To < 0 || l.To > traces.MaxAlloc {
			return errRecord("storage %d resized to %d bytes", *l.Resize, l.To)
		}
		old := *s
		s.block = traces.NoBlock
		if l.To > 0 {
			s.block = w.alloc(l.To, s.stream, s.stack)
		}
		w.free(&old)
	case l.Record != nil:
		s, err := get(*l.Record)
		if err != nil || s == nil {
			return err
		}
		if l.Stream != s.stream && !slices.Contains(s.others, l.Stream) {
			s.others = append(s.others, l.Stream)
		}
	default:
		for _, id := range l.Free {
			s, err := get(id)
			if err != nil {
				return err
			}
			if s != nil {
				w.free(s)
				delete(w.storages, id)
			}
		}
	}
	return nil
}

func (w *walk) event(e *event) {
	switch e.Name {
	case "empty_cache":
		// The allocator waits for the GPU before it returns what is cached.
		w.complete(nil)
		w.b.EmptyCache(w.tick())
	case "fraction":
		w.fraction = e.Value
	case "pool_begin":
		w.pools = append(w.pools, e.Pool)
	case "pool_end":
		if i := slices.Index(w.pools, e.Pool); i >= 0 {
			w.pools = slices.Delete(w.pools, i, i+1)
		}
	case "sync":
		w.complete(e.Stream)
	case "step":
		w.steps++
		w.annotations = append(w.annotations, traces.Annotation{TimeUS: w.nowUS + 1, Name: fmt.Sprintf("Optimizer.step#%d", e.Step)})
		w.complete(nil)
	}
}

func (w *walk) stackFor(c *call) traces.StackID {
	var frames []uint32
	if c.Stack != nil {
		frames = w.stackOf[*c.Stack]
	}
	return w.stacks.stack(c.Op, frames)
}

// finish builds the trace.
func (w *walk) finish() (*traces.Trace, error) {
	t, _, err := w.b.Build()
	if err != nil {
		return nil, err
	}
	t.Stacks = w.stacks.table()
	t.Annotations = w.annotations
	t.Meta = traces.Meta{
		Torch: w.h.Torch, Conf: w.h.Conf, ConfKnown: true, Sidecar: true,
		DeviceName: w.h.GPU.Name, DeviceTotal: max(w.h.GPU.TotalMemory, 0),
	}
	if w.fraction > 0 && w.fraction <= 1 {
		t.Meta.Fraction = w.fraction
	}
	t.Notes = w.notes()
	return t, nil
}

func (w *walk) notes() []string {
	program := "a program"
	if len(w.h.Program) > 0 {
		program = w.h.Program[0]
	}
	card := cmp.Or(w.h.GPU.Name, "an unnamed GPU")
	first := fmt.Sprintf("Evidence: dry run. %s ran on tensors without memory, as if on one %s", program, card)
	if w.h.WorldSize > 1 {
		first = fmt.Sprintf("%s (rank 0 of %d)", first, w.h.WorldSize)
	}
	if w.end != nil && w.end.Steps > 0 && w.end.Complete && w.end.Error == "" && w.h.Steps > 0 && w.end.Steps >= w.h.Steps {
		first = fmt.Sprintf("%s, and was ended after %s (--steps): what comes later is not in it", first, plural.Of(w.end.Steps, "optimizer step"))
	}
	notes := []string{first + "; no GPU was asked. The buffers of kernels are added by rules (docs/dry-run.md gives their error)."}
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	switch {
	case w.end == nil:
		add("The dry run is incomplete: its file ends without the recorder's last line. What the program would have done afterwards is missing.")
	case w.end.Error != "":
		add("The program stopped with an error in the dry run: %s. What it would have done afterwards is missing.", strings.TrimRight(firstLine(w.end.Error), "."))
	}
	if w.end != nil {
		for _, a := range w.end.Assumptions {
			add("Assumed%s%s: %s", at(a), times(a.Count), a.what())
		}
	}
	if len(w.unknown) > 0 {
		names := slices.SortedFunc(maps.Keys(w.unknown), func(a, b string) int {
			return cmp.Or(cmp.Compare(w.unknown[b], w.unknown[a]), cmp.Compare(a, b))
		})
		n := 0
		for _, c := range w.unknown {
			n += c
		}
		add("%d calls of %d operations have no rule for their kernels' buffers; their results only are counted: %s.", n, len(names), few(names, 8))
	}
	if w.crossed > 0 {
		add("%d blocks are used by several streams: they become free at the next synchronisation or optimizer step. On a GPU it depends on timing.", w.crossed)
	}
	if w.odd > 0 {
		add("%d lines are of kinds that this release does not know; a newer recorder wrote them.", w.odd)
	}
	if w.end != nil {
		notes = append(notes, w.end.Notes...)
	}
	return notes
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// few lists the first of names.
func few(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func at(a assumption) string {
	if a.File == "" {
		return ""
	}
	return fmt.Sprintf(" at %s:%d", a.File, a.Line)
}

func times(n int) string {
	if n <= 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", n)
}

func (a assumption) what() string {
	if a.Text != "" {
		return a.Text
	}
	return fmt.Sprintf("%s = %v", a.Kind, a.Value)
}
