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

// nativeBatchNorm is PyTorch's own batch normalization
// (native/cuda/Normalization.cu, batch_norm_cuda).
func nativeBatchNorm(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

func nativeBatchNormBackward(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

// cudnnBatchNorm asks for result, mean, inverse deviation and reserve space
// (native/cudnn/BatchNorm.cpp).
func cudnnBatchNorm(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

func cudnnBatchNormBackward(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

// softmaxBackward copies operands that are not row-major
// (native/cuda/SoftMax.cu, softmax_backward_cuda_out).
func softmaxBackward(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	g := p.Scratch(copyOf(o.tensor("grad_output")))
	y := p.Scratch(copyOf(o.tensor("output")))
	p.Drop(y, g)
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
