package eager

import (
	"math"
	"slices"
)

// Node is one differentiable operation of the graph.
type Node struct {
	e     *Engine
	refs  int32
	name  string
	seq   uint64
	edges []edge // one per input of the operation
	metas []meta // one per output
	saved []savedVar
	back  func(*Back)
	// leaf is the parameter of an AccumulateGrad node.
	leaf *Tensor
	// pre hooks run before the node's rule (tensor hooks).
	pre  []func()
	path []uint32 // module path of the forward call

	// State of the running backward.
	epoch int
	deps  int
	buf   []*Tensor
}

type edge struct {
	fn *Node // nil when the input needs no gradient
	nr int
}

type meta struct {
	shape []int64
	dt    DType
}

// savedVar is a saved variable: a tensor, or what a pack hook made of it.
type savedVar struct {
	t *Tensor
	h *holder
}

// saveHooks are torch.autograd.graph.saved_tensors_hooks.
type saveHooks struct {
	pack func(t *Tensor) savedVar
}

// tracked reports whether an operation on these inputs is recorded.
func (e *Engine) tracked(ins ...*Tensor) bool {
	if e.noGrad > 0 {
		return false
	}
	for _, t := range ins {
		if t.Wants() {
			return true
		}
	}
	return false
}

func (e *Engine) edgeOf(t *Tensor) edge {
	if !t.Wants() {
		return edge{}
	}
	if t.fn != nil {
		t.fn.refs++
		return edge{t.fn, t.outNr}
	}
	if t.acc == nil {
		t.acc = &Node{e: e, name: "AccumulateGrad", seq: math.MaxUint64, leaf: t,
			metas: []meta{{t.Shape, t.DType}}, path: slices.Clone(e.stacks.path)}
	}
	t.acc.refs++
	return edge{t.acc, 0}
}

// node starts recording an operation; nil when nothing needs a gradient. As in
// PyTorch it comes before the operation's kernel, and so does saving inputs.
func (e *Engine) node(name string, ins ...*Tensor) *Node {
	if !e.tracked(ins...) {
		return nil
	}
	n := &Node{e: e, refs: 1, name: name, seq: e.seq[e.thread], path: slices.Clone(e.stacks.path)}
	e.seq[e.thread]++
	n.edges = make([]edge, len(ins))
	for i, t := range ins {
		if t != nil {
			n.edges[i] = e.edgeOf(t)
		}
	}
	e.pending = append(e.pending, n)
	return n
}

// save keeps an input (or any tensor that is not an output) for backward.
func (n *Node) save(ts ...*Tensor) {
	if n == nil {
		return
	}
	for _, t := range ts {
		if k := len(n.e.hooks); k > 0 {
			n.saved = append(n.saved, n.e.hooks[k-1].pack(t))
			continue
		}
		t.refs++
		n.saved = append(n.saved, savedVar{t: t})
	}
}

// saveOut keeps an output: the same storage without the graph, since that
// would be a cycle.
func (n *Node) saveOut(t *Tensor) {
	if n == nil {
		return
	}
	e := n.e
	e.Do(func() { n.save(e.alias(t)) })
}

// done ends the recording: outs get n as their creator.
func (n *Node) done(back func(*Back), outs ...*Tensor) {
	if n == nil {
		return
	}
	e := n.e
	e.pending = e.pending[:len(e.pending)-1]
	n.back = back
	for i, t := range outs {
		n.metas = append(n.metas, meta{t.Shape, t.DType})
		if !t.DType.Float() {
			continue
		}
		if t.fn != nil { // an in-place operation rebases the history
			t.fn.release()
		}
		t.fn, t.outNr = n, i
		n.refs++
	}
	n.release()
}

func (n *Node) release() {
	n.refs--
	if n.refs > 0 || n.leaf != nil {
		return
	}
	n.dropSaved()
	edges := n.edges
	n.edges = nil
	for _, d := range edges {
		if d.fn != nil {
			d.fn.release()
		}
	}
}

func (n *Node) dropSaved() {
	saved := n.saved
	n.saved = nil
	for i := range saved {
		saved[i].drop()
	}
}

func (s *savedVar) drop() {
	if s.t != nil {
		t := s.t
		s.t = nil
		t.release()
	}
	if s.h != nil {
		h := s.h
		s.h = nil
		h.drop()
	}
}

// Back is one call of a node's backward rule.
type Back struct {
	e   *Engine
	n   *Node
	In  []*Tensor // gradients of the outputs; nil where undefined
	out []*Tensor
}

// G is the gradient of the first output.
func (b *Back) G() *Tensor { return b.In[0] }

// Need reports whether input i wants a gradient.
func (b *Back) Need(i int) bool { return b.n.edges[i].fn != nil }

// Saved unpacks saved variable i.
func (b *Back) Saved(i int) *Tensor {
	s := &b.n.saved[i]
	if s.h != nil {
		return s.h.unpack(b.e)
	}
	return s.t
}

// Set gives the gradient of input i.
func (b *Back) Set(i int, t *Tensor) { b.out[i] = t }

// Backward is root.backward(grad): grad nil makes the root gradient of a
// scalar. With retain the saved tensors stay (retain_graph=True).
func (e *Engine) Backward(root, grad *Tensor, retain bool) {
	if root.fn == nil {
		return
	}
	e.Do(func() {
		if grad == nil {
			grad = e.inOp("ones_like", func() *Tensor { return e.Empty(root.DType, root.Shape...) })
		}
		e.inBack = true
		e.noGrad++
		e.thread = 1
		e.run(root.fn, root.outNr, grad, retain)
		e.thread = 0
		e.noGrad--
		e.inBack = false
	})
}

func (e *Engine) inOp(name string, f func() *Tensor) *Tensor {
	defer e.stacks.op(name)()
	return f()
}

func (e *Engine) run(root *Node, nr int, grad *Tensor, retain bool) {
	e.epoch++
	epoch := e.epoch
	// Count dependencies.
	root.epoch, root.deps, root.buf = epoch, 0, nil
	todo := []*Node{root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, d := range n.edges {
			if d.fn == nil {
				continue
			}
			if d.fn.epoch != epoch {
				d.fn.epoch, d.fn.deps, d.fn.buf = epoch, 0, nil
				todo = append(todo, d.fn)
			}
			d.fn.deps++
		}
	}
	grad.refs++
	root.buf = make([]*Tensor, len(root.metas))
	root.buf[nr] = grad
	root.refs++
	q := readyQueue{}
	q.push(root)
	for len(q) > 0 {
		n := q.pop()
		e.evaluate(n, &q, retain)
		n.release()
	}
}

// evaluate is Engine::evaluate_function: call, validate, drop the incoming
// gradients, drop the saved variables, pass the results on.
func (e *Engine) evaluate(n *Node, q *readyQueue, retain bool) {
	in := n.buf
	n.buf = nil
	path := e.stacks.path
	e.stacks.path = n.path
	endOp := e.stacks.op(n.name)
	for _, f := range n.pre {
		f()
	}
	if n.leaf != nil {
		e.accumulateGrad(n, in)
		endOp()
		e.stacks.path = path
		return
	}
	b := &Back{e: e, n: n, In: in, out: make([]*Tensor, len(n.edges))}
	e.open()
	if slices.ContainsFunc(in, func(t *Tensor) bool { return t != nil }) {
		n.back(b)
	}
	for _, t := range b.out {
		if t != nil {
			t.refs++
		}
	}
	e.close()
	// validate_outputs.
	for i, t := range b.out {
		d := n.edges[i]
		if t == nil {
			continue
		}
		if d.fn == nil {
			b.out[i] = nil
			t.release()
			continue
		}
		m := d.fn.metas[d.nr]
		if !slices.Equal(t.Shape, m.shape) {
			t = e.replace(t, func(t *Tensor) *Tensor { return e.sumTo(t, m.shape) })
		}
		if t.DType != m.dt {
			t = e.replace(t, func(t *Tensor) *Tensor { return e.toDType(t, m.dt) })
		}
		b.out[i] = t
	}
	for _, t := range in {
		if t != nil {
			t.release()
		}
	}
	endOp()
	if !retain {
		n.dropSaved()
	}
	for i, t := range b.out {
		d := n.edges[i]
		if d.fn == nil {
			continue
		}
		if t != nil {
			if d.fn.buf == nil {
				d.fn.buf = make([]*Tensor, len(d.fn.metas))
			}
			e.bufferAdd(d.fn, d.nr, t)
		}
		d.fn.deps--
		if d.fn.deps == 0 {
			if d.fn.buf == nil {
				d.fn.buf = make([]*Tensor, len(d.fn.metas))
			}
			d.fn.refs++
			q.push(d.fn)
		}
	}
	e.stacks.path = path
}

// replace gives t up for f(t).
func (e *Engine) replace(t *Tensor, f func(*Tensor) *Tensor) *Tensor {
	e.open()
	r := f(t)
	r.refs++
	e.close()
	t.release()
	return r
}

// bufferAdd is InputBuffer::add with its accumulation rule. It takes over the
// reference to t.
func (e *Engine) bufferAdd(n *Node, nr int, t *Tensor) {
	old := n.buf[nr]
	if old == nil {
		n.buf[nr] = t
		return
	}
	if old.refs == 1 && old.st.refs == 1 && dense(old.Shape, old.Stride) {
		t.release()
		return
	}
	e.open()
	sum := e.emptyStrided(promote(old.DType, t.DType), old.Shape, iterStrides(old.Shape, old, t))
	sum.refs++
	e.close()
	n.buf[nr] = sum
	old.release()
	t.release()
}

// accumulateGrad is AccumulateGrad::apply.
func (e *Engine) accumulateGrad(n *Node, in []*Tensor) {
	g := in[0]
	p := n.leaf
	if g == nil {
		return
	}
	switch {
	case p.Grad != nil: // in place
	case g.refs == 1 && (slices.Equal(g.Stride, p.Stride) || contiguousLike(g, p)):
		p.Grad = e.detached(g)
	default:
		e.open()
		p.Grad = e.emptyStrided(g.DType, p.Shape, p.Stride)
		p.Grad.refs++
		e.close()
	}
	g.release()
	if p.AfterGrad != nil {
		p.AfterGrad()
	}
}

// contiguousLike reports that both tensors are row-major: their strides can
// then differ only in dimensions of size 1.
func contiguousLike(a, b *Tensor) bool { return a.Contiguous() && b.Contiguous() }

// readyQueue is the engine's priority queue: the node created last first,
// AccumulateGrad before all. It is std::priority_queue's binary heap, so that
// equal keys leave in the same order.
type readyQueue []*Node

func before(a, b *Node) bool { return a.seq < b.seq }

func (q *readyQueue) push(n *Node) {
	*q = append(*q, n)
	h := *q
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !before(h[p], n) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = n
}

func (q *readyQueue) pop() *Node {
	h := *q
	top := h[0]
	last := h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return top
	}
	// std::__adjust_heap: sift the hole down, then push the value up.
	i, n := 0, len(h)
	for c := 2; c < n; c = 2*i + 2 {
		if before(h[c], h[c-1]) {
			c--
		}
		h[i] = h[c]
		i = c
	}
	if n%2 == 0 && i == (n-2)/2 {
		h[i] = h[2*i+1]
		i = 2*i + 1
	}
	for i > 0 {
		p := (i - 1) / 2
		if !before(h[p], last) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = last
	return top
}

// HookGrad runs f before the backward of the operation that made t.
func (t *Tensor) HookGrad(f func()) {
	if t.fn != nil {
		t.fn.pre = append(t.fn.pre, f)
	}
}

// HookGradFirst is HookGrad ahead of the hooks there are.
func (t *Tensor) HookGradFirst(f func()) {
	if t.fn != nil {
		t.fn.pre = append([]func(){f}, t.fn.pre...)
	}
}

// InBackward reports that a backward is running: a block that runs then is
// being recomputed.
func (e *Engine) InBackward() bool { return e.inBack }
