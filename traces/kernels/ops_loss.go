package kernels

const (
	reductionNone = iota
	reductionMean
)

// lossBackward is a backward whose kernel reads a row-major gradient.
func lossBackward(grad string) rule { return contiguousInput(grad) }

// lossReduction is an elementwise loss and its mean or sum. keeps says that the
// losses stay in the result's storage, which is resized for them first, fresh
// that the mean is a new tensor then copied over (native/Loss.cpp, mse_loss and
// smooth_l1_loss; native/cuda/Loss.cu, binary_cross_entropy_out_cuda).
func lossReduction(keeps, fresh bool) rule {
	return func(d *Device, o *Op) (p Plan) {
		t := o.tensor("self")
		if t == nil || o.integer("reduction", reductionMean) == reductionNone {
			p.Results(len(o.Results))
			return p
		}
		all := make([]bool, len(t.Shape))
		for i := range all {
			all[i] = true
		}
		row := Tensor{DType: t.DType, Shape: t.Shape, Stride: rowMajor(t.Shape)}
		losses := -1
		switch {
		case fresh:
			p.ResultOf(0, t.Bytes())
			losses = p.Scratch(t.DType.Size())
		case keeps:
			p.ResultOf(0, t.Bytes())
			losses = p.Scratch(t.Bytes())
		default:
			losses = p.Scratch(t.Bytes())
			p.Result(0)
		}
		p.reduceTemps(d, &row, all, sumOf(t.DType))
		p.Drop(losses)
		return p
	}
}

func rowMajor(shape []int64) []int64 {
	st := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		st[i] = n
		n *= max(shape[i], 1)
	}
	return st
}

// bceWithLogits makes the terms one after the other, then their mean
// (native/Loss.cpp, binary_cross_entropy_with_logits).
func bceWithLogits(d *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil {
		p.Results(len(o.Results))
		return p
	}
	n := t.Bytes()
	row := Tensor{DType: t.DType, Shape: t.Shape, Stride: rowMajor(t.Shape)}
	all := make([]bool, len(t.Shape))
	for i := range all {
		all[i] = true
	}
	reduced := o.integer("reduction", reductionMean) != reductionNone
	var first, losses int
	if w := o.tensor("pos_weight"); w != nil {
		first = p.Scratch(n)
		a, b := p.Scratch(w.Bytes()), p.Scratch(n)
		p.Drop(a, b)
	} else {
		first = p.Scratch(n)
	}
	if !reduced {
		p.Result(0)
		p.Drop(first)
		return p
	}
	losses = p.Scratch(n)
	p.Result(0)
	p.reduceTemps(d, &row, all, sumOf(t.DType))
	p.Drop(losses, first)
	return p
}

// multiMarginLoss makes a loss for each row, then their mean.
func multiMarginLoss(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	if t := o.tensor("self"); t != nil && len(t.Shape) > 0 && o.integer("reduction", reductionMean) != reductionNone {
		p.Transient(t.DType.Size() * t.Shape[0])
	}
	return p
}
