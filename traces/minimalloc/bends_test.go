package minimalloc

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a minimalloc problem says.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "an inclusive end is exclusive", File: "minimalloc.go", Test: "TestRead",
			Old: "if h.inclusive {\n\t\tb.Upper++", Bent: "if false {\n\t\tb.Upper++"},
		{Rule: "a buffer may end before it starts", File: "minimalloc.go", Test: "TestNoLife",
			Old: "if b.Lower >= b.Upper {", Bent: "if b.Lower > b.Upper {"},
		{Rule: "gaps may overlap", File: "minimalloc.go", Test: "TestRead",
			Old: "g.Lower < at || g.Lower >= g.Upper", Bent: "g.Lower < at-1<<40 || g.Lower >= g.Upper"},
		{Rule: "a gap's window may leave the buffer", File: "minimalloc.go", Test: "TestRead",
			Old: " || g.WindowUpper > b.Size", Bent: ""},
		{Rule: "an alignment is not written", File: "minimalloc.go", Test: "TestRoundTrip",
			Old: "alignment = alignment || b.Alignment > 1", Bent: "alignment = alignment || b.Alignment > 1<<60"},
	})
}
