package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/internal/text"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/planner/words"
)

func newPlan(a *app) *cobra.Command {
	env := &environment{a: a}
	var opts planner.PlanOptions
	var mig, colocate, worst, all bool
	var overhead, nccl sizeFlag
	var ranks int
	var prices string
	var failOn []string
	cmd := &cobra.Command{
		Use:        "plan TRACE…",
		SuggestFor: []string{"fit", "cards", "gpus", "capacity"},
		Short:      "Say which cards fit, and the smallest memory that works",
		Long: `Finds the smallest device on which the job completes, with the present setting
and with the best one, and judges the cards of the catalogue by it: fits, tight
(it depends on driver, libraries or luck; exit code 0), no, or undecidable where
the recording does not hold what would show it. Every capacity named is
simulated, and so is one step less, which fails.

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
			if env.fracSet {
				return errors.New("plan judges whole devices, so --memory-fraction does not apply; give --capacity with the part that the job may take")
			}
			if ranks < 0 || cmd.Flags().Changed("ranks") && ranks == 0 {
				return fmt.Errorf("--ranks %d: give the number of processes of the job, 1 or more", ranks)
			}
			if err := checkSearch(cmd, &opts.Tune); err != nil {
				return err
			}
			alerts, err := planner.ParseAlerts(failOn)
			if err != nil {
				return err
			}
			jobs, err := env.cases(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := checkColocate(colocate, worst, overhead != 0, prices != "" || mig); err != nil {
				return err
			}
			if colocate {
				return a.colocate(cmd, env, jobs, planner.ColocateOptions{Overhead: int64(overhead), WorstCase: worst})
			}
			if err := env.planCards(&opts, mig, prices); err != nil {
				return err
			}
			opts.Tune.Version = jobs[0].Version
			opts.Besides = besides(jobs, ranks, nccl)
			bar := a.progress("planning", "runs")
			opts.Tune.Progress = bar.Set
			res, err := planner.Plan(cmd.Context(), jobs, opts)
			bar.Done()
			if err != nil {
				return err
			}
			if err := a.showPlan(res, all); err != nil {
				return err
			}
			if err := a.firedOn(cmd, alerts, jobs); err != nil {
				return err
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
	// A plan is about whole devices; a fraction of one is a capacity.
	cobra.CheckErr(f.MarkHidden("memory-fraction"))
	f.IntVar(&ranks, "ranks", 0, "processes `N` of the job, one a card: with several, each card also holds NCCL's buffers (default: as recorded)")
	f.Var(&nccl, "nccl", "what NCCL takes of each card (default: 1 to 3 GiB where there are several ranks)")
	f.StringVar(&env.conf, "conf", "", "the configuration `STRING` set now (default: as recorded)")
	f.BoolVar(&all, "all", false, "list every card, not only those near the need")
	f.BoolVar(&mig, "mig", false, "also judge the MIG slices of each card")
	f.StringVar(&prices, "price", "", "a CSV `FILE` with the columns name, price[, unit]: list those cards only, cheapest first")
	f.BoolVar(&colocate, "colocate", false, "run the traces on one card at the same time")
	f.BoolVar(&worst, "worst-case", false, "with --colocate: shift the jobs so that their peaks coincide")
	f.Var(&overhead, "overhead", "with --colocate: what each process takes besides its allocator (default: that of the card)")
	f.IntVar(&opts.Tune.Budget, "budget", planner.DefaultBudget, "most settings `N` to simulate")
	f.IntVar(&opts.Tune.Workers, "workers", 0, "`N` parallel simulations (default: one a processor)")
	addFailOn(cmd, &failOn)
	return cmd
}

// besides is what each process takes of a card besides its allocator and its
// context: NCCL, where the job has several ranks.
func besides(jobs []planner.Case, ranks int, nccl sizeFlag) []gpus.Share {
	for _, j := range jobs {
		if ranks == 0 {
			ranks = j.Trace.Meta.Ranks
		}
	}
	share := gpus.NCCL
	if nccl != 0 {
		share.Low, share.High = int64(nccl), int64(nccl)
		ranks = max(ranks, 2)
	}
	if ranks < 2 {
		return nil
	}
	return []gpus.Share{share}
}

// checkColocate refuses flags that do not go together: those of jobs that share
// a card, and those of many cards.
func checkColocate(colocate, worst, overhead, many bool) error {
	switch {
	case worst && !colocate:
		return errors.New("--worst-case shifts jobs that share a card: add --colocate")
	case overhead && !colocate:
		return errors.New("--overhead is for jobs that share a card: add --colocate; elsewhere each card's own is known")
	case colocate && many:
		return errors.New("--colocate judges one card: leave out --price and --mig")
	}
	return nil
}

// planCards reads the cards to judge and, where a file names them, their
// prices.
func (e *environment) planCards(opts *planner.PlanOptions, mig bool, prices string) error {
	cat, err := e.catalog()
	if err != nil {
		return err
	}
	if opts.Cards, err = e.cards(cat, mig); err != nil {
		return err
	}
	if prices == "" {
		return nil
	}
	f, err := os.Open(prices)
	if err != nil {
		return fmt.Errorf("--price: %w", err)
	}
	defer f.Close()
	if opts.Prices, err = cat.LoadPrices(f, prices); err != nil {
		return fmt.Errorf("--price: %w", err)
	}
	return nil
}

// firedOn runs the jobs as the flags describe them and answers with the alerts
// that fire.
func (a *app) firedOn(cmd *cobra.Command, alerts []planner.Alert, jobs []planner.Case) error {
	if len(alerts) == 0 {
		return nil
	}
	fired, err := planner.CheckJobs(cmd.Context(), alerts, jobs, planner.Candidate{})
	if err != nil {
		return err
	}
	return a.fired(fired)
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
		return []gpus.Card{{Name: "a device of " + size(n), Total: n, Low: n, High: n, Confidence: gpus.Measured}}, nil
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

func (a *app) showPlan(r *planner.Planning, all bool) error {
	if a.json {
		return a.printJSON(r)
	}
	a.doubt(r.Evidence.Source)
	a.doubt(r.Evidence.Doubt)
	if len(r.GPUs) == 1 {
		// The verdict stands out; the rest is wrapped with it.
		verdict := string(r.GPUs[0].Verdict)
		text := wrap(words.OneCard(r, &r.GPUs[0]), 80, "")
		a.printf("%s%s\n\n", a.strong(verdict), strings.TrimPrefix(text, verdict))
	} else if why := words.Undecided(&r.Evidence); why != "" {
		a.printf("%s\n\n", wrap(why, 80, ""))
	}
	t := table.New("smallest capacity that works", ">for the allocator", ">safe", "setting")
	for i, c := range words.Capacities(r) {
		lines := []string{c.Setting}
		if i > 1 { // what is set now is shown as it is set
			lines = linesOf(c.Setting, 28)
		}
		t.Row(c.What, c.Allocator, c.Safe, lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", "", l)
		}
	}
	if err := a.print(t); err != nil {
		return err
	}
	for _, s := range words.Besides(r) {
		a.printf("\n%s\n", wrap(s, 80, ""))
	}
	cards, hidden := words.ChosenCards(r.GPUs, all)
	a.printf("\n")
	if err := a.print(cardTable(words.Cards(cards, r.Baseline, r.MinCapacity.BestConf))); err != nil {
		return err
	}
	if hidden != "" {
		a.printf("%s\n", wrap(hidden, 80, ""))
	}
	a.notes(append(r.Notes, words.Safe()))
	return nil
}

// cardTable is the table of cards, with prices where one has a price.
func cardTable(cards []words.Card) *table.Table {
	priced := slices.ContainsFunc(cards, func(c words.Card) bool { return c.Price.Text != "" })
	header := []string{"card", ">usable", "verdict", ">headroom", ">retries", "setting"}
	if priced {
		header = append(header, ">price")
	}
	t := table.New(header...)
	for _, c := range cards {
		row := []string{text.Head(c.Name.Text, 29), c.Usable.Text, c.Verdict.Text, c.Headroom.Text, c.Retries.Value, text.Head(c.Setting.Text, 28)}
		if priced {
			row = append(row, c.Price.Text)
		}
		t.Row(row...)
	}
	return t
}

// colocate answers plan --colocate.
func (a *app) colocate(cmd *cobra.Command, env *environment, jobs []planner.Case, o planner.ColocateOptions) error {
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
		switch {
		case res.Verdict == gpus.Undecidable:
			verdict = "undecidable"
		case !res.Fits:
			verdict = "does not fit"
		}
		a.printf("%s\n\n", a.strong(verdict))
		if !res.Evidence.Complete() {
			a.printf("%s\n\n", wrap(strings.Join(res.Evidence.Missing, " ")+" The figures are the least that is needed.", 80, ""))
		}
		t := table.New("", ">")
		t.Row("in use at most together", size(res.UsedPeak))
		t.Row("if all peaks coincided", size(res.SumOfPeaks))
		t.Row("of this, besides the allocators", size(o.Overhead*int64(len(jobs))))
		t.Row("the card has", sizeOr(int64(res.Capacity), "unlimited"))
		if err := a.print(t); err != nil {
			return err
		}
		a.printf("\n")
		t = table.New("job", ">reserved", ">retries", ">OOMs", ">starts after")
		for _, j := range res.Jobs {
			t.Row(text.Tail(j.Source, 36), size(j.ReservedPeak), fmt.Sprint(j.NumAllocRetries), fmt.Sprint(j.NumOOMs), millis(float64(j.DelayUS)))
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
