package nsys

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what an Nsight Systems export says.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "host memory is device memory", File: "nsys.go", Test: "TestTranscripts",
			Old: "case kind == kindPageable || kind == kindPinned:", Bent: "case kind == kindPageable:"},
		{Rule: "the file's own names of operations are ignored", File: "nsys.go", Test: "TestTranscripts",
			Old: `strings.Contains(name, "dealloc") || strings.Contains(name, "free")`, Bent: `strings.Contains(name, "nothing")`},
		{Rule: "two processes share their addresses", File: "nsys.go", Test: "TestTranscripts",
			Old: "e.process = e.process >> 24 & 0xffffff", Bent: "e.process = 0"},
		{Rule: "an address that comes again is ignored", File: "nsys.go", Test: "TestTranscripts",
			Old: "lost++\n\t\t\t\tb.Free(t, id)", Bent: "lost++"},
		{Rule: "a block that is freed first was never there", File: "nsys.go", Test: "TestTranscripts",
			Old: "if !e.alloc && e.bytes > 0 {", Bent: "if !e.alloc && e.bytes > 1<<60 {"},
		{Rule: "CUDA's numbers are the machine's", File: "nsys.go", Test: "TestTranscripts",
			Old: `if to["gpuid"] && to["cudaid"] {`, Bent: "if to[\"nothing\"] {"},
	})
}
