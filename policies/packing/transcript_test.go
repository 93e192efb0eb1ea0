package packing

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestPack shows placements.
func TestPack(t *testing.T) {
	datadriven.RunTest(t, "testdata/pack.txt", func(t *testing.T, d *datadriven.TestData) string {
		var opt Options
		d.MaybeScanArgs(t, "capacity", &opt.Capacity)
		var bs []Buffer
		for line := range strings.Lines(d.Input) {
			b := Buffer{ID: int64(len(bs))}
			if n, err := fmt.Sscan(line, &b.Lower, &b.Upper, &b.Size, &b.Alignment); n < 3 {
				d.Fatalf(t, "%q: %v", line, err)
			}
			bs = append(bs, b)
		}
		p, err := Pack(context.Background(), bs, opt)
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		if err := Verify(bs, p.Offsets, p.Height); err != nil {
			d.Fatalf(t, "%v", err)
		}
		out := fmt.Sprintf("offsets %v\nheight %d, most live %d, proved %d, by %s\n", p.Offsets, p.Height, p.Bound, p.LowerBound, p.Heuristic)
		if opt.Capacity > 0 {
			out += fmt.Sprintf("in %d: %s\n", opt.Capacity, p.Verdict(opt.Capacity))
		}
		return out
	})
}
