package eager

import (
	"slices"

	"allocsim/traces/kernels"
)

// DType is an element type.
type DType = kernels.DType

// The element types that occur in the modelled programs.
const (
	F32  = kernels.F32
	F16  = kernels.F16
	BF16 = kernels.BF16
	I64  = kernels.I64
	I32  = kernels.I32
	I8   = kernels.I8
	Bool = kernels.Bool
)

// promote is the result type of an elementwise operation between tensors with
// at least one dimension (torch.promote_types for the types that occur).
func promote(a, b DType) DType {
	switch {
	case a == b:
		return a
	case a.Float() && b.Float():
		return F32 // f16 with bf16 or with f32
	case a.Float():
		return a
	case b.Float():
		return b
	case a.Size() >= b.Size() && a != Bool:
		return a
	default:
		return b
	}
}

// storage is a block of the allocator with the number of tensors that share
// it; it is freed when the last one goes.
type storage struct {
	refs  int32
	block uint32 // traces.NoBlock when the storage is empty
	bytes int64  // requested
}

// Tensor is one handle (PyTorch's TensorImpl): a storage seen through a shape
// and strides, with the autograd node that made it. Handles are counted; a
// handle made by an operation belongs to the open [Engine.Scope] until it is
// dropped, kept or returned.
type Tensor struct {
	e    *Engine
	refs int32
	st   *storage

	Shape  []int64
	Stride []int64
	DType  DType

	// RequiresGrad marks a leaf that wants a gradient.
	RequiresGrad bool
	// Grad is the accumulated gradient of a leaf; nil when there is none.
	Grad *Tensor
	// AfterGrad, when set on a leaf, runs each time its gradient has been
	// accumulated (register_post_accumulate_grad_hook).
	AfterGrad func()

	fn    *Node // creator, nil for leaves; an owned reference
	outNr int
	acc   *Node   // AccumulateGrad of a leaf
	base  *Tensor // the tensor this is a differentiable view of; an owned reference
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 { return numel(t.Shape) }

// Bytes is the bytes of the elements (not of the storage).
func (t *Tensor) Bytes() int64 { return t.Numel() * t.DType.Size() }

// Dim is the size of dimension i; negative i counts from the end.
func (t *Tensor) Dim(i int) int64 {
	if i < 0 {
		i += len(t.Shape)
	}
	return t.Shape[i]
}

// Wants reports whether autograd tracks t.
func (t *Tensor) Wants() bool { return t != nil && (t.RequiresGrad || t.fn != nil) }

// Contiguous reports row-major layout without gaps.
func (t *Tensor) Contiguous() bool { return contiguous(t.Shape, t.Stride) }

// outside is what the rules of kernels see of t.
func (t *Tensor) outside() kernels.Tensor {
	return kernels.Tensor{DType: t.DType, Shape: t.Shape, Stride: t.Stride}
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}

func rowMajor(shape []int64) []int64 {
	st := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		st[i] = n
		n *= max(shape[i], 1)
	}
	return st
}

func contiguous(shape, stride []int64) bool {
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		if stride[i] != n {
			return false
		}
		n *= shape[i]
	}
	return true
}

// dense reports a layout without gaps or overlaps in some order of the
// dimensions (is_non_overlapping_and_dense).
func dense(shape, stride []int64) bool {
	order := make([]int, 0, len(shape))
	for i := range shape {
		if shape[i] != 1 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if stride[a] < stride[b] {
			return -1
		}
		if stride[a] > stride[b] {
			return 1
		}
		return 0
	})
	n := int64(1)
	for _, i := range order {
		if stride[i] != n {
			return false
		}
		n *= shape[i]
	}
	return true
}

// preserved is the layout of empty_like(t) with memory_format=preserve: t's own
// when it is dense, else the one that a TensorIterator would choose.
func preserved(t *Tensor) []int64 {
	if dense(t.Shape, t.Stride) {
		return slices.Clone(t.Stride)
	}
	return iterStrides(t.Shape, t)
}

// iterStrides is the layout that TensorIterator gives a fresh output of an
// elementwise operation (aten/src/ATen/TensorIterator.cpp: fast set-up, else
// reorder_dimensions with its insertion sort over ambiguous comparisons).
func iterStrides(shape []int64, ins ...*Tensor) []int64 {
	allContig, allSame := true, true
	var first *Tensor
	for _, t := range ins {
		if t == nil {
			continue
		}
		if first == nil {
			first = t
		}
		if !slices.Equal(t.Shape, shape) {
			allContig, allSame = false, false
			break
		}
		allContig = allContig && t.Contiguous()
		allSame = allSame && slices.Equal(t.Stride, first.Stride) && dense(t.Shape, t.Stride)
	}
	if first == nil || allContig {
		return rowMajor(shape)
	}
	if allSame {
		return slices.Clone(first.Stride)
	}
	nd := len(shape)
	// Strides of each operand in the broadcast shape.
	ops := make([][]int64, 0, len(ins))
	for _, t := range ins {
		if t == nil {
			continue
		}
		st := make([]int64, nd)
		off := nd - len(t.Shape)
		for i := range t.Shape {
			if !(t.Shape[i] == 1 && shape[off+i] != 1) {
				st[off+i] = t.Stride[i]
			}
		}
		ops = append(ops, st)
	}
	perm := make([]int, nd)
	for i := range perm {
		perm[i] = nd - 1 - i
	}
	shouldSwap := func(d0, d1 int) int {
		for _, st := range ops {
			s0, s1 := st[d0], st[d1]
			switch {
			case s0 == 0 || s1 == 0:
				continue
			case s0 < s1:
				return -1
			case s0 > s1:
				return 1
			case shape[d0] > shape[d1]:
				return 1
			}
		}
		return 0
	}
	for i := 1; i < nd; i++ {
		d1 := i
		for d0 := i - 1; d0 >= 0; d0-- {
			c := shouldSwap(perm[d0], perm[d1])
			if c > 0 {
				perm[d0], perm[d1] = perm[d1], perm[d0]
				d1 = d0
			} else if c < 0 {
				break
			}
		}
	}
	out := make([]int64, nd)
	n := int64(1)
	for _, d := range perm {
		out[d] = n
		n *= max(shape[d], 1)
	}
	return out
}

func broadcast(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	off := len(a) - len(b)
	for i, s := range b {
		if out[off+i] == 1 {
			out[off+i] = s
		}
	}
	return out
}

// viewStrides is the strides with which a tensor can be seen in another shape
// without a copy; ok is false when it can't (at::detail::computeStride).
func viewStrides(shape, stride, newShape []int64) (out []int64, ok bool) {
	if numel(shape) == 0 {
		return rowMajor(newShape), true
	}
	out = make([]int64, len(newShape))
	v := len(newShape) - 1
	base := int64(1)
	if len(stride) > 0 {
		base = stride[len(stride)-1]
	}
	tn, vn := int64(1), int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		tn *= shape[d]
		if d == 0 || (shape[d-1] != 1 && stride[d-1] != tn*base) {
			for v >= 0 && (vn < tn || newShape[v] == 1) {
				out[v] = vn * base
				vn *= newShape[v]
				v--
			}
			if vn != tn {
				return nil, false
			}
			if d > 0 {
				base = stride[d-1]
				tn, vn = 1, 1
			}
		}
	}
	if len(shape) == 0 {
		for ; v >= 0; v-- {
			out[v] = 1
		}
	}
	return out, v == -1
}
