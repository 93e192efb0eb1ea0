package scale

import (
	"math"
	"math/bits"
)

// This file knows one kind of scratch exactly: the buffer of a reduction over
// the rows of a matrix (the gradients of biases and norms), which PyTorch
// splits over several thread blocks when there are many rows
// (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and ReduceConfig's
// global_memory_size and semaphore_size, PyTorch 2.11).
//
// With M rows, N columns, blocks of bx × by threads and vectors of v columns:
//
//	rows per thread    t = ⌈M / by⌉; below 256 there is no buffer
//	grid               g = ⌈N / (bx·v)⌉ blocks side by side
//	blocks per column  c = max(min(⌈SMs·blocksPerSM / g⌉, ⌈t/16⌉), ⌈t/256⌉)
//	buffer             4·N·bx·v·c bytes, followed by 4·g bytes of semaphores

// grid is what the GPU contributes to c.
type grid struct {
	sms, threadsPerSM int // 0 = unknown
}

// threadsPerSM by generation: maxThreadsPerMultiProcessor of the CUDA
// programming guide's table of compute capabilities.
func gridOf(opt Options, programs []*program) grid {
	g := grid{opt.SMs, opt.ThreadsPerSM}
	card, ok := gpuOf(programs)
	if !ok {
		return g
	}
	if g.sms == 0 {
		g.sms = card.SMs
	}
	if g.threadsPerSM == 0 {
		switch card.Generation {
		case "Pascal", "Volta", "Hopper":
			g.threadsPerSM = 2048
		case "Turing":
			g.threadsPerSM = 1024
		case "Ampere": // GA100 has HBM
			g.threadsPerSM = 1536
			if len(card.MemoryKind) >= 3 && card.MemoryKind[:3] == "HBM" {
				g.threadsPerSM = 2048
			}
		case "Ada":
			g.threadsPerSM = 1536
		case "Blackwell":
			g.threadsPerSM = 1536
			if len(card.MemoryKind) >= 3 && card.MemoryKind[:3] == "HBM" {
				g.threadsPerSM = 2048
			}
		}
	}
	return g
}

// reduction is the shape of a buffer with its semaphores.
type reduction struct {
	columns int64 // N
	unit    int64 // bytes of the buffer per block: 4·N·bx·v
	grid    int64 // g
	by      int64 // block height
	blocks  int64 // c
}

// reductionOf recognises a buffer of size bytes followed by semaphores of sem
// bytes. ok is false when they are not of that form.
func reductionOf(size, sem int64) (r reduction, ok bool) {
	if sem <= 0 || sem%4 != 0 || sem > 4*4096 || size <= sem || size%4 != 0 {
		return r, false
	}
	g := sem / 4
	for _, v := range []int64{4, 2, 1} {
		threads := 512 / v
		for bx := int64(32); bx >= 1; bx /= 2 {
			w := bx * v
			if size%(4*w) != 0 {
				continue
			}
			nc := size / (4 * w) // N·c
			// N lies in (w·(g-1), w·g], and whole vectors are likeliest.
			for n := w * g; n > w*(g-1); n-- {
				if nc%n != 0 || nc/n < 2 || vector(n) != v || min(32, pow2(n/v)) != bx {
					continue
				}
				return reduction{columns: n, unit: 4 * n * w, grid: g, by: threads / bx, blocks: nc / n}, true
			}
		}
	}
	return r, false
}

// vector is the number of columns a thread takes.
func vector(n int64) int64 {
	switch {
	case n%4 == 0:
		return 4
	case n%2 == 0:
		return 2
	}
	return 1
}

// pow2 is the largest power of two ≤ n; 0 for n < 1.
func pow2(n int64) int64 {
	if n < 1 {
		return 0
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// cap is the most blocks per column that the GPU's size calls for; 0 when it
// is unknown.
func (g grid) cap(r reduction) int64 {
	if g.sms == 0 || g.threadsPerSM == 0 {
		return 0
	}
	v := vector(r.columns)
	bx := min(32, pow2(r.columns/v))
	perSM := int64(g.threadsPerSM) / (bx * r.by)
	return ceilDiv(int64(g.sms)*perSM, r.grid)
}

// blocksFor is c for a number of rows; 0 when there is no buffer. limit is
// cap's result, 0 for none.
func (r reduction) blocksFor(rows, limit int64) int64 {
	t := ceilDiv(rows, r.by)
	if t < 256 {
		return 0
	}
	c := ceilDiv(t, 16)
	if limit > 0 {
		c = min(c, limit)
	}
	return max(c, ceilDiv(t, 256))
}

// rowsRange is the range of M for which blocksFor gives the recorded number of
// blocks; empty (lo > hi) when none does.
func (r reduction) rowsRange(limit int64) (lo, hi int64) {
	const most = int64(1) << 40
	switch {
	case limit > 0 && r.blocks > limit: // ⌈t/256⌉ decides
		return 256*r.by*(r.blocks-1) + 1, 256 * r.by * r.blocks
	case limit > 0 && r.blocks == limit: // anything from reaching it on
		return max(16*r.by*(r.blocks-1), 255*r.by) + 1, min(256*r.by*r.blocks, most)
	default:
		return max(16*r.by*(r.blocks-1), 255*r.by) + 1, 16 * r.by * r.blocks
	}
}

// rowsPerValue narrows the rows per unit of the varied quantity, k in M = k·x,
// to the range that explains the buffers rs recorded at xs (blocks 0 = no
// buffer at that value). ok is false when no proportional law does.
func rowsPerValue(xs []int64, rs []reduction, limit int64) (lo, hi float64, ok bool) {
	lo, hi = 0, math.Inf(1)
	for i, r := range rs {
		l, h := int64(1), 255*r.by
		if r.blocks > 0 {
			l, h = r.rowsRange(limit)
		}
		lo, hi = max(lo, float64(l)/float64(xs[i])), min(hi, float64(h)/float64(xs[i]))
	}
	return lo, hi, lo <= hi
}
