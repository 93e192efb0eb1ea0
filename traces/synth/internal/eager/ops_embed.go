package eager

import (
	"slices"

	"allocsim/traces/kernels"
)

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

// embeddingBackward is embedding_dense_backward: a full table of zeros, and what
// its kernel sorts and sums with.
func (e *Engine) embeddingBackward(idx *Tensor, dt DType, table []int64) *Tensor {
	var grad *Tensor
	e.carry(kernels.EmbeddingBackward(idx.outside(), table[0], table[1], dt), func(int) {
		grad = e.Empty(dt, table...)
	})
	return grad
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
