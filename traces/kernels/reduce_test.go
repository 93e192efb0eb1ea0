package kernels

import (
	"testing"

	"pgregory.net/rapid"
)

// TestReductionOfRows compares the general rule for split reductions with the
// closed form for sums over rows.
func TestReductionOfRows(t *testing.T) {
	p2 := func(x, most int64) int64 {
		p := int64(1)
		for p*2 <= x && p*2 <= most {
			p *= 2
		}
		return p
	}
	rapid.Check(t, func(t *rapid.T) {
		m, n := rapid.Int64Range(1, 20000).Draw(t, "m"), rapid.Int64Range(2, 20000).Draw(t, "n")
		ov := int64(1)
		if n%4 == 0 {
			ov = 4
		} else if n%2 == 0 {
			ov = 2
		}
		mx, d0 := 512/ov, n/ov
		bw := min(p2(d0, mx), 32)
		bh := min(p2(m, mx), mx/bw)
		bw = min(p2(d0, mx), mx/bh)
		var wantS, wantSem int64
		vpt, gx := ceilDiv(m, bh), ceilDiv(ceilDiv(n, ov), bw)
		target := 132 * (2048 / (bw * bh))
		if m >= min(16*bh, 256) && vpt >= 256 || m >= min(16*bh, 256) && vpt >= 16 {
			if vpt >= 256 && gx <= target {
				c := max(min(ceilDiv(target, gx), ceilDiv(vpt, 16)), ceilDiv(vpt, 256))
				if c > 1 {
					wantS, wantSem = 4*n*c*bw*ov, 4*gx
				}
			}
		}
		s, sem := Reduction(132, []int64{m, n}, []int64{n, 1}, []bool{true, false})
		if m > 1 && (s != wantS || sem != wantSem) {
			t.Fatalf("[%d,%d]: %d and %d bytes, closed form %d and %d", m, n, s, sem, wantS, wantSem)
		}
	})
}
