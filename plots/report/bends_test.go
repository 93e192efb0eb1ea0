package report

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what the report says first, and what its figures are made of.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "more than needed is a share of what is reserved", File: "report.go", Test: "TestWrongByHand",
			Old: "100*float64(peak-bound)/float64(bound)", Bent: "100*float64(peak-bound)/float64(peak)"},
		{Rule: "the last failed request is told", File: "report.go", Test: "TestWrongByHand",
			Old: "o := &r.OOMs[0]", Bent: "o := &r.OOMs[len(r.OOMs)-1]"},
		{Rule: "the allocator's limit is called the device's size", File: "report.go", Test: "TestWrongByHand",
			Old: "sim.CauseLimit:         \"The allocator's own memory limit", Bent: "sim.CauseLimit:         \"The device's memory"},
		{Rule: "a part of a run has nothing to change", File: "report.go", Test: "TestHeadlines",
			Old: "case t.Verdict == planner.Undecidable:", Bent: "case false:"},
		{Rule: "what cannot fit is not said to be missing", File: "report.go", Test: "TestHeadlines",
			Old: "case t.Verdict == planner.CannotFit:", Bent: "case false:"},
		{Rule: "a best setting that fails is a cure", File: "report.go", Test: "TestHeadlines",
			Old: "case !best.Completed || best.NumOOMs > 0:", Bent: "case !best.Completed:"},
		{Rule: "a failing program is told what it could save", File: "report.go", Test: "TestHeadlines",
			Old: "case !now.Completed || now.NumOOMs > 0:", Bent: "case !now.Completed:"},
		{Rule: "savings are a share of what is left", File: "report.go", Test: "TestHeadlines",
			Old: "100*float64(now.ReservedPeak-best.ReservedPeak)/float64(now.ReservedPeak)", Bent: "100*float64(now.ReservedPeak-best.ReservedPeak)/float64(best.ReservedPeak)"},
		{Rule: "a setting that saves nothing saves", File: "report.go", Test: "TestHeadlines",
			Old: "now.ReservedPeak > 0 && now.ReservedPeak > best.ReservedPeak", Bent: "now.ReservedPeak >= best.ReservedPeak"},
		{Rule: "a peak that was not sampled has a worst case", File: "report.go", Test: "TestHeadlines",
			Old: `cell{"not sampled", ""}`, Bent: `cell{size(c.ReservedPeak), ""}`},
		{Rule: "cards are judged by the peak of one address order", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "needs = []int64{t.Baseline.Upper()}", Bent: "needs = []int64{t.Baseline.ReservedPeak}"},
		{Rule: "a card that fits now is told another setting", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "v.Verdict != gpus.Fits {", Bent: "v.Verdict != gpus.Unknown {"},
		{Rule: "the peak of a run that failed is what it needs", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "!t.Baseline.Completed || t.Baseline.NumOOMs > 0 {", Bent: "!t.Baseline.Completed {"},
		{Rule: "a thorough report is kept short", File: "report.go", Test: "TestSearchKeptShort",
			Old: "!b.o.Thorough && b.events > usual", Bent: "b.events > usual"},
		{Rule: "a setting is shown twice", File: "report.go", Test: "TestSettingsShown",
			Old: "if seen[s.String()] {", Bent: "if false {"},

		{Rule: "missing headroom is shown as if it were there", File: "tables.go", Test: "TestCells",
			Old: `cell{"−" + size(-n), fmt.Sprint(n)}`, Bent: `cell{"+" + size(-n), fmt.Sprint(n)}`},
		{Rule: "headroom on an unknown card is a number", File: "tables.go", Test: "TestCells",
			Old: "case usable <= 0:", Bent: "case usable < 0:"},
		{Rule: "milliseconds are microseconds", File: "../../internal/text/text.go", Test: "TestCells",
			Old: "x/1e3)", Bent: "x)"},
		{Rule: "a run that was ended early has its peak", File: "tables.go", Test: "TestSettingsTable",
			Old: "peak.Text = \"≥ \" + peak.Text", Bent: "peak.Text += \"\""},
		{Rule: "the worst case is that of one order", File: "tables.go", Test: "TestSettingsTable",
			Old: "up = sizeCell(c.Upper())", Bent: "up = sizeCell(c.ReservedPeak)"},
		{Rule: "an approximation is not called so", File: "tables.go", Test: "TestSettingsTable",
			Old: "case c.Approximate:", Bent: "case false:"},

		{Rule: "the curves lose their peaks", File: "encode.go", Test: "TestCurvesKeepPeaks",
			Old: "c[i].Max/unit", Bent: "c[i].Last/unit"},
		{Rule: "the curves lose their lowest values", File: "encode.go", Test: "TestCurvesKeepPeaks",
			Old: "c[i].Min/unit", Bent: "c[i].Max/unit"},
		{Rule: "the top is that of the last curve", File: "encode.go", Test: "TestCurvesKeepPeaks",
			Old: "p.Top = max(p.Top, c.Max())", Bent: "p.Top = min(max(p.Top, 1), c.Max())"},
		{Rule: "the map has the first blocks", File: "encode.go", Test: "TestPickOfSmallWorlds",
			Old: "cmp.Or(cmp.Compare(area(b), area(a)), cmp.Compare(a, b))", Bent: "cmp.Or(0*cmp.Compare(area(b), area(a)), cmp.Compare(a, b))"},
		{Rule: "a block ends when its free is requested only", File: "encode.go", Test: "TestPickOfSmallWorlds",
			Old: "case traces.Free, traces.FreeCompleted:", Bent: "case traces.FreeRequested:"},
		{Rule: "the smallest ranges are kept", File: "encode.go", Test: "TestRanges",
			Old: "return cmp.Compare(area(b), area(a)) })\n\t\tspans", Bent: "return cmp.Compare(area(a), area(b)) })\n\t\tspans"},
	})
}
