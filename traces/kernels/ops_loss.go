package kernels

const (
	reductionNone = iota
	reductionMean
)

// lossBackward is a backward whose kernel reads a row-major gradient.
func lossBackward(grad string) rule { return contiguousInput(grad) }

// lossReduction is an elementwise loss with a reduction: the losses, then their
// mean or sum. grows says that the result is resized for the losses first,
// fresh that the reduced value is a new tensor.
func lossReduction(grows, fresh bool) rule {
	return func(d *Device, o *Op) (p Plan) {
		p.Results(len(o.Results))
		return p
	}
}

// bceWithLogits is native/Loss.cpp, binary_cross_entropy_with_logits.
func bceWithLogits(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

func multiMarginLoss(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}
