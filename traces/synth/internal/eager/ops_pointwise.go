package eager

import "slices"

// like allocates the result of an elementwise operation.
func (e *Engine) like(dt DType, ins ...*Tensor) *Tensor {
	shape := ins[0].Shape
	for _, t := range ins[1:] {
		shape = broadcast(shape, t.Shape)
	}
	return e.emptyStrided(dt, slices.Clone(shape), iterStrides(shape, ins...))
}

func (e *Engine) binaryLike(a, b *Tensor) *Tensor { return e.like(promote(a.DType, b.DType), a, b) }

// Add is a + b; its backward passes the gradient on.
func (e *Engine) Add(a, b *Tensor) *Tensor {
	defer e.stacks.op("aten::add")()
	n := e.node("AddBackward0", a, b)
	out := e.binaryLike(a, b)
	n.done(func(bk *Back) {
		bk.Set(0, bk.G())
		bk.Set(1, bk.G())
	}, out)
	return out
}

// AddInPlace is a += b (a.add_(b)).
func (e *Engine) AddInPlace(a, b *Tensor) *Tensor {
	n := e.node("AddBackward0", a, b)
	n.done(func(bk *Back) {
		bk.Set(0, bk.G())
		bk.Set(1, bk.G())
	}, a)
	return a
}

// AddScalar is a + number.
func (e *Engine) AddScalar(a *Tensor) *Tensor {
	defer e.stacks.op("aten::add")()
	n := e.node("AddBackward0", a)
	out := e.like(a.DType, a)
	n.done(func(b *Back) { b.Set(0, b.G()) }, out)
	return out
}

// Mul is a * b.
func (e *Engine) Mul(a, b *Tensor) *Tensor {
	defer e.stacks.op("aten::mul")()
	n := e.node("MulBackward0", a, b)
	io, is := -1, -1
	if n != nil && a.Wants() {
		io = len(n.saved)
		n.save(b)
	}
	if n != nil && b.Wants() {
		is = len(n.saved)
		n.save(a)
	}
	out := e.binaryLike(a, b)
	n.done(func(bk *Back) {
		var o, s *Tensor
		if io >= 0 {
			o = bk.Saved(io)
		}
		if is >= 0 {
			s = bk.Saved(is)
		}
		if bk.Need(1) {
			bk.Set(1, e.binaryLike(bk.G(), s))
		}
		if bk.Need(0) {
			bk.Set(0, e.binaryLike(bk.G(), o))
		}
	}, out)
	return out
}

// MulScalar is a * number (or a / number).
func (e *Engine) MulScalar(a *Tensor) *Tensor {
	defer e.stacks.op("aten::mul")()
	n := e.node("MulBackward0", a)
	out := e.like(a.DType, a)
	n.done(func(b *Back) { b.Set(0, e.like(b.G().DType, b.G())) }, out)
	return out
}

// Neg is -a.
func (e *Engine) Neg(a *Tensor) *Tensor {
	defer e.stacks.op("aten::neg")()
	n := e.node("NegBackward0", a)
	out := e.like(a.DType, a)
	n.done(func(b *Back) { b.Set(0, e.like(b.G().DType, b.G())) }, out)
	return out
}

// Pow is a ** number; on autocast's fp32 list.
func (e *Engine) Pow(a *Tensor) *Tensor {
	defer e.stacks.op("aten::pow")()
	return e.Scope(func() *Tensor {
		a := e.castF32(a)
		n := e.node("PowBackward0", a)
		n.save(a)
		out := e.like(a.DType, a)
		n.done(func(b *Back) {
			x := b.Saved(0)
			t1 := e.like(x.DType, x)
			t2 := e.like(x.DType, t1)
			b.Set(0, e.binaryLike(b.G(), t2))
			e.Drop(t2, t1)
		}, out)
		return out
	})
}

// Rsqrt is a.rsqrt(); on autocast's fp32 list.
func (e *Engine) Rsqrt(a *Tensor) *Tensor {
	defer e.stacks.op("aten::rsqrt")()
	return e.Scope(func() *Tensor {
		a := e.castF32(a)
		n := e.node("RsqrtBackward0", a)
		out := e.like(a.DType, a)
		n.saveOut(out)
		n.done(func(b *Back) {
			r := b.Saved(0)
			t1 := e.like(b.G().DType, b.G())
			t2 := e.like(r.DType, r)
			b.Set(0, e.binaryLike(t1, t2))
			e.Drop(t2, t1)
		}, out)
		return out
	})
}

// unaryIn is an elementwise operation that saves its input.
func (e *Engine) unaryIn(op, node string, a *Tensor) *Tensor {
	defer e.stacks.op(op)()
	n := e.node(node, a)
	n.save(a)
	out := e.like(a.DType, a)
	n.done(func(b *Back) {
		x := b.Saved(0)
		b.Set(0, e.emptyStrided(b.G().DType, x.Shape, iterStrides(x.Shape, b.G(), x)))
	}, out)
	return out
}

// unaryOut is an elementwise operation that saves its output.
func (e *Engine) unaryOut(op, node string, a *Tensor) *Tensor {
	defer e.stacks.op(op)()
	n := e.node(node, a)
	out := e.like(a.DType, a)
	n.saveOut(out)
	n.done(func(b *Back) {
		y := b.Saved(0)
		b.Set(0, e.emptyStrided(b.G().DType, y.Shape, iterStrides(y.Shape, b.G(), y)))
	}, out)
	return out
}

// Gelu is the exact (erf) gelu.
func (e *Engine) Gelu(a *Tensor) *Tensor { return e.unaryIn("aten::gelu", "GeluBackward0", a) }

// Silu is x * sigmoid(x).
func (e *Engine) Silu(a *Tensor) *Tensor { return e.unaryIn("aten::silu", "SiluBackward0", a) }

// Hardsigmoid saves its input.
func (e *Engine) Hardsigmoid(a *Tensor) *Tensor {
	return e.unaryIn("aten::hardsigmoid", "HardsigmoidBackward0", a)
}

// Tanh saves its output.
func (e *Engine) Tanh(a *Tensor) *Tensor { return e.unaryOut("aten::tanh", "TanhBackward0", a) }

// Relu saves its output.
func (e *Engine) Relu(a *Tensor) *Tensor { return e.unaryOut("aten::relu", "ReluBackward0", a) }

// ReluInPlace is relu_: the result, which is a itself, is saved.
func (e *Engine) ReluInPlace(a *Tensor) *Tensor {
	n := e.node("ReluBackward0", a)
	n.saveOut(a)
	n.done(func(b *Back) {
		y := b.Saved(0)
		b.Set(0, e.emptyStrided(b.G().DType, y.Shape, iterStrides(y.Shape, b.G(), y)))
	}, a)
	return a
}

// HardswishInPlace is hardswish_: backward needs the input, which is
// overwritten, so autograd saves a clone of it.
func (e *Engine) HardswishInPlace(a *Tensor) *Tensor {
	defer e.stacks.op("aten::hardswish_")()
	n := e.node("HardswishBackward0", a)
	if n != nil {
		e.Do(func() {
			e.NoGrad(func() { n.save(e.emptyStrided(a.DType, a.Shape, preserved(a))) })
		})
	}
	n.done(func(b *Back) {
		x := b.Saved(0)
		b.Set(0, e.emptyStrided(b.G().DType, x.Shape, preserved(x)))
	}, a)
	return a
}

// Dropout is F.dropout; p == 0 or evaluation returns its input.
func (e *Engine) Dropout(a *Tensor, p float64, training bool) *Tensor {
	if p == 0 || !training {
		return a
	}
	defer e.stacks.op("aten::native_dropout")()
	n := e.node("NativeDropoutBackward0", a)
	mask := e.emptyStrided(Bool, a.Shape, preserved(a))
	out := e.emptyStrided(a.DType, a.Shape, preserved(a))
	n.save(mask)
	n.done(func(b *Back) {
		m := b.Saved(0)
		b.Set(0, e.emptyStrided(b.G().DType, m.Shape, iterStrides(m.Shape, b.G(), m)))
	}, out)
	e.Drop(mask)
	return out
}

// DropoutInPlace is F.dropout(inplace=True): a noise tensor of a's type, a
// multiplication in place.
func (e *Engine) DropoutInPlace(a *Tensor, p float64, training bool) *Tensor {
	if p == 0 || !training {
		return a
	}
	defer e.stacks.op("aten::dropout_")()
	n := e.node("MulBackward0", a)
	e.Do(func() {
		noise := e.emptyStrided(a.DType, a.Shape, preserved(a))
		n.save(noise)
	})
	n.done(func(b *Back) {
		m := b.Saved(0)
		b.Set(0, e.binaryLike(b.G(), m))
	}, a)
	return a
}
