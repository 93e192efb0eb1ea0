package eager

import "allocsim/traces/kernels"

// SDPA is F.scaled_dot_product_attention of q [B,A,S,D], k and v [B,KV,Sk,D]
// and a boolean mask [B,1,S,Sk] or nil.
// The kernel is chosen as torch 2.11 does on the device: cuDNN (16 bit, Hopper
// and newer), flash (16 bit), memory-efficient (fp32), or the composite math
// form (fp32 with grouped queries).
func (e *Engine) SDPA(q, k, v, mask *Tensor, causal bool, dropout float64) *Tensor {
	defer e.stacks.op("aten::scaled_dot_product_attention")()
	return e.Scope(func() *Tensor {
		v, k, q := e.ampArgs3(v, k, q)
		return e.noAmp(func() *Tensor {
			gqa := q.Dim(1) != k.Dim(1)
			pairs := float64(q.Dim(0) * q.Dim(1) * q.Dim(2) * k.Dim(2))
			e.flops(4 * pairs * float64(q.Dim(3)))
			mask := e.attentionBias(mask, q.DType)
			switch {
			case q.DType.Half() && e.Device.CuDNNAttention && q.Dim(3) <= 256 && q.Dim(3)%8 == 0:
				return e.fusedAttention(q, k, v, mask, cudnnAttention{})
			case q.DType.Half() && q.Dim(3) <= 256 && mask == nil:
				return e.fusedAttention(q, k, v, nil, flashAttention{})
			case !gqa:
				return e.fusedAttention(q, k, v, mask, efficientAttention{})
			default:
				return e.mathAttention(q, k, v, mask, causal, dropout)
			}
		})
	})
}

// attentionBias turns a boolean mask into one to add (0 or -inf) of the query's
// type (convert_boolean_attn_mask): two scalars and the mask's shape.
func (e *Engine) attentionBias(mask *Tensor, dt DType) *Tensor {
	if mask == nil {
		return nil
	}
	return e.Scope(func() *Tensor {
		e.Empty(dt)
		e.Empty(dt)
		return e.Empty(dt, mask.Shape...)
	})
}

// attentionKernel is what differs between the fused kernels.
type attentionKernel interface {
	name() string
	// forward allocates in the kernel's order, saves for backward what is not
	// an input (n may be nil) and returns the result.
	forward(e *Engine, n *Node, q, k, v *Tensor) *Tensor
	// backward allocates the gradients and temporaries.
	backward(e *Engine, g, out, q, k, v *Tensor) (dq, dk, dv *Tensor)
}

func (e *Engine) fusedAttention(q, k, v, bias *Tensor, kern attentionKernel) *Tensor {
	n := e.node(kern.name(), q, k, v)
	n.save(k, q, v)
	if bias != nil {
		n.save(bias)
	}
	out := kern.forward(e, n, q, k, v)
	pairs := float64(q.Dim(0) * q.Dim(1) * q.Dim(2) * k.Dim(2))
	d := float64(q.Dim(3))
	n.done(func(b *Back) {
		k, q, v := b.Saved(0), b.Saved(1), b.Saved(2)
		var o *Tensor
		for i := 3; i < len(b.n.saved); i++ {
			if s := b.Saved(i); len(s.Shape) == 4 && s.DType == q.DType && s.Dim(1) == q.Dim(1) {
				o = s
			}
		}
		e.flops(10 * pairs * d)
		dq, dk, dv := kern.backward(e, b.G(), o, q, k, v)
		b.Set(0, dq)
		b.Set(1, dk)
		b.Set(2, dv)
	}, out)
	return out
}

// attention is the geometry of a call; saves says that backward will run.
func attention(q, k, v *Tensor, saves bool) kernels.Attention {
	return kernels.Attention{
		Batch: q.Dim(0), Heads: q.Dim(1), KVHeads: k.Dim(1), Seq: q.Dim(2), KVSeq: k.Dim(2),
		HeadDim: q.Dim(3), ValueDim: v.Dim(3), DType: q.DType, Saves: saves,
	}
}

// bshd allocates the attention result [B,A,S,Dv] with the layout
// [B,S,A,D] in memory.
func (e *Engine) bshd(dt DType, b, a, s, d int64) *Tensor {
	return e.emptyStrided(dt, []int64{b, a, s, d}, []int64{s * a * d, d, a * d, 1})
}

type cudnnAttention struct{}

func (cudnnAttention) name() string { return "ScaledDotProductCudnnAttentionBackward0" }

func (cudnnAttention) forward(e *Engine, n *Node, q, k, v *Tensor) *Tensor {
	seed := e.Empty(I64)
	offset := e.Empty(I64)
	out := e.emptyStrided(q.DType, []int64{q.Dim(0), q.Dim(1), q.Dim(2), v.Dim(3)}, iterStrides(q.Shape, q))
	lse, ws := attention(q, k, v, n != nil).CuDNNForward()
	if lse > 0 {
		n.save(e.Empty(F32, lse/4))
	}
	e.Transient(ws)
	n.saveOut(out)
	n.save(offset, seed)
	return out
}

func (cudnnAttention) backward(e *Engine, g, out, q, k, v *Tensor) (dq, dk, dv *Tensor) {
	dq = e.emptyStrided(q.DType, q.Shape, preserved(q))
	dk = e.emptyStrided(k.DType, k.Shape, preserved(k))
	dv = e.emptyStrided(v.DType, v.Shape, preserved(v))
	e.Transient(attention(q, k, v, true).CuDNNBackward())
	return dq, dk, dv
}

// flashAttention is PyTorch's FlashAttention-2 (GPUs before Hopper). From its
// source; no recording covers it.
type flashAttention struct{}

func (flashAttention) name() string { return "ScaledDotProductFlashAttentionBackward0" }

func (flashAttention) forward(e *Engine, n *Node, q, k, v *Tensor) *Tensor {
	b, a, s, d := q.Dim(0), q.Dim(1), q.Dim(2), q.Dim(3)
	out := e.bshd(q.DType, b, a, s, d)
	lse := e.Empty(F32, attention(q, k, v, true).FlashLSE()/4)
	rng := e.Empty(I64, 2)
	n.save(lse)
	n.saveOut(out)
	n.save(rng)
	return out
}

func (flashAttention) backward(e *Engine, g, out, q, k, v *Tensor) (dq, dk, dv *Tensor) {
	like := func(t *Tensor) *Tensor { return e.bshd(t.DType, t.Dim(0), t.Dim(1), t.Dim(2), t.Dim(3)) }
	dq = like(q)
	dk = like(k)
	dv = like(v)
	e.carry(attention(q, k, v, true).FlashBackward(), nil)
	return dq, dk, dv
}

// efficientAttention is the memory-efficient (CUTLASS) kernel, which serves
// fp32.
type efficientAttention struct{}

func (efficientAttention) name() string { return "ScaledDotProductEfficientAttentionBackward0" }

func (efficientAttention) forward(e *Engine, n *Node, q, k, v *Tensor) *Tensor {
	b, a, s := q.Dim(0), q.Dim(1), q.Dim(2)
	out := e.bshd(q.DType, b, a, s, v.Dim(3))
	if lse := attention(q, k, v, n != nil).EfficientLSE(); lse > 0 {
		n.save(e.Empty(F32, lse/4))
	}
	n.saveOut(out)
	return out
}

func (efficientAttention) backward(e *Engine, g, out, q, k, v *Tensor) (dq, dk, dv *Tensor) {
	like := func(t *Tensor) *Tensor { return e.bshd(t.DType, t.Dim(0), t.Dim(1), t.Dim(2), t.Dim(3)) }
	if gt := e.Transpose(g, 1, 2); !gt.Contiguous() {
		e.like1(gt)
	}
	dq = like(q)
	dk = like(k)
	dv = like(v)
	e.carry(attention(q, k, v, true).EfficientBackward(), nil)
	return dq, dk, dv
}

// mathAttention is _scaled_dot_product_attention_math.
func (e *Engine) mathAttention(q, k, v, mask *Tensor, causal bool, dropout float64) *Tensor {
	src := q.DType
	qs := e.MulScalar(q)
	if causal && mask == nil {
		e.NoGrad(func() {
			mask = e.Scope(func() *Tensor {
				ones := e.Empty(Bool, q.Dim(2), k.Dim(2))
				tril := e.Empty(Bool, q.Dim(2), k.Dim(2))
				e.Drop(ones)
				return e.attentionBias(tril, q.DType)
			})
		})
	}
	if q.Dim(1) != k.Dim(1) {
		r := q.Dim(1) / k.Dim(1)
		k = e.RepeatInterleave(k, r)
		v = e.RepeatInterleave(v, r)
	}
	ks := e.MulScalar(e.Transpose(k, -2, -1))
	attn := e.Matmul4(qs, ks)
	if mask != nil {
		e.AddInPlace(attn, mask)
	}
	p := e.safeSoftmax(attn)
	e.Drop(attn)
	if dropout > 0 {
		p = e.Dropout(p, dropout, e.noGrad == 0)
	}
	return e.To(e.Matmul4(p, v), src)
}

// RepeatInterleave repeats the heads (dimension 1) r times each: an index of
// the positions and a gather; backward sums into a table of zeros.
func (e *Engine) RepeatInterleave(t *Tensor, r int64) *Tensor {
	defer e.stacks.op("aten::repeat_interleave")()
	old := t.Shape
	return e.Scope(func() *Tensor {
		x := e.Unsqueeze(t, 2)
		x = e.Expand(x, old[0], old[1], r, old[2], old[3])
		x = e.clone(x)
		return e.View(x, old[0], old[1]*r, old[2], old[3])
	})
}
