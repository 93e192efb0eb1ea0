package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/policies"
	"allocsim/policies/torch"
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
			v := c.Version
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
				specs = planner.Compared(c, v)
			}
			bar := a.progress("simulating", "runs")
			defer bar.Done()
			cmp, err := planner.Compare(cmd.Context(), c, specs, bar.Set)
			if err != nil {
				return err
			}
			return a.showCompare(cmp)
		},
	}
	cmd.Flags().StringArrayVar(&confs, "conf", nil, "a PYTORCH_CUDA_ALLOC_CONF `STRING` (repeatable)")
	cmd.Flags().StringArrayVar(&names, "policy", nil, "an allocator `NAME[:OPTIONS]` (repeatable); see allocsim help policies")
	env.addDevice(cmd)
	return cmd
}

func (a *app) showCompare(c *planner.Comparison) error {
	if a.json {
		return a.printJSON(c)
	}
	a.doubt(c.Evidence.Source)
	a.doubt(c.Evidence.Doubt)
	if !c.Evidence.Complete() {
		a.printf("%s\n\n", wrap(strings.Join(c.Evidence.Missing, " ")+" Under another than the recorded setting the figures are the least. "+c.Evidence.Record, 80, ""))
	}
	docs, bound := c.Results, c.Bound
	t := table.New(">reserved", ">/bound", ">util.", ">ext.frag.", ">stranded", ">calls", ">stall", ">retries", ">OOMs")
	for _, d := range docs {
		peak := d.Stats["reserved_bytes.all.peak"]
		ratio := "-"
		if bound > 0 && d.Stats["num_ooms"] == 0 && c.Evidence.Complete() {
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
