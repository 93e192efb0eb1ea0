package rmmlog

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a log of RMM says.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "the last line is believed though it is torn", File: "rmmlog.go", Test: "TestTranscripts",
			Old: "in.Torn() && (err != nil || !streams[rw.stream])", Bent: "in.Torn() && err != nil"},
		{Rule: "a pointer that is freed first was never there", File: "rmmlog.go", Test: "TestTranscripts",
			Old: "if r.action == free && r.size > 0 {", Bent: "if r.action == free && r.size > 1<<60 {"},
		{Rule: "a pointer that comes again is ignored", File: "rmmlog.go", Test: "TestTranscripts",
			Old: "lost++\n\t\t\t\tb.Free(t, id)", Bent: "lost++\n\t\t\t\tcontinue"},
		{Rule: "a failed request is left out", File: "rmmlog.go", Test: "TestTranscripts",
			Old: "b.OOM(t, r.size, b.Stream(r.stream), 0)", Bent: "_ = r.size"},
		{Rule: "the legacy stream is a stream of its own", File: "rmmlog.go", Test: "TestLegacyStream",
			Old: "if r.stream == legacyStream {", Bent: "if false {"},
		{Rule: "streams are decimal", File: "rmmlog.go", Test: "TestTranscripts|TestGolden",
			Old: "strconv.ParseUint(t, 16, 64)", Bent: "strconv.ParseUint(t, 10, 64)"},
		{Rule: "after midnight a log goes back", File: "rmmlog.go", Test: "TestTranscripts|TestGolden",
			Old: "case at < c.last-halfDay:\n\t\tc.days++", Bent: "case at < c.last-halfDay:"},
		{Rule: "any step back is midnight", File: "rmmlog.go", Test: "TestTranscripts",
			Old: "case at < c.last-halfDay:", Bent: "case at < c.last:"},
	})
}
