package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/planner/words"
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

// doubt says first what an answer stands on, where that is less than a recording
// that follows the rules.
func (a *app) doubt(doubt string) {
	if doubt != "" {
		a.printf("%s\n\n", wrap(doubt, 80, ""))
	}
}

func (a *app) showTune(r *planner.Tuning, top int) error {
	if a.json {
		return a.printJSON(r)
	}
	advice := words.Advise(r)
	a.doubt(r.Evidence.Source)
	a.doubt(advice.Doubt)
	a.printf("%s\n", a.strong(cmp.Or(advice.Short, advice.Export)))
	for _, d := range advice.Depends {
		a.printf("%s\n", wrap("# "+d, 80, "# "))
	}
	a.printf("\n%s\n\n", wrap(advice.Reason, 80, ""))
	if r.Room > 0 {
		most := ""
		if r.RoomHigh > 0 {
			most = " to " + size(r.RoomHigh) + ", by the explanation"
		}
		a.printf("The allocator may take %s%s.\n\n", size(int64(r.Room)), most)
	}
	settings, _ := words.Settings(r, top)
	if err := a.print(settingTable(settings)); err != nil {
		return err
	}
	if s := words.Modelled(r); s != "" {
		a.printf("%s\n", wrap(s, 80, ""))
	}
	a.printf("\n%s simulated in %.1f s; %s live at once\n", plural.Of(r.Searched, "setting"), float64(r.ElapsedMS)/1000, size(r.Bound))
	if s := words.Robust(r); s != "" {
		a.printf("%s\n", wrap(s, 80, ""))
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
	if n := words.AtMost(r, settings); n != "" {
		notes = append(notes, n)
	}
	a.notes(notes)
	return nil
}

// settingTable is the table of settings; counts are plain numbers.
func settingTable(settings []words.Setting) *table.Table {
	t := table.New("", ">reserved", ">at most", ">stall", ">retries", ">OOMs", ">runs", "setting")
	for i := range settings {
		s := &settings[i]
		lines := linesOf(s.Setting.Text, 24)
		t.Row(s.Name.Text, s.Reserved.Text, s.AtMost.Text, s.Stall.Text, s.Retries.Value, s.OOMs.Value, s.Runs.Text, lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", "", "", "", "", "", l)
		}
	}
	return t
}
