package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/outfile"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces/formats"
	"allocsim/traces/perfetto"
)

// conversion is the JSON of convert.
type conversion struct {
	Source string   `json:"source"`
	File   string   `json:"file"`
	Events int      `json:"events"`
	Notes  []string `json:"notes"`
}

func newConvert(a *app) *cobra.Command {
	env := &environment{a: a}
	var into string
	cmd := &cobra.Command{
		Use:   "convert IN OUT",
		Short: "Convert a trace between formats",
		Long: `Converts a trace to the format that OUT's name ends in:

` + formatList() + `
.gz or .zst after any of these packs the file. Counter tracks are for looking at
beside a kernel timeline: OUT.json has the requested bytes, OUT.perfetto.json
the curves of a simulation (reserved, allocated, active) of the recorded
configuration, or that of --conf or --policy (these and the flags of the device
go with OUT.perfetto.json only). --into puts these curves above the kernels of a
profiler trace, of which OUT is then a copy. What the format cannot carry is
said, and stays with the file where it has room for notes.`,
		Example: `  allocsim convert snapshot.pickle trace.csv
  allocsim convert trace.csv trace.parquet
  allocsim convert snapshot.pickle curves.perfetto.json
  allocsim convert profile.json both.perfetto.json --into profile.json`,
		Args: arguments(2, 2, "two files, IN and OUT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			out, err := formats.Output(args[1], a.sources(cmd, args[:1], nil)...)
			if err != nil {
				return err
			}
			if strings.HasSuffix(strings.ToLower(formats.PlainName(args[1])), ".perfetto.json") {
				return env.convertCurves(cmd, args[0], into, out)
			}
			if into != "" {
				return fmt.Errorf("--into goes with OUT.perfetto.json only; %s holds the requests as recorded", args[1])
			}
			for _, name := range simulationFlags {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s says how to simulate, which only OUT.perfetto.json needs; leave it out for %s, which holds the requests as recorded", name, args[1])
				}
			}
			tr, err := env.replayable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rec, err := recovery.Recover(cmd.Context(), tr, recovery.Options{})
			if err != nil {
				return err
			}
			tr = rec.Portable()
			notes, err := formats.Write(cmd.Context(), out, tr)
			if err != nil {
				return err
			}
			notes = append(append([]string{}, tr.Notes...), notes...)
			if a.json {
				return a.printJSON(conversion{args[0], args[1], len(tr.Events), notes})
			}
			a.notes(notes)
			return nil
		},
	}
	cmd.Flags().StringVar(&into, "into", "", "with OUT.perfetto.json: the profiler trace `FILE` to add the curves to")
	env.addPolicy(cmd)
	env.addDevice(cmd)
	return cmd
}

// simulationFlags are those of convert that matter only where it simulates.
var simulationFlags = []string{"conf", "policy", "capacity", "gpu", "catalogue", "memory-fraction", "torch"}

// formatList is the formats that can be written, for the help text.
func formatList() string {
	var b strings.Builder
	for _, f := range formats.Formats() {
		if f.Write {
			fmt.Fprintf(&b, "  %-16s %s\n", f.Endings[0], f.Title)
		}
	}
	return b.String()
}

// convertCurves simulates and writes counter tracks.
func (e *environment) convertCurves(cmd *cobra.Command, in, into string, out *outfile.File) error {
	c, err := e.caseOf(cmd.Context(), in)
	if err != nil {
		return err
	}
	var s sim.Series
	if _, err := sim.Run(cmd.Context(), c.Trace, c.Config(), &s); err != nil {
		return err
	}
	tracks := []perfetto.Track{
		{Name: "reserved", TimeUS: s.TimeUS, Value: s.Reserved},
		{Name: "allocated", TimeUS: s.TimeUS, Value: s.Allocated},
		{Name: "active", TimeUS: s.TimeUS, Value: s.Active},
	}
	opts := perfetto.Options{Process: "allocsim: " + c.Policy.String(), ClockUS: c.Trace.Meta.ClockUS}
	write := func(w io.Writer) error { return perfetto.Write(cmd.Context(), w, opts, tracks) }
	if into != "" {
		write = func(w io.Writer) error {
			profile, err := formats.Content(cmd.Context(), into)
			if err != nil {
				return fmt.Errorf("--into: %w", err)
			}
			defer profile.Close()
			if err := perfetto.Merge(cmd.Context(), w, profile, opts, tracks); err != nil {
				return fmt.Errorf("--into %s: %w", into, err)
			}
			return nil
		}
	}
	if err := formats.WritePacked(out, write); err != nil {
		return err
	}
	if e.a.json {
		return e.a.printJSON(conversion{in, out.Path(), len(c.Trace.Events), append([]string{}, c.Recovered.Inferred...)})
	}
	return nil
}
