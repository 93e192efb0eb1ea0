package synth

import "allocsim/traces/synth/internal/eager"

// gpt2 is transformers' GPT2LMHeadModel (v5): pre-norm decoder, Conv1D
// layers, the nine-operation gelu_new, a tied head.
type gpt2 struct {
	net
	wte, wpe *eager.Tensor
	layers   []gpt2Layer
	final    norm
	lmHead   *eager.Tensor
}

type gpt2Layer struct {
	ln1, ln2             norm
	attn, proj, fc, down lin
	heads, dim           int64
}

func newGPT2(e *eager.Engine, m Model, o *Options) network {
	n := &gpt2{net: newNet(e, m, o)}
	h, tp := m.Hidden, n.tp
	if n.first {
		n.wte = e.Param(n.dt, m.Vocab/tp, h)
		n.wpe = e.Param(n.dt, m.Positions, h)
	}
	for i := n.lo; i < n.hi; i++ {
		l := gpt2Layer{heads: m.Heads / tp, dim: h / m.Heads}
		l.ln1 = n.layerNorm(h)
		l.attn = n.conv1D(h, 3*h/tp)
		l.proj = n.conv1D(h/tp, h)
		l.ln2 = n.layerNorm(h)
		l.fc = n.conv1D(h, m.Intermediate/tp)
		l.down = n.conv1D(m.Intermediate/tp, h)
		n.layers = append(n.layers, l)
	}
	if n.last {
		n.final = n.layerNorm(h)
		w := e.Param(n.dt, m.Vocab/tp, h) // the head is built untied
		n.lmHead = n.wte
		if n.first {
			w.Release()
		} else {
			n.lmHead = w
		}
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.wte, n.wpe)
	}
	for i, l := range n.layers {
		n.addBlock(i, l.ln1.params()...)
		n.addBlock(i, l.attn.params()...)
		n.addBlock(i, l.proj.params()...)
		n.addBlock(i, l.ln2.params()...)
		n.addBlock(i, l.fc.params()...)
		n.addBlock(i, l.down.params()...)
	}
	if n.last {
		n.add(n.final.params()...)
		if !n.first {
			n.add(n.lmHead)
		}
	}
	return n
}

func (n *gpt2) newBatch(items, length int64) batch { return n.tokenBatch(items, length) }

func (n *gpt2) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	if !n.first {
		return nil, env{mask: n.paddingMask(b)}
	}
	var v env
	h := n.module("embeddings", func() *eager.Tensor {
		x := e.Embedding(b.x, n.wte)
		ids := n.positions(b)
		p := e.Embedding(ids, n.wpe)
		h := e.Add(x, p)
		n.maskTemps(b)
		v.mask = n.paddingMask(b)
		d := n.drop(h, n.m.Dropout)
		if d != h {
			e.Drop(h)
		}
		// x and p stay in the model's scope until it returns.
		return d
	})
	return h, v
}

// generating reports generation with a cache.
func (n *net) generating() bool { return n.cache != nil && n.cache.gen }

// positions makes the position ids: of one row in training, of every item in
// generation, where they come from outside.
func (n *net) positions(b batch) *eager.Tensor {
	e := n.e
	if n.generating() {
		return e.Empty(eager.I64, b.n, b.len)
	}
	return e.Scope(func() *eager.Tensor {
		e.Empty(eager.I64, b.len) // arange, then shifted
		return e.Unsqueeze(e.Empty(eager.I64, b.len), 0)
	})
}

func (n *gpt2) block(i int, h *eager.Tensor, v env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return n.module(layerName("h", n.lo+i), func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			x := n.ln(l.ln1, h)
			o := n.module("attn", func() *eager.Tensor { return n.attention(i, x, v) })
			r := e.Add(o, h)
			e.Drop(x)
			y := n.ln(l.ln2, r)
			f := n.module("mlp", func() *eager.Tensor {
				return e.Scope(func() *eager.Tensor {
					f := n.apply(l.fc, y)
					g := n.geluNew(f)
					e.Drop(f)
					p := n.apply(l.down, g)
					e.Drop(g)
					return n.dropped(p)
				})
			})
			return e.Add(r, f)
		})
	})
}

// dropped is x = dropout(x).
func (n *gpt2) dropped(x *eager.Tensor) *eager.Tensor {
	d := n.drop(x, n.m.Dropout)
	if d != x {
		n.e.Drop(x)
	}
	return d
}

func (n *gpt2) attention(i int, x *eager.Tensor, env env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return e.Scope(func() *eager.Tensor {
		qkv := n.apply(l.attn, x)
		w := qkv.Dim(-1) / 3
		parts := e.Split(qkv, 2, w, w, w)
		e.Drop(qkv)
		q := n.heads(parts[0], l.heads, l.dim)
		k := n.heads(parts[1], l.heads, l.dim)
		v := n.heads(parts[2], l.heads, l.dim)
		e.Drop(parts...)
		k, v = n.cached(i, k, v)
		p := 0.0
		if n.train {
			p = n.m.Dropout
		}
		a := n.attend(q, k, v, env, true, p)
		o := n.apply(l.proj, a)
		e.Drop(a)
		return n.dropped(o)
	})
}

// geluNew is transformers' NewGELUActivation:
// 0.5·x·(1+tanh(√(2/π)·(x+0.044715·x³))).
func (n *gpt2) geluNew(x *eager.Tensor) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		a := e.MulScalar(x)
		step := func(y, next *eager.Tensor) *eager.Tensor {
			e.Drop(y)
			return next
		}
		c := e.Pow(x)
		c = step(c, e.MulScalar(c))
		c = step(c, e.Add(x, c))
		c = step(c, e.MulScalar(c))
		c = step(c, e.Tanh(c))
		c = step(c, e.AddScalar(c))
		return e.Mul(a, c)
	})
}

func (n *gpt2) end(h *eager.Tensor) *eager.Tensor {
	if !n.last {
		return h
	}
	return n.module("ln_f", func() *eager.Tensor { return n.ln(n.final, h) })
}

func (n *gpt2) head(h *eager.Tensor) *eager.Tensor {
	return n.module("lm_head", func() *eager.Tensor { return n.e.Linear(h, n.lmHead, nil) })
}

func (n *gpt2) loss(logits *eager.Tensor, b batch) *eager.Tensor { return n.causalLoss(logits, b) }
