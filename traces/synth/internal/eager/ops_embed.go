package eager

import "slices"

// Embedding is F.embedding(idx, w) with w [V,H]. An index that is not
// row-major (expanded) is copied for the time of the call.
func (e *Engine) Embedding(idx, w *Tensor) *Tensor {
	defer e.stacks.op("aten::embedding")()
	n := e.node("EmbeddingBackward0", w)
	n.save(idx)
	var out *Tensor
	e.open()
	if !idx.Contiguous() {
		e.like1(idx)
	}
	out = e.Empty(w.DType, append(slices.Clone(idx.Shape), w.Dim(1))...)
	e.close(out)
	wShape, dt := w.Shape, w.DType
	n.done(func(b *Back) {
		ix := b.Saved(0)
		b.Set(0, e.embeddingBackward(ix, dt, wShape))
	}, out)
	return out
}

// embeddingBackward is embedding_dense_backward: a full table of zeros, and for
// more than 3072 indices the arrays of its sort
// (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu).
func (e *Engine) embeddingBackward(idx *Tensor, dt DType, table []int64) *Tensor {
	n := idx.Numel()
	v, h := table[0], table[1]
	return e.Scope(func() *Tensor {
		if !idx.Contiguous() {
			idx = e.like1(idx)
		}
		if n <= 3072 {
			return e.Empty(dt, table...)
		}
		e.Empty(I64, n) // sorted index
		e.Empty(I64, n) // original index
		rng := e.Empty(I64, n)
		tmp := e.Bytes(65*n/4 + 16895)
		e.Drop(tmp, rng)
		grad := e.Empty(dt, table...)
		e.Empty(I64, n) // segment offsets
		e.Empty(I64, 1)
		u := e.Empty(I64, n)
		cub := e.Bytes(1279)
		e.Drop(cub, u)
		segs := min(n, v)
		e.Empty(I64, segs)
		e.Empty(I64, segs)
		e.Transient(1279)
		e.Empty(I64, 1)
		mp := n/10 + segs
		e.Empty(I64, mp)
		if v <= 2 {
			e.Empty(I64, mp) // seen for BERT's token types
		} else {
			e.Empty(F32, mp, (h+31)/32*32)
		}
		return grad
	})
}

// LogSoftmax saves its output.
func (e *Engine) logSoftmax(x *Tensor) *Tensor {
	defer e.stacks.op("aten::_log_softmax")()
	n := e.node("LogSoftmaxBackward0", x)
	out := e.Empty(x.DType, x.Shape...)
	n.saveOut(out)
	dt := x.DType
	n.done(func(b *Back) {
		y := b.Saved(0)
		b.Set(0, e.Empty(dt, y.Shape...))
	}, out)
	return out
}

// CrossEntropy is F.cross_entropy(logits [N,C], target [N]) with mean
// reduction: log_softmax in the type of the logits, nll_loss in fp32 under
// autocast.
func (e *Engine) CrossEntropy(logits, target *Tensor) *Tensor {
	defer e.stacks.op("aten::cross_entropy_loss")()
	return e.Scope(func() *Tensor {
		lp := e.logSoftmax(logits)
		x := e.castF32(lp)
		n := e.node("NllLossBackward0", x)
		n.save(x, target)
		loss := e.Empty(x.DType)
		total := e.Empty(x.DType)
		n.save(total)
		n.done(func(b *Back) {
			x := b.Saved(0)
			b.Saved(1)
			b.Saved(2)
			b.Set(0, e.Empty(x.DType, x.Shape...))
		}, loss)
		return loss
	})
}

// safeSoftmax is _safe_softmax over the last dimension: a softmax whose rows
// that are all -inf are set to zero; it saves its result.
func (e *Engine) safeSoftmax(x *Tensor) *Tensor {
	defer e.stacks.op("aten::_safe_softmax")()
	return e.Scope(func() *Tensor {
		n := e.node("SafeSoftmaxBackward0", x)
		out := e.Empty(x.DType, x.Shape...)
		isInf := e.Empty(Bool, x.Shape...)
		rows := e.Empty(Bool, x.Numel()/x.Dim(-1))
		e.Transient(x.DType.Size()) // the zero
		e.Drop(rows, isInf)
		n.saveOut(out)
		n.done(func(b *Back) {
			y := b.Saved(0)
			b.Set(0, e.Empty(b.G().DType, y.Shape...))
		}, out)
		return out
	})
}
