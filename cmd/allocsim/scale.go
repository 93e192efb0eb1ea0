package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/planner/scale"
	"allocsim/sim"
)

// scaling is the JSON of scale.
type scaling struct {
	Vary           string             `json:"vary"`
	Predictions    []scale.Prediction `json:"predictions"`
	Aligned        float64            `json:"aligned"`
	Pairs          []scale.Pair       `json:"pairs"`
	LargestFitting *int64             `json:"largest_fitting,omitempty"`
	Largest        *scale.Largest     `json:"largest,omitempty"`
	Backtest       *scale.Backtest    `json:"backtest,omitempty"`
	Notes          []string           `json:"notes"`
}

func newScale(a *app) *cobra.Command {
	env := &environment{a: a}
	var vary string
	var at, predict []string
	var opts scale.Options
	var largest bool
	cmd := &cobra.Command{
		Use:        "scale --vary batch --at 4=A --at 8=B --predict 16,32",
		SuggestFor: []string{"batch", "predict", "extrapolate"},
		Short:      "Predict the memory of a batch size or length that nobody ran",
		Long: `Takes two or more recordings of the same program at different batch sizes (or
sequence lengths), fits how each allocation's size depends on the value, writes
the requests for a value nobody ran and simulates them under any allocator and
device. It refuses when the recordings do not determine the answer.

With a device (--gpu, --capacity) it also finds the largest value that fits.`,
		Example: `  allocsim scale --at 4=bs4.pickle --at 8=bs8.pickle --predict 16,32
  allocsim scale --at 4=bs4.pickle --at 8=bs8.pickle --gpu "RTX 3090"
  allocsim scale --vary seq --at 128=a.pickle --at 256=b.pickle --predict 512`,
		Args: arguments(0, 0, "no arguments besides its flags"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			if opts.Step < 1 {
				return fmt.Errorf("--step %d: give 1 or more", opts.Step)
			}
			opts.Vary = vary
			values, err := parseValues(predict)
			if err != nil {
				return err
			}
			var inputs []scale.Input
			var cfg sim.Config
			for _, s := range at {
				text, path, ok := strings.Cut(s, "=")
				v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
				if !ok || err != nil || v <= 0 {
					return fmt.Errorf("--at %q: write VALUE=TRACE, such as 8=bs8.pickle", s)
				}
				c, err := env.caseOf(cmd.Context(), path)
				if err != nil {
					return err
				}
				inputs = append(inputs, scale.Input{Value: v, Trace: c.Trace})
				cfg = c.Config()
			}
			bounded := env.capacity != 0 || env.gpu != "" || env.fracSet
			if strings.TrimSpace(vary) == "" || strings.ContainsFunc(vary, unicode.IsControl) {
				return fmt.Errorf("--vary %q: give the name of what differs, such as batch", vary)
			}
			if len(values) == 0 && !bounded {
				return errors.New("nothing to predict: give --predict VALUES, or a device (--gpu, --capacity) to find the largest value that fits")
			}
			bar := a.progress("fitting and simulating", "steps")
			defer bar.Done()
			m, err := scale.Fit(cmd.Context(), inputs, opts)
			if err != nil {
				return err
			}
			out := scaling{Vary: vary, Predictions: []scale.Prediction{}, Aligned: m.Aligned(), Pairs: m.Pairs(), Notes: append([]string{}, m.Notes()...)}
			for i, v := range values {
				p, err := m.Predict(cmd.Context(), v, cfg)
				if err != nil {
					return err
				}
				out.Predictions = append(out.Predictions, p)
				bar.Set(int64(i+1), int64(len(values)))
			}
			if bounded || largest {
				l, err := m.Largest(cmd.Context(), cfg, 0, 0)
				if err != nil {
					return err
				}
				out.LargestFitting, out.Largest = &l.Value, &l
			}
			if b, err := m.Backtest(cmd.Context(), cfg); err == nil {
				out.Backtest = &b
			}
			bar.Done()
			if err := a.showScale(&out); err != nil {
				return err
			}
			for _, p := range out.Predictions {
				if bounded && !p.Completed {
					return errNo
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&vary, "vary", "batch", "`WHAT` differs: batch (a count), seq (a length) …")
	f.StringArrayVar(&at, "at", nil, "`VALUE=TRACE`, a recording at one value (twice or more)")
	f.StringSliceVar(&predict, "predict", nil, "`VALUES` to predict, separated by commas")
	f.Int64Var(&opts.Step, "step", 1, "the largest value is searched among multiples of `N`")
	f.IntVar(&opts.Workers, "workers", 0, "`N` parallel simulations (default: one a processor)")
	env.addPolicy(cmd)
	env.addDevice(cmd)
	return cmd
}

func parseValues(texts []string) ([]int64, error) {
	var values []int64
	for _, s := range texts {
		v, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil || v <= 0 {
			return nil, fmt.Errorf("--predict %q: give whole numbers above 0, separated by commas", s)
		}
		values = append(values, v)
	}
	return values, nil
}

func (a *app) showScale(s *scaling) error {
	if a.json {
		return a.printJSON(s)
	}
	a.printf("%s of the allocations are matched between the recordings\n", percent(s.Aligned))
	if len(s.Predictions) > 0 {
		t := table.New(">"+s.Vary, ">reserved", "range", ">allocated", "range", ">OOMs", ">runs")
		for _, p := range s.Predictions {
			t.Row(fmt.Sprint(p.Value), size(p.ReservedPeak), fmt.Sprintf("%s … %s", size(p.ReservedPeakLow), size(p.ReservedPeakHigh)),
				size(p.AllocatedPeak), fmt.Sprintf("%s … %s", size(p.AllocatedPeakLow), size(p.AllocatedPeakHigh)), fmt.Sprint(p.NumOOMs), fmt.Sprintf("%d/%d", p.RunsCompleted, p.Runs))
		}
		a.printf("\n")
		if err := a.print(t); err != nil {
			return err
		}
	}
	if l := s.Largest; l != nil {
		if l.Next == 0 {
			a.printf("\n%s\n", a.strong(fmt.Sprintf("at least %s %d fits: larger ones were not looked for; --predict tries them", s.Vary, l.Value)))
		} else {
			a.printf("\n%s\n", a.strong(fmt.Sprintf("largest %s that fits: %d", s.Vary, l.Value)))
		}
		if p := l.At; p != nil && p.RunsCompleted < p.Runs {
			a.printf("it completes in %d of %d runs with varied sizes and addresses\n", p.RunsCompleted, p.Runs)
		}
		if l.Safe != l.Value {
			a.printf("with room for what is uncertain: %d\n", l.Safe)
		}
		if l.NextFails {
			if p := l.After; p != nil && p.RunsCompleted > 0 {
				a.printf("%d was tried and completes in %d of %d runs only\n", l.Next, p.RunsCompleted, p.Runs)
			} else {
				a.printf("%d was tried and fails\n", l.Next)
			}
		}
	}
	if b := s.Backtest; b != nil && b.ReservedPeak > 0 {
		how := "order of requests only"
		if b.LeftOut {
			how = "left out of the fit"
		}
		a.printf("\n%s\n", wrap(fmt.Sprintf("check on a recording (%s %d, %s): reserved %+.1f %%, allocated %+.2f %%",
			s.Vary, b.Value, how, 100*b.ReservedError(), 100*b.AllocatedError()), 80, ""))
	}
	notes := append([]string{}, s.Notes...)
	for _, p := range s.Predictions {
		notes = append(notes, p.Notes...)
	}
	if s.Largest != nil {
		notes = append(notes, s.Largest.Notes...)
	}
	a.notes(notes)
	return nil
}
