package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/policies"
	"allocsim/sim"
)

func newReplay(a *app) *cobra.Command {
	env := &environment{a: a}
	var span int
	var failOn []string
	cmd := &cobra.Command{
		Use:        "replay TRACE",
		SuggestFor: []string{"run", "simulate", "sim"},
		Short:      "Run a trace under one allocator: memory, fragmentation, OOMs",
		Long: `Runs the requests of a trace under one allocator on one device and shows what
it takes: peaks, fragmentation, driver calls with their cost, and OOMs with
their cause. Without flags it repeats the recording: its configuration, its
memory limit. --capacity, --gpu, --conf and --policy change one thing each.`,
		Example: `  allocsim replay snapshot.pickle
  allocsim replay snapshot.pickle --gpu "RTX 4090"
  allocsim replay snapshot.pickle --conf expandable_segments:True
  allocsim replay snapshot.pickle --policy bfc --capacity 24GiB
  allocsim replay snapshot.pickle --fail-on 'ooms>0'`,
		Args: arguments(1, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			if span < 0 || span > maxSpan {
				return fmt.Errorf("--span %d: give the number of orders to try, up to 10,000, such as %d", span, sim.SpanOrders)
			}
			alerts, err := planner.ParseAlerts(failOn)
			if err != nil {
				return err
			}
			c, err := env.caseOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			run, err := planner.Replay(cmd.Context(), c, true)
			if err != nil {
				return err
			}
			doc := &replayed{Document: run.Result.Document(), Evidence: c.Evidence(), Explanations: run.Worlds}
			doc.Bound = c.Need()
			doc.Notes = append(doc.Notes, c.Recovered.Inferred...)
			if d := planner.Differ(run.Worlds); d != "" {
				doc.Notes = append(doc.Notes, d+" This is the one that needs most.")
			}
			if span > 0 {
				if doc.Span, err = sim.SampleSpan(cmd.Context(), run.Case.Trace, run.Case.Config(), span, 0); err != nil {
					return err
				}
				doc.orders = span
			}
			if err := a.showReplay(doc, run.Result); err != nil {
				return err
			}
			return a.fired(planner.Check(alerts, run.Result))
		},
	}
	env.addPolicy(cmd)
	env.addDevice(cmd)
	cmd.Flags().IntVar(&span, "span", 0, "also the range over `N` orders in which the driver may place segments")
	cmd.Flags().Lookup("span").NoOptDefVal = strconv.Itoa(sim.SpanOrders)
	addFailOn(cmd, &failOn)
	return cmd
}

// maxSpan bounds the orders of --span: more say nothing more.
const maxSpan = 10_000

// replayed is the JSON of replay.
type replayed struct {
	*sim.Document
	Evidence planner.Evidence `json:"evidence"`
	// Explanations are the runs under each explanation of the recording.
	Explanations []planner.World `json:"explanations"`

	orders int // of Span
}

// addFailOn adds --fail-on.
func addFailOn(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringArrayVar(to, "fail-on", nil, "exit code 1 if `EXPR` holds, e.g. 'ooms>0' or 'reserved_peak>20GiB' (repeatable); see allocsim help alerts")
}

// fired ends a command whose alerts have fired.
func (a *app) fired(alerts []planner.Alert) error {
	for _, f := range alerts {
		fmt.Fprintf(a.stderr, "alert: %s\n", f)
	}
	if len(alerts) > 0 {
		return errNo
	}
	return nil
}

func (a *app) showReplay(doc *replayed, res *sim.Result) error {
	if a.json {
		return a.printJSON(doc)
	}
	verdict := "completed"
	if n := res.Stats.NumOOMs; res.Completed && n > 0 {
		verdict = fmt.Sprintf("as recorded: %s failed there, too;", plural.Of(int(n), "request"))
	}
	if !res.Completed {
		verdict = fmt.Sprintf("out of memory, %s", plural.Of(int(max(res.Stats.NumOOMs, int64(len(doc.OOMs)))), "time"))
	}
	a.doubt(doc.Evidence.Source)
	a.doubt(doc.Evidence.Doubt)
	if doc.Evidence.Level == planner.LevelPart {
		verdict = "in the part recorded: " + verdict
	}
	a.printf("%s under %s\n\n", a.strong(verdict), res.Policy)
	if !doc.Evidence.Complete() {
		a.printf("%s\n\n", wrap(strings.Join(doc.Evidence.Missing, " ")+" "+doc.Evidence.Record, 80, ""))
	}
	s := &res.Stats
	t := table.New("", ">peak", ">at the end")
	row := func(name string, st *policies.StatArray) {
		t.Row(name, size(st[policies.All].Peak), size(st[policies.All].Current))
	}
	row("reserved", &s.ReservedBytes)
	row("allocated", &s.AllocatedBytes)
	row("active", &s.ActiveBytes)
	row("requested", &s.RequestedBytes)
	if err := a.print(t); err != nil {
		return err
	}
	f := doc.Fragmentation.AtPeak
	a.printf("\n")
	t = table.New("", "")
	t.Row("device capacity", sizeOr(res.Capacity, "unlimited"))
	t.Row("memory limit", sizeOr(res.Limit, "none"))
	t.Row("utilization", percent(doc.Utilization)+" (peak allocated / peak reserved)")
	when := ""
	if at := res.AtPeak; at != nil {
		when = fmt.Sprintf(" (event %d)", at.Event)
	}
	t.Row("at the reserved peak", fmt.Sprintf("%s reserved but unallocated%s,", size(f.ReservedUnallocated), when))
	t.Row("", fmt.Sprintf("%s of it stranded; largest free block %s;", size(f.Stranded), size(f.LargestFree)))
	t.Row("", fmt.Sprintf("external fragmentation %s", percent(f.External)))
	t.Row("driver calls", fmt.Sprintf("%d malloc, %d free, %d map, %d unmap: about %s", doc.Driver.Mallocs, doc.Driver.Frees, doc.Driver.Maps, doc.Driver.Unmaps, millis(res.Driver.StallUS)))
	t.Row("retries, OOMs", fmt.Sprintf("%d, %d", s.NumAllocRetries, s.NumOOMs))
	if sp := doc.Span; sp != nil {
		t.Row("span", fmt.Sprintf("reserved peak %s … %s, retries %d … %d", size(sp.ReservedPeak[0]), size(sp.ReservedPeak[1]), sp.NumAllocRetries[0], sp.NumAllocRetries[1]))
		t.Row("", fmt.Sprintf("over %d orders in which the driver may place segments", doc.orders))
	}
	if err := a.print(t); err != nil {
		return err
	}
	a.showOOMs(doc.OOMs)
	a.notes(doc.Notes)
	return nil
}

// showOOMs lists failed requests; those that follow each other directly, as
// when a library tries one workspace after the other, are one line.
func (a *app) showOOMs(ooms []sim.OOMDocument) {
	const most = 5
	shown := 0
	for i := 0; i < len(ooms); shown++ {
		j := i + 1
		for j < len(ooms) && ooms[j].Event == ooms[j-1].Event+1 {
			j++
		}
		o := ooms[i]
		if shown == most {
			a.printf("… and %s (all in --json)\n", plural.Of(len(ooms)-i, "more failed request"))
			return
		}
		what := fmt.Sprintf("OOM at event %d", o.Event)
		if j-i > 1 {
			what = fmt.Sprintf("%d OOMs from event %d on", j-i, o.Event)
		}
		line := fmt.Sprintf("%s: %s requested; %s reserved, %s allocated, largest free block %s; cause: %s",
			what, size(o.Requested), size(o.Reserved), size(o.Allocated), size(o.LargestFree), o.Cause)
		if o.Reason != "" {
			line += ". " + o.Reason
		}
		a.printf("%s\n", wrap(line, 80, "    "))
		i = j
	}
}
