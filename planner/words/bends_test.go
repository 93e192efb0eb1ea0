package words

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what is said of an answer.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "a part of a run has nothing to change", File: "tuning.go", Test: "TestHeadlines",
			Old: "case t.Verdict == planner.Undecidable:", Bent: "case false:"},
		{Rule: "what cannot fit is not said to be missing", File: "tuning.go", Test: "TestHeadlines",
			Old: "case t.Verdict == planner.CannotFit:", Bent: "case false:"},
		{Rule: "what fails some requests works", File: "tuning.go", Test: "TestHeadlines",
			Old: "return !c.Completed || c.NumOOMs > 0", Bent: "return !c.Completed"},
		{Rule: "what ends early works", File: "tuning.go", Test: "TestHeadlines",
			Old: "return !c.Completed || c.NumOOMs > 0", Bent: "return c.NumOOMs > 0"},
		{Rule: "a best setting that fails is a cure", File: "tuning.go", Test: "TestHeadlines",
			Old: "case fails(best):", Bent: "case false:"},
		{Rule: "a failing program is told what it could save", File: "tuning.go", Test: "TestHeadlines",
			Old: "case fails(now):", Bent: "case false:"},
		{Rule: "a cure that is not reliable is one", File: "tuning.go", Test: "TestHeadlines",
			Old: "case t.Verdict == planner.Tight:", Bent: "case false:"},
		{Rule: "savings are a share of what is left", File: "tuning.go", Test: "TestHeadlines",
			Old: "100*float64(saved)/float64(now.ReservedPeak)", Bent: "100*float64(saved)/float64(best.ReservedPeak)"},
		{Rule: "a setting that saves nothing saves", File: "tuning.go", Test: "TestHeadlines",
			Old: "now.ReservedPeak > 0 && now.ReservedPeak > best.ReservedPeak", Bent: "now.ReservedPeak >= best.ReservedPeak"},
		{Rule: "a line to set is lost", File: "tuning.go", Test: "TestHeadlines",
			Old: `if a.Short == "" {`, Bent: `if a.Short != "" {`},
		{Rule: "a doubt is said twice", File: "tuning.go", Test: "TestHeadlines",
			Old: `t.Evidence.Doubt+" "`, Bent: `t.Evidence.Doubt+"  "`},

		{Rule: "a peak that was not sampled has a worst case", File: "tuning.go", Test: "TestSettings",
			Old: "if c.Span != nil {", Bent: "if true {"},
		{Rule: "the worst case is that of one order", File: "tuning.go", Test: "TestSettings",
			Old: "Size(c.Upper())", Bent: "Size(c.ReservedPeak)"},
		{Rule: "a run that was ended early has its peak", File: "tuning.go", Test: "TestSettings",
			Old: `"≥ " + s.Reserved.Text`, Bent: `"" + s.Reserved.Text`},
		{Rule: "an approximation is not called so", File: "tuning.go", Test: "TestSettings",
			Old: "case c.Approximate:", Bent: "case false:"},
		{Rule: "a setting is shown twice", File: "tuning.go", Test: "TestSettings",
			Old: "c.Conf == t.Best.Conf || c.Conf == t.Baseline.Conf", Bent: "c.Conf == t.Best.Conf"},
		{Rule: "expandable segments are left out", File: "tuning.go", Test: "TestSettings",
			Old: "shown < top || c.Known && top > 0", Bent: "shown < top"},
		{Rule: "expandable segments come where no list is asked for", File: "tuning.go", Test: "TestSettings",
			Old: "shown < top || c.Known && top > 0", Bent: "shown < top || c.Known"},
		{Rule: "lines without a worst case are not explained", File: "tuning.go", Test: "TestSettings",
			Old: "if !rows[i].Sampled() {", Bent: "if rows[i].Sampled() && false {"},
		{Rule: "a model that agrees differs", File: "tuning.go", Test: "TestSettings",
			Old: "t.Modelled == nil || t.Modelled.ReservedPeak == t.Baseline.ReservedPeak", Bent: "t.Modelled == nil"},
		{Rule: "milliseconds are microseconds", File: "../../internal/text/text.go", Test: "TestCells",
			Old: "x/1e3)", Bent: "x)"},

		{Rule: "missing headroom is shown as if it were there", File: "planning.go", Test: "TestCards",
			Old: "Size(g.Headroom)", Bent: "Size(max(g.Headroom, -g.Headroom))"},
		{Rule: "headroom that depends is a single figure", File: "planning.go", Test: "TestCards",
			Old: "g.Headroom < 0 && g.HeadroomHigh >= 0", Bent: "false"},
		{Rule: "headroom on an unknown card is a number", File: "planning.go", Test: "TestCards",
			Old: "case gpus.Unknown:", Bent: `case "none":`},
		{Rule: "a card that cannot be judged has headroom", File: "planning.go", Test: "TestCards",
			Old: "case gpus.Undecidable:", Bent: `case "none":`},
		{Rule: "a card's own setting is the best one", File: "planning.go", Test: "TestCards",
			Old: "if g.Conf != best {", Bent: "if false {"},
		{Rule: "the least is exact", File: "planning.go", Test: "TestPlanning",
			Old: `return "≥ " + bytesize.FormatUp(n)`, Bent: "return bytesize.FormatUp(n)"},
		{Rule: "what is missing is not said", File: "planning.go", Test: "TestPlanning",
			Old: "if e.Complete() {\n\t\treturn \"\"", Bent: "if true {\n\t\treturn \"\""},
		{Rule: "the setting of a card is not said", File: "planning.go", Test: "TestPlanning",
			Old: "if c.Conf != p.Baseline {", Bent: "if false {"},
		{Rule: "the smallest cards that do not fit are news", File: "planning.go", Test: "TestChosenCards",
			Old: "seen[gpus.No] <= tooSmall-misses", Bent: "seen[gpus.No] > misses+0*tooSmall"},
		{Rule: "the dearest card comes first", File: "planning.go", Test: "TestChosenCards",
			Old: "cmp.Compare(*a.Price, *b.Price)", Bent: "cmp.Compare(*b.Price, *a.Price)"},
		{Rule: "cards are not in order of size", File: "planning.go", Test: "TestChosenCards",
			Old: "cmp.Compare(a.Usable, b.Usable)", Bent: "cmp.Compare(b.Usable, a.Usable)"},
	})
}
