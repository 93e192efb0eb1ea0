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
	e.Transient(c.forward(false))
	xShape, wShape, wDT := x.Shape, w.Shape, w.DType
	n.done(func(bk *Back) {
		bk.Saved(0)
		bk.Saved(1)
		g := bk.G()
		var copied *Tensor
		if !g.Contiguous() {
			copied = e.like1(g)
		}
		input := func() {
			bk.Set(0, e.Empty(c.dt, xShape...))
			e.flops(c.flops())
			e.Transient(c.forward(true))
		}
		if bk.Need(0) && !c.depthwise() {
			input()
		}
		if bk.Need(1) {
			bk.Set(1, e.Empty(wDT, wShape...))
			e.flops(c.flops())
			e.Transient(c.weight(e.Device.SMs))
		}
		if bk.Need(0) && c.depthwise() {
			input() // the native kernel sizes its result last
		}
		if copied != nil {
			e.Drop(copied)
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

// The workspaces below are cuDNN's choice of kernels on an H200 for NCHW tensors
// (torch 2.11, cuDNN 9): its heuristics are not public, so the rules were read
// off recordings of ResNets, MobileNetV3 and ViT (docs/synthetic.md). They are
// transient: what they move is the peak while a convolution runs, by at most
// 2 %, and the segments that the allocator reserves for them.

// bytes of input, output and weight with the channels padded to pad.
func (c convShape) bytes(pad int64) (x, y, w int64) {
	e := c.dt.Size()
	cp := max(c.c, pad)
	return c.b * cp * c.h * c.w * e, c.b * c.k * c.oh * c.ow * e, c.k * cp / c.groups * c.r * c.s * e
}

// few reports an input of images, whose channels 16-bit kernels pad to 8.
func (c convShape) few() bool { return c.c < 8 && c.groups == 1 }

// wide reports a pointwise layer of at least 2^20 weights.
func (c convShape) wide() bool { return c.c*c.k >= 1<<20 }

// nhwc is the workspace of a kernel that works on transposed copies of its
// operands.
func (c convShape) nhwc(pad int64) int64 {
	x, y, w := c.bytes(pad)
	if c.r == 1 && c.s == 1 {
		w = 0
	}
	return x + y + w + 16
}

// matrix reports a pointwise convolution that runs as a plain matrix product.
func (c convShape) matrix() bool {
	return c.r == 1 && c.s == 1 && c.stride == 1 && c.oh*c.ow%4 == 0
}

// transposes reports that a pointwise layer on an odd map of fewer than 2^20
// weights runs on transposed copies.
func (c convShape) transposes(gradient bool) bool {
	const some = 100_000 // weights
	switch {
	case !c.dt.Half():
		return false
	case gradient:
		return c.b >= 96 && c.c*c.k >= some
	}
	return c.k > c.c || c.c*c.k >= some
}

// forward is the workspace of the forward kernel, or of the input-gradient
// kernel.
func (c convShape) forward(gradient bool) int64 {
	half := c.dt.Half()
	switch {
	case c.depthwise(), c.oh*c.ow == 1:
		return 0
	case c.matrix():
		// A table of pointers in fp32; now and then 272 bytes in 16 bit.
		if !half && (c.c >= 64 && !gradient || c.c >= c.k && c.c*c.k >= 1<<14 && gradient) {
			return 400
		}
		return 0
	case c.few() && c.r < 7, c.few() && c.r >= 16 && !half && c.b >= 16:
		return 0
	case c.r == 1 && c.stride == 1 && !c.wide() && !c.transposes(gradient):
		return 0
	case c.few() && half:
		return c.nhwc(8)
	case !half && !gradient && !c.few() && c.h >= 56:
		x, _, w := c.bytes(0) // only the input is transposed
		return x + w + 16
	}
	return c.nhwc(0)
}

// weight is the workspace of the weight-gradient kernel: copies of the
// operands, and fp32 partial sums when the kernel splits the sum.
func (c convShape) weight(sms int64) int64 {
	half := c.dt.Half()
	fp32 := c.k * c.c / c.groups * c.r * c.s * 4 // the weight in fp32
	part := c.b * fp32                           // one partial per image
	switch {
	case c.depthwise(), c.oh*c.ow == 1:
		return 0
	case c.matrix():
		x, y, _ := c.bytes(0)
		if half && c.oh*c.ow <= 196 && c.b >= 8 && part >= x+y {
			ws := c.nhwc(0)
			if c.b >= 64 {
				ws += 2 * fp32
			}
			return ws
		}
		if c.outgrown(part, x+y) {
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return part
	case c.r == 1 && c.stride == 1 && !c.wide():
		x, y, _ := c.bytes(0)
		switch {
		case half && c.k > c.c && c.b < 128:
			return part
		case half:
			return c.nhwc(0)
		case c.outgrown(part, x+y):
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return part
	case c.few():
		return c.firstWeight()
	case c.r == 1:
		switch {
		case half && c.stride > 1 && c.b >= 64:
			return c.nhwc(0) + 3*fp32
		case !half && c.stride > 1:
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return c.nhwc(0)
	}
	return c.nhwc(0) + c.splitTiles(sms)
}

// outgrown reports that one fp32 partial per image would be so large that cuDNN
// takes transposed copies instead.
func (c convShape) outgrown(part, xy int64) bool {
	least := int64(448)
	if c.k > c.c {
		least = 896
	}
	return !c.dt.Half() && part >= 3*xy/2 && c.b*c.oh >= least
}

// splitTiles is the fp32 partial tiles of a weight gradient, a product with
// K×(C·r·s) results in tiles of 64 or 128: it is split over the
// multiprocessors that the tiles leave idle.
func (c convShape) splitTiles(sms int64) int64 {
	tile := int64(64)
	if c.k >= 128 {
		tile = 128
	}
	tiles := ceilDiv(c.k, tile) * ceilDiv(c.c*c.r*c.s, tile)
	splits := sms / tiles
	sum := c.b * c.oh * c.ow
	if c.r == 1 && c.stride > 1 {
		splits = min(splits, sum/1024)
	}
	switch {
	case c.dt.Half() && sum < 25_000:
		return 0
	case c.dt.Half() && sum < 65_536:
		splits = min(splits, 4)
	case !c.dt.Half() && tiles > sms && tiles < 2*sms:
		return sms * tile * tile * 4
	}
	if splits < 2 {
		return 0
	}
	return splits * tiles * tile * tile * 4
}

// firstWeight is the weight-gradient workspace of a layer whose input is
// images.
func (c convShape) firstWeight() int64 {
	if !c.dt.Half() {
		_, _, w := c.bytes(4)
		switch {
		case c.r < 7:
			return 0
		case c.r >= 16:
			return c.nhwc(4) + 128
		case c.b >= 16:
			return c.nhwc(4) + 120*w + 128
		}
		return c.nhwc(4)
	}
	ws := c.nhwc(8)
	if c.b < 16 {
		return ws
	}
	_, _, w := c.bytes(8)
	splits := int64(61)
	switch {
	case c.r >= 16:
		splits = 3
	case c.r < 7:
		splits = 257
	}
	return ws + splits*2*w + 128
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
