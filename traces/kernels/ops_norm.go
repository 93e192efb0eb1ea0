package kernels

// layerNorm copies an input that is not row-major first
// (native/cuda/layer_norm_kernel.cu, layer_norm_cuda).
func layerNorm(_ *Device, o *Op) (p Plan) {
	c := p.Scratch(copyOf(o.tensor("input")))
	p.Results(len(o.Results))
	p.Drop(c)
	return p
}

// layerNormBackward copies the input first and the gradient last
// (native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda).
func layerNormBackward(_ *Device, o *Op) (p Plan) {
	c := p.Scratch(copyOf(o.tensor("input")))
	p.Results(len(o.Results))
	g := p.Scratch(copyOf(o.tensor("grad_out")))
	p.Drop(g, c)
	return p
}

// groupNorm makes the scale and shift of each channel of each item
// (native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal).
func groupNorm(_ *Device, o *Op) (p Plan) {
	c := p.Scratch(groupCopy(o.tensor("input")))
	p.Results(len(o.Results))
	n, ch := o.integer("N", 1), o.integer("C", 1)
	if g := max(o.integer("group", 1), 1); ch/g*o.integer("HxW", 1) == 0 {
		return p
	}
	a := p.Scratch(4 * n * ch)
	b := p.Scratch(4 * n * ch)
	p.Drop(b, a, c)
	return p
}

func groupCopy(t *Tensor) int64 {
	if t == nil || t.channelsLast() {
		return 0
	}
	return copyOf(t)
}

// groupNormBackward is native/cuda/group_norm_kernel.cu,
// GroupNormBackwardKernelImplInternal.
func groupNormBackward(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	n, ch, g := o.integer("N", 1), o.integer("C", 1), o.integer("group", 1)
	ds := p.Scratch(4 * n * ch)
	db := p.Scratch(4 * n * ch)
	c2 := p.Scratch(4 * n * g)
	c3 := p.Scratch(4 * n * g)
	c1 := p.Scratch(4 * n * ch)
	p.Drop(c3, c2, c1, db, ds)
	return p
}

// channelsLastGrid is the launch of the kernels for channels last
// (native/cuda/Normalization.cuh, flexible_launch_configs): thread blocks along
// the channels and along what is reduced.
func channelsLastGrid(reduced, channels int64) (x, y int64) {
	p2 := func(n int64) int64 {
		p := int64(1)
		for p*2 <= n {
			p *= 2
		}
		return p
	}
	bx := min(p2(channels), 32)
	by := min(p2(ceilDiv(reduced, 16)), 512/bx)
	if bx*by != 512 {
		bx = min(p2(channels), 512/by)
	}
	x, y = ceilDiv(channels, bx), min(ceilDiv(reduced, by*16), 128)
	if y < 8 {
		y = 1
	}
	return x, y
}

// staging appends the partial results of n values a channel for a reduction of t
// with channels last; nothing when one block reduces all.
func (p *Plan) channelsLastStaging(t *Tensor, n int64) {
	c := t.Shape[1]
	if c == 0 {
		return
	}
	x, y := channelsLastGrid(t.Numel()/c, c)
	if y <= 1 {
		return
	}
	st := p.Scratch(4 * n * c * y)
	p.Drop(p.Scratch(4*x), st)
}

// nativeBatchNorm is PyTorch's own batch normalization
// (native/cuda/Normalization.cu, batch_norm_cuda).
func nativeBatchNorm(_ *Device, o *Op) (p Plan) {
	t := o.tensor("input")
	p.Result(0)
	p.Result(1)
	p.Result(2)
	if t == nil || len(t.Shape) < 2 {
		return p
	}
	if o.yes("training") && t.channelsLast() {
		p.channelsLastStaging(t, 4)
	}
	return p
}

// nativeBatchNormBackward with channels last reduces first and asks for the
// input's gradient last (native/cuda/Normalization.cu, batch_norm_backward_cuda).
func nativeBatchNormBackward(_ *Device, o *Op) (p Plan) {
	t, g := o.tensor("input"), o.tensor("grad_out")
	if t == nil || g == nil || len(t.Shape) < 2 || !t.channelsLast() {
		p.Results(len(o.Results))
		return p
	}
	stats := BatchNormStats(t.Shape[1])
	inv := -1
	if m := o.tensor("save_mean"); m == nil || m.Numel() == 0 {
		inv = p.Scratch(stats)
	}
	dy, dx := p.Scratch(stats), p.Scratch(stats)
	p.Result(1)
	p.Result(2)
	p.channelsLastStaging(t, 2)
	p.Result(0)
	p.Drop(dx, dy, inv)
	return p
}

// cudnnBatchNorm asks for result, mean, inverse deviation and reserve space
// (native/cudnn/BatchNorm.cpp). With channels last cuDNN's persistent kernels
// take a workspace: a share of the elements, read off two shapes.
func cudnnBatchNorm(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	if t := o.tensor("input"); t != nil && t.channelsLast() && o.yes("training") {
		share := 0.1261
		if t.DType.Half() {
			share = 0.0506
		}
		p.Transient(int64(share * float64(t.Numel())))
	}
	return p
}

// cudnnBatchNormBackward makes the gradient row-major first.
func cudnnBatchNormBackward(_ *Device, o *Op) (p Plan) {
	copied := -1
	if t := o.tensor("input"); t != nil && !t.channelsLast() {
		copied = p.Scratch(copyOf(o.tensor("grad_output")))
	}
	p.Results(len(o.Results))
	p.Drop(copied)
	if t := o.tensor("input"); t != nil && t.channelsLast() {
		p.Transient(int64(0.0837 * float64(t.Numel())))
	}
	return p
}

// softmaxBackward multiplies gradient and result first
// (native/cuda/SoftMax.cu, softmax_backward_cuda_out).
func softmaxBackward(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	if t := o.tensor("grad_output"); t != nil {
		p.Transient(t.Bytes())
	}
	return p
}

// safeSoftmax zeroes rows that are all -inf (native/SoftMax.cpp, _safe_softmax).
func safeSoftmax(_ *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	p.Result(0)
	if t == nil || t.Numel() == 0 {
		return p
	}
	inf := p.Scratch(t.Numel())
	rows := p.Scratch(t.Numel() / max(t.Dim(int(o.integer("dim", -1))), 1))
	zero := p.Scratch(t.DType.Size())
	p.Drop(zero, rows, inf)
	return p
}
