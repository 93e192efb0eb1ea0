package synth

import "allocsim/traces/synth/internal/eager"

// llama is transformers' LlamaForCausalLM (v5): RMSNorm, rotary positions,
// grouped queries, gated MLP, no biases.
type llama struct {
	net
	embed   *eager.Tensor
	layers  []llamaLayer
	final   norm
	lmHead  lin
	invFreq [2]*eager.Tensor
}

type llamaLayer struct {
	q, k, v, o     lin
	gate, up, down lin
	in, post       norm
	heads, kv, dim int64
}

func newLlama(e *eager.Engine, m Model, o *Options) network {
	n := &llama{net: newNet(e, m, o)}
	h, tp, d := m.Hidden, n.tp, m.headDim()
	if n.first {
		n.embed = e.Param(n.dt, m.Vocab/tp, h)
	}
	rms := func() norm { return norm{w: e.Param(n.dt, h)} }
	for i := n.lo; i < n.hi; i++ {
		l := llamaLayer{heads: m.Heads / tp, kv: max(m.kvHeads()/tp, 1), dim: d}
		l.q = n.dense(h, l.heads*d, false)
		l.k = n.dense(h, l.kv*d, false)
		l.v = n.dense(h, l.kv*d, false)
		l.o = n.dense(l.heads*d, h, false)
		l.gate = n.dense(h, m.Intermediate/tp, false)
		l.up = n.dense(h, m.Intermediate/tp, false)
		l.down = n.dense(m.Intermediate/tp, h, false)
		l.in, l.post = rms(), rms()
		n.layers = append(n.layers, l)
	}
	if n.last {
		n.final = rms()
	}
	n.invFreq = [2]*eager.Tensor{n.buffer(eager.F32, d/2), n.buffer(eager.F32, d/2)}
	for range 9 { // transformers initializes them a second time
		e.Transient(2 * d)
	}
	e.Transient(8)
	e.Transient(8)
	if n.last {
		n.lmHead = n.dense(h, m.Vocab/tp, false)
		if m.Tied && n.first {
			n.lmHead.w.Release()
			n.lmHead = lin{w: n.embed, shape: n.embed.Shape}
		}
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.embed)
	}
	for i, l := range n.layers {
		for _, p := range []lin{l.q, l.k, l.v, l.o, l.gate, l.up, l.down} {
			n.addBlock(i, p.params()...)
		}
		n.addBlock(i, l.in.w, l.post.w)
	}
	if n.last {
		n.add(n.final.w)
		if n.lmHead.w != n.embed {
			n.add(n.lmHead.params()...)
		}
	}
	return n
}

func (n *llama) newBatch(items, length int64) batch { return n.tokenBatch(items, length) }

func (n *llama) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	var h *eager.Tensor
	dt := n.dt
	if n.first {
		h = n.module("embed_tokens", func() *eager.Tensor { return e.Embedding(b.x, n.embed) })
		dt = h.DType
		e.Retain(h) // inputs_embeds
	}
	n.positions(b)
	n.maskTemps(b)
	v := n.rope(b, dt)
	v.mask = n.paddingMask(b)
	return h, v
}

// rope makes the rotary tables of the positions.
func (n *llama) rope(b batch, dt eager.DType) (v env) {
	e := n.e
	n.module("rotary_emb", func() *eager.Tensor {
		ts := e.ScopeN(func() []*eager.Tensor {
			d := n.m.headDim()
			var cos, sin *eager.Tensor
			e.NoGrad(func() {
				rows := int64(1)
				if n.generating() {
					rows = b.n // generation gives every item its positions
				}
				pos := e.Empty(eager.F32, rows, 1, b.len)
				inv := e.Expand(e.View(n.invFreq[0], 1, d/2, 1), rows, d/2, 1)
				f := e.Transpose(e.Bmm(inv, pos), 1, 2)
				emb := e.Cat(-1, f, f)
				c1 := e.MulScalar(emb)
				c2 := e.MulScalar(c1)
				e.Drop(c1)
				s1 := e.MulScalar(emb)
				s2 := e.MulScalar(s1)
				e.Drop(s1)
				cos, sin = e.To(c2, dt), e.To(s2, dt)
			})
			return []*eager.Tensor{cos, sin}
		})
		v = env{cos: ts[0], sin: ts[1]}
		return nil
	})
	return v
}

func (n *llama) rms(s norm, x *eager.Tensor) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		src := x.DType
		f := e.To(x, eager.F32)
		p := e.Pow(f)
		m := e.MeanLast(p)
		e.Drop(p)
		m2 := e.AddScalar(m)
		r := e.Rsqrt(m2)
		e.Drop(m2)
		y := e.Mul(f, r)
		e.Drop(r)
		if f != x {
			e.Drop(f)
		}
		z := e.To(y, src)
		out := e.Mul(s.w, z)
		e.Drop(y, m)
		return out
	})
}

// rotate is q·cos + rotate_half(q)·sin.
func (n *llama) rotate(x, cos, sin *eager.Tensor) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		a := e.Mul(x, cos)
		c := e.Scope(func() *eager.Tensor {
			half := x.Dim(-1) / 2
			x1 := e.Slice(x, -1, 0, half)
			x2 := e.Slice(x, -1, half, half)
			neg := e.Neg(x2)
			c := e.Cat(-1, neg, x1)
			e.Drop(neg)
			return c
		})
		b := e.Mul(c, sin)
		e.Drop(c)
		return e.Add(a, b)
	})
}

func (n *llama) block(i int, h *eager.Tensor, v env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return n.module(layerName("layers", n.lo+i), func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			x := n.module("input_layernorm", func() *eager.Tensor { return n.rms(l.in, h) })
			o := n.module("self_attn", func() *eager.Tensor { return n.attention(i, x, v) })
			e.Drop(x)
			s := e.Add(h, o)
			e.Drop(o)
			y := n.module("post_attention_layernorm", func() *eager.Tensor { return n.rms(l.post, s) })
			d := n.module("mlp", func() *eager.Tensor {
				return e.Scope(func() *eager.Tensor {
					g := n.apply(l.gate, y)
					g2 := e.Silu(g)
					e.Drop(g)
					u := n.apply(l.up, y)
					t := e.Mul(g2, u)
					e.Drop(g2, u)
					return n.apply(l.down, t)
				})
			})
			e.Drop(y)
			return e.Add(s, d)
		})
	})
}

func (n *llama) attention(i int, x *eager.Tensor, env env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return e.Scope(func() *eager.Tensor {
		q := n.project(l.q, x, l.heads, l.dim)
		k := n.project(l.k, x, l.kv, l.dim)
		v := n.project(l.v, x, l.kv, l.dim)
		ts := e.ScopeN(func() []*eager.Tensor {
			cos, sin := e.Unsqueeze(env.cos, 1), e.Unsqueeze(env.sin, 1)
			return []*eager.Tensor{n.rotate(q, cos, sin), n.rotate(k, cos, sin)}
		})
		e.Drop(q, k)
		q, k = ts[0], ts[1]
		k, v = n.cached(i, k, v)
		a := n.attend(q, k, v, env, true, 0)
		return n.apply(l.o, a)
	})
}

func (n *llama) end(h *eager.Tensor) *eager.Tensor {
	if !n.last {
		return h
	}
	return n.module("norm", func() *eager.Tensor { return n.rms(n.final, h) })
}

func (n *llama) head(h *eager.Tensor) *eager.Tensor {
	return n.module("lm_head", func() *eager.Tensor { return n.apply(n.lmHead, h) })
}

func (n *llama) loss(logits *eager.Tensor, b batch) *eager.Tensor { return n.causalLoss(logits, b) }
