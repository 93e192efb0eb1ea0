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

// rnnFit are the shares of a recurrent layer's workspace for: 8 MiB for each
// layer and direction; the weights; time × batch × hidden for each direction and
// gate, and for each layer, too; the input; batch × hidden for each layer and
// direction; time × batch × hidden for each direction.
type rnnFit [7]float64

// rnnFits are by mode and size of elements: least squares over 400 layers on the
// H200, median error 4 %, 90th percentile 15 to 40 %.
var rnnFits = map[[2]int64]rnnFit{
	{2, 4}: {1.041, 0.999, 1.08, -0.081, 4.856, 13.248, 0.27},
	{2, 2}: {1.025, 0.993, 1.485, -0.192, 2.622, 15.079, 0.371},
	{3, 4}: {1.051, 0.965, 1.352, -0.11, 3.485, 4.753, 0.451},
	{3, 2}: {1.026, 1.045, 1.695, -0.255, 3.065, 5.804, 0.565},
	{1, 4}: {1.009, 1.012, 0.207, 1.316, 10.12, 10.664, 0.207},
	{1, 2}: {1.037, 0.994, 1.908, 0.072, 3.243, 7.829, 1.908},
}

// recurrent is the geometry of a recurrent call.
type recurrent struct {
	time, batch, input, hidden, layers, directions, gates, mode, size int64
	batchFirst                                                        bool
}

func (o *Op) recurrent() (r recurrent, ok bool) {
	x := o.tensor("input")
	if x == nil || len(x.Shape) != 3 {
		return r, false
	}
	r = recurrent{time: x.Shape[0], batch: x.Shape[1], input: x.Shape[2], hidden: o.integer("hidden_size", 0),
		layers: o.integer("num_layers", 1), directions: 1 + o.integer("bidirectional", 0), mode: max(o.integer("mode", 0), 1),
		size: x.DType.Size(), gates: 1, batchFirst: o.yes("batch_first")}
	if r.batchFirst {
		r.time, r.batch = r.batch, r.time
	}
	switch r.mode {
	case 2:
		r.gates = 4
	case 3:
		r.gates = 3
	}
	// Beyond these no layer exists; the products stay far below the limits.
	return r, r.hidden > 0 && r.hidden < 1<<20 && r.layers > 0 && r.layers < 1<<10
}

// workspace is the bytes of cuDNN's workspace, the same in both directions.
func (r recurrent) workspace() int64 {
	var weights float64
	in := float64(r.input)
	for range r.layers {
		weights += float64(r.directions*r.gates*r.hidden) * (in + float64(r.hidden) + 2)
		in = float64(r.hidden * r.directions)
	}
	e, h := float64(r.size), float64(r.hidden)
	l, d, g, tb := float64(r.layers), float64(r.directions), float64(r.gates), float64(r.time)*float64(r.batch)
	terms := [7]float64{l * d * (8 << 20), weights * e, tb * h * d * g * e, tb * h * d * l * g * e, tb * float64(r.input) * e, float64(r.batch) * h * l * d * e, tb * h * d * e}
	ws := 0.0
	for i, share := range rnnFits[[2]int64{min(r.mode, 3), min(max(r.size, 2), 4)}] {
		ws += share * terms[i]
	}
	return int64(max(min(ws, 1<<44), 0))
}

// cudnnRNN takes the sequence first and asks for result, states, the packed
// weights, the workspace and then the reserve space (native/cudnn/RNN.cpp,
// _cudnn_rnn).
func cudnnRNN(_ *Device, o *Op) (p Plan) {
	r, ok := o.recurrent()
	x := -1
	if ok && r.batchFirst && r.time > 1 && r.batch > 1 {
		x = p.Scratch(o.tensor("input").Bytes())
	}
	for _, n := range []int{0, 1, 2, 4} {
		p.Result(n)
	}
	ws := -1
	if ok {
		ws = p.Scratch(r.workspace())
	}
	p.Result(3)
	p.Drop(ws, x)
	return p
}

// cudnnRNNBackward runs twice, for the data and for the weights; gradients of the
// last states that nobody gave are zeros
// (native/cudnn/RNN.cpp, _cudnn_rnn_backward).
func cudnnRNNBackward(_ *Device, o *Op) (p Plan) {
	r, ok := o.recurrent()
	if !ok {
		p.Results(len(o.Results))
		return p
	}
	in := o.tensor("input").Bytes()
	y := r.time * r.batch * r.hidden * r.directions * r.size
	swapped := r.batchFirst && r.time > 1 && r.batch > 1
	copies := func(n ...int64) (held []int) {
		if swapped {
			for _, b := range n {
				held = append(held, p.Scratch(b))
			}
		}
		return held
	}
	var states []int
	for _, name := range []string{"grad_hy", "grad_cy"} {
		if o.tensor(name) == nil && (name == "grad_hy" || r.mode == 2) {
			states = append(states, p.Scratch(r.layers*r.directions*r.batch*r.hidden*r.size)) // zeros
		}
	}
	g := -1
	if !swapped {
		g = p.Scratch(copyOf(o.tensor("grad_output")))
	}
	held := copies(in, y)
	for _, n := range []int{0, 1, 2} {
		p.Result(n)
	}
	p.Transient(r.workspace())
	p.Drop(held...)
	p.Drop(g)
	held = copies(in)
	for n := 3; n < len(o.Results); n++ {
		p.Result(n)
	}
	p.Transient(r.workspace())
	p.Drop(held...)
	p.Drop(states...)
	return p
}
