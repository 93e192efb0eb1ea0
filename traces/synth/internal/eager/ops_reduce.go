package eager

import (
	"slices"

	"allocsim/traces/kernels"
)

// sumDims is sum over the marked dimensions with keepdim, without autograd.
func (e *Engine) sumDims(t *Tensor, red []bool) *Tensor {
	defer e.stacks.op("aten::sum")()
	shape := slices.Clone(t.Shape)
	for i := range shape {
		if red[i] {
			shape[i] = 1
		}
	}
	out := e.Empty(t.DType, shape...)
	e.reduceTemps(t, red)
	return out
}

// reduceTemps allocates and frees what a split reduction needs besides its
// result.
func (e *Engine) reduceTemps(t *Tensor, red []bool) {
	staging, sem := kernels.Reduction(e.Device.SMs, t.Shape, t.Stride, red)
	if staging == 0 {
		return
	}
	s := e.newStorage(staging)
	m := e.newStorage(sem)
	e.dropStorage(m)
	e.dropStorage(s)
}

// MeanLast is t.mean(-1, keepdim=True).
func (e *Engine) MeanLast(t *Tensor) *Tensor {
	red := make([]bool, len(t.Shape))
	red[len(red)-1] = true
	return e.mean("aten::mean", t, red)
}

// MeanHW is adaptive_avg_pool2d(t, 1): the mean over the last two dimensions.
func (e *Engine) MeanHW(t *Tensor) *Tensor {
	red := make([]bool, len(t.Shape))
	red[len(red)-1], red[len(red)-2] = true, true
	return e.mean("aten::adaptive_avg_pool2d", t, red)
}

func (e *Engine) mean(op string, t *Tensor, red []bool) *Tensor {
	defer e.stacks.op(op)()
	n := e.node("MeanBackward1", t)
	shape := slices.Clone(t.Shape)
	for i := range shape {
		if red[i] {
			shape[i] = 1
		}
	}
	out := e.Empty(t.DType, shape...)
	e.reduceTemps(t, red)
	full := t.Shape
	n.done(func(b *Back) {
		x := e.Expand(b.G(), full...)
		b.Set(0, e.emptyStrided(x.DType, full, iterStrides(full, x)))
	}, out)
	return out
}

// Norm is t.norm(2).item(): a scalar and the temporaries of its reduction.
func (e *Engine) Norm(t *Tensor) {
	defer e.stacks.op("aten::linalg_vector_norm")()
	e.Do(func() {
		e.Empty(t.DType)
		red := make([]bool, len(t.Shape))
		for i := range red {
			red[i] = true
		}
		e.reduceTemps(t, red)
	})
}

// NormDim is torch.norm(t, dim=-k, keepdim=True).
func (e *Engine) NormDim(t *Tensor, k int) *Tensor {
	defer e.stacks.op("aten::linalg_vector_norm")()
	red := make([]bool, len(t.Shape))
	red[len(red)-k] = true
	shape := slices.Clone(t.Shape)
	shape[len(shape)-k] = 1
	out := e.Empty(t.DType, shape...)
	e.reduceTemps(t, red)
	return out
}

// OuterProduct is row @ col of vectors that span t's last two dimensions.
func (e *Engine) OuterProduct(t *Tensor) *Tensor {
	defer e.stacks.op("aten::matmul")()
	out := e.Empty(t.DType, t.Shape...)
	m, n := t.Dim(-2), t.Dim(-1)
	e.gemm(t.Numel()/(m*n), m, n, 1, false)
	return out
}
