package recovery_test

import (
	"testing"

	"allocsim/internal/bend"
)

// TestControls bends one rule of the allocator at a time and demands that
// TestExact then fails: a check that cannot fail proves nothing.
func TestControls(t *testing.T) {
	torch := func(rule, file, old, bent string) bend.Bend {
		return bend.Bend{Rule: rule, File: "../../policies/torch/" + file, Old: old, Bent: bent, Test: "TestExact", Want: "not exact"}
	}
	bend.Run(t, []bend.Bend{
		torch("a remainder of exactly 1 MiB is split", "torch.go", "= smallSize+1, p.conf.MaxSplitSize", "= smallSize, p.conf.MaxSplitSize"),
		torch("a request of 10 MiB takes a 20 MiB segment", "rounding.go", "case size < minLargeAlloc:", "case size <= minLargeAlloc:"),
		torch("a request of 1 MiB counts as large", "malloc.go", "uint(smallSize-size) >> 63", "uint(smallSize-1-size) >> 63"),
		torch("first fit instead of best fit", "malloc.go", "i, e, group, class := s.find(size)", firstFit),
		torch("highest instead of lowest address", "freeset.go", "bits.Sub64(blocks[y].addr, blocks[x].addr, 0)", "bits.Sub64(blocks[x].addr, blocks[y].addr, 0)"),
		torch("garbage collection takes only blocks older than the average", "release.go", "float64(age) < oldest", "float64(age) <= oldest"),
		torch("no walk over expandable blocks", "expandable.go", "for i != 0 && p.blocks[i].seg != noSeg {\n\t\t// Only", "for false {\n\t\t// Only"),
		torch("inactive_split counts merges one by one", "free.go", "pieces--\n\t\tbytes -= p.absorb(s, b, i, j)\n\t}\n\tif j := b.next", "p.countSplits(s, -1, 0)\n\t\tbytes -= p.absorb(s, b, i, j)\n\t}\n\tif j := b.next"),
		torch("the small pool is flushed first", "release.go", "[...]int{1, 0}", "[...]int{0, 1}"),
		torch("a limit that is met exactly fails", "malloc.go", "p.total+a > p.limit", "p.total+a >= p.limit"),
	})
}

const firstFit = `i, e, group, class := uint32(0), (*sizeClass)(nil), uint(0), uint(0)
	for _, k := range s.appendSorted(nil, p.blocks, size, func(*block) bool { return true }) {
		if i == 0 || p.blocks[k].addr < p.blocks[i].addr {
			i = k
		}
	}`
