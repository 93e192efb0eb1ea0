package kernels

// Bytes of a partial result of the reductions, by the element type of the
// operand (native/cuda/Reduce*Kernel.cu).
func sumOf(t DType) reducer {
	if t == Bool || t == F8 {
		return reducer{8, 4}
	}
	return reducer{t.Accumulate().Size(), 4}
}
func elementOf(t DType) reducer { return reducer{t.Size(), 4} }
func boolOf(DType) reducer      { return reducer{1, 4} }
func indexOf(t DType) reducer   { return reducer{16, 4} }
func pairOf(t DType) reducer    { return reducer{2 * t.Size(), 4} }

// welfordOf is mean, squared deviation and two counts.
func welfordOf(t DType) reducer {
	if t == F64 {
		return reducer{24, 2}
	}
	return reducer{16, 2}
}

// dims marks the dimensions that a reduction reduces; none named means all.
func (o *Op) dims(t *Tensor) []bool {
	red := make([]bool, len(t.Shape))
	a := o.Args["dim"]
	ds := a.Ints
	if a.Number != nil {
		ds = []int64{int64(*a.Number)}
	}
	for i := range red {
		red[i] = len(ds) == 0
	}
	for _, d := range ds {
		if d < 0 {
			d += int64(len(red))
		}
		if d >= 0 && d < int64(len(red)) {
			red[d] = true
		}
	}
	return red
}

// reduceTemps appends what a split reduction takes.
func (p *Plan) reduceTemps(d *Device, t *Tensor, red []bool, r reducer) {
	st, sem := reduction(d.SMs, t.Shape, t.Stride, red, r)
	if st == 0 {
		return
	}
	a := p.Scratch(st)
	b := p.Scratch(sem)
	p.Drop(b, a)
}

// reduce is a reduction of self along its argument dim.
func reduce(of func(DType) reducer) rule {
	return func(d *Device, o *Op) (p Plan) {
		p.Results(len(o.Results))
		t := o.tensor("self")
		if t == nil {
			return p
		}
		p.reduceTemps(d, t, o.dims(t), of(t.DType))
		return p
	}
}

// maximum is max and min: of two tensors elementwise, along a dimension with
// indices, or of all.
func maximum(d *Device, o *Op) Plan {
	if o.tensor("other") != nil {
		var p Plan
		p.Results(len(o.Results))
		return p
	}
	if len(o.Results) > 1 {
		return reduce(indexOf)(d, o)
	}
	return reduce(elementOf)(d, o)
}

func countNonzero(d *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil {
		p.Results(len(o.Results))
		return p
	}
	ne := p.Scratch(t.Numel())
	p.Results(len(o.Results))
	p.Drop(ne)
	return p
}

// logsumexp subtracts the maxima, adds the exponentials up and takes the
// logarithm (native/ReduceOps.cpp, logsumexp_out_impl).
func logsumexp(d *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil || o.result(0) == nil {
		p.Results(len(o.Results))
		return p
	}
	red := o.dims(t)
	out := o.result(0).Bytes()
	maxes := p.Scratch(out)
	p.reduceTemps(d, t, red, elementOf(t.DType))
	abs := p.Scratch(out)
	inf := p.Scratch(o.result(0).Numel())
	p.Drop(inf, abs)
	exp := p.Scratch(t.Bytes())
	p.Result(0)
	p.reduceTemps(d, t, red, sumOf(t.DType))
	p.Drop(exp, maxes)
	return p
}
