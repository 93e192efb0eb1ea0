package eager

// ConvSpec is the geometry of a 2-D convolution.
type ConvSpec struct {
	Stride, Padding, Groups int64
}

func convOut(in, k, stride, pad int64) int64 { return (in+2*pad-k)/stride + 1 }

// Conv2d is F.conv2d of x [B,C,H,W] with w [K,C/groups,k,k]; b may be nil.
// Depthwise convolutions run PyTorch's own kernel, all others cuDNN with its
// workspaces.
func (e *Engine) Conv2d(x, w, b *Tensor, s ConvSpec) *Tensor {
	defer e.stacks.op("aten::conv2d")()
	return e.Scope(func() *Tensor {
		b, w, x := e.ampArgs3(b, w, x)
		return e.noAmp(func() *Tensor { return e.conv(x, w, b, s) })
	})
}

func (e *Engine) conv(x, w, b *Tensor, s ConvSpec) *Tensor {
	n := e.node("ConvolutionBackward0", x, w, b)
	n.save(x, w)
	c := convShape{
		b: x.Dim(0), c: x.Dim(1), h: x.Dim(2), w: x.Dim(3),
		k: w.Dim(0), r: w.Dim(2), s: w.Dim(3),
		oh: convOut(x.Dim(2), w.Dim(2), s.Stride, s.Padding), ow: convOut(x.Dim(3), w.Dim(3), s.Stride, s.Padding),
		stride: s.Stride, groups: s.Groups, dt: x.DType,
	}
	if !x.Contiguous() {
		x = e.like1(x)
	}
	out := e.Empty(x.DType, c.b, c.k, c.oh, c.ow)
	e.flops(c.flops())
	e.Transient(c.forward())
	xShape, wShape, wDT := x.Shape, w.Shape, w.DType
	n.done(func(bk *Back) {
		bk.Saved(0)
		bk.Saved(1)
		g := bk.G()
		if !g.Contiguous() {
			e.like1(g)
		}
		if bk.Need(0) {
			bk.Set(0, e.Empty(c.dt, xShape...))
			e.flops(c.flops())
			e.Transient(c.forward())
		}
		if bk.Need(1) {
			bk.Set(1, e.Empty(wDT, wShape...))
			e.flops(c.flops())
			e.Transient(c.weight())
		}
		if b != nil && bk.Need(2) {
			red := []bool{true, false, true, true}
			sum := e.sumDims(g, red)
			bk.Set(2, e.View(sum, c.k))
		}
	}, out)
	return out
}

type convShape struct {
	b, c, h, w, k, r, s, oh, ow, stride, groups int64
	dt                                          DType
}

func (c convShape) flops() float64 {
	return 2 * float64(c.b*c.k*c.oh*c.ow) * float64(c.c/c.groups*c.r*c.s)
}

func (c convShape) depthwise() bool { return c.groups > 1 && c.groups == c.c }

// pointwise reports the case that cuDNN serves as a plain matrix product.
func (c convShape) pointwise() bool {
	return c.r == 1 && c.s == 1 && c.stride == 1 && c.oh*c.ow%4 == 0
}

// bytes of input, output and weight, with the channels padded to 8 for 16-bit
// kernels.
func (c convShape) bytes() (x, y, w int64) {
	e := c.dt.Size()
	cp := c.c
	if c.dt.Half() && cp < 8 {
		cp = 8
	}
	return c.b * cp * c.h * c.w * e, c.b * c.k * c.oh * c.ow * e, c.k * cp / c.groups * c.r * c.s * e
}

// forward is the workspace of the forward and input-gradient kernels. These
// sizes come from cuDNN's heuristics on an H200 and were fitted to recordings
// (ResNet and ViT, NCHW tensors); see docs/synthetic.md.
func (c convShape) forward() int64 {
	if c.depthwise() || c.pointwise() {
		return 0
	}
	x, y, w := c.bytes()
	ws := x + y + 16
	if c.r > 1 || c.s > 1 {
		ws += w
	}
	return ws
}

// weight is the workspace of the weight-gradient kernel.
func (c convShape) weight() int64 {
	if c.depthwise() {
		return 0
	}
	x, y, w := c.bytes()
	if c.pointwise() {
		part := c.b * c.k * c.c * 4
		if c.dt.Half() && c.oh*c.ow <= 196 && c.b >= 8 && part >= x+y {
			ws := x + y + 16
			if c.b >= 64 {
				ws += 2 * c.k * c.c * 4
			}
			return ws
		}
		return part
	}
	ws := x + y + 16
	if c.r > 1 || c.s > 1 {
		ws += w
	}
	switch {
	case c.r >= 16 && c.stride == c.r: // patch embedding
		if c.b >= 16 {
			ws += 3*2*w + 128
		}
	case c.c < 8 && c.b >= 16:
		ws += 6_120_000
	case c.dt.Half() && c.r == 1 && c.s == 1 && c.b >= 64:
		ws += 3 * c.k * c.c * 4
	}
	return ws
}

// MaxPool is F.max_pool2d with its int64 indices.
func (e *Engine) MaxPool(x *Tensor, k, stride, pad int64) *Tensor {
	defer e.stacks.op("aten::max_pool2d")()
	n := e.node("MaxPool2DWithIndicesBackward0", x)
	n.save(x)
	oh, ow := convOut(x.Dim(2), k, stride, pad), convOut(x.Dim(3), k, stride, pad)
	out := e.Empty(x.DType, x.Dim(0), x.Dim(1), oh, ow)
	idx := e.Empty(I64, x.Dim(0), x.Dim(1), oh, ow)
	n.save(idx)
	n.done(func(b *Back) {
		x := b.Saved(0)
		b.Saved(1)
		b.Set(0, e.Empty(b.G().DType, x.Shape...))
	}, out)
	e.Drop(idx)
	return out
}
