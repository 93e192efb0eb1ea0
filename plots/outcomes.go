package plots

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
)

// OutcomeOf is a run as an Outcome.
func OutcomeOf(name string, r *sim.Result) Outcome {
	return Outcome{
		Name: name, Reserved: r.Stats.ReservedBytes[policies.All].Peak, Allocated: r.Stats.AllocatedBytes[policies.All].Peak,
		StallUS: r.Driver.StallUS, Retries: r.Stats.NumAllocRetries, OOMs: r.Stats.NumOOMs,
	}
}

// ParetoOf is the figure of a search.
func ParetoOf(source string, t *planner.Tuning) *Pareto {
	point := func(c *planner.Candidate) Point {
		name := c.Conf
		if c.Approximate {
			name += " (an approximation)"
		}
		return Point{Name: name, Reserved: c.ReservedPeak, StallUS: float64(c.Driver.StallUS)}
	}
	p := &Pareto{Source: source, Now: point(&t.Baseline), Best: point(&t.Best), Bound: t.Bound}
	for i := range t.Candidates {
		if c := &t.Candidates[i]; c.Completed && !c.Stopped {
			p.All = append(p.All, point(c))
		}
	}
	for i := range t.Pareto {
		p.Front = append(p.Front, point(&t.Pareto[i]))
	}
	return p
}

// SizeMarks are the sizes at which a policy's rules change.
func SizeMarks(s *policies.Spec) []SizeMark {
	if s.Steps == nil {
		return nil
	}
	var marks []SizeMark
	for _, step := range s.Steps() {
		marks = append(marks, SizeMark{step.At, step.Text})
	}
	return marks
}

// FitCards chooses up to most rows of cards for a job that needs these
// capacities under its settings: cards of one usable size (to the GiB) share a
// row, and the sizes nearest to the needs are shown.
func FitCards(cards []gpus.Card, needs []int64, most int) []FitCard {
	type group struct {
		names  []string
		usable int64
		card   gpus.Card
	}
	var groups []*group
	for _, card := range cards {
		usable, _, ok := card.Usable()
		if !ok || card.Unified() {
			continue
		}
		k := slices.IndexFunc(groups, func(g *group) bool {
			return (g.usable+bytesize.GiB/2)/bytesize.GiB == (usable+bytesize.GiB/2)/bytesize.GiB
		})
		if k < 0 {
			groups = append(groups, &group{names: []string{card.Name}, usable: usable, card: card})
			continue
		}
		g := groups[k]
		g.names = append(g.names, card.Name)
		if usable < g.usable { // the row is as its smallest card
			g.usable, g.card = usable, card
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.usable, b.usable) })
	low := slices.Min(append([]int64{1 << 62}, needs...))
	// A few that are too small, then those that are not.
	first, _ := slices.BinarySearchFunc(groups, low, func(g *group, n int64) int { return cmp.Compare(g.usable, n) })
	from := max(first-max(most/4, 1), 0)
	to := min(from+max(most, 1), len(groups))
	from = max(min(from, to-most), 0)
	var out []FitCard
	for _, g := range groups[from:to] {
		// The row's names: its smallest card first, because it is judged.
		slices.SortStableFunc(g.names, func(a, b string) int {
			switch {
			case a == g.card.Name:
				return -1
			case b == g.card.Name:
				return 1
			}
			return 0
		})
		row := FitCard{Name: strings.Join(g.names[:min(len(g.names), 2)], ", "), Usable: g.usable}
		if n := len(g.names) - 2; n > 0 {
			row.Name += " +" + strconv.Itoa(n)
		}
		for _, need := range needs {
			a := g.card.Assess(need)
			row.Cells = append(row.Cells, FitCell{Verdict: string(a.Verdict), Headroom: a.Headroom})
		}
		out = append(out, row)
	}
	return out
}
