// Package eager is a miniature of PyTorch's eager mode that computes nothing:
// it runs a program's operations on tensors that have only a shape, strides, a
// type and a storage, and writes down which blocks the program would request
// from the CUDA caching allocator and when it would give them back.
//
// Frees are not planned: they follow, as in PyTorch, from reference counts.
// A storage lives while a tensor handle sees it; a handle lives while a Python
// name ([Engine.Scope]), a saved variable of an autograd node, a gradient
// buffer, an autocast cache or a view holds it. Backward is PyTorch's engine:
// a priority queue of nodes in reverse order of creation, validation of
// gradients (sum to shape, cast), accumulation in place when the old gradient
// is owned by nobody else.
//
// The rules follow torch 2.11 (aten, torch/csrc/autograd) on an NVIDIA GPU and
// are described in docs/synthetic.md.
package eager

import (
	"context"
	"errors"
	"fmt"

	"allocsim/traces"
	"allocsim/traces/kernels"
)

// Device is what the operations need to know about the GPU.
type Device = kernels.Device

// H200 is the device of all recordings.
var H200 = kernels.H200

// ErrTooLarge is wrapped by the error of a program that asks for a tensor
// beyond any memory.
var ErrTooLarge = errors.New("the program makes a tensor of more than 1 EB")

// ErrTooLong is wrapped by the error of a program that makes more events than
// the engine's limit.
var ErrTooLong = errors.New("the program makes too many events")

// Engine runs one program on one device. It is not safe for concurrent use.
type Engine struct {
	Device Device
	// FLOPs counts floating-point operations of matrix products, convolutions
	// and attention so far.
	FLOPs float64
	// RecomputeFLOPs is the part of FLOPs spent in checkpoint recomputation.
	RecomputeFLOPs float64

	ctx       context.Context
	b         *traces.Builder
	maxEvents int
	nowUS     int64

	scopes [][]*Tensor
	noGrad int
	meta   int
	amp    autocast
	hooks  []saveHooks
	thread int // 0 main, 1 backward
	seq    [2]uint64
	epoch  int
	gemmWS [2]*storage
	ltWS   [2]*storage

	pending []*Node // nodes under construction
	inBack  bool
	recomp  int // depth of checkpoint recomputation

	side   uint16 // the stream of allocations; see OnStream
	stacks stackTable

	live, peak int64 // bytes rounded to 512
}

// abort carries an error out of the depths of a program; Run recovers it.
type abort struct{ err error }

// New returns an engine that writes at most maxEvents events (0: 50 million).
func New(ctx context.Context, dev Device, maxEvents int) *Engine {
	if maxEvents <= 0 {
		maxEvents = 50_000_000
	}
	e := &Engine{Device: dev, ctx: ctx, b: traces.NewBuilder(1 << 12), maxEvents: maxEvents}
	e.b.Stream(0)
	e.stacks.init()
	e.scopes = append(e.scopes, nil)
	return e
}

// Run runs program and returns the trace it made. The only errors are a
// cancelled context, too many events, a tensor beyond any memory, and what
// program returns.
func (e *Engine) Run(program func() error) (t *traces.Trace, err error) {
	defer func() {
		if r := recover(); r != nil {
			a, ok := r.(abort)
			if !ok {
				panic(r)
			}
			t, err = nil, a.err
		}
	}()
	if err := program(); err != nil {
		return nil, err
	}
	t, _, err = e.b.Build()
	if err != nil {
		return nil, err
	}
	t.Stacks = e.stacks.table()
	return t, nil
}

// Events is the number of events so far.
func (e *Engine) Events() int { return e.b.Len() }

// NowUS is the time of the next event in µs.
func (e *Engine) NowUS() int64 { return e.nowUS }

// Live is the bytes of live blocks, each rounded up to 512.
func (e *Engine) Live() int64 { return e.live }

// Peak is the largest Live so far.
func (e *Engine) Peak() int64 { return e.peak }

// eventUS is the time between events. Eager programs issue requests at the
// pace of the host, a few µs apart whatever the GPU does.
const eventUS = 5

func (e *Engine) tick() {
	e.nowUS += eventUS
	n := e.b.Len()
	if n&1023 == 0 {
		if err := e.ctx.Err(); err != nil {
			panic(abort{err})
		}
	}
	if n >= e.maxEvents {
		e.tooLong()
	}
}

func (e *Engine) tooLong() {
	panic(abort{fmt.Errorf("%w: more than %d", ErrTooLong, e.maxEvents)})
}

// Foresee ends a program that is going to make at least more events beyond the
// limit at once, instead of when it gets there.
func (e *Engine) Foresee(more int) {
	if more > e.maxEvents-e.b.Len() {
		e.tooLong()
	}
}

func rounded(bytes int64) int64 { return (bytes + 511) &^ 511 }

func (e *Engine) newStorage(bytes int64) *storage {
	if bytes <= 0 || e.meta > 0 {
		return &storage{refs: 1, block: traces.NoBlock}
	}
	e.tick()
	id := e.b.Alloc(e.nowUS, bytes, e.side, 0)
	e.stacks.record(e, id)
	e.live += rounded(bytes)
	e.peak = max(e.peak, e.live)
	return &storage{refs: 1, block: id, bytes: bytes}
}

func (e *Engine) dropStorage(s *storage) {
	s.refs--
	if s.refs > 0 || s.block == traces.NoBlock {
		return
	}
	e.tick()
	e.b.Free(e.nowUS, s.block)
	e.live -= rounded(s.bytes)
}

// EmptyCache is torch.cuda.empty_cache().
func (e *Engine) EmptyCache() {
	e.tick()
	e.b.EmptyCache(e.nowUS)
}

// OnStream runs f with allocations on another stream (handle > 0).
func (e *Engine) OnStream(handle uint64, f func()) {
	old := e.side
	e.side = e.b.Stream(handle)
	defer func() { e.side = old }()
	f()
}

// ---- handles and scopes ----

// newTensor wraps a storage, whose reference it takes over, and gives the
// handle to the open scope.
func (e *Engine) newTensor(st *storage, dt DType, shape, stride []int64) *Tensor {
	t := &Tensor{e: e, refs: 1, st: st, DType: dt, Shape: shape, Stride: stride}
	e.own(t)
	return t
}

func (e *Engine) own(t *Tensor) {
	i := len(e.scopes) - 1
	e.scopes[i] = append(e.scopes[i], t)
}

// Empty allocates a row-major tensor.
func (e *Engine) Empty(dt DType, shape ...int64) *Tensor {
	return e.emptyStrided(dt, shape, rowMajor(shape))
}

func (e *Engine) emptyStrided(dt DType, shape, stride []int64) *Tensor {
	bytes := float64(dt.Size())
	for _, n := range shape {
		bytes *= float64(n)
	}
	if bytes > 1e18 {
		panic(abort{fmt.Errorf("%w: %v elements of %d bytes", ErrTooLarge, shape, dt.Size())})
	}
	return e.newTensor(e.newStorage(numel(shape)*dt.Size()), dt, shape, stride)
}

// Bytes allocates an untyped buffer of n bytes (a workspace).
func (e *Engine) Bytes(n int64) *Tensor { return e.Empty(I8, n) }

// Transient allocates and frees a workspace of n bytes; 0 does nothing.
func (e *Engine) Transient(n int64) {
	if n > 0 {
		e.dropStorage(e.newStorage(n))
	}
}

// carry carries out an operation's plan; result makes its results.
func (e *Engine) carry(p kernels.Plan, result func(n int)) {
	var scratch []*storage
	for _, s := range p.Steps {
		switch s.Do {
		case kernels.Result:
			result(s.N)
		case kernels.Scratch:
			scratch = append(scratch, e.newStorage(s.Bytes))
		case kernels.Drop:
			e.dropStorage(scratch[s.N])
		}
	}
}

// Scope runs f as a function call: every handle made inside dies when it
// returns, in order of creation, except the results, which go to the caller's
// scope.
func (e *Engine) Scope(f func() *Tensor) *Tensor {
	e.open()
	t := f()
	e.close(t)
	return t
}

// Do is Scope without a result.
func (e *Engine) Do(f func()) {
	e.open()
	f()
	e.close()
}

// ScopeN is Scope with several results.
func (e *Engine) ScopeN(f func() []*Tensor) []*Tensor {
	e.open()
	ts := f()
	e.close(ts...)
	return ts
}

func (e *Engine) open() { e.scopes = append(e.scopes, nil) }

func (e *Engine) close(keep ...*Tensor) {
	n := len(e.scopes) - 1
	owned := e.scopes[n]
	e.scopes = e.scopes[:n]
	for _, k := range keep {
		if k == nil {
			continue
		}
		if i := lastIndex(owned, k); i >= 0 {
			owned[i] = nil
		} else {
			k.refs++ // the caller's own tensor returned unchanged
		}
		e.own(k)
	}
	for _, t := range owned {
		if t != nil {
			t.release()
		}
	}
}

func lastIndex(ts []*Tensor, t *Tensor) int {
	for i := len(ts) - 1; i >= 0; i-- {
		if ts[i] == t {
			return i
		}
	}
	return -1
}

// Drop ends names of the open scope, in the order given. Tensors that the
// scope does not own are left alone.
func (e *Engine) Drop(ts ...*Tensor) {
	n := len(e.scopes) - 1
	for _, t := range ts {
		if t == nil {
			continue
		}
		if i := lastIndex(e.scopes[n], t); i >= 0 {
			e.scopes[n] = append(e.scopes[n][:i], e.scopes[n][i+1:]...)
			t.release()
		}
	}
}

// Keep takes t out of the open scope; the caller must Release it.
func (e *Engine) Keep(t *Tensor) *Tensor {
	n := len(e.scopes) - 1
	if i := lastIndex(e.scopes[n], t); i >= 0 {
		e.scopes[n] = append(e.scopes[n][:i], e.scopes[n][i+1:]...)
	} else {
		t.refs++
	}
	return t
}

// Retain adds a reference to t in the open scope.
func (e *Engine) Retain(t *Tensor) *Tensor {
	t.refs++
	e.own(t)
	return t
}

// Release gives up a kept tensor.
func (t *Tensor) Release() { t.release() }

func (t *Tensor) release() {
	t.refs--
	if t.refs > 0 {
		return
	}
	if t.st != nil {
		t.e.dropStorage(t.st)
		t.st = nil
	}
	if t.base != nil {
		t.base.release()
		t.base = nil
	}
	if t.Grad != nil {
		t.Grad.release()
		t.Grad = nil
	}
	if t.fn != nil {
		fn := t.fn
		t.fn = nil
		fn.release()
	}
	t.acc = nil
}

// Param allocates a leaf that the caller keeps.
func (e *Engine) Param(dt DType, shape ...int64) *Tensor {
	t := e.Keep(e.Empty(dt, shape...))
	t.RequiresGrad = true
	return t
}

// Buffer allocates a kept tensor without gradient.
func (e *Engine) Buffer(dt DType, shape ...int64) *Tensor {
	return e.Keep(e.Empty(dt, shape...))
}

// FreeGrad sets a leaf's gradient to None.
func (t *Tensor) FreeGrad() {
	if t.Grad != nil {
		g := t.Grad
		t.Grad = nil
		g.release()
	}
}

// alias is a second handle on t's storage without autograd history (detach).
func (e *Engine) alias(t *Tensor) *Tensor {
	t.st.refs++
	return e.newTensor(t.st, t.DType, t.Shape, t.Stride)
}

// detached is alias with the reference going to the caller.
func (e *Engine) detached(t *Tensor) *Tensor {
	t.st.refs++
	return &Tensor{e: e, refs: 1, st: t.st, DType: t.DType, Shape: t.Shape, Stride: t.Stride}
}

// NoGrad runs f under torch.no_grad().
func (e *Engine) NoGrad(f func()) {
	e.noGrad++
	f()
	e.noGrad--
}

// gemm notes a matrix product of m×k by k×n: its operations and, at the
// thread's first one, cuBLAS's permanent workspace. lt marks the cuBLASLt path
// (a fused bias), which has a workspace of its own.
func (e *Engine) gemm(batch, m, n, k int64, lt bool) {
	e.flops(2 * float64(batch) * float64(m) * float64(n) * float64(k))
	if e.gemmWS[e.thread] == nil {
		e.gemmWS[e.thread] = e.library("cublasCreate", e.Device.GEMMWorkspace)
	}
	if lt && e.ltWS[e.thread] == nil {
		e.ltWS[e.thread] = e.library("cublasLtCreate", e.Device.LtWorkspace)
	}
}

func (e *Engine) library(name string, bytes int64) *storage {
	defer e.stacks.op(name)()
	return e.newStorage(bytes)
}

func (e *Engine) flops(n float64) {
	e.FLOPs += n
	if e.recomp > 0 {
		e.RecomputeFLOPs += n
	}
}

// Meta runs f with allocations that make no block: tensors of the meta device.
func (e *Engine) Meta(f func()) {
	e.meta++
	defer func() { e.meta-- }()
	f()
}

// FreeStorage gives t's block back while all handles stay
// (untyped_storage().resize_(0)); nothing happens when there is none.
func (e *Engine) FreeStorage(t *Tensor) {
	s := t.st
	if s.block == traces.NoBlock {
		return
	}
	e.tick()
	e.b.Free(e.nowUS, s.block)
	e.live -= rounded(s.bytes)
	s.block = traces.NoBlock
}

// AllocStorage gives t a block of at least its bytes after FreeStorage or Meta.
func (e *Engine) AllocStorage(t *Tensor, bytes int64) {
	if t.st.block != traces.NoBlock {
		return
	}
	n := e.newStorage(max(bytes, t.Bytes()))
	t.st.block, t.st.bytes = n.block, n.bytes
}

// Flat sees consecutive parts of a flat buffer in the shapes of others, without
// autograd: the handles share its storage.
func (e *Engine) Flat(buf *Tensor, like []*Tensor) []*Tensor {
	out := make([]*Tensor, len(like))
	for i, t := range like {
		buf.st.refs++
		out[i] = e.newTensor(buf.st, buf.DType, t.Shape, rowMajor(t.Shape))
	}
	return out
}
