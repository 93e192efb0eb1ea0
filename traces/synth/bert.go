package synth

import "allocsim/traces/synth/internal/eager"

// bert is transformers' BertForMaskedLM (v5): post-norm encoder, exact gelu, a
// head tied to the word embedding.
type bert struct {
	net
	word, pos, typ *eager.Tensor
	posIDs, typIDs *eager.Tensor // typIDs is gathered from in begin
	embNorm        norm
	layers         []bertLayer
	transform      lin
	transformNorm  norm
	bias           *eager.Tensor
	decoder        *eager.Tensor // the tied weight; its own on the last of several pipeline ranks
}

type bertLayer struct {
	q, k, v, o    lin
	attnNorm      norm
	inter, out    lin
	outNorm       norm
	heads, perDim int64
}

func newBERT(e *eager.Engine, m Model, o *Options) network {
	n := &bert{net: newNet(e, m, o)}
	h, v, tp := m.Hidden, m.Vocab, n.tp
	if n.first {
		n.word = e.Param(n.dt, v/tp, h)
		n.pos = e.Param(n.dt, m.Positions, h)
		n.typ = e.Param(n.dt, m.Types, h)
		n.embNorm = n.layerNorm(h)
		n.posIDs = n.buffer(eager.I64, 1, m.Positions)
		n.typIDs = n.buffer(eager.I64, 1, m.Positions)
	}
	for i := n.lo; i < n.hi; i++ {
		d := h / m.Heads
		l := bertLayer{heads: m.Heads / tp, perDim: d}
		l.q, l.k, l.v = n.dense(h, h/tp, true), n.dense(h, h/tp, true), n.dense(h, h/tp, true)
		l.o = n.dense(h/tp, h, true)
		l.attnNorm = n.layerNorm(h)
		l.inter = n.dense(h, m.Intermediate/tp, true)
		l.out = n.dense(m.Intermediate/tp, h, true)
		l.outNorm = n.layerNorm(h)
		n.layers = append(n.layers, l)
	}
	if n.first {
		e.Transient(8 * m.Positions) // position ids are made a second time
	}
	if n.last {
		n.transform = n.dense(h, h, true)
		n.transformNorm = n.layerNorm(h)
		// The head is built untied and its bias registered several times.
		w := e.Param(n.dt, v/tp, h)
		b1, b2 := e.Param(n.dt, v/tp), e.Param(n.dt, v/tp)
		n.decoder = n.word
		if n.first {
			w.Release()
		} else {
			n.decoder = w
		}
		b3 := e.Param(n.dt, v/tp)
		b1.Release()
		b3.Release()
		n.bias = e.Param(n.dt, v/tp)
		b2.Release()
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.word, n.pos, n.typ)
		n.add(n.embNorm.params()...)
	}
	for i, l := range n.layers {
		for _, p := range []lin{l.q, l.k, l.v, l.o} {
			n.addBlock(i, p.params()...)
		}
		n.addBlock(i, l.attnNorm.params()...)
		n.addBlock(i, l.inter.params()...)
		n.addBlock(i, l.out.params()...)
		n.addBlock(i, l.outNorm.params()...)
	}
	if n.last {
		n.add(n.bias)
		n.add(n.transform.params()...)
		n.add(n.transformNorm.params()...)
		if !n.first {
			n.add(n.decoder)
		}
	}
	return n
}

func (n *bert) newBatch(items, length int64) batch { return n.tokenBatch(items, length) }

func (n *bert) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	if !n.first {
		return nil, env{mask: n.paddingMask(b)}
	}
	h := n.module("embeddings", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			ids := e.Empty(eager.I64, 1, b.len) // gather of the type ids
			types := e.Expand(ids, b.n, b.len)
			e.Drop(ids)
			x := e.Embedding(b.x, n.word)
			t := e.Embedding(types, n.typ)
			y := e.Add(x, t)
			p := e.Embedding(e.Slice(n.posIDs, 1, 0, b.len), n.pos)
			y2 := e.Add(y, p)
			e.Drop(y)
			z := n.ln(n.embNorm, y2)
			e.Drop(y2)
			d := n.drop(z, n.m.Dropout)
			if d != z {
				e.Drop(z)
			}
			return d
		})
	})
	e.Retain(h) // the encoder's argument
	return h, env{mask: n.paddingMask(b)}
}

func (n *bert) block(i int, h *eager.Tensor, env env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return n.module(layerName("encoder.layer", n.lo+i), func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			a := n.module("attention", func() *eager.Tensor {
				return e.Scope(func() *eager.Tensor {
					ctx := e.Scope(func() *eager.Tensor {
						q := n.project(l.q, h, l.heads, l.perDim)
						k := n.project(l.k, h, l.heads, l.perDim)
						v := n.project(l.v, h, l.heads, l.perDim)
						return n.attend(q, k, v, env, false, n.attnDrop())
					})
					return n.residual(l.o, l.attnNorm, ctx, h)
				})
			})
			f := n.module("intermediate", func() *eager.Tensor {
				return e.Scope(func() *eager.Tensor {
					f := n.apply(l.inter, a)
					g := e.Gelu(f)
					return g
				})
			})
			return n.module("output", func() *eager.Tensor { return n.residual(l.out, l.outNorm, f, a) })
		})
	})
}

func (n *bert) attnDrop() float64 {
	if n.train {
		return n.m.Dropout
	}
	return 0
}

// residual is BertSelfOutput and BertOutput: dense, dropout, LayerNorm of the
// sum with the input.
func (n *bert) residual(l lin, s norm, x, input *eager.Tensor) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		o := n.apply(l, x)
		d := n.drop(o, n.m.Dropout)
		if d != o {
			e.Drop(o)
		}
		sum := e.Add(d, input)
		out := n.ln(s, sum)
		e.Drop(sum, d)
		return out
	})
}

func (n *bert) end(h *eager.Tensor) *eager.Tensor { return h }

func (n *bert) head(h *eager.Tensor) *eager.Tensor {
	e := n.e
	return n.module("cls.predictions", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			t := n.apply(n.transform, h)
			g := e.Gelu(t)
			e.Drop(t)
			z := n.ln(n.transformNorm, g)
			e.Drop(g)
			return e.Linear(z, n.decoder, n.bias)
		})
	})
}

func (n *bert) loss(logits *eager.Tensor, b batch) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		t := b.n * b.len
		return e.CrossEntropy(e.View(logits, t, logits.Dim(-1)), e.View(b.y, t))
	})
}
