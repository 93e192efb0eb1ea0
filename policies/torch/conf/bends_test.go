package conf

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends the rules of the two readers one by one.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "PyTorch 2.1 has no expandable segments", File: "keys.go", Test: "TestReleases",
			Old: `Name: "expandable_segments", Type: Bool, Default: "False", Since: Version{2, 1}`, Bent: `Name: "expandable_segments", Type: Bool, Default: "False", Since: Version{2, 2}`},
		{Rule: "PyTorch 2.10 takes large_segment_size_mb", File: "keys.go", Test: "TestReleases",
			Old: "Since: Version{2, 11}", Bent: "Since: Version{2, 10}"},
		{Rule: "a key that was removed is still taken", File: "keys.go", Test: "TestReleases",
			Old: "(k.Until == Version{} || v.Compare(k.Until) <= 0)", Bent: "true"},
		{Rule: "PyTorch 2.4 leaves sizes unrounded with one division", File: "version.go", Test: "TestRules",
			Old: "!v.AtLeast(2, 4)", Bent: "!v.AtLeast(2, 5)"},
		{Rule: "PyTorch 2.9 has no limit at a fraction of 1.0", File: "version.go", Test: "TestRules",
			Old: "FractionOneLimits:     !v.AtLeast(2, 10)", Bent: "FractionOneLimits:     !v.AtLeast(2, 9)"},
		{Rule: "PyTorch 2.5 collects expandable blocks", File: "version.go", Test: "TestRules",
			Old: "!v.AtLeast(2, 5)", Bent: "!v.AtLeast(2, 6)"},
		{Rule: "PyTorch 2.10 reads strings as 2.9 does", File: "version.go", Test: "TestReleases",
			Old: "func (v Version) sharedParser() bool { return v.AtLeast(2, 10) }", Bent: "func (v Version) sharedParser() bool { return v.AtLeast(2, 11) }"},
		{Rule: "max_split_size_mb may be 20 before 2.10", File: "version.go", Test: "TestReleases",
			Old: "large/mib + 1", Bent: "large / mib"},
		{Rule: "requests of 2 MiB fall into the interval below", File: "config.go", Test: "TestRoundupInterval",
			Old: "bits.Len64(uint64(size))-21", Bent: "bits.Len64(uint64(size-1))-21"},
		{Rule: "the generic variable wins in 2.11", File: "env.go", Test: "TestTranscripts",
			Old: "order = []string{varCUDA, varHIP, varGeneric}", Bent: "order = []string{varGeneric, varCUDA, varHIP}"},
		{Rule: "a variable that is set but empty does not count", File: "env.go", Test: "TestTranscripts",
			Old: "value, set := env[name]; set {\n\t\t\tc.Variable", Bent: "value, set := env[name]; set && value != \"\" {\n\t\t\tc.Variable"},
		{Rule: "PYTORCH_NO_CUDA_MEMORY_CACHING=0 turns caching off in 2.7", File: "env.go", Test: "TestCachingOff",
			Old: "!v.AtLeast(2, 7)", Bent: "!v.AtLeast(2, 8)"},
		{Rule: "a garbage collection threshold of 1 is taken", File: "keys.go", Test: "TestTranscripts",
			Old: "!(x > 0 && x < 1)", Bent: "!(x > 0 && x <= 1)"},
		{Rule: "large_segment_size_mb counts only for what follows it", File: "lenient.go", Test: "TestAgainstPyTorch|TestLargeSegmentFirst",
			Old: "l.c.MaxNonSplitRounding = l.c.LargeSegmentSize", Bent: "l.c.LargeSegmentSize = 20 * mib"},
		{Rule: "the slack does not follow the segment size", File: "lenient.go", Test: "TestLargeSegmentFirst",
			Old: "l.c.MaxNonSplitRounding = l.c.LargeSegmentSize", Bent: "_ = l.c.MaxNonSplitRounding"},
		{Rule: "the first entry of a list leaves smaller sizes alone", File: "lenient.go", Test: "TestAgainstPyTorch",
			Old: "for j := range last {\n\t\t\t\t\ttable[j]", Bent: "for range last {\n\t\t\t\t\ttable[last]"},
		{Rule: "the rest of a list starts at the last size", File: "lenient.go", Test: "TestAgainstPyTorch",
			Old: "\t\t\t\tfrom++", Bent: ""},
		{Rule: "a number must be digits only for PyTorch", File: "lenient.go", Test: "TestAgainstPyTorch",
			Old: "`^([+-]?)([0-9]+)`", Bent: "`^([+-]?)([0-9]+)$`"},
		{Rule: "tabs stay in the string in 2.11", File: "lenient.go", Test: "TestAgainstPyTorch",
			Old: "v.sharedParser() && c >= '\\t' && c <= '\\r'", Bent: "false"},
		{Rule: "the first of two equal keys wins", File: "lenient.go", Test: "TestLastWins",
			Old: "k.setInt(&l.c, mebibytes(n))", Bent: "if l.c.MaxSplitSize == Unlimited { k.setInt(&l.c, mebibytes(n)) }"},
		{Rule: "PyTorch takes true for True", File: "lenient.go", Test: "TestAgainstPyTorch",
			Old: `value != "True" && value != "False"`, Bent: `!strings.EqualFold(value, "True") && value != "False"`},
		{Rule: "a gigabyte is 1000 MiB", File: "value.go", Test: "TestTranscripts",
			Old: `"g": 1024, "gb": 1024`, Bent: `"g": 1000, "gb": 1000`},
		{Rule: "a percentage is not divided by a hundred", File: "value.go", Test: "TestTranscripts",
			Old: `k.badFraction(x/100) == "" {
			p.errorf(at, "write "+k.Name+":"+s, "a percentage`, Bent: `k.badFraction(x) == "" {
			p.errorf(at, "write "+k.Name+":"+s, "a percentage`},
		{Rule: "a fraction of 1.0 is a limit for garbage collection", File: "hints.go", Test: "TestTranscripts",
			Old: "hasFraction && c.PerProcessMemoryFraction < 1:", Bent: "hasFraction && c.PerProcessMemoryFraction <= 1:"},
		{Rule: "no word about max_split_size_mb with expandable segments", File: "hints.go", Test: "TestTranscripts",
			Old: "c.ExpandableSegments && hasSplit && !unlimited", Bent: "c.ExpandableSegments && hasSplit && unlimited"},
		{Rule: "no word about garbage collection with expandable segments", File: "hints.go", Test: "TestTranscripts",
			Old: "c.ExpandableSegments && p.v.AtLeast(2, 5):", Bent: "c.ExpandableSegments && p.v.AtLeast(2, 12):"},
		{Rule: "a string is as old as its oldest option", File: "parse.go", Test: "TestReleases|TestTranscripts",
			Old: "if a.Compare(b) < 0 {\n\t\treturn b", Bent: "if a.Compare(b) > 0 {\n\t\treturn b"},
		{Rule: "a repair that is not OK is offered", File: "parse.go", Test: "TestTranscripts|TestAnyString",
			Old: "again.OK {\n\t\t\tr.Fixable", Bent: "true || again.OK {\n\t\t\tr.Fixable"},
	})
}
