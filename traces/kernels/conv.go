package kernels

// Conv2d is the geometry of a 2-D convolution of row-major (NCHW) tensors with
// the same stride and padding in both directions.
type Conv2d struct {
	// B is the batch, C and K the channels of input and output, H and W the
	// input's, OH and OW the output's height and width, R and S the kernel's.
	B, C, H, W, K, R, S, OH, OW int64
	Stride, Groups              int64
	DType                       DType
}

// FLOPs is the floating-point operations of the forward pass; either gradient
// takes as many.
func (c Conv2d) FLOPs() float64 {
	return 2 * float64(c.B*c.K*c.OH*c.OW) * float64(c.C/c.Groups*c.R*c.S)
}

// Depthwise reports one filter per input channel, for which PyTorch has kernels
// of its own, without workspaces.
func (c Conv2d) Depthwise() bool { return c.Groups > 1 && c.Groups == c.C }

// The workspaces below are cuDNN's choice of kernels on an H200 for NCHW tensors
// (torch 2.11, cuDNN 9): its heuristics are not public, so the rules were read
// off recordings of ResNets, MobileNetV3 and ViT (docs/synthetic.md). They are
// transient: what they move is the peak while a convolution runs, by at most
// 2 %, and the segments that the allocator reserves for them.

// bytes of input, output and weight with the channels padded to pad.
func (c Conv2d) bytes(pad int64) (x, y, w int64) {
	e := c.DType.Size()
	cp := max(c.C, pad)
	return c.B * cp * c.H * c.W * e, c.B * c.K * c.OH * c.OW * e, c.K * cp / c.Groups * c.R * c.S * e
}

// few reports an input of images, whose channels 16-bit kernels pad to 8.
func (c Conv2d) few() bool { return c.C < 8 && c.Groups == 1 }

// wide reports a pointwise layer of at least 2^20 weights.
func (c Conv2d) wide() bool { return c.C*c.K >= 1<<20 }

// nhwc is the workspace of a kernel that works on transposed copies of its
// operands.
func (c Conv2d) nhwc(pad int64) int64 {
	x, y, w := c.bytes(pad)
	if c.R == 1 && c.S == 1 {
		w = 0
	}
	return x + y + w + 16
}

// matrix reports a pointwise convolution that runs as a plain matrix product.
func (c Conv2d) matrix() bool {
	return c.R == 1 && c.S == 1 && c.Stride == 1 && c.OH*c.OW%4 == 0
}

// transposes reports that a pointwise layer on an odd map of fewer than 2^20
// weights runs on transposed copies.
func (c Conv2d) transposes(gradient bool) bool {
	const some = 100_000 // weights
	switch {
	case !c.DType.Half():
		return false
	case gradient:
		return c.B >= 96 && c.C*c.K >= some
	}
	return c.K > c.C || c.C*c.K >= some
}

// Forward is the workspace in bytes of the forward kernel, or of the kernel of
// the input's gradient.
func (c Conv2d) Forward(gradient bool) int64 {
	half := c.DType.Half()
	switch {
	case c.Depthwise(), c.OH*c.OW == 1:
		return 0
	case c.matrix():
		// A table of pointers in fp32; now and then 272 bytes in 16 bit.
		if !half && (c.C >= 64 && !gradient || c.C >= c.K && c.C*c.K >= 1<<14 && gradient) {
			return 400
		}
		return 0
	case c.few() && c.R < 7, c.few() && c.R >= 16 && !half && c.B >= 16:
		return 0
	case c.R == 1 && c.Stride == 1 && !c.wide() && !c.transposes(gradient):
		return 0
	case c.few() && half:
		return c.nhwc(8)
	case !half && !gradient && !c.few() && c.H >= 56:
		x, _, w := c.bytes(0) // only the input is transposed
		return x + w + 16
	}
	return c.nhwc(0)
}

// Weight is the workspace in bytes of the kernel of the weight's gradient: copies
// of the operands, and fp32 partial sums when the kernel splits the sum.
func (c Conv2d) Weight(sms int64) int64 {
	half := c.DType.Half()
	fp32 := c.K * c.C / c.Groups * c.R * c.S * 4 // the weight in fp32
	part := c.B * fp32                           // one partial per image
	switch {
	case c.Depthwise(), c.OH*c.OW == 1:
		return 0
	case c.matrix():
		x, y, _ := c.bytes(0)
		if half && c.OH*c.OW <= 196 && c.B >= 8 && part >= x+y {
			ws := c.nhwc(0)
			if c.B >= 64 {
				ws += 2 * fp32
			}
			return ws
		}
		if c.outgrown(part, x+y) {
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return part
	case c.R == 1 && c.Stride == 1 && !c.wide():
		x, y, _ := c.bytes(0)
		switch {
		case half && c.K > c.C && c.B < 128:
			return part
		case half:
			return c.nhwc(0)
		case c.outgrown(part, x+y):
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return part
	case c.few():
		return c.firstWeight()
	case c.R == 1:
		switch {
		case half && c.Stride > 1 && c.B >= 64:
			return c.nhwc(0) + 3*fp32
		case !half && c.Stride > 1:
			return c.nhwc(0) + c.splitTiles(sms)
		}
		return c.nhwc(0)
	}
	return c.nhwc(0) + c.splitTiles(sms)
}

// outgrown reports that one fp32 partial per image would be so large that cuDNN
// takes transposed copies instead.
func (c Conv2d) outgrown(part, xy int64) bool {
	least := int64(448)
	if c.K > c.C {
		least = 896
	}
	return !c.DType.Half() && part >= 3*xy/2 && c.B*c.OH >= least
}

// splitTiles is the fp32 partial tiles of a weight gradient, a product with
// K×(C·r·s) results in tiles of 64 or 128: it is split over the
// multiprocessors that the tiles leave idle.
func (c Conv2d) splitTiles(sms int64) int64 {
	tile := int64(64)
	if c.K >= 128 {
		tile = 128
	}
	tiles := ceilDiv(c.K, tile) * ceilDiv(c.C*c.R*c.S, tile)
	splits := sms / tiles
	sum := c.B * c.OH * c.OW
	if c.R == 1 && c.Stride > 1 {
		splits = min(splits, sum/1024)
	}
	switch {
	case c.DType.Half() && sum < 25_000:
		return 0
	case c.DType.Half() && sum < 65_536:
		splits = min(splits, 4)
	case !c.DType.Half() && tiles > sms && tiles < 2*sms:
		return sms * tile * tile * 4
	}
	if splits < 2 {
		return 0
	}
	return splits * tiles * tile * tile * 4
}

// firstWeight is the weight-gradient workspace of a layer whose input is
// images.
func (c Conv2d) firstWeight() int64 {
	if !c.DType.Half() {
		_, _, w := c.bytes(4)
		switch {
		case c.R < 7:
			return 0
		case c.R >= 16:
			return c.nhwc(4) + 128
		case c.B >= 16:
			return c.nhwc(4) + 120*w + 128
		}
		return c.nhwc(4)
	}
	ws := c.nhwc(8)
	if c.B < 16 {
		return ws
	}
	_, _, w := c.bytes(8)
	splits := int64(61)
	switch {
	case c.R >= 16:
		splits = 3
	case c.R < 7:
		splits = 257
	}
	return ws + splits*2*w + 128
}
