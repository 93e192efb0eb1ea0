package words

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/sim"
)

const gib = bytesize.GiB

// TestHeadlines: which of two settings is better decides what is said first.
func TestHeadlines(t *testing.T) {
	works := func(peak int64) planner.Candidate { return planner.Candidate{Completed: true, ReservedPeak: peak} }
	fails := func() planner.Candidate { return planner.Candidate{Completed: true, NumOOMs: 1, ReservedPeak: gib} }
	cut := planner.Candidate{Completed: false, ReservedPeak: gib}
	for _, c := range []struct {
		name            string
		now, best       planner.Candidate
		export          string
		verdict         planner.Verdict
		tone            Tone
		short, headline string
	}{
		{"cannot fit", fails(), fails(), "", planner.CannotFit, Bad, "No setting helps.", "No setting can help: 3 GiB are missing."},
		{"no cure", fails(), fails(), "", planner.NoSettingFound, Bad, "No setting helps.", "It runs out of memory, and no setting was found that cures it."},
		{"ends early whatever is set", cut, cut, "", planner.NoSettingFound, Bad, "No setting helps.", "It runs out of memory, and no setting was found that cures it."},
		{"a part of a run", works(4 * gib), works(3 * gib), "", planner.Undecidable, Same, "Undecidable.", "Undecidable: the recording does not hold what would show it."},
		{"only just", works(4 * gib), works(4 * gib), "", planner.Tight, Same, "Nothing to change.", "It works as recorded, but only just, and nothing reliable was found."},
		{"cured", fails(), works(gib), "export X", planner.Improved, Good, "", "It runs out of memory. One line cures it."},
		{"cured, only just", fails(), works(gib), "export X", planner.Tight, Same, "", "It runs out of memory. One line cures it as recorded, but not reliably."},
		{"ended early, cured", cut, works(gib), "export X", planner.Improved, Good, "", "It runs out of memory. One line cures it."},
		// 1 of 4 GiB is a quarter.
		{"saves", works(4 * gib), works(3 * gib), "export X", planner.Improved, Good, "", "One line saves 1 GiB of GPU memory (25 %)."},
		{"fewer calls", works(4 * gib), works(4 * gib), "export X", planner.Improved, Good, "", "One line makes it better."},
		{"nothing to do", works(4 * gib), works(4 * gib), "", planner.NothingBetter, Same, "Nothing to change.", "Nothing to change: the present setting is as good as any."},
		{"nothing to do although less is possible", works(4 * gib), works(3 * gib), "", planner.NothingBetter, Same, "Nothing to change.", "Nothing to change: the present setting is as good as any."},
	} {
		a := Advise(&planner.Tuning{Baseline: c.now, Best: c.best, Export: c.export, Verdict: c.verdict, Short: 3 * gib})
		if a.Tone != c.tone || a.Short != c.short || a.Headline != c.headline || a.Export != c.export {
			t.Errorf("%s: %s, %q, %q, %q; want %s, %q, %q, %q", c.name, a.Tone, a.Short, a.Export, a.Headline, c.tone, c.short, c.export, c.headline)
		}
	}
	a := Advise(&planner.Tuning{Verdict: planner.Undecidable, Evidence: planner.Evidence{Doubt: "It differs."}, Reason: "It differs. Undecidable. The beginning is missing."})
	if a.Doubt != "It differs." || a.Reason != "The beginning is missing." {
		t.Errorf("%q, %q", a.Doubt, a.Reason)
	}
}

// lines are the rows as text.
func lines(rows []Setting) (out []string) {
	for _, s := range rows {
		out = append(out, strings.Join([]string{s.Name.Text, s.Reserved.Text, s.AtMost.Text, s.Allocated.Text, s.Stall.Text, s.Retries.Text, s.OOMs.Text, s.Runs.Text, s.Setting.Text}, "|"))
	}
	return out
}

// TestSettings: each setting has one row, the one that people know always has
// one, and what was ended early has a lower bound for a peak and no other
// figures.
func TestSettings(t *testing.T) {
	now := planner.Candidate{Conf: "", Completed: true, ReservedPeak: 4 * gib, AllocatedPeak: 2 * gib, NumAllocRetries: 1234, NumOOMs: 1, Span: &sim.Span{ReservedPeak: [2]int64{3 * gib, 5 * gib}}}
	best := planner.Candidate{Conf: "a", Completed: true, ReservedPeak: 3 * gib, Robustness: &planner.Robustness{Runs: 8, Completed: 7}}
	tuning := &planner.Tuning{Baseline: now, Best: best, Candidates: []planner.Candidate{
		best, {Conf: "b", ReservedPeak: 2 * gib, NumAllocRetries: 7, Stopped: true}, now, {Conf: "c", Approximate: true}, {Conf: "d", Limits: true}, {Conf: "known", Known: true},
	}}
	all := []string{
		"now|4 GiB|5 GiB|2 GiB|0 µs|1,234|1||(default)",
		"best|3 GiB||0 B|0 µs|0|0|7/8|a",
		"#2|≥ 2 GiB|||||||b",
		"#3|0 B||0 B|0 µs|0|0||c (approximation)",
		"#4|0 B||0 B|0 µs|0|0||d (a limit)",
		"#5|0 B||0 B|0 µs|0|0||known",
	}
	for top, want := range map[int][]string{
		0: all[:2],
		1: {all[0], all[1], strings.Replace(all[5], "#5", "#2", 1)},
		3: {all[0], all[1], all[2], all[3], strings.Replace(all[5], "#5", "#4", 1)},
		9: all,
	} {
		rows, left := Settings(tuning, top)
		if got := lines(rows); !slices.Equal(got, want) || left != len(all)-len(want) {
			t.Errorf("top %d: %q and %d left, want %q", top, got, left, want)
		}
	}
	tuning.Best = now
	if rows, _ := Settings(tuning, 1); len(rows) != 2 || rows[0].Name.Text != "now" {
		t.Errorf("the best is the present setting: %q", lines(rows))
	}
	rows, _ := Settings(tuning, 9)
	if n := AtMost(tuning, rows); !strings.Contains(n, "40 orders") || !strings.Contains(n, "not among the finalists") {
		t.Errorf("%q", n)
	}
	if n := AtMost(tuning, rows[:1]); strings.Contains(n, "finalists") {
		t.Errorf("%q", n)
	}
	tuning.Modelled = &planner.Modelled{ReservedPeak: 4 * gib}
	if s := Modelled(tuning); s != "" {
		t.Errorf("the model agrees: %q", s)
	}
	tuning.Modelled.ReservedPeak = 6 * gib
	if s := Modelled(tuning); !strings.Contains(s, "reserves 6 GiB for it") {
		t.Errorf("%q", s)
	}
}

// TestCells: numbers as people read them, and as a table sorts them.
func TestCells(t *testing.T) {
	for _, c := range []struct{ got, want Cell }{
		{Size(1536 * bytesize.MiB), Cell{"1.50 GiB", "1610612736"}},
		{Size(-2 * gib), Cell{"-2 GiB", "-2147483648"}},
		{Count(1234567), Cell{"1,234,567", "1234567"}},
		{Duration(999), Cell{"999 µs", "999"}},
		{Duration(1500), Cell{"1.5 ms", "1500"}},
		{Duration(2_500_000), Cell{"2.50 s", "2500000"}},
		{Text(OrDefault("")), Cell{"(default)", ""}},
	} {
		if c.got != c.want {
			t.Errorf("%q sorted by %q, want %q by %q", c.got.Text, c.got.Value, c.want.Text, c.want.Value)
		}
	}
}

// TestCards: what a card's row says and what it must not say.
func TestCards(t *testing.T) {
	price := 1.5
	list := []planner.CardVerdict{
		{Name: "A", Usable: 10 * gib, Verdict: gpus.Fits, Headroom: 2 * gib, HeadroomHigh: 3 * gib, NumAllocRetries: 4, Price: &price, PriceUnit: "EUR/h"},
		{Name: "B", Usable: 8 * gib, Verdict: gpus.Tight, Headroom: -gib, HeadroomHigh: gib, Conf: "best"},
		{Name: "C", Usable: 4 * gib, Verdict: gpus.No, Headroom: -4 * gib, HeadroomHigh: -3 * gib, NumAllocRetries: 9, Conf: "own"},
		{Name: "D", Usable: 12 * gib, Verdict: gpus.Undecidable, Headroom: 4 * gib, NumAllocRetries: 1, Conf: "best"},
		{Name: "E", Verdict: gpus.Unknown, Headroom: 4 * gib},
	}
	want := []string{
		"A|10 GiB|fits|2 GiB|4|present|1.5 EUR/h", "B|8 GiB|tight|-1 GiB … 1 GiB|0|best|", "C|4 GiB|no|-4 GiB||own|", "D|12 GiB|undecidable||||", "E|unknown|unknown||||",
	}
	for i, c := range Cards(list, "", "best") {
		if got := strings.Join([]string{c.Name.Text, c.Usable.Text, c.Verdict.Text, c.Headroom.Text, c.Retries.Text, c.Setting.Text, c.Price.Text}, "|"); got != want[i] {
			t.Errorf("%q, want %q", got, want[i])
		}
	}
}

// TestPlanning: what is said of capacities, with and without evidence.
func TestPlanning(t *testing.T) {
	p := &planner.Planning{Baseline: "", MinCapacity: planner.MinCapacity{Bound: gib, Baseline: 4 * gib, BaselineSafe: 5 * gib, Best: 2 * gib, BestSafe: 3 * gib, BestConf: "x"}}
	if got := fmt.Sprint(Capacities(p)); got != "[{bound (perfect placement) 1 GiB  } {present setting 4 GiB 5 GiB (default)} {best setting 2 GiB 3 GiB x}]" {
		t.Error(got)
	}
	if s := Undecided(&p.Evidence); s != "" {
		t.Errorf("complete: %q", s)
	}
	card := &planner.CardVerdict{Name: "A", Verdict: gpus.Tight, Conf: "x", Reason: "it depends"}
	if s := OneCard(p, card); s != "tight on A with x: it depends" {
		t.Errorf("%q", s)
	}
	card.Conf = ""
	if s := OneCard(p, card); s != "tight on A: it depends" {
		t.Errorf("%q", s)
	}
	p.Evidence = planner.Evidence{Missing: []string{"The beginning is missing."}, Record: "Record it."}
	p.MinCapacity.BestConf = ""
	if got := fmt.Sprint(Capacities(p)); got != "[{bound (perfect placement) ≥ 1 GiB  } {present setting ≥ 4 GiB ≥ 5 GiB (default)}]" {
		t.Error(got)
	}
	if s := Undecided(&p.Evidence); s != "Undecidable for cards that might do: The beginning is missing. Record it. The figures are the least that is needed." {
		t.Errorf("%q", s)
	}
}

// TestChosenCards: of 40 cards, 20 too small and 20 that fit, the 3 largest of
// those and the 12 smallest of these are news; with prices, those that have one,
// cheapest first.
func TestChosenCards(t *testing.T) {
	var list []planner.CardVerdict
	for i := 40; i > 0; i-- {
		v := gpus.Fits
		if i <= 20 {
			v = gpus.No
		}
		list = append(list, planner.CardVerdict{Name: fmt.Sprint(i), Usable: int64(i) * gib, Verdict: v})
	}
	cards, hidden := ChosenCards(list, false)
	if len(cards) != 15 || cards[0].Name != "18" || cards[14].Name != "32" || hidden != "Not shown: 17 smaller that do not fit, 8 larger that fit; --all shows them." {
		t.Errorf("%d cards from %s to %s, %q", len(cards), cards[0].Name, cards[len(cards)-1].Name, hidden)
	}
	cards, hidden = ChosenCards(list, true)
	if len(cards) != 40 || cards[0].Name != "1" || hidden != "" {
		t.Errorf("all: %d cards, %q", len(cards), hidden)
	}
	if cards, _ := ChosenCards(list[:16], false); len(cards) != 16 {
		t.Errorf("%d of 16 cards", len(cards))
	}
	cheap, dear := 1.0, 2.0
	list[0].Price, list[5].Price = &dear, &cheap
	cards, hidden = ChosenCards(list, false)
	if len(cards) != 2 || cards[0].Name != "35" || hidden != "38 cards without a price left out; --all shows them" {
		t.Errorf("prices: %d cards, %s first, %q", len(cards), cards[0].Name, hidden)
	}
}
