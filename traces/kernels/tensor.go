package kernels

// DType is an element type.
type DType uint8

// The element types of PyTorch's dense tensors.
const (
	F32 DType = iota + 1
	F16
	BF16
	I64
	I32
	I8
	Bool
	F64
	I16
	U8
	F8
	C64
	C128
)

// Size is the bytes of one element.
func (d DType) Size() int64 {
	switch d {
	case F32, I32:
		return 4
	case F16, BF16, I16:
		return 2
	case I64, F64, C64:
		return 8
	case C128:
		return 16
	default:
		return 1
	}
}

// Half reports a 16-bit floating type.
func (d DType) Half() bool { return d == F16 || d == BF16 }

// Float reports a real floating type of at least 16 bits.
func (d DType) Float() bool { return d == F32 || d == F64 || d.Half() }

// Accumulate is the type in which CUDA kernels add elements of this type up
// (AccumulateType.h).
func (d DType) Accumulate() DType {
	switch d {
	case F16, BF16, F8:
		return F32
	case I8, U8, I16, I32, Bool:
		return I64
	}
	return d
}

// Tensor is the outside of a tensor: its element type and layout.
type Tensor struct {
	DType DType
	Shape []int64
	// Stride is in elements and as long as Shape.
	Stride []int64
	// Host says that the tensor is not on the GPU.
	Host bool
}

// Numel is the number of elements.
func (t Tensor) Numel() int64 {
	n := int64(1)
	for _, s := range t.Shape {
		n *= s
	}
	return n
}

// Bytes is the bytes of the elements (not of the storage).
func (t Tensor) Bytes() int64 { return t.Numel() * t.DType.Size() }

// Dim is the size of dimension i; negative i counts from the end.
func (t Tensor) Dim(i int) int64 {
	if i < 0 {
		i += len(t.Shape)
	}
	return t.Shape[i]
}

// Contiguous reports row-major layout without gaps.
func (t Tensor) Contiguous() bool {
	n := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] == 1 {
			continue
		}
		if t.Stride[i] != n {
			return false
		}
		n *= t.Shape[i]
	}
	return true
}

// channelsLast reports the layout N, spatial dimensions, C in memory.
func (t Tensor) channelsLast() bool {
	nd := len(t.Shape)
	if nd < 4 || t.Contiguous() {
		return false
	}
	n := int64(1)
	for _, i := range append([]int{1}, descending(nd-1, 2)...) {
		if t.Shape[i] != 1 && t.Stride[i] != n {
			return false
		}
		n *= t.Shape[i]
	}
	return t.Shape[0] == 1 || t.Stride[0] == n
}

// descending is from, from-1, … to.
func descending(from, to int) []int {
	var out []int
	for i := from; i >= to; i-- {
		out = append(out, i)
	}
	return out
}
