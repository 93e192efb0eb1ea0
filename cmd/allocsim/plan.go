package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/internal/text"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/sim"
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
			if ranks < 0 {
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
			switch {
			case worst && !colocate:
				return errors.New("--worst-case shifts jobs that share a card: add --colocate")
			case overhead != 0 && !colocate:
				return errors.New("--overhead is for jobs that share a card: add --colocate; elsewhere each card's own is known")
			case colocate && (prices != "" || mig):
				return errors.New("--colocate judges one card: leave out --price and --mig")
			}
			if colocate {
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

// checkJobs runs the jobs as the flags describe them and returns the alerts
// that fire.
func checkJobs(cmd *cobra.Command, alerts []planner.Alert, jobs []planner.Case) ([]planner.Alert, error) {
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
	a.doubt(&r.Evidence)
	if len(r.GPUs) == 1 {
		g := r.GPUs[0]
		with := ""
		if g.Conf != r.Baseline {
			with = " with " + orDefault(g.Conf)
		}
		// The verdict stands out; the rest is wrapped with it.
		text := wrap(fmt.Sprintf("%s on %s%s: %s", g.Verdict, g.Name, with, g.Reason), 80, "")
		a.printf("%s%s\n\n", a.strong(string(g.Verdict)), strings.TrimPrefix(text, string(g.Verdict)))
	}
	if !r.Evidence.Complete() && len(r.GPUs) != 1 {
		a.printf("%s\n\n", wrap("Undecidable for cards that might do: "+strings.Join(r.Evidence.Missing, " ")+" "+r.Evidence.Record+" The figures are the least that is needed.", 80, ""))
	}
	m := r.MinCapacity
	least := ""
	if !r.Evidence.Complete() {
		least = "≥ "
	}
	t := table.New("smallest capacity that works", ">for the allocator", ">safe", "setting")
	t.Row("bound (perfect placement)", least+bytesize.FormatUp(m.Bound), "", "")
	t.Row("present setting", least+bytesize.FormatUp(m.Baseline), least+bytesize.FormatUp(m.BaselineSafe), orDefault(r.Baseline))
	if m.BestConf != r.Baseline {
		lines := linesOf(m.BestConf, 28)
		t.Row("best setting", least+bytesize.FormatUp(m.Best), least+bytesize.FormatUp(m.BestSafe), lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", "", l)
		}
	}
	if err := a.print(t); err != nil {
		return err
	}
	if l := r.MinLimit; l != nil {
		a.printf("\n%s\n", wrap(fmt.Sprintf("The program sets a memory fraction. As a limit of the allocator's own it needs %s now (set_per_process_memory_fraction(%v) on the recorded card) and %s with the best setting (%v): a limit is not a capacity.",
			bytesize.FormatUp(l.Baseline), l.BaselineFraction, bytesize.FormatUp(l.Best), l.BestFraction), 80, ""))
	}
	for _, s := range r.Besides {
		a.printf("\n%s\n", wrap(fmt.Sprintf("Of each card, %s takes %s to %s besides the allocator and the CUDA context.", s.Name, size(s.Low), size(s.High)), 80, ""))
	}
	cards, hidden := chosenCards(r.GPUs, all)
	priced := slices.ContainsFunc(cards, func(c planner.CardVerdict) bool { return c.Price != nil })
	header := []string{"card", ">usable", "verdict", ">headroom", ">retries", "setting"}
	if priced {
		header = append(header, ">price")
	}
	a.printf("\n")
	t = table.New(header...)
	for _, g := range cards {
		usable, headroom, retries, setting := bytesize.FormatDown(g.Usable), size(g.Headroom), fmt.Sprint(g.NumAllocRetries), "present"
		if g.Headroom < 0 && g.HeadroomHigh >= 0 {
			// It depends on driver and libraries.
			headroom += " … " + size(g.HeadroomHigh)
		}
		if g.Conf != r.Baseline {
			setting = "best"
			if g.Conf != m.BestConf {
				setting = text.Head(g.Conf, 28) // this card's own
			}
		}
		switch g.Verdict {
		case gpus.Unknown:
			usable, headroom, retries, setting = "unknown", "", "", ""
		case gpus.No:
			retries = ""
		case gpus.Undecidable:
			headroom, retries, setting = "", "", ""
		}
		row := []string{text.Head(g.Name, 29), usable, string(g.Verdict), headroom, retries, setting}
		if priced {
			price := ""
			if g.Price != nil {
				price = strings.TrimSpace(fmt.Sprintf("%g %s", *g.Price, g.PriceUnit))
			}
			row = append(row, price)
		}
		t.Row(row...)
	}
	if err := a.print(t); err != nil {
		return err
	}
	if hidden != "" {
		a.printf("%s\n", wrap(hidden, 80, ""))
	}
	notes := append(r.Notes, fmt.Sprintf("\"Safe\" is the smallest size from which every larger one works, under all %d orders in which the driver may place segments; verdicts go by it.", sim.SpanOrders))
	a.notes(notes)
	return nil
}

// chosenCards are the cards to show, smallest first (cheapest first where
// there are prices), and a sentence on what is left out: of those that fit
// easily, and of those far too small, only the nearest are news.
func chosenCards(list []planner.CardVerdict, all bool) (cards []planner.CardVerdict, hidden string) {
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

func orDefault(conf string) string {
	if conf == "" {
		return "(default)"
	}
	return conf
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
		if !res.Fits {
			verdict = "does not fit"
		}
		a.printf("%s\n\n", a.strong(verdict))
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
