package synth

import (
	"fmt"

	"allocsim/traces/synth/internal/eager"
)

// convLayer is a convolution with an optional bias or batch normalization.
type convLayer struct {
	w, b, scale *eager.Tensor
	shape       []int64
	spec        eager.ConvSpec
	bnW, bnB    *eager.Tensor
}

func (n *net) convBN(in, out, k, stride, groups int64) convLayer {
	c := n.convolution(in, out, k, stride, groups, false)
	c.bnW, c.bnB = n.e.Param(n.dt, out), n.e.Param(n.dt, out)
	n.buffer(n.dt, out) // running mean
	n.buffer(n.dt, out) // running variance
	n.buffer(eager.I64) // num_batches_tracked
	return c
}

func (n *net) convolution(in, out, k, stride, groups int64, bias bool) convLayer {
	c := convLayer{shape: []int64{out, in / groups, k, k},
		spec: eager.ConvSpec{Stride: stride, Padding: (k - 1) / 2, Groups: groups}}
	if n.quant {
		c.w = n.e.Buffer(eager.I8, c.shape...)
		c.scale = n.e.Buffer(eager.F32, out)
	} else {
		c.w = n.e.Param(n.dt, c.shape...)
	}
	if bias {
		c.b = n.e.Param(n.dt, out)
	}
	return c
}

func (c convLayer) params() []*eager.Tensor {
	var ps []*eager.Tensor
	if c.w.RequiresGrad {
		ps = append(ps, c.w)
	}
	for _, p := range []*eager.Tensor{c.b, c.bnW, c.bnB} {
		if p != nil {
			ps = append(ps, p)
		}
	}
	return ps
}

func (n *net) conv(c convLayer, x *eager.Tensor) *eager.Tensor {
	if n.quant {
		return n.e.Scope(func() *eager.Tensor {
			w := n.e.Empty(x.DType, c.shape...)
			return n.e.Conv2d(x, w, c.b, c.spec)
		})
	}
	return n.e.Conv2d(x, c.w, c.b, c.spec)
}

// convNorm is conv, batch norm.
func (n *net) convNorm(c convLayer, x *eager.Tensor) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		y := n.conv(c, x)
		z := n.e.BatchNorm(y, c.bnW, c.bnB, n.train)
		n.e.Drop(y)
		return z
	})
}

// resnet is torchvision's ResNet, with basic (18, 34) or bottleneck blocks.
type resnet struct {
	net
	stem   convLayer
	layers []resBlock
	fc     lin
}

type resBlock struct {
	name  string
	convs []convLayer
	down  *convLayer
}

func newResNet(e *eager.Engine, m Model, o *Options) network {
	n := &resnet{net: newNet(e, m, o)}
	if n.first {
		n.stem = n.convBN(m.channels(), 64, 7, 2, 1)
	}
	in, idx := int64(64), 0
	exp := int64(1)
	if m.Bottleneck {
		exp = 4
	}
	for s, count := range m.Blocks {
		p := int64(64) << s
		for i := range count {
			stride := int64(1)
			if s > 0 && i == 0 {
				stride = 2
			}
			if idx >= n.lo && idx < n.hi {
				b := resBlock{name: fmt.Sprintf("layer%d.%d", s+1, i)}
				if m.Bottleneck {
					b.convs = append(b.convs, n.convBN(in, p, 1, 1, 1), n.convBN(p, p, 3, stride, 1), n.convBN(p, 4*p, 1, 1, 1))
				} else {
					b.convs = append(b.convs, n.convBN(in, p, 3, stride, 1), n.convBN(p, p, 3, 1, 1))
				}
				if stride != 1 || in != p*exp {
					d := n.convBN(in, p*exp, 1, stride, 1)
					b.down = &d
				}
				n.layers = append(n.layers, b)
			}
			in = p * exp
			idx++
		}
	}
	if n.last {
		n.fc = n.dense(in, m.Classes, true)
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.stem.params()...)
	}
	for i, b := range n.layers {
		for _, c := range b.convs {
			n.addBlock(i, c.params()...)
		}
		if b.down != nil {
			n.addBlock(i, b.down.params()...)
		}
	}
	if n.last {
		n.add(n.fc.params()...)
	}
	return n
}

func (n *resnet) newBatch(items, side int64) batch { return n.imageBatch(items, side) }

func (n *resnet) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	if !n.first {
		return nil, env{}
	}
	return n.module("stem", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := n.convNorm(n.stem, b.x)
			e.ReluInPlace(y)
			return e.MaxPool(y, 3, 2, 1)
		})
	}), env{}
}

func (n *resnet) block(i int, x *eager.Tensor, _ env) *eager.Tensor {
	e, b := n.e, n.layers[i]
	return n.module(b.name, func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := x
			for j, c := range b.convs {
				z := n.conv(c, y)
				if y != x {
					e.Drop(y)
				}
				y = e.BatchNorm(z, c.bnW, c.bnB, n.train)
				e.Drop(z)
				if j < len(b.convs)-1 {
					e.ReluInPlace(y)
				}
			}
			id := x
			if b.down != nil {
				id = n.module("downsample", func() *eager.Tensor { return n.convNorm(*b.down, x) })
			}
			e.AddInPlace(y, id)
			e.ReluInPlace(y)
			return y
		})
	})
}

func (n *resnet) end(h *eager.Tensor) *eager.Tensor {
	if !n.last {
		return h
	}
	return n.module("avgpool", func() *eager.Tensor { return n.pooled(h) })
}

// pooled is flatten(avgpool(h)).
func (n *net) pooled(h *eager.Tensor) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		p := n.e.MeanHW(h)
		return n.e.View(p, p.Dim(0), p.Dim(1))
	})
}

func (n *resnet) head(h *eager.Tensor) *eager.Tensor {
	return n.module("fc", func() *eager.Tensor { return n.apply(n.fc, h) })
}

func (n *resnet) loss(logits *eager.Tensor, b batch) *eager.Tensor {
	return n.classLoss(logits, b)
}

// mobileNet is torchvision's MobileNetV3.
type mobileNet struct {
	net
	stem, lastConv convLayer
	layers         []mbBlock
	fc1, fc2       lin
}

type mbBlock struct {
	name             string
	expand           *convLayer
	dw               convLayer
	seDown, seUp     *convLayer
	project          convLayer
	hswish, residual bool
}

// mbConf is a row of torchvision's inverted-residual settings: input, kernel,
// expanded and output channels, squeeze-and-excitation, hard-swish, stride.
type mbConf struct {
	in, k, exp, out int64
	se, hs          bool
	stride          int64
}

var mbLarge = []mbConf{
	{16, 3, 16, 16, false, false, 1},
	{16, 3, 64, 24, false, false, 2},
	{24, 3, 72, 24, false, false, 1},
	{24, 5, 72, 40, true, false, 2},
	{40, 5, 120, 40, true, false, 1},
	{40, 5, 120, 40, true, false, 1},
	{40, 3, 240, 80, false, true, 2},
	{80, 3, 200, 80, false, true, 1},
	{80, 3, 184, 80, false, true, 1},
	{80, 3, 184, 80, false, true, 1},
	{80, 3, 480, 112, true, true, 1},
	{112, 3, 672, 112, true, true, 1},
	{112, 5, 672, 160, true, true, 2},
	{160, 5, 960, 160, true, true, 1},
	{160, 5, 960, 160, true, true, 1},
}

var mbSmall = []mbConf{
	{16, 3, 16, 16, true, false, 2},
	{16, 3, 72, 24, false, false, 2},
	{24, 3, 88, 24, false, false, 1},
	{24, 5, 96, 40, true, true, 2},
	{40, 5, 240, 40, true, true, 1},
	{40, 5, 240, 40, true, true, 1},
	{40, 5, 120, 48, true, true, 1},
	{48, 5, 144, 48, true, true, 1},
	{48, 5, 288, 96, true, true, 2},
	{96, 5, 576, 96, true, true, 1},
	{96, 5, 576, 96, true, true, 1},
}

func mbConfs(variant string) []mbConf {
	if variant == "small" {
		return mbSmall
	}
	return mbLarge
}

// divisible8 is torchvision's _make_divisible(v, 8).
func divisible8(v int64) int64 {
	n := max(8, (v+4)/8*8)
	if n*10 < v*9 {
		n += 8
	}
	return n
}

func newMobileNet(e *eager.Engine, m Model, o *Options) network {
	n := &mobileNet{net: newNet(e, m, o)}
	confs := mbConfs(m.Variant)
	if n.first {
		n.stem = n.convBN(m.channels(), 16, 3, 2, 1)
	}
	for i := n.lo; i < n.hi; i++ {
		c := confs[i]
		b := mbBlock{name: fmt.Sprintf("features.%d", i+1), hswish: c.hs, residual: c.stride == 1 && c.in == c.out}
		if c.exp != c.in {
			x := n.convBN(c.in, c.exp, 1, 1, 1)
			b.expand = &x
		}
		b.dw = n.convBN(c.exp, c.exp, c.k, c.stride, c.exp)
		if c.se {
			sq := divisible8(c.exp / 4)
			d := n.convolution(c.exp, sq, 1, 1, 1, true)
			u := n.convolution(sq, c.exp, 1, 1, 1, true)
			b.seDown, b.seUp = &d, &u
		}
		b.project = n.convBN(c.exp, c.out, 1, 1, 1)
		n.layers = append(n.layers, b)
	}
	if n.last {
		out := confs[len(confs)-1].out
		mid := int64(1280)
		if m.Variant == "small" {
			mid = 1024
		}
		n.lastConv = n.convBN(out, 6*out, 1, 1, 1)
		n.fc1 = n.dense(6*out, mid, true)
		n.fc2 = n.dense(mid, m.Classes, true)
	}
	n.perBlk = make([][]*eager.Tensor, len(n.layers))
	if n.first {
		n.add(n.stem.params()...)
	}
	for i, b := range n.layers {
		if b.expand != nil {
			n.addBlock(i, b.expand.params()...)
		}
		n.addBlock(i, b.dw.params()...)
		if b.seDown != nil {
			n.addBlock(i, b.seDown.params()...)
			n.addBlock(i, b.seUp.params()...)
		}
		n.addBlock(i, b.project.params()...)
	}
	if n.last {
		n.add(n.lastConv.params()...)
		n.add(n.fc1.params()...)
		n.add(n.fc2.params()...)
	}
	return n
}

func (n *mobileNet) newBatch(items, side int64) batch { return n.imageBatch(items, side) }

func (n *mobileNet) activate(x *eager.Tensor, hswish bool) *eager.Tensor {
	if hswish {
		return n.e.HardswishInPlace(x)
	}
	return n.e.ReluInPlace(x)
}

func (n *mobileNet) begin(b batch) (*eager.Tensor, env) {
	e := n.e
	if !n.first {
		return nil, env{}
	}
	return n.module("features.0", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			return n.activate(n.convNorm(n.stem, b.x), true)
		})
	}), env{}
}

func (n *mobileNet) block(i int, x *eager.Tensor, _ env) *eager.Tensor {
	e, b := n.e, n.layers[i]
	return n.module(b.name, func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := x
			next := func(z *eager.Tensor) {
				if y != x {
					e.Drop(y)
				}
				y = z
			}
			if b.expand != nil {
				next(n.activate(n.convNorm(*b.expand, y), b.hswish))
			}
			next(n.activate(n.convNorm(b.dw, y), b.hswish))
			if b.seDown != nil {
				next(n.squeeze(b, y))
			}
			next(n.convNorm(b.project, y))
			if b.residual {
				return e.AddInPlace(y, x)
			}
			return y
		})
	})
}

// squeeze is torchvision's SqueezeExcitation.
func (n *mobileNet) squeeze(b mbBlock, x *eager.Tensor) *eager.Tensor {
	e := n.e
	return n.module("se", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			s := e.Scope(func() *eager.Tensor {
				s := e.MeanHW(x)
				d := n.conv(*b.seDown, s)
				e.Drop(s)
				r := e.Relu(d)
				e.Drop(d)
				u := n.conv(*b.seUp, r)
				e.Drop(r)
				return e.Hardsigmoid(u)
			})
			return e.Mul(s, x)
		})
	})
}

func (n *mobileNet) end(h *eager.Tensor) *eager.Tensor {
	if !n.last {
		return h
	}
	return n.module("features.last", func() *eager.Tensor {
		return n.e.Scope(func() *eager.Tensor {
			return n.pooled(n.activate(n.convNorm(n.lastConv, h), true))
		})
	})
}

func (n *mobileNet) head(h *eager.Tensor) *eager.Tensor {
	e := n.e
	return n.module("classifier", func() *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := n.apply(n.fc1, h)
			y = e.HardswishInPlace(y)
			y = e.DropoutInPlace(y, n.m.Dropout, n.train)
			return n.apply(n.fc2, y)
		})
	})
}

func (n *mobileNet) loss(logits *eager.Tensor, b batch) *eager.Tensor {
	return n.classLoss(logits, b)
}
