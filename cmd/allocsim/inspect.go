package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/internal/text"
	"allocsim/planner/words"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/inspect"
)

// inspection is the JSON of inspect.
type inspection struct {
	inspect.Summary
	Segments *sim.StateSummary `json:"segments,omitempty"`
	Leaks    *[]inspect.Leak   `json:"leaks,omitempty"`
	Top      *[]inspect.Holder `json:"top,omitempty"`
	// What the file, its sidecar and the flags say of the run, what was found
	// out, and what the recording cannot tell: one sentence each.
	Known     []string `json:"known"`
	Recovered []string `json:"recovered"`
	Open      []string `json:"open"`

	growth inspect.LeakReport // what the text form says besides
}

func newInspect(a *app) *cobra.Command {
	env := &environment{a: a}
	var leaks, top, infer bool
	var rows int
	cmd := &cobra.Command{
		Use:        "inspect TRACE",
		SuggestFor: []string{"leaks", "leak", "top", "info", "show", "summary"},
		Short:      "Show what is in a file: events, peaks, largest requests, leaks",
		Long: `Shows what a file holds: where it comes from, the configuration it was recorded
with, events by kind, streams and pools, peaks, the largest requests, OOMs, and
what is missing or had to be inferred. A snapshot without history is shown as
the segments it has.`,
		Example: `  allocsim inspect snapshot.pickle
  allocsim inspect snapshot.pickle --leaks   # is something growing?
  allocsim inspect snapshot.pickle --top     # who holds the memory at the peak?`,
		Args: arguments(1, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			if rows < 0 {
				return fmt.Errorf("--rows %d: give 0 or more", rows)
			}
			capacity := int64(env.capacity)
			if env.gpu != "" {
				card, err := env.card()
				if err != nil {
					return err
				}
				capacity, _, _ = card.Usable()
			}
			tr, err := env.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := inspection{Summary: inspect.Summarize(tr), Known: []string{}, Recovered: []string{}, Open: []string{}}
			if infer && len(tr.Events) > 0 {
				rec, err := recovery.Recover(cmd.Context(), tr, recovery.Options{})
				if err != nil {
					return err
				}
				out.Known = append(out.Known, rec.Known...)
				out.Recovered = append(out.Recovered, rec.Inferred...)
				out.Open = append(out.Open, rec.Open...)
				if e, ok := rec.Unmet(); ok && tr.Recorded != nil {
					out.Open = append(out.Open, fmt.Sprintf("A memory limit or a card of %s or more, which the run never met, leaves no trace; nor do empty_cache calls that release nothing.", size(e.Low)))
				}
				if rec.Doubt != "" {
					out.Notes = append([]string{rec.Doubt}, out.Notes...)
				}
			}
			if tr.Recorded != nil && tr.Recorded.Final != nil {
				s := sim.SummarizeState(tr.Recorded.Final)
				out.Segments = &s
			}
			if leaks {
				r := inspect.FindLeaks(tr, capacity)
				found := append([]inspect.Leak{}, r.Leaks...)
				out.Leaks, out.growth = &found, r
				if r.Note != "" {
					out.Notes = append(out.Notes, r.Note)
				}
			}
			if top {
				holders := append([]inspect.Holder{}, inspect.Top(tr).Holders...)
				out.Top = &holders
			}
			return a.showInspect(tr, &out, rows, capacity)
		},
	}
	env.addTrace(cmd)
	f := cmd.Flags()
	f.BoolVar(&leaks, "leaks", false, "find memory that grows by iteration")
	f.BoolVar(&top, "top", false, "say who holds the memory at the peak")
	f.IntVar(&rows, "rows", 12, "rows `N` in each list")
	f.BoolVar(&infer, "infer", true, "find out what the recording does not say (empty_cache calls, limits)")
	f.Var(&env.capacity, "capacity", "with --leaks: device memory, to say when it runs out")
	f.StringVar(&env.gpu, "gpu", "", "with --leaks: the `CARD`, to say when its memory runs out")
	return cmd
}

func (a *app) showInspect(tr *traces.Trace, s *inspection, rows int, capacity int64) error {
	if a.json {
		return a.printJSON(s)
	}
	t := table.New("", "")
	t.Row("source", s.Source)
	t.Row("format", s.Format)
	if s.Torch != "" {
		t.Row("PyTorch", s.Torch)
	}
	if s.DeviceName != "" || s.DeviceTotal > 0 {
		t.Row("device", strings.TrimSpace(fmt.Sprintf("%d: %s %s", s.Device, s.DeviceName, sizeOr(s.DeviceTotal, ""))))
	}
	if s.Conf != nil {
		t.Row("configuration", words.OrDefault(*s.Conf))
	}
	if s.Fraction != nil {
		t.Row("memory fraction", fmt.Sprint(*s.Fraction))
	}
	var kinds []string
	for k := range s.Events {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		label := ""
		if i == 0 {
			label = "events"
		}
		t.Row(label, fmt.Sprintf("%s %s", number(s.Events[k]), k))
	}
	if len(tr.Events) > 0 {
		t.Row("streams, pools", fmt.Sprintf("%d, %d", s.Streams, s.Pools))
		t.Row("duration", millis(float64(s.DurationUS)))
		if s.Iterations > 0 {
			t.Row("iterations", fmt.Sprintf("%d (%s)", s.Iterations, s.IterationsFrom))
		}
		p := s.Peak
		if p.Reserved != nil {
			t.Row("peak reserved", size(*p.Reserved))
		}
		if p.Counted {
			t.Row("peak allocated", size(p.Allocated))
			t.Row("peak active", size(p.Active))
		} else {
			t.Row("peak requested", size(p.Requested))
		}
		t.Row("OOMs", fmt.Sprint(len(s.OOMs)))
	}
	if err := a.print(t); err != nil {
		return err
	}
	if g := s.Segments; g != nil && len(tr.Events) == 0 {
		a.printf("\n%s\n", a.strong("segments at the time of the snapshot"))
		t := table.New("", "")
		t.Row("segments", fmt.Sprintf("%d, %s", g.Count, size(g.Reserved)))
		t.Row("allocated", fmt.Sprintf("%s in %s", size(g.Allocated), plural.Of(g.Blocks, "block")))
		t.Row("free", fmt.Sprintf("%s, largest block %s, stranded %s", size(g.Free), size(g.LargestFree), size(g.Stranded)))
		t.Row("external fragmentation", percent(g.External))
		if err := a.print(t); err != nil {
			return err
		}
	}
	if len(s.Largest) > 0 {
		a.printf("\n%s\n", a.strong("largest requests"))
		t := table.New(">size", ">times", ">first at", "where")
		for _, r := range s.Largest[:min(rows, len(s.Largest))] {
			t.Row(size(r.Size), fmt.Sprint(r.Count), millis(float64(r.TimeUS)), text.Tail(r.Where, 46))
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	if s.Leaks != nil {
		a.printf("\n%s\n", a.strong("memory that grows"))
		if len(*s.Leaks) == 0 {
			a.printf("none found\n")
		}
		g := s.growth
		for _, l := range *s.Leaks {
			a.printf("%s an iteration at %s\n", size(l.BytesPerIteration), place(l.Where, 46))
			a.printf("    %s from %s on, in %d of %s\n", plural.Of(l.Blocks, "block"), millis(float64(l.SinceUS)), l.Iterations, plural.Of(g.Judged, "judged iteration"))
		}
		if len(*s.Leaks) > 0 {
			a.printf("%s\n", wrap(fmt.Sprintf("judged are %d of the %d iterations: the first makes what stays for good, and the last %d may hold what the next ones free; their blocks are not counted",
				g.Judged, g.Iterations.Count(), inspect.YoungIterations), 80, ""))
			switch after := (*s.Leaks)[0].ProjectedOOMUS - s.DurationUS; {
			case capacity <= 0:
			case g.UsedUpUS >= 0:
				a.printf("%s are used up already at %s\n", size(capacity), millis(float64(g.UsedUpUS)))
			default:
				a.printf("%s\n", wrap(fmt.Sprintf("%s are used up in about %s, %s after the end of the recording", size(capacity),
					plural.Of(g.IterationsLeft, "more iteration"), millis(float64(max(0, after)))), 80, ""))
			}
		}
	}
	if s.Top != nil {
		a.printf("\n%s\n", a.strong("who holds the memory at the peak"))
		t := table.New(">bytes", ">blocks", "lifetime", "where")
		for _, h := range (*s.Top)[:min(rows, len(*s.Top))] {
			t.Row(size(h.Bytes), number(h.Blocks), string(h.Lifetime), place(h.Where, 42))
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	for _, g := range []struct {
		title string
		says  []string
	}{{"known", s.Known}, {"recovered", s.Recovered}, {"open", s.Open}} {
		if len(g.says) > 0 {
			a.printf("\n%s\n", a.strong(g.title))
		}
		for _, line := range g.says {
			a.printf("%s\n", wrap("- "+line, 80, "  "))
		}
	}
	a.notes(s.Notes)
	return nil
}
