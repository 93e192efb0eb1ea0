package eager

import "slices"

// view makes a differentiable view of t. back maps the gradient of the view to
// that of t; nil means a plain view of the gradient in t's shape.
func (e *Engine) view(name string, t *Tensor, shape, stride []int64, back func(g *Tensor) *Tensor) *Tensor {
	n := e.node(name, t)
	t.st.refs++
	v := e.newTensor(t.st, t.DType, shape, stride)
	v.base = t
	if t.base != nil {
		v.base = t.base
	}
	v.base.refs++
	if n != nil {
		n.done(func(b *Back) { b.Set(0, back(b.G())) }, v)
	}
	return v
}

// View is t.view(shape); the caller knows that the layout allows it.
func (e *Engine) View(t *Tensor, shape ...int64) *Tensor {
	st, ok := viewStrides(t.Shape, t.Stride, shape)
	if !ok {
		panic("eager: view of a layout that needs a copy")
	}
	old := t.Shape
	return e.view("ViewBackward0", t, shape, st, func(g *Tensor) *Tensor { return e.Reshape(g, old...) })
}

// Reshape is t.reshape(shape): a view, or a row-major copy seen in the shape.
func (e *Engine) Reshape(t *Tensor, shape ...int64) *Tensor {
	if slices.Equal(t.Shape, shape) {
		return t
	}
	if _, ok := viewStrides(t.Shape, t.Stride, shape); ok {
		return e.View(t, shape...)
	}
	old := t.Shape
	return e.Scope(func() *Tensor {
		c := e.clone(t)
		n := e.node("UnsafeViewBackward0", c)
		c.st.refs++
		v := e.newTensor(c.st, c.DType, shape, rowMajor(shape))
		n.done(func(b *Back) { b.Set(0, e.Reshape(b.G(), old...)) }, v)
		return v
	})
}

// unsafeView sees the only handle of a fresh result in another shape; autograd
// does not treat it as a view.
func (e *Engine) unsafeView(t *Tensor, shape ...int64) *Tensor {
	old := t.Shape
	n := e.node("UnsafeViewBackward0", t)
	t.st.refs++
	v := e.newTensor(t.st, t.DType, shape, rowMajor(shape))
	n.done(func(b *Back) { b.Set(0, e.Reshape(b.G(), old...)) }, v)
	return v
}

// Transpose swaps two dimensions.
func (e *Engine) Transpose(t *Tensor, i, j int) *Tensor {
	nd := len(t.Shape)
	i, j = (i+nd)%nd, (j+nd)%nd
	shape, stride := slices.Clone(t.Shape), slices.Clone(t.Stride)
	shape[i], shape[j] = shape[j], shape[i]
	stride[i], stride[j] = stride[j], stride[i]
	name := "TransposeBackward0"
	if nd == 2 {
		name = "TBackward0"
	}
	return e.view(name, t, shape, stride, func(g *Tensor) *Tensor { return e.Transpose(g, i, j) })
}

// Permute reorders the dimensions.
func (e *Engine) Permute(t *Tensor, perm ...int) *Tensor {
	shape, stride := make([]int64, len(perm)), make([]int64, len(perm))
	inv := make([]int, len(perm))
	for i, p := range perm {
		shape[i], stride[i] = t.Shape[p], t.Stride[p]
		inv[p] = i
	}
	return e.view("PermuteBackward0", t, shape, stride, func(g *Tensor) *Tensor { return e.Permute(g, inv...) })
}

// Expand broadcasts to a shape without memory.
func (e *Engine) Expand(t *Tensor, shape ...int64) *Tensor {
	if slices.Equal(t.Shape, shape) {
		return t
	}
	stride := make([]int64, len(shape))
	off := len(shape) - len(t.Shape)
	for i := range t.Shape {
		if t.Shape[i] == shape[off+i] {
			stride[off+i] = t.Stride[i]
		}
	}
	old := t.Shape
	return e.view("ExpandBackward0", t, shape, stride, func(g *Tensor) *Tensor { return e.sumTo(g, old) })
}

// Slice takes the first n of dimension dim from start. Its backward is a
// full-size zero buffer.
func (e *Engine) Slice(t *Tensor, dim int, start, n int64) *Tensor {
	nd := len(t.Shape)
	dim = (dim + nd) % nd
	if start == 0 && n == t.Shape[dim] {
		return t
	}
	shape := slices.Clone(t.Shape)
	shape[dim] = n
	old := t.Shape
	return e.view("SliceBackward0", t, shape, slices.Clone(t.Stride), func(g *Tensor) *Tensor {
		return e.Empty(g.DType, old...)
	})
}

// Select takes one index of a dimension; backward as for Slice.
func (e *Engine) Select(t *Tensor, dim int) *Tensor {
	nd := len(t.Shape)
	dim = (dim + nd) % nd
	shape := slices.Delete(slices.Clone(t.Shape), dim, dim+1)
	stride := slices.Delete(slices.Clone(t.Stride), dim, dim+1)
	old := t.Shape
	return e.view("SelectBackward0", t, shape, stride, func(g *Tensor) *Tensor {
		return e.Empty(g.DType, old...)
	})
}

// Unsqueeze adds a dimension of size 1.
func (e *Engine) Unsqueeze(t *Tensor, dim int) *Tensor {
	nd := len(t.Shape) + 1
	dim = (dim + nd) % nd
	shape := slices.Insert(slices.Clone(t.Shape), dim, 1)
	s := int64(1)
	if dim < len(t.Shape) {
		s = t.Shape[dim] * t.Stride[dim]
	}
	stride := slices.Insert(slices.Clone(t.Stride), dim, s)
	return e.view("UnsqueezeBackward0", t, shape, stride, func(g *Tensor) *Tensor { return e.Squeeze(g, dim) })
}

// Squeeze removes a dimension of size 1.
func (e *Engine) Squeeze(t *Tensor, dim int) *Tensor {
	nd := len(t.Shape)
	dim = (dim + nd) % nd
	shape := slices.Delete(slices.Clone(t.Shape), dim, dim+1)
	stride := slices.Delete(slices.Clone(t.Stride), dim, dim+1)
	return e.view("SqueezeBackward1", t, shape, stride, func(g *Tensor) *Tensor { return e.Unsqueeze(g, dim) })
}

// Split cuts a dimension into views of the given sizes. All views share one
// node, whose backward concatenates the gradients.
func (e *Engine) Split(t *Tensor, dim int, sizes ...int64) []*Tensor {
	nd := len(t.Shape)
	dim = (dim + nd) % nd
	n := e.node("SplitBackward0", t)
	old := t.Shape
	out := make([]*Tensor, len(sizes))
	for i, s := range sizes {
		shape := slices.Clone(t.Shape)
		shape[dim] = s
		t.st.refs++
		v := e.newTensor(t.st, t.DType, shape, slices.Clone(t.Stride))
		v.base = t
		if t.base != nil {
			v.base = t.base
		}
		v.base.refs++
		out[i] = v
	}
	n.done(func(b *Back) {
		for i, g := range b.In { // zeros for the unused parts
			if g == nil {
				e.Empty(t0(b.In).DType, b.n.metas[i].shape...)
			}
		}
		b.Set(0, e.Empty(t0(b.In).DType, old...))
	}, out...)
	return out
}

func t0(ts []*Tensor) *Tensor {
	for _, t := range ts {
		if t != nil {
			return t
		}
	}
	return nil
}

// clone copies to row-major layout (clone(memory_format=contiguous_format)).
func (e *Engine) clone(t *Tensor) *Tensor {
	defer e.stacks.op("aten::clone")()
	n := e.node("CloneBackward0", t)
	out := e.Empty(t.DType, t.Shape...)
	n.done(func(b *Back) { b.Set(0, b.G()) }, out)
	return out
}

// ContiguousCopy is t.contiguous(): t itself when it is row-major.
func (e *Engine) ContiguousCopy(t *Tensor) *Tensor {
	if t.Contiguous() {
		return t
	}
	return e.clone(t)
}

// Cat concatenates along a dimension; backward gives views.
func (e *Engine) Cat(dim int, ts ...*Tensor) *Tensor {
	defer e.stacks.op("aten::cat")()
	n := e.node("CatBackward0", ts...)
	nd := len(ts[0].Shape)
	dim = (dim + nd) % nd
	shape := slices.Clone(ts[0].Shape)
	shape[dim] = 0
	dt := ts[0].DType
	sizes := make([]int64, len(ts))
	for i, t := range ts {
		sizes[i] = t.Shape[dim]
		shape[dim] += sizes[i]
		dt = promote(dt, t.DType)
	}
	out := e.Empty(dt, shape...)
	n.done(func(b *Back) {
		for i := range sizes {
			if b.Need(i) {
				b.Set(i, e.narrow(b.G(), dim, sizes[i]))
			}
		}
	}, out)
	return out
}

func (e *Engine) narrow(t *Tensor, dim int, n int64) *Tensor {
	shape := slices.Clone(t.Shape)
	shape[dim] = n
	return e.view("SliceBackward0", t, shape, slices.Clone(t.Stride), nil)
}

// To converts the element type; t itself when it has it.
func (e *Engine) To(t *Tensor, dt DType) *Tensor {
	if t.DType == dt {
		return t
	}
	defer e.stacks.op("aten::_to_copy")()
	n := e.node("ToCopyBackward0", t)
	src := t.DType
	out := e.emptyStrided(dt, t.Shape, preserved(t))
	n.done(func(b *Back) { b.Set(0, e.To(b.G(), src)) }, out)
	return out
}

func (e *Engine) toDType(t *Tensor, dt DType) *Tensor { return e.To(t, dt) }

// sumTo is at::sum_to: reduces broadcast dimensions away.
func (e *Engine) sumTo(t *Tensor, shape []int64) *Tensor {
	if slices.Equal(t.Shape, shape) {
		return t
	}
	return e.Scope(func() *Tensor {
		lead := len(t.Shape) - len(shape)
		red := make([]bool, len(t.Shape))
		for i := range t.Shape {
			red[i] = i < lead || (shape[i-lead] == 1 && t.Shape[i] != 1)
		}
		s := e.sumDims(t, red)
		if lead > 0 {
			return e.View(s, shape...)
		}
		return s
	})
}
