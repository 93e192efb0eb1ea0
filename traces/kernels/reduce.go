package kernels

import "slices"

// Reduction is the staging buffer of fp32 partials and the array of semaphores,
// in bytes, that a sum takes besides its result when it is split over thread
// blocks; 0 and 0 when it is not. red marks the reduced dimensions of a tensor
// with 16- or 32-bit elements.
func Reduction(sms int64, shape, stride []int64, red []bool) (staging, semaphores int64) {
	return reduction(sms, shape, stride, red, reducer{partial: 4, vector: 4})
}

// reducer is what differs between reductions: the bytes of a partial result and
// the elements of a vectorized load.
type reducer struct{ partial, vector int64 }

// reduction is Reduction of any reducer.
//
// Source: native/cuda/Reduce.cuh (setReduceConfig, ReduceConfig::global_memory_size
// and semaphore_size), with the dimension order and coalescing of TensorIterator.
func reduction(sms int64, shape, stride []int64, red []bool, r reducer) (staging, semaphores int64) {
	type dim struct {
		n, in, out int64
		red        bool
	}
	var dims []dim
	for i := range shape {
		if shape[i] == 1 {
			continue
		}
		dims = append(dims, dim{n: shape[i], in: stride[i], red: red[i]})
	}
	// Reduced dimensions first, each group by ascending input stride.
	slices.SortStableFunc(dims, func(a, b dim) int {
		if a.red != b.red {
			if a.red {
				return -1
			}
			return 1
		}
		return int(min(max(a.in-b.in, -1), 1))
	})
	o := int64(1)
	for i := range dims {
		if !dims[i].red {
			dims[i].out = o
			o *= dims[i].n
		}
	}
	var co []dim
	for _, d := range dims {
		if k := len(co) - 1; k >= 0 && co[k].red == d.red && co[k].n*co[k].in == d.in && co[k].n*co[k].out == d.out {
			co[k].n *= d.n
			continue
		}
		co = append(co, d)
	}
	nRed, inputs, outputs := 0, int64(1), int64(1)
	for _, d := range co {
		if d.red {
			nRed++
			inputs *= d.n
		} else {
			outputs *= d.n
		}
	}
	if nRed == 0 {
		return 0, 0
	}
	fastest := nRed == len(co) || co[0].in < co[nRed].in
	var d0, d1, fastStride int64
	if fastest {
		d0, d1, fastStride = inputs, outputs, co[0].in
	} else {
		d0, d1, fastStride = outputs, inputs, co[nRed].in
	}
	ov := int64(1)
	if fastStride == 1 {
		if fastest {
			if d0 > 128 && len(co) == 1 {
				d0 /= r.vector // vectorized along the input
			}
		} else {
			ov = 4
			shrink := func(n int64) {
				for n%ov != 0 {
					ov /= 2
				}
			}
			shrink(co[nRed].n)
			for i, d := range co {
				if i != nRed {
					shrink(d.in)
				}
			}
			d0 /= ov
		}
	}
	maxT := 512 / ov
	p2 := func(x int64) int64 {
		if x >= maxT {
			return maxT
		}
		p := int64(1)
		for p*2 <= x {
			p *= 2
		}
		return p
	}
	bw := min(p2(d0), 32)
	bh := min(p2(d1), maxT/bw)
	bw = min(p2(d0), maxT/bh)
	stepIn, stepOut := int64(1), int64(1)
	blockX := false // should_block_x_reduce
	if fastest {
		stepIn *= bw
		blockX = true
	} else {
		stepOut *= bw
	}
	vpt := func() int64 { return ceilDiv(inputs, stepIn) }
	blockY := vpt() >= bh*16 || vpt() >= 256
	if blockY {
		stepIn *= bh
	} else {
		stepOut *= bh
	}
	target := sms * (2048 / (bw * bh))
	grid := ceilDiv(outputs/ov, stepOut)
	if !blockY || vpt() < 256 || grid > target {
		return 0, 0
	}
	c := max(min(ceilDiv(target, grid), ceilDiv(vpt(), 16)), ceilDiv(vpt(), 256))
	if c <= 1 {
		return 0, 0
	}
	staging = r.partial * outputs * c
	if !blockX {
		staging *= bw * ov
	}
	return staging, 4 * grid
}
