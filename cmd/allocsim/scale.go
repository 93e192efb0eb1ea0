package main

import (
	"context"
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

func newScale(a *app) *cobra.Command {
	env := &environment{a: a}
	var o scaleOptions
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
			bounded := env.capacity != 0 || env.gpu != "" || env.fracSet
			values, err := o.check(bounded)
			if err != nil {
				return err
			}
			inputs, cfg, err := o.inputs(cmd.Context(), env)
			if err != nil {
				return err
			}
			bar := a.progress("fitting and simulating", "steps")
			defer bar.Done()
			m, err := scale.Fit(cmd.Context(), inputs, o.Options)
			if err != nil {
				return err
			}
			answer, err := m.Answer(cmd.Context(), scale.Question{Values: values, Config: cfg, Largest: bounded, Progress: bar.Set})
			if err != nil {
				return err
			}
			bar.Done()
			if err := a.showScale(answer); err != nil {
				return err
			}
			if bounded && !answer.Completes() {
				return errNo
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Vary, "vary", "batch", "`WHAT` differs: batch (a count), seq (a length) …")
	f.StringArrayVar(&o.at, "at", nil, "`VALUE=TRACE`, a recording at one value (twice or more)")
	f.StringSliceVar(&o.predict, "predict", nil, "`VALUES` to predict, separated by commas")
	f.Int64Var(&o.Step, "step", 1, "the largest value is searched among multiples of `N`")
	f.IntVar(&o.Workers, "workers", 0, "`N` parallel simulations (default: one a processor)")
	env.addPolicy(cmd)
	env.addDevice(cmd)
	return cmd
}

// scaleOptions are the flags of scale.
type scaleOptions struct {
	scale.Options
	at, predict []string
}

// check refuses flags that make no question and returns the values to predict.
func (o *scaleOptions) check(bounded bool) ([]int64, error) {
	if o.Step < 1 {
		return nil, fmt.Errorf("--step %d: give 1 or more", o.Step)
	}
	var values []int64
	for _, s := range o.predict {
		v, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil || v <= 0 {
			return nil, fmt.Errorf("--predict %q: give whole numbers above 0, separated by commas", s)
		}
		values = append(values, v)
	}
	if strings.TrimSpace(o.Vary) == "" || strings.ContainsFunc(o.Vary, unicode.IsControl) {
		return nil, fmt.Errorf("--vary %q: give the name of what differs, such as batch", o.Vary)
	}
	if len(values) == 0 && !bounded {
		return nil, errors.New("nothing to predict: give --predict VALUES, or a device (--gpu, --capacity) to find the largest value that fits")
	}
	return values, nil
}

// inputs opens the recordings. The run that they are asked about is that of the
// last one.
func (o *scaleOptions) inputs(ctx context.Context, env *environment) (inputs []scale.Input, cfg sim.Config, err error) {
	for _, s := range o.at {
		text, path, ok := strings.Cut(s, "=")
		v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if !ok || err != nil || v <= 0 {
			return nil, cfg, fmt.Errorf("--at %q: write VALUE=TRACE, such as 8=bs8.pickle", s)
		}
		c, err := env.caseOf(ctx, path)
		if err != nil {
			return nil, cfg, err
		}
		inputs = append(inputs, scale.Input{Value: v, Trace: c.Trace})
		cfg = c.Config()
	}
	return inputs, cfg, nil
}

func (a *app) showScale(s *scale.Answer) error {
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
