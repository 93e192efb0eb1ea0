package kernels

// convolution asks for its result, then for the workspace of the kernel
// (native/cudnn/ConvShared.cpp, cudnn_convolution). An input of another layout
// is copied.
func convolution(_ *Device, o *Op) (p Plan) {
	x, w, y := o.tensor("input"), o.tensor("weight"), o.result(0)
	if x == nil {
		x = o.tensor("self")
	}
	c, ok := o.conv(x, w, y)
	copied := -1
	if ok && !c.ChannelsLast {
		copied = p.Scratch(copyOf(x))
	}
	p.Results(len(o.Results))
	if ok {
		p.Transient(c.workspace(forwardPass))
	}
	p.Drop(copied)
	return p
}

// convolutionBackward asks for the gradients of input and weight, each with its
// workspace, then for that of the bias. PyTorch's own kernels for one filter per
// channel size the input's gradient last.
func convolutionBackward(d *Device, o *Op) (p Plan) {
	x, w, g := o.tensor("input"), o.tensor("weight"), o.tensor("grad_output")
	c, ok := o.conv(x, w, g)
	copied := -1
	if ok && !c.ChannelsLast {
		copied = p.Scratch(copyOf(g))
	}
	part := func(n int, ps pass) {
		if o.result(n) == nil {
			return
		}
		p.Result(n)
		if ok {
			p.Transient(c.workspace(ps))
		}
	}
	part(0, inputPass)
	part(1, weightPass)
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

// conv is the geometry of a call with input x, weight w and output y.
func (o *Op) conv(x, w, y *Tensor) (Conv, bool) {
	if x == nil || w == nil || y == nil {
		return Conv{}, false
	}
	n := len(x.Shape)
	if n < 3 || n > 5 || len(w.Shape) != n || len(y.Shape) != n {
		return Conv{}, false
	}
	list := func(name string, def int64) []int64 {
		l := o.Args[name].Ints
		out := make([]int64, n-2)
		for i := range out {
			switch {
			case i < len(l):
				out[i] = l[i]
			case len(l) == 1:
				out[i] = l[0]
			default:
				out[i] = def
			}
		}
		return out
	}
	return Conv{
		Transposed: o.yes("transposed"), ChannelsLast: x.channelsLast() || w.channelsLast(), DType: x.DType,
		Batch: x.Shape[0], C: x.Shape[1], K: y.Shape[1], Groups: max(o.integer("groups", 1), 1),
		Kernel: w.Shape[2:], Stride: list("stride", 1), Padding: list("padding", 0), Dilation: list("dilation", 1),
		In: x.Shape[2:], Out: y.Shape[2:],
	}, true
}

func cudnnRNN(_ *Device, o *Op) (p Plan)         { p.Results(len(o.Results)); return p }
func cudnnRNNBackward(_ *Device, o *Op) (p Plan) { p.Results(len(o.Results)); return p }
