package main

import (
	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/sim/recovery"
)

func newCheck(a *app) *cobra.Command {
	env := &environment{a: a}
	cmd := &cobra.Command{
		Use:        "check TRACE",
		SuggestFor: []string{"verify", "test"},
		Short:      "Replay a recording and compare with what really happened",
		Long: `Replays a PyTorch snapshot under the configuration it was recorded with and
compares every address, segment event, OOM, final block and (with a sidecar)
every statistic with what the real allocator did. Exit code 0 when all are
equal, 1 when not.

What the recording does not note, such as empty_cache calls or a memory limit,
is inferred from its segment events and listed.`,
		Example: `  allocsim check testdata/recordings/gnn__default.pickle.zst
  allocsim check snapshot.pickle --conf expandable_segments:True`,
		Args: arguments(1, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			tr, err := env.replayable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			opts := recovery.Options{Conf: env.conf, ConfSet: env.confSet, Capacity: int64(env.capacity), Fraction: env.fraction, Assume: env.assume}
			if env.gpu != "" {
				card, err := env.card()
				if err != nil {
					return err
				}
				opts.Total = card.Total
			}
			if env.torch != "" {
				opts.Version = env.release()
			}
			res, err := recovery.Check(cmd.Context(), tr, opts)
			if err != nil {
				return err
			}
			res.Notes = append(res.Notes, planner.Choice{Version: env.release()}.VersionNotes(tr)...)
			if err := a.showCheck(res); err != nil {
				return err
			}
			if !res.Exact {
				return errNo
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&env.conf, "conf", "", "configuration `STRING` to hold against the recording (default: as recorded)")
	env.addDevice(cmd)
	return cmd
}

func (a *app) showCheck(r *recovery.CheckResult) error {
	if a.json {
		// A list without entries is [], not null.
		doc := *r
		doc.Inferred, doc.Open, doc.Notes = append([]string{}, r.Inferred...), append([]string{}, r.Open...), append([]string{}, r.Notes...)
		doc.Contradicted = append([]string{}, r.Contradicted...)
		return a.printJSON(doc)
	}
	verdict := "exact"
	if !r.Exact {
		verdict = "not exact"
	}
	a.printf("%s\n\n", a.strong(verdict))
	t := table.New("", ">matched", ">recorded")
	row := func(what string, matched, all int) { t.Row(what, number(matched), number(all)) }
	row("addresses", r.AddressesMatched, r.Allocs)
	row("segment events", r.SegmentEventsMatched, r.SegmentEvents)
	row("OOMs", r.OOMsMatched, r.OOMs)
	row("final blocks", r.FinalBlocksMatched, r.FinalBlocks)
	row("statistics", r.StatsCompared-len(r.StatsMismatched), r.StatsCompared)
	if err := a.print(t); err != nil {
		return err
	}
	if d := r.FirstDivergence; d != nil {
		a.printf("\nFirst difference at event %d (%d µs): %s\n  recorded:  %s\n  simulated: %s\n", d.Event, d.TimeUS, d.What, d.Recorded, d.Simulated)
	}
	for _, m := range r.StatsMismatched {
		a.printf("  %s: recorded %d, simulated %d\n", m.Key, m.Recorded, m.Simulated)
	}
	for _, s := range r.Contradicted {
		a.printf("%s\n", wrap("contradicted: "+s, 80, "              "))
	}
	for _, s := range r.Inferred {
		a.printf("%s\n", wrap("inferred: "+s, 80, "          "))
	}
	for _, s := range r.Open {
		a.printf("%s\n", wrap("open: "+s, 80, "      "))
	}
	a.notes(r.Notes)
	return nil
}
