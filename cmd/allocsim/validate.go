package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/table"
	"allocsim/validate"
)

func newValidate(a *app) *cobra.Command {
	env := &environment{a: a}
	var o validate.Options
	var card, reserve sizeFlag
	var junit, cost string
	cmd := &cobra.Command{
		Use:   "validate TRACE",
		Short: "Replay on a real GPU and compare with the prediction",
		Long: `Runs the same policy on a real device, or the same requests inside PyTorch's own
allocator, and compares what was predicted with what was measured:

` + engineList() + `
Takes only memory that is free, gives everything back also when stopped, and
refuses a card that others use unless --force. Exit code 1 when a figure is out
of tolerance.`,
		Example: `  allocsim validate snapshot.pickle --engine torch
  allocsim validate snapshot.pickle --engine cuda --card 24GiB --junit out.xml
  allocsim validate --save-cost cost.json   # measure this machine's driver`,
		Args: arguments(0, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			costFile, err := a.output(cmd, "save-cost", costKind)
			if err != nil {
				return err
			}
			junitFile, err := a.output(cmd, "junit", junitKind)
			if err != nil {
				return err
			}
			if costFile != nil {
				c, err := validate.MeasureCost(cmd.Context(), o.Device, o.Force)
				if err != nil {
					return err
				}
				if err := costFile.Write(func(w io.Writer) error { return writeJSON(w, c) }); err != nil {
					return err
				}
				if len(args) == 0 {
					return nil
				}
			}
			if len(args) == 0 {
				return arguments(1, 1, "one TRACE")(cmd, args)
			}
			if o.Tolerance < 0 || math.IsNaN(o.Tolerance) {
				return fmt.Errorf("--tolerance %v: give a percentage of 0 or more", o.Tolerance)
			}
			c, err := env.caseOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			o.Config, o.Card, o.Reserve = c.Config(), int64(card), int64(reserve)
			res, err := validate.Run(cmd.Context(), c.Trace, o)
			if err != nil {
				return err
			}
			res.Notes = append(res.Notes, c.Recovered.Inferred...)
			if junitFile != nil {
				if err := junitFile.Write(func(w io.Writer) error { return validate.WriteJUnit(w, res) }); err != nil {
					return err
				}
			}
			if err := a.showValidation(res); err != nil {
				return err
			}
			if !res.Pass {
				return errNo
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Engine, "engine", "", "`ENGINE` cuda, torch or sim (default: cuda where there is a GPU and it is built in, else sim)")
	f.Var(&card, "card", "emulate a card with so many bytes free")
	f.Float64Var(&o.Tolerance, "tolerance", 0, "largest deviation that passes, in `PERCENT`")
	addOutput(cmd, &junit, "junit", "", "also write the result to `FILE` as JUnit XML")
	f.BoolVar(&o.Force, "force", false, "use a card that other processes use")
	f.Var(&reserve, "reserve", "free memory of the card that is never taken")
	f.IntVar(&o.Device, "cuda-device", 0, "CUDA device `N`")
	f.StringVar(&o.Python, "python", "", "`PYTHON` of the engine torch (default python3)")
	addOutput(cmd, &cost, "save-cost", "", "measure what driver calls cost here and write `FILE`")
	env.addPolicy(cmd)
	env.addDevice(cmd)
	return cmd
}

func engineList() string {
	var b strings.Builder
	for _, e := range validate.Engines() {
		doc := e.Doc
		if !e.BuiltIn {
			doc += " (not in this build)"
		}
		fmt.Fprintf(&b, "  %-6s %s\n", e.Name, wrap(doc, 71, "         "))
	}
	return b.String()
}

func (a *app) showValidation(r *validate.Report) error {
	if a.json {
		return a.printJSON(r)
	}
	verdict := "pass"
	switch {
	case !r.Pass:
		verdict = "fail"
	case !r.Confirmed:
		verdict = "pass, but nothing real was measured"
	}
	a.printf("%s: %s on %s, engine %s\n\n", a.strong(verdict), r.Policy, r.Device, r.Engine)
	t := table.New("", ">predicted", ">measured", ">deviation", "")
	for _, c := range r.Checks() {
		deviation, mark := "", ""
		if !math.IsNaN(c.Deviation) {
			deviation = fmt.Sprintf("%+.2f %%", c.Deviation)
		}
		if !c.Pass {
			mark = "fail"
		}
		t.Row(c.Name, c.Predicted, c.Measured, deviation, mark)
	}
	if err := a.print(t); err != nil {
		return err
	}
	for _, c := range r.Checks() {
		if !c.Pass && c.Why != "" {
			a.printf("%s\n", wrap(c.Name+": "+c.Why, 80, "  "))
		}
	}
	a.notes(r.Notes)
	return nil
}
