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
		{Rule: "what the figures are of is not said", File: "tables.go", Test: "TestVerdictPanel",
			Old: "tab.Note = words.Modelled(t)", Bent: "_ = words.Modelled(t)"},
		{Rule: "the whole list is before and after", File: "tables.go", Test: "TestVerdictPanel",
			Old: "words.Settings(t, 0)", Bent: "words.Settings(t, 9)"},
		{Rule: "cards are judged by the peak of one address order", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "needs := []int64{t.Baseline.Upper()}", Bent: "needs := []int64{t.Baseline.ReservedPeak}"},
		{Rule: "a card that fits now is told another setting", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "v.Verdict != gpus.Fits {", Bent: "v.Verdict != gpus.Unknown {"},
		{Rule: "the peak of a run that failed is what it needs", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "!t.Baseline.Completed || t.Baseline.NumOOMs > 0 {", Bent: "!t.Baseline.Completed {"},
		{Rule: "a thorough report is kept short", File: "report.go", Test: "TestSearchKeptShort",
			Old: "!b.o.Thorough && b.events > usual", Bent: "b.events > usual"},
		{Rule: "a setting is shown twice", File: "report.go", Test: "TestSettingsShown",
			Old: "if seen[s.String()] {", Bent: "if false {"},

		{Rule: "settings left out are not counted", File: "tables.go", Test: "TestSettingsTable",
			Old: "if left > 0 {", Bent: "if left > 1 {"},
		{Rule: "a card that was not simulated has retries", File: "report.go", Test: "TestCardsOfALongTrace",
			Old: "r[4] = cell{} // no card", Bent: "_ = r // no card"},

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
