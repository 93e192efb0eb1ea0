package words

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/sim"
)

// OneCard is the answer to whether one card does. It begins with the verdict.
func OneCard(p *planner.Planning, c *planner.CardVerdict) string {
	with := ""
	if c.Conf != p.Baseline {
		with = " with " + OrDefault(c.Conf)
	}
	return fmt.Sprintf("%s on %s%s: %s", c.Verdict, c.Name, with, c.Reason)
}

// Undecided says first why cards cannot be judged; empty where they can.
func Undecided(e *planner.Evidence) string {
	if e.Complete() {
		return ""
	}
	return "Undecidable for cards that might do: " + strings.Join(e.Missing, " ") + " " + e.Record + " The figures are the least that is needed."
}

// Capacity is a row of the smallest capacities that work.
type Capacity struct {
	What, Allocator, Safe, Setting string
}

// Capacities are the smallest capacities that work: the bound, the present
// setting, and the best one where it is another. Where the evidence is not
// complete they are the least.
func Capacities(p *planner.Planning) []Capacity {
	up := func(n int64) string {
		if p.Evidence.Complete() && !p.MinCapacity.AtLeast {
			return bytesize.FormatUp(n)
		}
		return "≥ " + bytesize.FormatUp(n)
	}
	m := p.MinCapacity
	rows := []Capacity{
		{"bound (perfect placement)", up(m.Bound), "", ""},
		{"present setting", up(m.Baseline), up(m.BaselineSafe), OrDefault(p.Baseline)},
	}
	if m.BestConf != p.Baseline {
		rows = append(rows, Capacity{"best setting", up(m.Best), up(m.BestSafe), m.BestConf})
	}
	return rows
}

// Besides says what else must be known of the need: that a limit is no
// capacity, and what each card loses to others.
func Besides(p *planner.Planning) []string {
	var out []string
	if l := p.MinLimit; l != nil {
		out = append(out, fmt.Sprintf("The program sets a memory fraction. As a limit of the allocator's own it needs %s now (set_per_process_memory_fraction(%v) on the recorded card) and %s with the best setting (%v): a limit is not a capacity.",
			bytesize.FormatUp(l.Baseline), l.BaselineFraction, bytesize.FormatUp(l.Best), l.BestFraction))
	}
	for _, s := range p.Besides {
		out = append(out, fmt.Sprintf("Of each card, %s takes %s to %s besides the allocator and the CUDA context.", s.Name, bytesize.Format(s.Low), bytesize.Format(s.High)))
	}
	return out
}

// Safe explains the column of that name.
func Safe() string {
	return fmt.Sprintf("\"Safe\" is the smallest size from which every larger one works, under all %d orders in which the driver may place segments; verdicts go by it.", sim.SpanOrders)
}

// Card is the row of one card.
type Card struct {
	Name, Usable, Verdict, Headroom Cell
	Retries                         Cell
	// Setting is "present", "best", or the card's own.
	Setting Cell
	Price   Cell
}

// Cards are the rows of some cards; now and best are the configurations that
// they call present and best. A card of unknown size has no figures, one that
// does not fit none of a run, one that cannot be judged only its size.
func Cards(list []planner.CardVerdict, now, best string) []Card {
	var rows []Card
	for i := range list {
		g := &list[i]
		c := Card{
			Name: Text(g.Name), Verdict: Text(string(g.Verdict)),
			Usable:   Cell{bytesize.FormatDown(g.Usable), fmt.Sprint(g.Usable)},
			Headroom: Size(g.Headroom), Retries: Count(g.NumAllocRetries), Setting: Text("present"),
		}
		if g.Headroom < 0 && g.HeadroomHigh >= 0 {
			// It depends on driver and libraries.
			c.Headroom.Text += " … " + bytesize.Format(g.HeadroomHigh)
		}
		if g.Conf != now {
			c.Setting.Text = "best"
			if g.Conf != best {
				c.Setting.Text = OrDefault(g.Conf) // this card's own
			}
		}
		switch g.Verdict {
		case gpus.Unknown:
			c.Usable, c.Headroom, c.Retries, c.Setting = Text("unknown"), Cell{}, Cell{}, Cell{}
		case gpus.No:
			c.Retries = Cell{}
		case gpus.Undecidable:
			c.Headroom, c.Retries, c.Setting = Cell{}, Cell{}, Cell{}
		}
		if g.Price != nil {
			c.Price = Cell{strings.TrimSpace(fmt.Sprintf("%g %s", *g.Price, g.PriceUnit)), fmt.Sprint(*g.Price)}
		}
		rows = append(rows, c)
	}
	return rows
}

// ChosenCards are the cards to show, smallest first (cheapest first where
// there are prices), and a sentence on what is left out: of those that fit
// easily, and of those far too small, only the nearest are news.
func ChosenCards(list []planner.CardVerdict, all bool) (cards []planner.CardVerdict, hidden string) {
	cards = slices.Clone(list)
	slices.SortStableFunc(cards, func(a, b planner.CardVerdict) int {
		switch {
		case a.Price != nil && b.Price != nil:
			return cmp.Compare(*a.Price, *b.Price)
		case a.Price != nil:
			return -1
		case b.Price != nil:
			return 1
		}
		return cmp.Compare(a.Usable, b.Usable)
	})
	const most = 16
	if all || len(cards) <= most {
		return cards, ""
	}
	if n := slices.IndexFunc(cards, func(c planner.CardVerdict) bool { return c.Price == nil }); n > 0 {
		return cards[:n], fmt.Sprintf("%s without a price left out; --all shows them", plural.Of(len(cards)-n, "card"))
	}
	const misses, fits = 3, 12
	left := make(map[gpus.Verdict]int)
	for _, c := range cards {
		left[c.Verdict]++
	}
	seen := make(map[gpus.Verdict]int)
	tooSmall := left[gpus.No]
	var out []planner.CardVerdict
	for _, c := range cards {
		seen[c.Verdict]++
		switch c.Verdict {
		case gpus.No:
			if seen[gpus.No] <= tooSmall-misses {
				continue
			}
		case gpus.Fits, gpus.Tight, gpus.Undecidable:
			if seen[gpus.Fits] > fits {
				continue
			}
		default:
			continue
		}
		left[c.Verdict]--
		out = append(out, c)
	}
	var rest []string
	for _, v := range []struct {
		verdict gpus.Verdict
		what    string
	}{{gpus.No, "smaller that do not fit"}, {gpus.Fits, "larger that fit"}, {gpus.Tight, "larger that share their memory with the host"}, {gpus.Unknown, "of unknown size"}} {
		if n := left[v.verdict]; n > 0 {
			rest = append(rest, fmt.Sprintf("%d %s", n, v.what))
		}
	}
	if len(rest) > 0 {
		hidden = "Not shown: " + strings.Join(rest, ", ") + "; --all shows them."
	}
	return out, hidden
}
