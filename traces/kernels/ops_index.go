package kernels

import "math"

func embeddingBackward(_ *Device, o *Op) (p Plan) {
	ix, g := o.tensor("indices"), o.tensor("grad_output")
	if ix == nil || g == nil || len(g.Shape) == 0 {
		p.Results(len(o.Results))
		return p
	}
	return EmbeddingBackward(*ix, o.integer("num_weights", 1), g.Dim(-1), g.DType)
}

// Temporary arrays of CUB, in bytes, by the number of elements; fitted to calls
// on the H200 and right within a few hundred bytes.
func sumTemp(n int64) int64 { // of a count of nonzero elements
	if n <= 1024 {
		return 1
	}
	return 21503
}
func selectTemp(n int64) int64 { return max(1023, n/512+767) }
func scanBytes(n int64) int64  { return max(1023, n/232+767) }
func sortTemp(n int64) int64 { // of pairs of 8 bytes
	switch {
	case n <= 1024:
		return 1
	case n <= 3072:
		return 3583
	}
	return 65*n/4 + 4607
}

// positions appends the search for the nonzero elements of a tensor: their
// number, then their positions, whose request is made by take
// (native/cuda/Nonzero.cu).
func (p *Plan) positions(t *Tensor, take func()) {
	n := t.Numel()
	count := p.Scratch(4)
	p.Transient(sumTemp(n))
	take()
	p.Transient(selectTemp(n))
	p.Drop(count)
}

func nonzero(_ *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil || o.result(0) == nil {
		p.Results(len(o.Results))
		return p
	}
	p.positions(t, func() { p.Result(0) })
	return p
}

// masks appends the positions of the boolean tensors among indices, each as
// long as the selection, and returns them; they live until the end of the call
// (native/IndexingUtils.h, expandTensors).
func (p *Plan) masks(ts []*Tensor, selected int64) []int {
	var held []int
	for _, t := range ts {
		if t == nil || t.Host || t.DType != Bool && t.DType != U8 {
			continue
		}
		p.positions(t, func() { held = append(held, p.Scratch(8*int64(max(len(t.Shape), 1))*selected)) })
	}
	return held
}

// index gathers. Several index tensors of different strides are made row-major
// in their common shape (native/TensorAdvancedIndexing.cpp, AdvancedIndex).
func index(_ *Device, o *Op) (p Plan) {
	ts, out := o.Args["indices"].Tensors, o.result(0)
	if out == nil {
		p.Results(len(o.Results))
		return p
	}
	selected := int64(1)
	if len(out.Shape) > 0 {
		selected = out.Shape[0]
	}
	held := p.masks(ts, selected)
	held = append(held, p.expanded(ts)...)
	p.Result(0)
	for i := len(held) - 1; i >= 0; i-- {
		p.Drop(held[i])
	}
	return p
}

// expanded appends the row-major copies of index tensors that are smaller than
// their common shape.
func (p *Plan) expanded(ts []*Tensor) (held []int) {
	most, n := int64(0), 0
	for _, t := range ts {
		if t != nil && !t.Host && t.DType != Bool && t.DType != U8 {
			most, n = max(most, t.Numel()), n+1
		}
	}
	if n < 2 {
		return nil
	}
	for _, t := range ts {
		if t != nil && !t.Host && t.DType != Bool && t.DType != U8 && t.Numel() < most {
			held = append(held, p.Scratch(8*most))
		}
	}
	return held
}

// indexPut scatters. With accumulate the positions are sorted: bounds of the
// indices, linear positions, then keys, values and range of the sort
// (native/cuda/Indexing.cu, index_put_with_sort_kernel).
func indexPut(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	ts, self, values := o.Args["indices"].Tensors, o.tensor("self"), o.tensor("values")
	selected := int64(1)
	if values != nil && len(values.Shape) > 0 {
		selected = values.Shape[0]
	}
	held := p.masks(ts, selected)
	held = append(held, p.expanded(ts)...)
	if o.yes("accumulate") && self != nil {
		n := int64(0)
		for _, t := range ts {
			if t == nil {
				continue
			}
			if t.DType == Bool || t.DType == U8 {
				n = max(n, selected)
			} else {
				n = max(n, t.Numel())
			}
			for range 2 {
				a := p.Scratch(8)
				p.Drop(p.Scratch(1), a)
			}
		}
		if n > 0 {
			a := p.Scratch(8 * n)
			linear := p.Scratch(8 * n)
			p.Drop(a)
			sorted, orig, iota := p.Scratch(8*n), p.Scratch(8*n), p.Scratch(8*n)
			p.Drop(p.Scratch(sortTemp(n)), iota, orig, sorted, linear)
		}
	}
	for i := len(held) - 1; i >= 0; i-- {
		p.Drop(held[i])
	}
	return p
}

func maskedSelect(_ *Device, o *Op) (p Plan) {
	m, out := o.tensor("mask"), o.result(0)
	if m == nil || out == nil {
		p.Results(len(o.Results))
		return p
	}
	held := p.masks([]*Tensor{m}, out.Numel())
	p.Result(0)
	p.Drop(held...)
	return p
}

// along is the size of self along the operation's dimension, and the number of
// such slices.
func (o *Op) along(t *Tensor) (size, slices int64) {
	if t == nil || len(t.Shape) == 0 {
		return 1, 1
	}
	d := int(o.integer("dim", -1))
	if d < -len(t.Shape) || d >= len(t.Shape) {
		d = -1
	}
	size = t.Dim(d)
	return size, t.Numel() / max(size, 1)
}

// sorts keeps keys of up to 4,096 per slice in shared memory with one array of
// positions; more are sorted by CUB, one slice at once or all by segments
// (native/cuda/Sort.cpp, Sort.cu).
func sorts(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	t := o.tensor("self")
	if t == nil {
		return p
	}
	size, slices := o.along(t)
	e, n := t.DType.Size(), t.Numel()
	switch {
	case size <= 1:
	case size <= 4096:
		p.Transient(8 * size)
	case slices == 1:
		pos := p.Scratch(8 * n)
		p.Drop(p.Scratch((8+e)*n+19200), pos)
	default:
		a, b := p.Scratch(e*n), p.Scratch(e*n)
		c, d := p.Scratch(8*n), p.Scratch(8*n)
		p.Drop(p.Scratch((8+e)*n+255), d, c, b, a)
	}
	return p
}

// topk runs over many blocks per slice when slices are few and long
// (native/cuda/TensorTopK.cu, should_use_multiblock and mbtopk).
func topk(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	t := o.tensor("self")
	if t == nil {
		return p
	}
	size, n := o.along(t)
	many := n <= 20 && size >= 20000 || n > 20 && n <= 40 && size >= 10000 || n > 40 && n < 80 && size >= 8000 ||
		n >= 80 && n < 200 && size >= 5000 || n >= 200 && n < 800 && size >= 3000 || n >= 800 && n <= 4000 && size >= 800 || n > 4000 && size >= 400
	if !many {
		return p
	}
	const threads, digits, blocksPerSM = 256, 256, 6
	perBlock := threads * min(max(ceilDiv(size*n, d.SMs*blocksPerSM*threads), 4), 64)
	blocks := ceilDiv(size, perBlock) * n
	kth := p.Scratch(t.DType.Size() * n)
	a, b := p.Scratch(8*n), p.Scratch(8*n)
	counts := p.Scratch(2 * digits * blocks)
	sums := p.Scratch(4 * digits * n)
	c, e := p.Scratch(4*blocks), p.Scratch(4*blocks)
	p.Transient(1279)
	p.Transient(1279)
	p.Drop(e, c, sums, counts, b, a, kth)
	return p
}

// scan is a running sum or product: a vector by CUB, else in place of a
// row-major operand. Integers and booleans are converted first
// (native/cuda/ScanKernels.cpp, ScanUtils.cuh).
func scan(_ *Device, o *Op) (p Plan) {
	t, out := o.tensor("self"), o.result(0)
	p.Results(len(o.Results))
	if t == nil || out == nil {
		return p
	}
	copied := -1
	if t.DType != out.DType {
		copied = p.Scratch(t.Numel() * out.DType.Size())
	} else {
		copied = p.Scratch(copyOf(t))
	}
	if size, slices := o.along(t); slices == 1 && size > 1 {
		p.Transient(scanBytes(t.Numel()))
	}
	p.Drop(copied)
	return p
}

// randperm sorts random keys (native/cuda/Randperm.cpp).
func randperm(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	n := o.integer("n", 0)
	if n <= 1 || o.result(0) == nil || o.result(0).Host {
		return p
	}
	p.Transient(8)
	key := int64(4)
	if n > 100_000 {
		key = 8
	}
	iota, keys, sorted := p.Scratch(8*n), p.Scratch(key*n), p.Scratch(key*n)
	p.Drop(p.Scratch(sortTemp(n)), sorted, keys, iota)
	return p
}

// multinomial checks the probabilities, then divides exponential noise by them
// and takes the largest (native/Distributions.cpp, multinomial).
func multinomial(d *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	t := o.tensor("self")
	if t == nil {
		return p
	}
	all := make([]bool, len(t.Shape))
	for i := range all {
		all[i] = true
	}
	for range 2 { // the largest is finite, the least not negative
		a := p.Scratch(t.DType.Size())
		p.reduceTemps(d, t, all, elementOf(t.DType))
		p.Drop(p.Scratch(1), a)
	}
	_, rows := o.along(t)
	sums := p.Scratch(t.DType.Size() * rows)
	p.Drop(p.Scratch(rows), sums)
	q := p.Scratch(t.Bytes())
	p.Drop(q)
	return p
}

// repeatInterleave of counts is a running sum, a check, and the result.
func repeatInterleave(_ *Device, o *Op) (p Plan) {
	t := o.tensor("repeats")
	if t == nil {
		p.Results(len(o.Results))
		return p
	}
	sum := p.Scratch(8 * t.Numel())
	p.Transient(scanBytes(t.Numel()) + 256)
	neg := p.Scratch(t.Numel())
	p.Drop(p.Scratch(1), neg)
	p.Results(len(o.Results))
	p.Drop(sum)
	return p
}

// unique2 sorts and selects; the result's storage is as large as the input
// (native/cuda/UniqueCub.cu).
func unique2(_ *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil || t.Numel() == 0 {
		p.Results(len(o.Results))
		return p
	}
	n, e := t.Numel(), t.DType.Size()
	sorted := -1
	if base(o.Name) == "aten::_unique2" {
		pos, at := -1, -1
		inverse := o.yes("return_inverse")
		if inverse {
			pos = p.Scratch(8 * n)
		}
		sorted = p.Scratch(e * n)
		if inverse {
			at = p.Scratch(8 * n)
			p.Drop(p.Scratch((8+e)*n+61951), pos)
			p.Result(1)
			flags := p.Scratch(8 * n)
			p.Drop(p.Scratch(scanBytes(n)), flags)
		} else {
			p.Transient(e*n + 38399)
		}
		defer func() { p.Drop(at, sorted) }()
	}
	p.ResultOf(0, e*n)
	count := p.Scratch(8)
	p.Result(2)
	p.Drop(p.Scratch(scanBytes(n)), count)
	p.Result(1)
	return p
}

// bincount looks for the largest and least value first
// (native/cuda/SummaryOps.cu).
func bincount(_ *Device, o *Op) (p Plan) {
	p.Transient(8)
	p.Transient(8)
	p.Results(len(o.Results))
	return p
}

// isin sorts the test elements and the elements together when there are many
// (native/TensorCompare.cpp, isin_sorting).
func isin(_ *Device, o *Op) (p Plan) {
	p.Results(len(o.Results))
	a, b := o.tensor("elements"), o.tensor("test_elements")
	if a == nil || b == nil {
		return p
	}
	n, m := a.Numel(), b.Numel()
	if float64(m) < 10*math.Pow(float64(n), 0.145) {
		// Compared one with each other.
		p.Transient(n * m)
		return p
	}
	e := a.DType.Size()
	first, inverse := p.Scratch(e*n), p.Scratch(8*n)
	second := p.Scratch(e * m)
	all, order := p.Scratch(e*(n+m)), p.Scratch(8*(n+m))
	p.Drop(p.Scratch(8*(n+m)), order, all, second, inverse, first)
	return p
}

// roll shifts along one dimension after the other; the first steps are scratch
// (native/TensorTransformations.h, roll_common).
func roll(_ *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	if t == nil || len(o.Args["dims"].Ints) < 2 {
		return contiguousFirst("self")(nil, o)
	}
	c := p.Scratch(t.Bytes())
	p.Result(0)
	p.Drop(c)
	return p
}

// im2col pads its input.
func im2col(_ *Device, o *Op) (p Plan) {
	t := o.tensor("self")
	c := -1
	if t != nil {
		c = p.Scratch(t.Bytes())
	}
	p.Results(len(o.Results))
	p.Drop(c)
	return p
}

// nms sorts the boxes by score and compares each with each: a bit for every
// pair (torchvision csrc/ops/cuda/nms_kernel.cu, release 0.26).
func nms(_ *Device, o *Op) (p Plan) {
	b := o.tensor("dets")
	if b == nil || len(b.Shape) == 0 {
		p.Results(len(o.Results))
		return p
	}
	n := b.Shape[0]
	if n == 0 {
		p.Results(len(o.Results))
		return p
	}
	sorted, order, pos := p.Scratch(4*n), p.Scratch(8*n), p.Scratch(8*n)
	p.Drop(pos, sorted)
	boxes := p.Scratch(b.Bytes())
	mask := p.Scratch(8 * n * ceilDiv(n, 64))
	keep := p.Scratch(n)
	kept := int64(1)
	if r := o.result(0); r != nil {
		kept = r.Numel()
	}
	count := p.Scratch(4)
	p.Transient(1)
	where := p.Scratch(8 * kept)
	p.Transient(1023)
	p.Drop(count)
	p.Results(len(o.Results))
	p.Drop(where, keep, mask, boxes, order)
	return p
}

func foreachNorm(_ *Device, o *Op) (p Plan) {
	var most int64
	ts := o.Args["self"].Tensors
	for _, t := range ts {
		if t != nil {
			most = max(most, t.Numel())
		}
	}
	part := p.Scratch(NormPartials(len(ts), most))
	p.Results(len(o.Results))
	p.Drop(part)
	return p
}
