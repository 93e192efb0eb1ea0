package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/sim"
)

func newPlan(a *app) *cobra.Command {
	env := &environment{a: a}
	var opts planner.PlanOptions
	var mig, colocate, worst bool
	var overhead sizeFlag
	var prices string
	var failOn []string
	cmd := &cobra.Command{
		Use:   "plan TRACE…",
		Short: "Say which cards fit, and the smallest memory that works",
		Long: `Finds the smallest device on which the job completes, with the present setting
and with the best one, and judges the cards of the catalogue by it: fits, tight
(it depends on driver and libraries) or no. Every capacity named is simulated,
and so is one step less, which fails.

Several traces are jobs that run one after the other, unless --colocate puts
them on one card at the same time. Exit code 1 when the card asked for
(--gpu, --capacity) does not fit.`,
		Example: `  allocsim plan snapshot.pickle
  allocsim plan snapshot.pickle --gpu "RTX 3090"
  allocsim plan --colocate train.pickle serve.pickle --gpu "A100 80GB"`,
		Args: arguments(1, -1, "one TRACE or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			alerts, err := planner.ParseAlerts(failOn)
			if err != nil {
				return err
			}
			jobs, err := env.jobs(cmd.Context(), args)
			if err != nil {
				return err
			}
			if colocate || worst {
				return a.colocate(cmd, env, jobs, planner.ColocateOptions{Overhead: int64(overhead), WorstCase: worst})
			}
			cat, err := env.catalog()
			if err != nil {
				return err
			}
			if opts.Cards, err = env.cards(cat, mig); err != nil {
				return err
			}
			if prices != "" {
				f, err := os.Open(prices)
				if err != nil {
					return fmt.Errorf("--price: %w", err)
				}
				defer f.Close()
				if opts.Prices, err = cat.LoadPrices(f, prices); err != nil {
					return fmt.Errorf("--price: %w", err)
				}
			}
			opts.Tune.Version = env.version(jobs[0].Trace)
			bar := a.progress("planning", "runs")
			opts.Tune.Progress = bar.Set
			res, err := planner.Plan(cmd.Context(), jobs, opts)
			bar.Done()
			if err != nil {
				return err
			}
			if err := a.showPlan(res); err != nil {
				return err
			}
			if len(alerts) > 0 {
				fired, err := checkJobs(cmd, alerts, jobs)
				if err != nil {
					return err
				}
				if err := a.fired(fired); err != nil {
					return err
				}
			}
			if env.gpu != "" || env.capacity != 0 {
				if v := res.GPUs[0].Verdict; v != gpus.Fits && v != gpus.Tight {
					return errNo
				}
			}
			return nil
		},
	}
	env.addDevice(cmd)
	f := cmd.Flags()
	f.StringVar(&env.conf, "conf", "", "the configuration set now (default: as recorded)")
	f.BoolVar(&mig, "mig", false, "also judge the MIG slices of each card")
	f.StringVar(&prices, "price", "", "a CSV file with the columns name, price[, unit]")
	f.BoolVar(&colocate, "colocate", false, "run the traces on one card at the same time")
	f.BoolVar(&worst, "worst-case", false, "with --colocate: shift the jobs so that their peaks coincide")
	f.Var(&overhead, "overhead", "with --colocate: what each process takes besides its allocator (default: that of the card)")
	f.IntVar(&opts.Tune.Budget, "budget", 300, "most configurations to simulate")
	f.IntVar(&opts.Tune.Workers, "workers", 0, "parallel simulations (default: one a processor)")
	addFailOn(cmd, &failOn)
	return cmd
}

// checkJobs runs the jobs as the flags describe them and returns the alerts
// that fire.
func checkJobs(cmd *cobra.Command, alerts []planner.Alert, jobs []planner.Job) ([]planner.Alert, error) {
	return planner.CheckJobs(cmd.Context(), alerts, jobs, planner.Candidate{})
}

// cards are the cards to judge: the one asked for, a device of the size asked
// for, or the catalogue.
func (e *environment) cards(cat *gpus.Catalogue, mig bool) ([]gpus.Card, error) {
	var cards []gpus.Card
	switch {
	case e.gpu != "":
		card, err := e.card()
		if err != nil {
			return nil, err
		}
		cards = []gpus.Card{card}
	case e.capacity != 0:
		n := int64(e.capacity)
		return []gpus.Card{{Name: "--capacity " + size(n), Total: n, Low: n, High: n, Confidence: gpus.Measured}}, nil
	default:
		cards = cat.All()
	}
	if mig {
		var with []gpus.Card
		for _, c := range cards {
			with = append(append(with, c), c.Slices()...)
		}
		cards = with
	}
	return cards, nil
}

func (a *app) showPlan(r *planner.Planning) error {
	if a.json {
		return a.printJSON(r)
	}
	m := r.MinCapacity
	t := table.New("smallest memory that works", ">for the allocator", ">safe", "setting")
	t.Row("bound (perfect placement)", size(m.Bound), "", "")
	t.Row("present setting", size(m.Baseline), size(m.BaselineSafe), orDefault(r.Baseline))
	if m.BestConf != r.Baseline {
		lines := linesOf(m.BestConf, 28)
		t.Row("best setting", size(m.Best), size(m.BestSafe), lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", "", l)
		}
	}
	if err := a.print(t); err != nil {
		return err
	}
	a.printf("\n")
	t = table.New("card", ">usable", "verdict", ">headroom", ">retries", "with")
	priced := false
	for _, g := range r.GPUs {
		priced = priced || g.Price != nil
	}
	if priced {
		t = table.New("card", ">usable", "verdict", ">headroom", ">retries", "with", ">price")
	}
	for _, g := range r.GPUs {
		with := "present setting"
		if g.Conf != r.Baseline {
			with = "best setting"
		}
		usable, headroom := size(g.Usable), size(g.Headroom)
		if g.Verdict == gpus.Unknown {
			usable, headroom, with = "unknown", "", ""
		} else if g.Verdict == gpus.No {
			with = ""
		}
		row := []string{g.Name, usable, string(g.Verdict), headroom, fmt.Sprint(g.NumAllocRetries), with}
		if priced {
			price := ""
			if g.Price != nil {
				price = fmt.Sprintf("%g %s", *g.Price, g.PriceUnit)
			}
			row = append(row, price)
		}
		t.Row(row...)
	}
	if err := a.print(t); err != nil {
		return err
	}
	if len(r.GPUs) == 1 && r.GPUs[0].Reason != "" {
		a.printf("\n%s\n", wrap(r.GPUs[0].Reason, 80, ""))
	}
	a.notes(append(r.Notes, fmt.Sprintf("\"Safe\" works under all %d orders in which the driver may place segments; verdicts go by it.", sim.SpanOrders)))
	return nil
}

func orDefault(conf string) string {
	if conf == "" {
		return "(default)"
	}
	return conf
}

// colocate answers plan --colocate.
func (a *app) colocate(cmd *cobra.Command, env *environment, jobs []planner.Job, o planner.ColocateOptions) error {
	o.Capacity = int64(env.capacity)
	if env.gpu != "" {
		card, err := env.card()
		if err != nil {
			return err
		}
		o.Capacity = card.Low
		if o.Overhead == 0 {
			o.Overhead = card.Overhead.High
		}
	}
	res, err := planner.Colocate(cmd.Context(), jobs, o)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(struct {
			Colocate *planner.Colocation `json:"colocate"`
		}{res}); err != nil {
			return err
		}
	} else {
		verdict := "fits"
		if !res.Fits {
			verdict = "does not fit"
		}
		a.printf("%s: %s in use at most together, %s if all peaks coincided, of %s\n\n", a.strong(verdict), size(res.UsedPeak), size(res.SumOfPeaks), sizeOr(res.Capacity, "unlimited"))
		t := table.New("job", ">reserved", ">retries", ">OOMs", ">starts after")
		for _, j := range res.Jobs {
			t.Row(j.Source, size(j.ReservedPeak), fmt.Sprint(j.NumAllocRetries), fmt.Sprint(j.NumOOMs), millis(float64(j.DelayUS)))
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	if !res.Fits {
		return errNo
	}
	return nil
}
