package eager

import "slices"

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
// result: a staging buffer of fp32 partials and an array of semaphores
// (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig, with the dimension
// order and coalescing of TensorIterator).
func (e *Engine) reduceTemps(t *Tensor, red []bool) {
	staging, sem := reduceConfig(e.Device.SMs, t.Shape, t.Stride, red)
	if staging == 0 {
		return
	}
	s := e.newStorage(staging)
	m := e.newStorage(sem)
	e.dropStorage(m)
	e.dropStorage(s)
}

func reduceConfig(sms int64, shape, stride []int64, red []bool) (staging, semaphores int64) {
	type dim struct {
		n, in, out int64
		red        bool
	}
	var dims []dim
	for i := range shape {
		if shape[i] == 1 {
			continue
		}
		dims = append(dims, dim{n: shape[i], in: stride[i], red: red[i]})
	}
	// Reduced dimensions first, each group by ascending input stride.
	slices.SortStableFunc(dims, func(a, b dim) int {
		if a.red != b.red {
			if a.red {
				return -1
			}
			return 1
		}
		return int(min(max(a.in-b.in, -1), 1))
	})
	o := int64(1)
	for i := range dims {
		if !dims[i].red {
			dims[i].out = o
			o *= dims[i].n
		}
	}
	var co []dim
	for _, d := range dims {
		if k := len(co) - 1; k >= 0 && co[k].red == d.red && co[k].n*co[k].in == d.in && co[k].n*co[k].out == d.out {
			co[k].n *= d.n
			continue
		}
		co = append(co, d)
	}
	nRed, inputs, outputs := 0, int64(1), int64(1)
	for _, d := range co {
		if d.red {
			nRed++
			inputs *= d.n
		} else {
			outputs *= d.n
		}
	}
	if nRed == 0 {
		return 0, 0
	}
	fastest := nRed == len(co) || co[0].in < co[nRed].in
	var d0, d1, fastStride int64
	if fastest {
		d0, d1, fastStride = inputs, outputs, co[0].in
	} else {
		d0, d1, fastStride = outputs, inputs, co[nRed].in
	}
	ov := int64(1)
	if fastStride == 1 {
		if fastest {
			if d0 > 128 && len(co) == 1 {
				d0 /= 4 // vectorized along the input
			}
		} else {
			ov = 4
			shrink := func(n int64) {
				for n%ov != 0 {
					ov /= 2
				}
			}
			shrink(co[nRed].n)
			for i, d := range co {
				if i != nRed {
					shrink(d.in)
				}
			}
			d0 /= ov
		}
	}
	maxT := 512 / ov
	p2 := func(x int64) int64 {
		if x >= maxT {
			return maxT
		}
		p := int64(1)
		for p*2 <= x {
			p *= 2
		}
		return p
	}
	bw := min(p2(d0), 32)
	bh := min(p2(d1), maxT/bw)
	bw = min(p2(d0), maxT/bh)
	stepIn, stepOut := int64(1), int64(1)
	blockX := false // should_block_x_reduce
	if fastest {
		stepIn *= bw
		blockX = true
	} else {
		stepOut *= bw
	}
	vpt := func() int64 { return ceilDiv(inputs, stepIn) }
	blockY := vpt() >= bh*16 || vpt() >= 256
	if blockY {
		stepIn *= bh
	} else {
		stepOut *= bh
	}
	target := sms * (2048 / (bw * bh))
	grid := ceilDiv(outputs/ov, stepOut)
	if !blockY || vpt() < 256 || grid > target {
		return 0, 0
	}
	c := max(min(ceilDiv(target, grid), ceilDiv(vpt(), 16)), ceilDiv(vpt(), 256))
	if c <= 1 {
		return 0, 0
	}
	staging = 4 * outputs * c
	if !blockX {
		staging *= bw * ov
	}
	return staging, 4 * grid
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

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
