package kineto

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a profiler trace says.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "memory of the host is memory of the GPU", File: "kineto.go", Test: "TestTranscripts",
			Old: "if a.DeviceType.v != deviceCUDA {", Bent: "if a.DeviceType.v < 0 {"},
		{Rule: "what was live before the first event is forgotten", File: "kineto.go", Test: "TestTranscripts",
			Old: "if rest > 0 {\n\t\t\tb.Alloc(0, rest, stream, 0)", Bent: "if rest > 1<<62 {\n\t\t\tb.Alloc(0, rest, stream, 0)"},
		{Rule: "a block that is freed first was never there", File: "kineto.go", Test: "TestTranscripts",
			Old: "if e.bytes < 0 {\n\t\t\t\tstart", Bent: "if e.bytes < -1<<60 {\n\t\t\t\tstart"},
		{Rule: "an address that comes again is ignored", File: "kineto.go", Test: "TestTranscripts",
			Old: "// The address proves that it was freed.\n\t\t\t\tlost++\n\t\t\t\tb.Free(t, old.id)", Bent: "lost++"},
		{Rule: "times are read as floating point", File: "kineto.go", Test: "TestTranscripts|TestOrder",
			Old: "return us*1000 + int64(ns), nil", Bent: "return us * 1000, nil"},
		{Rule: "an event without a time comes first", File: "kineto.go", Test: "TestTranscripts|TestOrder",
			Old: "ev[i].ts = prev\n", Bent: "ev[i].ts = min(prev, 1)\n"},
		{Rule: "totals that do not follow pass unnoticed", File: "kineto.go", Test: "TestTranscripts",
			Old: "e.allocated-e.bytes != lastBase", Bent: "e.allocated < 0"},
		{Rule: "an empty_cache that totals show is missed", File: "segments.go", Test: "TestTranscripts|TestRecording",
			Old: "case step == -unused:", Bent: "case step == -unused && unused > 1<<60:"},
		{Rule: "a request of 10 MiB takes 20", File: "segments.go", Test: "TestRecording|TestTranscripts",
			Old: "case block < minLarge:", Bent: "case block < 2*minLarge:"},
		{Rule: "a mark's end is a start", File: "kineto.go", Test: "TestTranscripts",
			Old: "mark{ts + dur, e.Name, true}", Bent: "mark{ts + dur, e.Name, false}"},
	})
}
