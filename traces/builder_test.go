package traces

import (
	"strings"
	"testing"
)

func TestBuilderLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Builder)
		want string
	}{
		{"largest", func(b *Builder) { b.Alloc(0, MaxAlloc, 0, 0) }, ""},
		{"too large", func(b *Builder) { b.Alloc(0, MaxAlloc+1, 0, 0) }, "event 0: alloc of 1125899906842625 bytes: no device has more"},
		{"most live", func(b *Builder) {
			for range MaxLive / MaxAlloc {
				b.Alloc(0, MaxAlloc, 0, 0)
			}
			b.Free(0, 0)
			b.FreeRequested(0, 1)
			b.FreeCompleted(0, 1)
			b.Alloc(0, MaxAlloc, 0, 0)
			b.Alloc(0, MaxAlloc, 0, 0)
		}, ""},
		{"more live", func(b *Builder) {
			for range MaxLive/MaxAlloc + 1 {
				b.Alloc(0, MaxAlloc, 0, 0)
			}
		}, "event 64: 73183493944770560 bytes live at once"},
		{"failed", func(b *Builder) { b.OOM(0, MaxFailed, 0, 0) }, ""},
		{"impossible", func(b *Builder) { b.OOM(0, MaxFailed+1, 0, 0) }, "event 0: oom of 4611686018427387905 bytes"},
	} {
		b := NewBuilder(0)
		b.Stream(0)
		c.do(b)
		_, _, err := b.Build()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
