package eager

import "allocsim/traces/kernels"

// LayerNorm is F.layer_norm over the last dimension; on autocast's fp32 list.
// The kernels want row-major input: another layout is copied for the time of
// the call.
func (e *Engine) LayerNorm(x, w, b *Tensor) *Tensor {
	defer e.stacks.op("aten::layer_norm")()
	return e.Scope(func() *Tensor {
		x := e.castF32(x)
		n := e.node("NativeLayerNormBackward0", x, w, b)
		n.save(x)
		rows := x.Numel() / x.Dim(-1)
		var out, mean, rstd *Tensor
		c := x
		if !x.Contiguous() {
			c = e.like1(x)
		}
		out = e.Empty(x.DType, x.Shape...)
		stat := F32
		mean = e.Empty(stat, rows)
		rstd = e.Empty(stat, rows)
		if c != x {
			e.Drop(c)
		}
		n.save(mean, rstd)
		n.done(func(bk *Back) {
			x := bk.Saved(0)
			bk.Saved(1)
			bk.Saved(2)
			xc, g := x, bk.G()
			if !x.Contiguous() {
				xc = e.like1(x)
			}
			if bk.Need(0) {
				bk.Set(0, e.Empty(x.DType, x.Shape...))
			}
			bk.Set(1, e.Empty(w.DType, w.Shape...))
			bk.Set(2, e.Empty(b.DType, b.Shape...))
			if !g.Contiguous() {
				e.Drop(e.like1(g))
			}
			if xc != x {
				e.Drop(xc)
			}
		}, out)
		return out
	})
}

// like1 is a row-major copy that autograd does not see.
func (e *Engine) like1(t *Tensor) *Tensor { return e.Empty(t.DType, t.Shape...) }

// BatchNorm is F.batch_norm over dimension 1. Training makes batch statistics;
// evaluation only the result.
func (e *Engine) BatchNorm(x, w, b *Tensor, training bool) *Tensor {
	defer e.stacks.op("aten::batch_norm")()
	return e.Scope(func() *Tensor {
		n := e.node("NativeBatchNormBackward0", x, w, b)
		n.save(x)
		out := e.emptyStrided(x.DType, x.Shape, preserved(x))
		if training {
			mean := e.Empty(F32, x.Dim(1))
			inv := e.Empty(F32, x.Dim(1))
			n.save(mean, inv)
		} else if x.DType == BF16 {
			stats := kernels.BatchNormStats(x.Dim(1))
			e.Bytes(stats)
			e.Bytes(stats)
		}
		n.done(func(bk *Back) {
			for i := range bk.n.saved {
				bk.Saved(i)
			}
			if bk.Need(0) {
				bk.Set(0, e.emptyStrided(x.DType, bk.n.metas[0].shape, rowMajor(bk.n.metas[0].shape)))
			}
			bk.Set(1, e.Empty(w.DType, w.Shape...))
			bk.Set(2, e.Empty(b.DType, b.Shape...))
		}, out)
		return out
	})
}
