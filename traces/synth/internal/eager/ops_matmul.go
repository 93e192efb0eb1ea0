package eager

import "slices"

// noAmp runs f with autocast off: the casts of an operation have been made.
func (e *Engine) noAmp(f func() *Tensor) *Tensor {
	dt := e.amp.dt
	e.amp.dt = 0
	t := f()
	e.amp.dt = dt
	return t
}

// Linear is F.linear(x, w, b) with w [out, in]; b may be nil.
func (e *Engine) Linear(x, w, b *Tensor) *Tensor {
	defer e.stacks.op("aten::linear")()
	return e.Scope(func() *Tensor {
		b, w, x := e.ampArgs3(b, w, x)
		return e.noAmp(func() *Tensor { return e.linear(x, w, b) })
	})
}

// ampArgs3 casts arguments in the order in which C++ evaluates them: last
// first.
func (e *Engine) ampArgs3(c, b, a *Tensor) (*Tensor, *Tensor, *Tensor) {
	c = e.cast(c)
	b = e.cast(b)
	a = e.cast(a)
	return c, b, a
}

func (e *Engine) linear(x, w, b *Tensor) *Tensor {
	if b != nil && len(x.Shape) == 2 {
		return e.addmm(b, x, e.Transpose(w, 0, 1))
	}
	if b != nil && x.Contiguous() {
		k := x.Dim(-1)
		shape := slices.Clone(x.Shape)
		shape[len(shape)-1] = w.Dim(0)
		x2 := e.Reshape(x, x.Numel()/k, k)
		r := e.addmm(b, x2, e.Transpose(w, 0, 1))
		return e.View(r, shape...)
	}
	out := e.matmulWeight(x, e.Transpose(w, 0, 1))
	if b != nil {
		e.AddInPlace(out, b)
	}
	return out
}

// Addmm is torch.addmm(b, x, w) with w [in, out] (HF's Conv1D).
func (e *Engine) Addmm(b, x, w *Tensor) *Tensor {
	return e.Scope(func() *Tensor {
		w, x, b := e.ampArgs3(w, x, b)
		return e.noAmp(func() *Tensor { return e.addmm(b, x, w) })
	})
}

func (e *Engine) addmm(bias, a, m *Tensor) *Tensor {
	defer e.stacks.op("aten::addmm")()
	n := e.node("AddmmBackward0", bias, a, m)
	ia, im := -1, -1
	if n != nil && m.Wants() {
		ia = len(n.saved)
		n.save(a)
	}
	if n != nil && a.Wants() {
		im = len(n.saved)
		n.save(m)
	}
	out := e.Empty(a.DType, a.Dim(0), m.Dim(1))
	e.gemm(1, a.Dim(0), m.Dim(1), a.Dim(1), true)
	aShape, aStride := a.Shape, a.Stride
	mShape, mStride := m.Shape, m.Stride
	n.done(func(b *Back) {
		var sa, sm *Tensor
		if ia >= 0 {
			sa = b.Saved(ia)
		}
		if im >= 0 {
			sm = b.Saved(im)
		}
		b.Set(0, b.G())
		if b.Need(1) {
			b.Set(1, e.mm1Backward(b.G(), sm, aShape, aStride))
		}
		if b.Need(2) {
			b.Set(2, e.mm2Backward(b.G(), sa, mShape, mStride))
		}
	}, out)
	return out
}

// mm is a [M,K] times m [K,N].
func (e *Engine) mm(a, m *Tensor) *Tensor {
	defer e.stacks.op("aten::mm")()
	n := e.node("MmBackward0", a, m)
	im, ia := -1, -1
	if n != nil && a.Wants() {
		im = len(n.saved)
		n.save(m)
	}
	if n != nil && m.Wants() {
		ia = len(n.saved)
		n.save(a)
	}
	out := e.Empty(a.DType, a.Dim(0), m.Dim(1))
	e.gemm(1, a.Dim(0), m.Dim(1), a.Dim(1), false)
	aShape, aStride := a.Shape, a.Stride
	mShape, mStride := m.Shape, m.Stride
	n.done(func(b *Back) {
		var sa, sm *Tensor
		if im >= 0 {
			sm = b.Saved(im)
		}
		if ia >= 0 {
			sa = b.Saved(ia)
		}
		if b.Need(1) {
			b.Set(1, e.mm2Backward(b.G(), sa, mShape, mStride))
		}
		if b.Need(0) {
			b.Set(0, e.mm1Backward(b.G(), sm, aShape, aStride))
		}
	}, out)
	return out
}

func columnMajor(shape, stride []int64) bool { return stride[0] == 1 && stride[1] == shape[0] }

// mm1Backward is mm_mat1_backward: the gradient of the left operand, in its
// layout.
func (e *Engine) mm1Backward(g, m *Tensor, shape, stride []int64) *Tensor {
	if columnMajor(shape, stride) {
		return e.Transpose(e.mm(m, e.Transpose(g, 0, 1)), 0, 1)
	}
	return e.mm(g, e.Transpose(m, 0, 1))
}

// mm2Backward is mm_mat2_backward.
func (e *Engine) mm2Backward(g, a *Tensor, shape, stride []int64) *Tensor {
	if columnMajor(shape, stride) {
		return e.Transpose(e.mm(e.Transpose(g, 0, 1), a), 0, 1)
	}
	return e.mm(e.Transpose(a, 0, 1), g)
}

// matmulWeight is torch.matmul(x, m) of a tensor of at least two dimensions
// with a matrix: folded into one mm when m wants a gradient or x allows it
// without a copy (should_fold), else a batched product.
func (e *Engine) matmulWeight(x, m *Tensor) *Tensor {
	if len(x.Shape) == 2 {
		return e.mm(x, m)
	}
	fold := m.Wants()
	if !fold {
		fold = true
		for i := 0; i < len(x.Shape)-2; i++ {
			if x.Stride[i] != x.Stride[i+1]*x.Shape[i+1] {
				fold = false
			}
		}
	}
	shape := slices.Clone(x.Shape)
	shape[len(shape)-1] = m.Dim(1)
	return e.Scope(func() *Tensor {
		if fold {
			k := x.Dim(-1)
			x2 := e.Reshape(x, x.Numel()/k, k)
			r := e.mm(x2, m)
			return e.unsafeView(r, shape...)
		}
		bs := x.Numel() / x.Dim(-1) / x.Dim(-2)
		x3 := e.Reshape(x, bs, x.Dim(-2), x.Dim(-1))
		if !x3.Contiguous() {
			x3 = e.like1(x3) // for cuBLAS
		}
		r := e.Bmm(x3, e.Expand(m, bs, m.Dim(0), m.Dim(1)))
		return e.unsafeView(r, shape...)
	})
}

// Bmm is a [B,M,K] times m [B,K,N].
func (e *Engine) Bmm(a, m *Tensor) *Tensor {
	defer e.stacks.op("aten::bmm")()
	n := e.node("BmmBackward0", a, m)
	im, ia := -1, -1
	if n != nil && a.Wants() {
		im = len(n.saved)
		n.save(m)
	}
	if n != nil && m.Wants() {
		ia = len(n.saved)
		n.save(a)
	}
	out := e.Empty(a.DType, a.Dim(0), a.Dim(1), m.Dim(2))
	e.gemm(a.Dim(0), a.Dim(1), m.Dim(2), a.Dim(2), false)
	n.done(func(b *Back) {
		var sa, sm *Tensor
		if im >= 0 {
			sm = b.Saved(im)
		}
		if ia >= 0 {
			sa = b.Saved(ia)
		}
		if b.Need(1) {
			b.Set(1, e.Bmm(e.Transpose(sa, 1, 2), b.G()))
		}
		if b.Need(0) {
			b.Set(0, e.Bmm(b.G(), e.Transpose(sm, 1, 2)))
		}
	}, out)
	return out
}

// Matmul4 is torch.matmul of two tensors [B,A,M,K] and [B,A,K,N]: both are
// reshaped to three dimensions, with a copy where the layout asks for it.
func (e *Engine) Matmul4(a, m *Tensor) *Tensor {
	return e.Scope(func() *Tensor {
		bs := a.Dim(0) * a.Dim(1)
		a3 := e.Reshape(a, bs, a.Dim(2), a.Dim(3))
		m3 := e.Reshape(m, bs, m.Dim(2), m.Dim(3))
		r := e.Bmm(a3, m3)
		return e.unsafeView(r, a.Dim(0), a.Dim(1), a.Dim(2), m.Dim(3))
	})
}
