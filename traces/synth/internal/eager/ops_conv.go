package eager

import "allocsim/traces/kernels"

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
	c := kernels.Conv2d{
		B: x.Dim(0), C: x.Dim(1), H: x.Dim(2), W: x.Dim(3),
		K: w.Dim(0), R: w.Dim(2), S: w.Dim(3),
		OH: convOut(x.Dim(2), w.Dim(2), s.Stride, s.Padding), OW: convOut(x.Dim(3), w.Dim(3), s.Stride, s.Padding),
		Stride: s.Stride, Groups: s.Groups, DType: x.DType,
	}
	if !x.Contiguous() {
		x = e.like1(x)
	}
	out := e.Empty(x.DType, c.B, c.K, c.OH, c.OW)
	e.flops(c.FLOPs())
	e.Transient(c.Forward(false))
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
			bk.Set(0, e.Empty(c.DType, xShape...))
			e.flops(c.FLOPs())
			e.Transient(c.Forward(true))
		}
		if bk.Need(0) && !c.Depthwise() {
			input()
		}
		if bk.Need(1) {
			bk.Set(1, e.Empty(wDT, wShape...))
			e.flops(c.FLOPs())
			e.Transient(c.Weight(e.Device.SMs))
		}
		if bk.Need(0) && c.Depthwise() {
			input() // the native kernel sizes its result last
		}
		if copied != nil {
			e.Drop(copied)
		}
		if b != nil && bk.Need(2) {
			red := []bool{true, false, true, true}
			sum := e.sumDims(g, red)
			bk.Set(2, e.View(sum, c.K))
		}
	}, out)
	return out
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
