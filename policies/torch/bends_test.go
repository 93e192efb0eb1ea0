package torch_test

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends: what a choice tells without a run, bent answer by answer.
func TestBends(t *testing.T) {
	const file = "torch.go"
	bend.Run(t, []bend.Bend{
		{Rule: "the defaults have no name", File: file, Test: "TestSpecAnswers",
			Old: `		Title:    "PyTorch's defaults",` + "\n", Bent: `		Title:    "",` + "\n"},
		{Rule: "settings go by the name of the defaults", File: file, Test: "TestSpecAnswers",
			Old: "		s.Title = s.Options\n", Bent: ""},
		{Rule: "small pages are as large as large ones", File: file, Test: "TestSpecAnswers",
			Old: "			if small {\n				return smallBuffer\n			}\n			return c.LargeSegmentSize", Bent: "			return c.LargeSegmentSize"},
		{Rule: "large pages ignore large_segment_size_mb", File: file, Test: "TestSpecAnswers",
			Old: "			return c.LargeSegmentSize\n", Bent: "			return 20 << 20\n"},
		{Rule: "the other backend has no configuration", File: file, Test: "TestSpecAnswers",
			Old: "s.Config, s.Fraction, s.LimitOf = configured{c, v}, fractionOf(c), limitOf", Bent: "s.Fraction, s.LimitOf = fractionOf(c), limitOf"},
		{Rule: "the other backend has no limit", File: file, Test: "TestSpecAnswers", Want: "panic:",
			Old: "s.Config, s.Fraction, s.LimitOf = configured{c, v}, fractionOf(c), limitOf", Bent: "s.Config, s.Fraction = configured{c, v}, fractionOf(c)"},
		{Rule: "the other backend's limit counts what is reserved", File: file, Test: "TestAsyncByImport",
			Old: "LimitCountsUsed: true", Bent: "LimitCountsUsed: false"},
		{Rule: "every release has expandable segments", File: file, Test: "TestSpecAnswers",
			Old: "if res := conf.Check(c, v); !res.OK {", Bent: "if res := conf.Check(c, v); false && !res.OK {"},
		{Rule: "rounding is not part of the block's size", File: "rounding.go", Test: "TestSpecAnswers",
			Old: "		block = s.round(req)\n", Bent: "		block = (req + 511) &^ 511\n"},
		{Rule: "a large max_split_size is no step", File: "rounding.go", Test: "TestSpecAnswers",
			Old: "	if c.MaxSplitSize != conf.Unlimited {\n		steps", Bent: "	if false {\n		steps"},
	})
}
