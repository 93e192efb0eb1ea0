package kernels

// EmbeddingBackward is the plan of embedding_dense_backward for indices into a
// table of rows × width elements; result 0 is the gradient of the table. Indices
// that are not row-major are copied. Up to 3,072 need nothing else. Above, they are sorted and the gradient is
// summed by segments of equal indices, whose number the kernel bounds by the
// indices and by the rows.
//
// Source: native/cuda/Embedding.cu (embedding_dense_backward_cuda) and
// native/cuda/EmbeddingBackwardKernel.cu (embedding_backward_cuda_kernel). The
// temporary arrays of the sort and the scans are CUB's, measured within 200
// bytes; so is the array of a table of two rows.
func EmbeddingBackward(index Tensor, rows, width int64, dt DType) Plan {
	var p Plan
	n := index.Numel()
	copied := -1
	if !index.Contiguous() {
		copied = p.Scratch(index.Bytes())
	}
	if n <= 3072 {
		p.Result(0)
		p.Drop(copied)
		return p
	}
	sorted := p.Scratch(8 * n)
	orig := p.Scratch(8 * n)
	iota := p.Scratch(8 * n)
	sort := p.Scratch(65*n/4 + 16895)
	p.Drop(sort, iota)
	p.Result(0)
	offsets := p.Scratch(8 * n)
	count := p.Scratch(8)
	unique := p.Scratch(8 * n)
	p.Drop(p.Scratch(scanTemp), unique)
	segs := min(n, rows)
	perSeg := p.Scratch(8 * segs)
	segOffset := p.Scratch(8 * segs)
	p.Transient(scanTemp)
	parts := p.Scratch(8)
	most := n/10 + segs // partial segments: at most 10 indices each
	partOffset := p.Scratch(8 * most)
	var sums int
	if rows <= 2 {
		sums = p.Scratch(8 * most)
	} else {
		sums = p.Scratch(dt.Accumulate().Size() * most * roundUp(width, 32))
	}
	p.Drop(copied, sorted, orig, offsets, count, perSeg, segOffset, parts, partOffset, sums)
	return p
}

// scanTemp is the temporary array of CUB's scan, in bytes, for the lengths that
// were measured (a few thousand to a few hundred thousand elements).
const scanTemp = 1279
