package kernels

// convolution asks for its result, then for the workspace of the kernel.
func convolution(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	if c, ok := o.conv2d(o.tensor("input"), o.tensor("weight"), o.result(0)); ok {
		p.Transient(c.Forward(false))
	}
	return p
}

// convolutionBackward asks for the gradients of input and weight, each with its
// workspace, then for that of the bias.
func convolutionBackward(d *Device, o *Op) (p Plan) {
	x, w, g := o.tensor("input"), o.tensor("weight"), o.tensor("grad_output")
	c, ok := o.conv2d(x, w, g)
	copied := p.Scratch(groupCopy(g))
	if o.result(0) != nil {
		p.Result(0)
		if ok {
			p.Transient(c.Forward(true))
		}
	}
	if o.result(1) != nil {
		p.Result(1)
		if ok {
			p.Transient(c.Weight(d.SMs))
		}
	}
	p.Drop(copied)
	if o.result(2) != nil && g != nil {
		p.Result(2)
		red := make([]bool, len(g.Shape))
		for i := range red {
			red[i] = i != 1
		}
		p.reduceTemps(d, g, red, sumOf(g.DType))
	}
	return p
}

func (o *Op) conv2d(x, w, y *Tensor) (Conv2d, bool) {
	if x == nil || w == nil || y == nil || len(x.Shape) != 4 || len(w.Shape) != 4 || len(y.Shape) != 4 || o.yes("transposed") {
		return Conv2d{}, false
	}
	stride := int64(1)
	if s := o.Args["stride"].Ints; len(s) > 0 {
		stride = s[0]
	}
	return Conv2d{
		B: x.Shape[0], C: x.Shape[1], H: x.Shape[2], W: x.Shape[3], K: w.Shape[0], R: w.Shape[2], S: w.Shape[3],
		OH: y.Shape[2], OW: y.Shape[3], Stride: stride, Groups: max(o.integer("groups", 1), 1), DType: x.DType,
	}, true
}

func cudnnRNN(_ *Device, o *Op) (p Plan)         { p.Results(len(o.Results)); return p }
func cudnnRNNBackward(_ *Device, o *Op) (p Plan) { p.Results(len(o.Results)); return p }
