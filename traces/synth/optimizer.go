package synth

import (
	"math"

	"allocsim/traces/kernels"
	"allocsim/traces/synth/internal/eager"
)

// optimizer holds the states of one optimizer object.
type optimizer struct {
	e      *eager.Engine
	name   OptimizerName
	params []*eager.Tensor
	// states of each parameter, in allocation order; nil before its first
	// step.
	states [][]*eager.Tensor
	// shared are bitsandbytes' quantization maps.
	shared []*eager.Tensor
}

func newOptimizer(e *eager.Engine, name OptimizerName, params []*eager.Tensor) *optimizer {
	return &optimizer{e: e, name: name, params: params, states: make([][]*eager.Tensor, len(params))}
}

// step is optimizer.step().
func (o *optimizer) step() {
	o.e.NoGrad(func() {
		o.e.Do(func() {
			switch o.name {
			case SGD:
				o.sgd()
			case Adam, AdamW:
				o.adam()
			case Adafactor:
				o.adafactor()
			case Adam8bit:
				o.adam8bit()
			}
		})
	})
}

func like(e *eager.Engine, p *eager.Tensor) *eager.Tensor { return e.Buffer(p.DType, p.Shape...) }

// sgd has momentum 0.9: the first step clones each gradient into a buffer; the
// foreach kernels need no temporaries (torch/optim/sgd.py).
func (o *optimizer) sgd() {
	for i, p := range o.params {
		if p.Grad != nil && o.states[i] == nil {
			o.states[i] = []*eager.Tensor{like(o.e, p.Grad)}
		}
	}
}

// adam keeps exp_avg and exp_avg_sq; the step counters live on the CPU. Each
// step makes one list of temporaries, sqrt(exp_avg_sq), as large as all
// parameters with a gradient (torch/optim/adam.py, _multi_tensor_adam).
func (o *optimizer) adam() {
	for i, p := range o.params {
		if p.Grad != nil && o.states[i] == nil {
			o.states[i] = []*eager.Tensor{like(o.e, p), like(o.e, p)}
		}
	}
	var tmp []*eager.Tensor
	for _, p := range o.params {
		if p.Grad != nil {
			tmp = append(tmp, o.e.Empty(p.DType, p.Shape...))
		}
	}
	for i := len(tmp) - 1; i >= 0; i-- {
		o.e.Drop(tmp[i])
	}
}

// adafactor is torch.optim.Adafactor, which runs one tensor at a time unless
// foreach is asked for: a row and a column vector per matrix, the whole
// variance for vectors; an estimate of a parameter's size lives from one
// parameter to the next (torch/optim/_adafactor.py).
func (o *optimizer) adafactor() {
	e := o.e
	for i, p := range o.params {
		if p.Grad == nil || o.states[i] != nil {
			continue
		}
		if len(p.Shape) > 1 {
			o.states[i] = []*eager.Tensor{
				e.Buffer(p.DType, reduced(p.Shape, 1)...), e.Buffer(p.DType, reduced(p.Shape, 2)...)}
		} else {
			o.states[i] = []*eager.Tensor{like(e, p)}
		}
	}
	// Python names that outlive an iteration.
	var rowMean, colMean, squared, update *eager.Tensor
	assign := func(name **eager.Tensor, t *eager.Tensor) {
		if *name != nil {
			e.Drop(*name)
		}
		*name = t
	}
	for _, p := range o.params {
		if p.Grad == nil {
			continue
		}
		e.Norm(p)
		if len(p.Shape) > 1 {
			assign(&rowMean, e.NormDim(p.Grad, 1))
			assign(&colMean, e.NormDim(p.Grad, 2))
			est := e.OuterProduct(p)
			mean := e.Empty(p.DType, reduced(reduced(p.Shape, 1), 2)...)
			e.Drop(mean)
			assign(&update, est)
		} else {
			assign(&squared, e.Empty(p.DType, p.Shape...))
			assign(&update, e.Empty(p.DType, p.Shape...))
		}
		e.Norm(update)
	}
}

// reduced is shape with the k-th dimension from the end set to 1.
func reduced(shape []int64, k int) []int64 {
	s := append([]int64(nil), shape...)
	s[len(s)-k] = 1
	return s
}

// adam8bit is bitsandbytes' block-wise Adam: two states of one byte per
// element with an fp32 maximum per 256 elements; tensors below 4096 elements
// keep fp32 states.
func (o *optimizer) adam8bit() {
	e := o.e
	for i, p := range o.params {
		if p.Grad == nil || o.states[i] != nil {
			continue
		}
		n := p.Numel()
		if n < 4096 {
			o.states[i] = []*eager.Tensor{e.Buffer(eager.F32, p.Shape...), e.Buffer(eager.F32, p.Shape...)}
			continue
		}
		if o.shared == nil {
			o.shared = []*eager.Tensor{e.Buffer(eager.F32, 256), e.Buffer(eager.F32, 256)}
		}
		blocks := (n + 255) / 256
		o.states[i] = []*eager.Tensor{e.Buffer(eager.I8, p.Shape...), e.Buffer(eager.I8, p.Shape...),
			e.Buffer(eager.F32, blocks), e.Buffer(eager.F32, blocks)}
	}
}

// free drops all states, as the end of the optimizer object does.
func (o *optimizer) free() {
	for i, ss := range o.states {
		for _, s := range ss {
			s.Release()
		}
		o.states[i] = nil
	}
	for _, s := range o.shared {
		s.Release()
	}
	o.shared = nil
}

// zeroGrad is zero_grad(set_to_none=True).
func (o *optimizer) zeroGrad() {
	for _, p := range o.params {
		p.FreeGrad()
	}
}

// clipNorm is torch.nn.utils.clip_grad_norm_ with foreach: partial norms, one
// norm per tensor, their stack, the total and the scalars of the coefficient.
func (o *optimizer) clipNorm() {
	e := o.e
	e.NoGrad(func() {
		e.Do(func() {
			var grads []*eager.Tensor
			most := int64(0)
			for _, p := range o.params {
				if p.Grad != nil {
					grads = append(grads, p.Grad)
					most = max(most, p.Grad.Numel())
				}
			}
			if len(grads) == 0 {
				return
			}
			part := e.Bytes(kernels.NormPartials(len(grads), most))
			for range grads {
				e.Empty(eager.F32)
			}
			e.Drop(part)
			e.Empty(eager.F32, int64(len(grads)))
			for range 6 {
				e.Empty(eager.F32)
			}
		})
	})
}

// scaler is torch.amp.GradScaler.
type scaler struct {
	e              *eager.Engine
	scale, tracker *eager.Tensor
	skip           int
}

// scaled is scaler.scale(loss).
func (s *scaler) scaled(loss *eager.Tensor) *eager.Tensor {
	if s.scale == nil {
		s.scale, s.tracker = s.e.Buffer(eager.F32), s.e.Buffer(eager.F32)
	}
	return s.e.Mul(loss, s.scale)
}

// step runs the optimizer unless the gradients overflowed.
func (s *scaler) step(step func()) {
	e := s.e
	e.NoGrad(func() {
		e.Do(func() {
			e.Empty(eager.I64) // scale in fp64, its inverse
			e.Empty(eager.I64)
			for range 4 {
				e.Empty(eager.F32)
			}
		})
	})
	if s.skip > 0 {
		s.skip--
		return
	}
	step()
}

// isqrt is the number of checkpointed segments for n blocks.
func isqrt(n int) int { return max(int(math.Round(math.Sqrt(float64(n)))), 1) }
