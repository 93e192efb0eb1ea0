package synth

import "allocsim/traces/synth/internal/eager"

// vit is torchvision's VisionTransformer (dropout 0 unless described).
type vit struct {
	net
	conv, convB *eager.Tensor
	cls, pos    *eager.Tensor
	layers      []vitLayer
	final       norm
	fc          lin
}

type vitLayer struct {
	ln1, ln2  norm
	in, out   lin
	fc1, fc2  lin
	heads, hd int64
}

func newViT(e *eager.Engine, m Model, o *Options) network {
	n := &vit{net: newNet(e, m, o)}
	h, p, tp := m.Hidden, m.Patch, n.tp
	// .to("cuda"): children first, then a module's own parameters.
	if n.first {
		n.conv = e.Param(n.dt, h, m.channels(), p, p)
		n.convB = e.Param(n.dt, h)
	}
	for i := n.lo; i < n.hi; i++ {
		l := vitLayer{heads: m.Heads / tp, hd: h / m.Heads}
		l.ln1 = n.layerNorm(h)
		l.out = n.dense(h/tp, h, true)
		l.in = n.dense(h, 3*h/tp, true)
		l.ln2 = n.layerNorm(h)
		l.fc1 = n.dense(h, m.Intermediate/tp, true)
		l.fc2 = n.dense(m.Intermediate/tp, h, true)
		n.layers = append(n.layers, l)
	}
	if n.last {
		n.final = n.layerNorm(h)
	}
	if n.first {
		seq := (m.Image/p)*(m.Image/p) + 1
		n.pos = e.Param(n.dt, 1, seq, h)
	}
	if n.last {
		n.fc = n.dense(h, m.Classes, true)
	}
	if n.first {
		n.cls = e.Param(n.dt, 1, 1, h)
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.cls, n.conv, n.convB, n.pos)
	}
	for i, l := range n.layers {
		n.addBlock(i, l.ln1.params()...)
		n.addBlock(i, l.in.params()...)
		n.addBlock(i, l.out.params()...)
		n.addBlock(i, l.ln2.params()...)
		n.addBlock(i, l.fc1.params()...)
		n.addBlock(i, l.fc2.params()...)
	}
	if n.last {
		n.add(n.final.params()...)
		n.add(n.fc.params()...)
	}
	return n
}

func (n *vit) newBatch(items, side int64) batch { return n.imageBatch(items, side) }

func (n *vit) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	if !n.first {
		return nil, env{}
	}
	x := n.module("conv_proj", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := e.Conv2d(b.x, n.conv, n.convB, eager.ConvSpec{Stride: n.m.Patch, Groups: 1})
			y = e.Reshape(y, b.n, n.m.Hidden, y.Dim(2)*y.Dim(3))
			y = e.Permute(y, 0, 2, 1)
			c := e.Expand(n.cls, b.n, 1, n.m.Hidden)
			return e.Cat(1, c, y)
		})
	})
	h := n.module("encoder", func() *eager.Tensor {
		pos := n.pos
		if s := x.Dim(1); s != pos.Dim(1) {
			pos = e.Slice(pos, 1, 0, s)
		}
		s := e.Add(x, pos)
		e.Retain(s) // the encoder's local
		return n.drop(s, n.m.Dropout)
	})
	return h, env{}
}

func (n *vit) block(i int, x *eager.Tensor, _ env) *eager.Tensor {
	e, l := n.e, n.layers[i]
	return n.module(layerName("encoder.layers.encoder_layer", n.lo+i), func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := n.ln(l.ln1, x)
			a := n.module("self_attention", func() *eager.Tensor { return n.attention(l, y) })
			e.Drop(y)
			if d := n.drop(a, n.m.Dropout); d != a {
				e.Drop(a)
				a = d
			}
			s := e.Add(a, x)
			e.Drop(a)
			z := n.ln(l.ln2, s)
			f := n.module("mlp", func() *eager.Tensor {
				return e.Scope(func() *eager.Tensor {
					f := n.apply(l.fc1, z)
					g := e.Gelu(f)
					e.Drop(f)
					if d := n.drop(g, n.m.Dropout); d != g {
						e.Drop(g)
						g = d
					}
					o := n.apply(l.fc2, g)
					e.Drop(g)
					return n.drop(o, n.m.Dropout)
				})
			})
			e.Drop(z)
			return e.Add(s, f)
		})
	})
}

// attention is nn.MultiheadAttention(batch_first=True) without weights.
func (n *vit) attention(l vitLayer, y *eager.Tensor) *eager.Tensor {
	e := n.e
	if !n.train && n.o.Precision.amp() == 0 {
		return n.fastAttention(l, y)
	}
	return e.Scope(func() *eager.Tensor {
		s, b, h := y.Dim(1), y.Dim(0), l.heads*l.hd
		x := e.Transpose(y, 0, 1)
		qkv := e.Scope(func() *eager.Tensor {
			p := n.apply(l.in, x)
			p5 := e.Unsqueeze(e.View(p, s, b, 3, h), 0)
			e.Drop(p)
			return e.ContiguousCopy(e.Squeeze(e.Transpose(p5, 0, -2), -2))
		})
		// proj[0], proj[1], proj[2]; then each as heads of a batch.
		ts := e.ScopeN(func() []*eager.Tensor {
			p := []*eager.Tensor{e.Select(qkv, 0), e.Select(qkv, 0), e.Select(qkv, 0)}
			for i, t := range p {
				p[i] = e.Transpose(e.View(t, s, b*l.heads, l.hd), 0, 1)
			}
			for i, t := range p {
				p[i] = e.View(t, b, l.heads, s, l.hd)
			}
			return p
		})
		q, k, v := ts[0], ts[1], ts[2]
		e.Drop(qkv)
		o := e.SDPA(q, k, v, nil, false, 0)
		flat := e.Scope(func() *eager.Tensor {
			return e.View(e.ContiguousCopy(e.Permute(o, 2, 0, 1, 3)), b*s, h)
		})
		r := n.apply(l.out, flat)
		e.Drop(flat, o)
		return e.Transpose(e.View(r, s, b, r.Dim(-1)), 1, 0)
	})
}

// fastAttention is torch._native_multi_head_attention, which serves inference
// without autocast.
func (n *vit) fastAttention(l vitLayer, y *eager.Tensor) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		h := l.heads * l.hd
		p := n.apply(l.in, y)
		parts := e.Split(p, -1, h, h, h)
		q, k, v := n.heads(parts[0], l.heads, l.hd), n.heads(parts[1], l.heads, l.hd), n.heads(parts[2], l.heads, l.hd)
		o := e.SDPA(q, k, v, nil, false, 0)
		m := e.Scope(func() *eager.Tensor { return e.Reshape(e.Transpose(o, 1, 2), y.Dim(0), y.Dim(1), h) })
		return n.apply(l.out, m)
	})
}

func (n *vit) end(h *eager.Tensor) *eager.Tensor {
	if !n.last {
		return h
	}
	return n.module("encoder.ln", func() *eager.Tensor { return n.ln(n.final, h) })
}

func (n *vit) head(h *eager.Tensor) *eager.Tensor {
	return n.module("heads", func() *eager.Tensor {
		return n.e.Scope(func() *eager.Tensor { return n.apply(n.fc, n.e.Select(h, 1)) })
	})
}

func (n *vit) loss(logits *eager.Tensor, b batch) *eager.Tensor {
	return n.classLoss(logits, b)
}
