package kernels

// attention is the geometry of a call.
func (o *Op) attention(saves bool) (Attention, bool) {
	q, k, v := o.tensor("query"), o.tensor("key"), o.tensor("value")
	if q == nil || k == nil || v == nil || len(q.Shape) != 4 || len(k.Shape) != 4 || len(v.Shape) != 4 {
		return Attention{}, false
	}
	return Attention{
		Batch: q.Dim(0), Heads: q.Dim(1), KVHeads: k.Dim(1), Seq: q.Dim(2), KVSeq: k.Dim(2),
		HeadDim: q.Dim(3), ValueDim: v.Dim(3), DType: q.DType, Saves: saves,
	}, true
}

// cudnnAttention asks for the state of the random generator before the result
// (native/transformers/cuda/attention.cu,
// _scaled_dot_product_cudnn_attention_cuda).
func cudnnAttention(_ *Device, o *Op) (p Plan) {
	a, ok := o.attention(o.yes("compute_log_sumexp"))
	if !ok {
		p.Results(len(o.Results))
		return p
	}
	for _, n := range []int{6, 7, 0, 1} {
		p.Result(n)
	}
	_, ws := a.CuDNNForward()
	p.Transient(ws)
	return p
}

func cudnnAttentionBackward(_ *Device, o *Op) (p Plan) {
	p.Results(3)
	if a, ok := o.attention(true); ok {
		p.Transient(a.CuDNNBackward())
	}
	return p
}

// flashAttention asks for result and log-sum-exp, a state of the random
// generator that it drops, then the two that it returns
// (native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd).
func flashAttention(_ *Device, o *Op) (p Plan) {
	p.Result(0)
	p.Result(1)
	rng := p.Scratch(16)
	p.Result(7)
	p.Result(6)
	p.Drop(rng)
	return p
}

func flashAttentionBackward(_ *Device, o *Op) Plan {
	a, ok := o.attention(true)
	if !ok {
		var p Plan
		p.Results(len(o.Results))
		return p
	}
	p := Plan{}
	p.Results(3)
	f := a.FlashBackward()
	p.Steps, p.scratch = append(p.Steps, f.Steps...), f.scratch
	return p
}

func efficientAttention(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	return p
}

func efficientAttentionBackward(_ *Device, o *Op) (p Plan) {
	a, ok := o.attention(true)
	if !ok {
		p.Results(len(o.Results))
		return p
	}
	// The gradient is taken with the sequence ahead of the heads, row-major.
	g := -1
	if t := o.tensor("grad_out_"); t != nil && len(t.Shape) == 4 {
		s := Tensor{DType: t.DType, Shape: []int64{t.Dim(0), t.Dim(2), t.Dim(1), t.Dim(3)}, Stride: []int64{t.Stride[0], t.Stride[2], t.Stride[1], t.Stride[3]}}
		g = p.Scratch(copyOf(&s))
	}
	p.Results(3)
	e := a.EfficientBackward()
	for _, s := range e.Steps {
		if s.Do != Result {
			s.N += p.scratch
		}
		p.Steps = append(p.Steps, s)
	}
	p.scratch += e.scratch
	p.Result(3)
	p.Drop(g)
	return p
}
