package native

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a plain trace says.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "rows need not be in order of time", File: "native.go", Test: "TestTranscripts",
			Old: "if r.time < a.prev {", Bent: "if r.time < 0 {"},
		{Rule: "a block may be allocated twice", File: "native.go", Test: "TestTranscripts",
			Old: "if l, ok := a.find(r.id); ok {", Bent: "if l, ok := a.find(r.id); ok && l.id < 0 {"},
		{Rule: "a block may be freed twice", File: "native.go", Test: "TestFreedTwice",
			Old: "a.b.Free(t, l.id)\n\t\t\ta.drop(r.id)", Bent: "a.b.Free(t, l.id)"},
		{Rule: "a free completes without a request", File: "native.go", Test: "TestTranscripts",
			Old: "case !l.pending && r.kind == traces.FreeCompleted:", Bent: "case !l.pending && r.kind == traces.FreeCompleted && l.id < 0:"},
		{Rule: "times of a clock are times since the start", File: "native.go", Test: "TestTranscripts",
			Old: "if a.meta.startUS == 0 && r.time >= epochTime {", Bent: "if a.meta.startUS == 0 && r.time < 0 {"},
		{Rule: "the state at the start is lost", File: "native.go", Test: "TestRoundTrip",
			Old: "t.StartEvents = n", Bent: "_ = n"},
		{Rule: "a trace loses its addresses in silence", File: "native.go", Test: "TestLossesStayWithTheFile|TestTranscripts",
			Old: "if t.Recorded != nil {\n\t\tl = append", Bent: "if t.Recorded != nil && t.NumBlocks < 0 {\n\t\tl = append"},
	})
}
