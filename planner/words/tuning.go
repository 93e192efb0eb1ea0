package words

import (
	"fmt"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/sim"
)

// Tone is how an answer feels: the colour of its panel in a report.
type Tone string

// The tones.
const (
	Good Tone = "good" // a setting helps
	Bad  Tone = "bad"  // the job fails, whatever is set
	Same Tone = "same" // nothing to do, or nothing that is sure
)

// Advice is a planner.Tuning in words.
type Advice struct {
	// Doubt is said before all else; empty where nothing is in doubt.
	Doubt string
	Tone  Tone
	// Short is the answer in two or three words; empty where Export, the line
	// to set, is the answer.
	Short, Export string
	// Headline is the answer in one sentence.
	Headline string
	// Depends says what else must hold for Export to have its effect.
	Depends []string
	// Reason is why, without what Doubt and Short say already.
	Reason string
}

const (
	nothingToChange = "Nothing to change."
	noSettingHelps  = "No setting helps."
	undecidable     = "Undecidable."
)

// Advise puts a search's answer in words.
func Advise(t *planner.Tuning) Advice {
	size := bytesize.Format
	a := Advice{Doubt: t.Evidence.Doubt, Reason: strings.TrimPrefix(strings.TrimPrefix(t.Reason, t.Evidence.Doubt+" "), undecidable+" ")}
	say := func(tone Tone, short, headline string) { a.Tone, a.Short, a.Headline = tone, short, headline }
	now, best := &t.Baseline, &t.Best
	switch {
	case t.Verdict == planner.CannotFit:
		say(Bad, noSettingHelps, "No setting can help: "+size(t.Short)+" are missing.")
	case t.Verdict == planner.Undecidable:
		say(Same, undecidable, "Undecidable: the recording does not hold what would show it.")
	case t.Verdict == planner.Tight && t.Export == "":
		say(Same, nothingToChange, "It works as recorded, but only just, and nothing reliable was found.")
	case fails(best):
		say(Bad, noSettingHelps, "It runs out of memory, and no setting was found that cures it.")
	case t.Export == "":
		say(Same, nothingToChange, "Nothing to change: the present setting is as good as any.")
	case t.Verdict == planner.Tight:
		say(Same, "", "It runs out of memory. One line cures it as recorded, but not reliably.")
	case fails(now):
		say(Good, "", "It runs out of memory. One line cures it.")
	case now.ReservedPeak > 0 && now.ReservedPeak > best.ReservedPeak:
		saved := now.ReservedPeak - best.ReservedPeak
		say(Good, "", fmt.Sprintf("One line saves %s of GPU memory (%.0f %%).", size(saved), 100*float64(saved)/float64(now.ReservedPeak)))
	default:
		say(Good, "", "One line makes it better.")
	}
	if a.Short == "" {
		a.Export, a.Depends = t.Export, t.Depends
	}
	return a
}

// fails reports that a setting does not serve the whole job.
func fails(c *planner.Candidate) bool { return !c.Completed || c.NumOOMs > 0 }

// Setting is the row of one setting.
type Setting struct {
	// Name is "now", "best", "#2" and so on; its Value is the place in the
	// list, 0 for the present setting.
	Name Cell
	// Reserved and Allocated are peaks, AtMost is the worst reserved peak of
	// the sample; empty for a setting that was not sampled.
	Reserved, AtMost, Allocated Cell
	Stall, Retries, OOMs        Cell
	// Runs is how many runs with changed sizes complete, of how many.
	Runs    Cell
	Setting Cell
}

// Sampled reports that the setting was tried under other orders and sizes.
func (s *Setting) Sampled() bool { return s.AtMost != Cell{} }

// Settings are the rows of a search: the present setting, the best one where
// it is another, and of the rest as many as make top with the best. The
// setting that people know, plain expandable segments, is always among them,
// unless top is 0. Each setting has one row. left is how many have none.
func Settings(t *planner.Tuning, top int) (rows []Setting, left int) {
	rows = append(rows, setting("now", 0, &t.Baseline))
	if t.Best.Conf != t.Baseline.Conf {
		rows = append(rows, setting("best", 1, &t.Best))
	}
	shown := 1 // the best one
	for i := range t.Candidates {
		c := &t.Candidates[i]
		switch {
		case c.Conf == t.Best.Conf || c.Conf == t.Baseline.Conf:
		case shown < top || c.Known && top > 0:
			shown++
			rows = append(rows, setting(fmt.Sprintf("#%d", shown), shown, c))
		default:
			left++
		}
	}
	return rows, left
}

func setting(name string, place int, c *planner.Candidate) Setting {
	s := Setting{
		Name: Cell{name, fmt.Sprint(place)}, Reserved: Size(c.ReservedPeak), Allocated: Size(c.AllocatedPeak),
		Stall: Duration(float64(c.Driver.StallUS)), Retries: Count(c.NumAllocRetries), OOMs: Count(c.NumOOMs),
		Setting: Text(OrDefault(c.Conf)),
	}
	if c.Stopped {
		// Only the part up to there was simulated.
		s.Reserved.Text = "≥ " + s.Reserved.Text
		s.Allocated, s.Stall, s.Retries, s.OOMs = Cell{}, Cell{}, Cell{}, Cell{}
	}
	if c.Span != nil {
		s.AtMost = Size(c.Upper())
	}
	switch {
	case c.Approximate:
		s.Setting.Text = c.Conf + " (approximation)"
	case c.Limits:
		s.Setting.Text = c.Conf + " (a limit)"
	}
	if b := c.Robustness; b != nil {
		s.Runs = Cell{fmt.Sprintf("%d/%d", b.Completed, b.Runs), fmt.Sprint(b.Completed)}
	}
	return s
}

// Modelled says that the figures of the present setting are those of the
// recorded run, and what the model makes of it; empty where they agree.
func Modelled(t *planner.Tuning) string {
	if t.Modelled == nil || t.Modelled.ReservedPeak == t.Baseline.ReservedPeak {
		return ""
	}
	return fmt.Sprintf("\"Now\" is the recorded run. The model, by which the other settings are simulated, reserves %s for it.", bytesize.Format(t.Modelled.ReservedPeak))
}

// Robust says what changed traces make of the best setting and the present
// one; empty where that was not tried.
func Robust(t *planner.Tuning) string {
	b, n := t.Best.Robustness, t.Baseline.Robustness
	if b == nil || n == nil {
		return ""
	}
	size := bytesize.Format
	return fmt.Sprintf("If sizes change by up to 5 %% and frees change places, it reserves %s to %s (now: %s to %s) and completes in %d of %d runs.",
		size(b.ReservedPeak[0]), size(b.ReservedPeak[1]), size(n.ReservedPeak[0]), size(n.ReservedPeak[1]), b.Completed, b.Runs)
}

// AtMost explains the column of that name below some rows; empty where the
// best setting was not sampled.
func AtMost(t *planner.Tuning, rows []Setting) string {
	if t.Best.Span == nil {
		return ""
	}
	note := fmt.Sprintf("\"At most\" is the worst of %d orders in which the driver may place segments and %d traces with changed sizes; the choice goes by it.", sim.SpanOrders, planner.ChangedTraces)
	for i := range rows {
		if !rows[i].Sampled() {
			return note + " Lines without it were not among the finalists."
		}
	}
	return note
}
