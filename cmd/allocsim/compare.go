package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/sim"
)

func newCompare(a *app) *cobra.Command {
	env := &environment{a: a}
	var confs, names []string
	cmd := &cobra.Command{
		Use:   "compare TRACE --conf A --conf B …",
		Short: "Run a trace under several allocators side by side",
		Long: `Runs the same requests under each configuration (--conf) and each allocator
(--policy) in turn, configurations first, and shows them side by side with the
bound: the most bytes that live at once, which no placement can undercut.
Without either flag the recorded configuration is compared with expandable
segments.`,
		Example: `  allocsim compare snapshot.pickle --conf "" --conf expandable_segments:True
  allocsim compare snapshot.pickle --policy torch --policy bfc --policy packing`,
		Args: arguments(1, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			c, err := env.caseOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v := env.version(c.Trace)
			var specs []*policies.Spec
			for _, s := range confs {
				spec, err := torch.Parse(s, v)
				if err != nil {
					return fmt.Errorf("--conf: %w", err)
				}
				specs = append(specs, spec)
			}
			for _, n := range names {
				spec, err := planner.ParsePolicy(n, v)
				if err != nil {
					return err
				}
				specs = append(specs, spec)
			}
			if len(specs) == 0 {
				specs = append(specs, c.Policy)
				if spec, err := torch.Expandable(v); err == nil { // else an old PyTorch
					specs = append(specs, spec)
				}
			}
			bar := a.progress("simulating", "runs")
			defer bar.Done()
			var docs []*sim.Document
			for i, spec := range specs {
				under := *c
				under.Policy = spec
				run, err := planner.Replay(cmd.Context(), &under, true)
				if err != nil {
					return err
				}
				doc := run.Result.Document()
				doc.Bound = c.Need()
				doc.Notes = append(doc.Notes, c.Recovered.Inferred...)
				if d := planner.Differ(run.Worlds); d != "" {
					doc.Notes = append(doc.Notes, spec.String()+": "+d+" This is the one that needs most.")
				}
				docs = append(docs, doc)
				bar.Set(int64(i+1), int64(len(specs)))
			}
			if e := c.Evidence(); !e.Complete() {
				docs[0].Notes = append(docs[0].Notes, strings.Join(e.Missing, " ")+" Under another than the recorded setting the figures are the least. "+e.Record)
			}
			return a.showCompare(docs, c.Need())
		},
	}
	cmd.Flags().StringArrayVar(&confs, "conf", nil, "a PYTORCH_CUDA_ALLOC_CONF `STRING` (repeatable)")
	cmd.Flags().StringArrayVar(&names, "policy", nil, "an allocator `NAME[:OPTIONS]` (repeatable); see allocsim help policies")
	env.addDevice(cmd)
	return cmd
}

func (a *app) showCompare(docs []*sim.Document, bound int64) error {
	if a.json {
		return a.printJSON(struct {
			Bound   int64           `json:"bound"`
			Results []*sim.Document `json:"results"`
		}{bound, docs})
	}
	t := table.New(">reserved", ">/bound", ">util.", ">ext.frag.", ">stranded", ">calls", ">stall", ">retries", ">OOMs")
	for _, d := range docs {
		peak := d.Stats["reserved_bytes.all.peak"]
		ratio := "-"
		if bound > 0 && d.Stats["num_ooms"] == 0 {
			ratio = fmt.Sprintf("%.2f", float64(peak)/float64(bound))
		}
		t.Row(size(peak), ratio, percent(d.Utilization), percent(d.Fragmentation.AtPeak.External), size(d.Fragmentation.AtPeak.Stranded),
			fmt.Sprint(d.Driver.Mallocs+d.Driver.Frees+d.Driver.Maps+d.Driver.Unmaps), millis(float64(d.Driver.StallUS)),
			fmt.Sprint(d.Stats["num_alloc_retries"]), fmt.Sprint(d.Stats["num_ooms"]))
	}
	// Names of policies are long, so each has a line of its own.
	for i, line := range t.Lines(a.header()) {
		if i > 0 {
			a.printf("%s\n", a.strong(docs[i-1].Policy))
		}
		a.printf("%s", line)
	}
	a.printf("\nbound: %s live at once; no placement needs less\n", size(bound))
	var notes []string
	for _, d := range docs {
		notes = append(notes, d.Notes...)
	}
	a.notes(notes)
	return nil
}
