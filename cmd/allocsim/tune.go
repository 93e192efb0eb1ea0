package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/sim"
)

func newTune(a *app) *cobra.Command {
	env := &environment{a: a}
	var opts planner.TuneOptions
	var failOn []string
	var top int
	cmd := &cobra.Command{
		Use:        "tune TRACE…",
		SuggestFor: []string{"optimize", "optimise", "search", "fix"},
		Short:      "Find the setting that fits, or needs least memory",
		Long: `Simulates the trace under many settings of PYTORCH_CUDA_ALLOC_CONF and prints
the one line to set, why it won and what it costs, or that no setting can help.

The order of what counts: every trace completes on the device given; the peak
of reserved memory (within --tolerance); time in driver calls; fewer options.
"Do nothing" wins ties. With several traces the worst one decides.`,
		Example: `  allocsim tune snapshot.pickle
  allocsim tune snapshot.pickle --gpu "RTX 4090"
  allocsim tune rank0.pickle rank1.pickle --torch 2.6 --json`,
		Args: arguments(1, -1, "one TRACE or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			if err := checkSearch(cmd, &opts); err != nil {
				return err
			}
			if top < 0 {
				return fmt.Errorf("--top %d: give 0 or more", top)
			}
			alerts, err := planner.ParseAlerts(failOn)
			if err != nil {
				return err
			}
			jobs, err := env.cases(cmd.Context(), args)
			if err != nil {
				return err
			}
			opts.Version = jobs[0].Version
			bar := a.progress("searching", "runs")
			opts.Progress = bar.Set
			res, err := planner.Tune(cmd.Context(), jobs, opts)
			bar.Done()
			if err != nil {
				return err
			}
			if err := a.showTune(res, top); err != nil {
				return err
			}
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if len(alerts) > 0 {
				fired, err := planner.CheckJobs(cmd.Context(), alerts, jobs, res.Best)
				if err != nil {
					return err
				}
				if err := a.fired(fired); err != nil {
					return err
				}
			}
			if res.Verdict.Negative() {
				return errNo
			}
			return nil
		},
	}
	env.addDevice(cmd)
	f := cmd.Flags()
	f.StringVar(&env.conf, "conf", "", "the configuration `STRING` set now (default: as recorded)")
	f.IntVar(&opts.Budget, "budget", planner.DefaultBudget, "most settings `N` to simulate")
	f.Float64Var(&opts.Tolerance, "tolerance", planner.DefaultTolerance, "`SHARE` by which reserved peaks count as equal")
	f.IntVar(&opts.Workers, "workers", 0, "`N` parallel simulations (default: one a processor)")
	f.IntVar(&top, "top", 5, "candidates `N` to list")
	addFailOn(cmd, &failOn)
	return cmd
}

// doubt says first that every figure is in doubt, where it is.
func (a *app) doubt(e *planner.Evidence) {
	if e.Doubt != "" {
		a.printf("%s\n\n", wrap(e.Doubt, 80, ""))
	}
}

func (a *app) showTune(r *planner.Tuning, top int) error {
	if a.json {
		return a.printJSON(r)
	}
	a.doubt(&r.Evidence)
	switch {
	case r.Verdict == planner.Undecidable:
		a.printf("%s\n\n", a.strong("Undecidable."))
	case r.Export != "":
		a.printf("%s\n", a.strong(r.Export))
		for _, d := range r.Depends {
			a.printf("%s\n", wrap("# "+d, 80, "# "))
		}
		a.printf("\n")
	case r.Verdict == planner.NothingBetter || r.Verdict == planner.Tight:
		a.printf("%s\n\n", a.strong("Nothing to change."))
	default:
		a.printf("%s\n\n", a.strong("No setting helps."))
	}
	a.printf("%s\n\n", wrap(strings.TrimPrefix(strings.TrimPrefix(r.Reason, r.Evidence.Doubt+" "), "Undecidable. "), 80, ""))
	if r.Room > 0 {
		a.printf("The allocator may take %s.\n\n", size(int64(r.Room)))
	}
	t := table.New("", ">reserved", ">at most", ">stall", ">retries", ">OOMs", ">runs", "setting")
	bare := false // a line has no "at most"
	row := func(what string, c *planner.Candidate) {
		peak, up := size(c.ReservedPeak), ""
		if c.Stopped {
			peak = "≥ " + peak
		}
		if c.Span != nil {
			up = size(c.Upper())
		} else {
			bare = true
		}
		setting := c.Conf
		switch {
		case c.Approximate:
			setting += " (approximation)"
		case c.Limits:
			setting += " (a limit)"
		case setting == "":
			setting = "(default)"
		}
		runs := ""
		if b := c.Robustness; b != nil {
			runs = fmt.Sprintf("%d/%d", b.Completed, b.Runs)
		}
		lines := linesOf(setting, 24)
		stall, retries, ooms := millis(float64(c.Driver.StallUS)), fmt.Sprint(c.NumAllocRetries), fmt.Sprint(c.NumOOMs)
		if c.Stopped {
			// Only the part up to there was simulated.
			stall, retries, ooms = "", "", ""
		}
		t.Row(what, peak, up, stall, retries, ooms, runs, lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", "", "", "", "", "", l)
		}
	}
	row("now", &r.Baseline)
	// The present setting and the best one are candidates, too; each setting
	// has one line.
	if r.Best.Conf != r.Baseline.Conf {
		row("best", &r.Best)
	}
	shown := 1 // the best one
	for i := range r.Candidates {
		// The setting that people know is always shown.
		if c := &r.Candidates[i]; (shown < top || c.Known && top > 0) && c.Conf != r.Best.Conf && c.Conf != r.Baseline.Conf {
			shown++
			row(fmt.Sprintf("#%d", shown), c)
		}
	}
	if err := a.print(t); err != nil {
		return err
	}
	if m := r.Modelled; m != nil && m.ReservedPeak != r.Baseline.ReservedPeak {
		a.printf("%s\n", wrap(fmt.Sprintf("\"Now\" is the recorded run. The model, by which the other settings are simulated, reserves %s for it.", size(m.ReservedPeak)), 80, ""))
	}
	a.printf("\n%s simulated in %.1f s; %s live at once\n", plural.Of(r.Searched, "setting"), float64(r.ElapsedMS)/1000, size(r.Bound))
	if b, n := r.Best.Robustness, r.Baseline.Robustness; b != nil && n != nil {
		a.printf("%s\n", wrap(fmt.Sprintf("If sizes change by up to 5 %% and frees change places, it reserves %s to %s (now: %s to %s) and completes in %d of %d runs.",
			size(b.ReservedPeak[0]), size(b.ReservedPeak[1]), size(n.ReservedPeak[0]), size(n.ReservedPeak[1]), b.Completed, b.Runs), 80, ""))
	}
	if len(r.PerTrace) > 1 {
		a.printf("\n")
		t := table.New("trace", ">bound", ">now", ">best")
		for _, p := range r.PerTrace {
			t.Row(p.Source, size(p.Bound), size(p.Baseline.ReservedPeak), size(p.Best.ReservedPeak))
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	if r.Verdict.Negative() {
		a.printf("\nnext:\n  allocsim inspect %[1]s --top   # who holds the memory\n  allocsim plan %[1]s            # which card fits\n", r.PerTrace[0].Source)
	}
	for _, w := range r.Warnings {
		a.printf("%s\n", wrap("warning: "+w, 80, "         "))
	}
	notes := r.Notes
	if r.Best.Span != nil {
		note := fmt.Sprintf("\"At most\" is the worst of %d orders in which the driver may place segments and %d traces with changed sizes; the choice goes by it.", sim.SpanOrders, planner.ChangedTraces)
		if bare {
			note += " Lines without it were not among the finalists."
		}
		notes = append(notes, note)
	}
	a.notes(notes)
	return nil
}
