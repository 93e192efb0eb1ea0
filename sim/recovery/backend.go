package recovery

import (
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/traces"
)

// roundings are rules by which other backends' allocators round a request, as
// far as they are known to differ from CUDA's.
var roundings = []struct {
	name  string
	round func(n int64) int64
}{
	// torch_npu adds 32 bytes that the hardware may read past a tensor's end.
	{"an NPU's, (n+32) rounded up to 512", func(n int64) int64 { return (n + 32 + 511) &^ 511 }},
}

// otherBackend names the rounding rule that the final blocks of a recording
// follow if it is not CUDA's; empty if they follow CUDA's or none that is
// known.
func otherBackend(tr *traces.Trace, c conf.Config, v conf.Version) string {
	if tr.Recorded == nil || tr.Recorded.Final == nil {
		return ""
	}
	sizes := torch.SizesOf(c, v)
	for _, r := range roundings {
		blocks, odd := 0, 0
		follows := true
		for _, s := range tr.Recorded.Final.Segments {
			for _, b := range s.Blocks {
				if b.State == traces.Inactive || b.Requested <= 0 {
					continue
				}
				blocks++
				// What is left of a block is not always split off.
				whole := len(s.Blocks) == 1
				follows = follows && (b.Size == r.round(b.Requested) || whole)
				if cuda, _ := sizes(b.Requested); cuda != b.Size && !whole {
					odd++
				}
			}
		}
		if follows && odd > 0 && blocks > 0 {
			return r.name
		}
	}
	return ""
}
