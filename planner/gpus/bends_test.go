package gpus

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a card can give, what fits it and what a name means.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "the least overhead is planned with", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "max(low-c.Overhead.High-c.besidesHigh, 0)", Bent: "max(low-c.Overhead.Low-c.besidesHigh, 0)"},
		{Rule: "the most favourable total is planned with", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "low = c.Low\n", Bent: "low = c.High\n"},
		{Rule: "the best case pays the most overhead", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "max(c.High-c.Overhead.Low-c.besidesLow, 0)", Bent: "max(c.High-c.Overhead.High-c.besidesLow, 0)"},
		{Rule: "nvidia-smi's total is what a program gets", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "low = int64(float64(c.High) * (1 - largestReserve))", Bent: "low = c.High"},
		{Rule: "what else a process takes is forgotten", File: "gpus.go", Test: "TestBesides",
			Old: "c.besidesHigh += s.High", Bent: "c.besidesHigh += s.Low"},
		{Rule: "the best case pays the most for what else is taken", File: "gpus.go", Test: "TestBesides",
			Old: "c.besidesLow += s.Low", Bent: "c.besidesLow += s.High"},
		{Rule: "a card without a total is a card of no memory", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "if c.High <= 0 {", Bent: "if c.High < 0 {"},
		{Rule: "a need that is met exactly at best does not fit", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "case reservedPeak > high:", Bent: "case reservedPeak >= high:"},
		{Rule: "no headroom at all fits", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "case a.Headroom < a.Margin:", Bent: "case a.Headroom < 0:"},
		{Rule: "a headroom of the margin is too little", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "case a.Headroom < a.Margin:", Bent: "case a.Headroom <= a.Margin:"},
		{Rule: "negative headroom is shown positive", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "Headroom: low - reservedPeak", Bent: "Headroom: max(low-reservedPeak, reservedPeak-low)"},
		{Rule: "another driver may take nothing", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "if c.Confidence != Measured {", Bent: "if false {"},
		{Rule: "a card that was measured has a margin for another driver", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "if c.Confidence != Measured {", Bent: "if true {"},
		{Rule: "memory shared with the host fits by its total", File: "gpus.go", Test: "TestVerdictByHand",
			Old: "case c.Unified():", Bent: "case false:"},
		{Rule: "a slice pays what its whole card pays at least", File: "gpus.go", Test: "TestSliceByHand",
			Old: "min(anyOverheadLow, c.Overhead.Low)", Bent: "c.Overhead.Low"},
		{Rule: "a slice has the whole card's memory", File: "gpus.go", Test: "TestSliceByHand",
			Old: "s.Total, s.Low, s.High = p.Total, p.Low, p.High", Bent: "s.Total = p.Total"},

		{Rule: "a Ti may be left out", File: "find.go", Test: "TestNames",
			Old: `"ti", "super", "d"`, Bent: `"super", "d"`},
		{Rule: "an ambiguous name takes the first card", File: "find.go", Test: "TestNames",
			Old: "case len(loose) == 1:", Bent: "case len(loose) >= 1:"},
		{Rule: "the maker's words count", File: "find.go", Test: "TestNames",
			Old: "slices.Contains(makers, w) }), \"\")", Bent: "false }), \"\")"},
		{Rule: "a slice is its whole card", File: "find.go", Test: "TestNames",
			Old: "found = append(found, card.slice(p))", Bent: "found = append(found, card)"},
		{Rule: "a profile that a card does not have names the card", File: "find.go", Test: "TestNames",
			Old: "if len(loose) > 0 {\n\t\tvar have", Bent: "if len(loose) > 0 {\n\t\treturn loose[0], nil\n\t}\n\tif len(loose) > 0 {\n\t\tvar have"},

		{Rule: "a total of one's own is as sure as the catalogue's", File: "catalogue.go", Test: "TestOwnTotal",
			Old: "users && p.Total > 0 && !spread", Bent: "users && p.Total < 0 && !spread"},
		{Rule: "a line about a known card replaces all of it", File: "catalogue.go", Test: "TestOwnTotal",
			Old: "case !c.Overhead.Known:", Bent: "default:"},
		{Rule: "extending changes the catalogue itself", File: "catalogue.go", Test: "TestExtendLeavesTheCatalogueAlone",
			Old: "&Catalogue{cards: slices.Clone(c.cards)}", Bent: "&Catalogue{cards: c.cards}"},
		{Rule: "prices in several units are compared", File: "prices.go", Test: "TestTranscripts",
			Old: "len(prices) > 0 && u != unit", Bent: "false"},
	})
}
