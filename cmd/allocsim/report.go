package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/plots/report"
)

// reported is the JSON of report.
type reported struct {
	File   string   `json:"file"`
	Inputs []string `json:"inputs"`
	SHA256 []string `json:"sha256"`
	Export string   `json:"export"`
	Reason string   `json:"reason"`
	Notes  []string `json:"notes"`
}

func newReport(a *app) *cobra.Command {
	env := &environment{a: a}
	var out string
	var thorough bool
	var workers int
	cmd := &cobra.Command{
		Use:   "report TRACE… -o FILE.html",
		Short: "Write one HTML file that explains everything",
		Long: `Writes a report as one HTML file that needs no network: what is wrong and the
line that cures it, the cards that fit, memory over time and over addresses
(zoom, hover, switch between settings), who holds the memory, what is not known,
and what the words mean. It prints, and reads without JavaScript.

Several traces go into one report, with one setting that serves them all. For
long traces the search is kept short, and the report says so; --thorough
searches as tune and plan do.`,
		Example: `  allocsim report snapshot.pickle -o report.html
  allocsim report rank0.pickle rank1.pickle --gpu "A100 80GB" -o ranks.html`,
		Args: arguments(1, -1, "one TRACE or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			switch {
			case out == "":
				return errors.New("say where the report goes: -o FILE.html")
			case !strings.HasSuffix(strings.ToLower(out), ".html") && !strings.HasSuffix(strings.ToLower(out), ".htm"):
				return fmt.Errorf("%s: the name of a report ends in .html", out)
			}
			file, err := a.output(cmd, "output", reportKind)
			if err != nil {
				return err
			}
			doc := reported{File: out, Inputs: args}
			inputs, err := env.reportInputs(cmd.Context(), args)
			if err != nil {
				return err
			}
			cat, err := env.catalog()
			if err != nil {
				return err
			}
			bar := a.progress("searching", "runs")
			o := report.Options{
				Command: commandLine(cmd, args), Version: version(), PyTorch: inputs[0].Job.Version,
				Cards: cat.All(), Thorough: thorough, Workers: workers, Progress: bar.Set,
			}
			var res *report.Result
			err = file.Write(func(w io.Writer) error {
				res, err = report.Write(cmd.Context(), w, inputs, o)
				return err
			})
			bar.Done()
			if err != nil {
				return err
			}
			doc.Export, doc.Reason, doc.Notes = res.Tuning.Export, res.Tuning.Reason, append([]string{}, res.Notes...)
			for _, in := range inputs {
				doc.SHA256 = append(doc.SHA256, in.SHA256)
			}
			if a.json {
				return a.printJSON(doc)
			}
			if res.Tuning.Export != "" {
				a.printf("%s\n\n", a.strong(res.Tuning.Export))
			}
			a.printf("%s\n", wrap(res.Tuning.Reason, 80, ""))
			a.notes(res.Notes)
			return nil
		},
	}
	f := cmd.Flags()
	addOutput(cmd, &out, "output", "o", "`FILE.html` to write")
	f.BoolVar(&thorough, "thorough", false, "search as tune and plan do, however long it takes")
	f.IntVar(&workers, "workers", 0, "`N` parallel simulations (default: one a processor)")
	f.StringVar(&env.conf, "conf", "", "the configuration `STRING` set now (default: as recorded)")
	env.addDevice(cmd)
	return cmd
}

// reportInputs opens the traces of a report.
func (e *environment) reportInputs(ctx context.Context, paths []string) ([]report.Input, error) {
	var inputs []report.Input
	names := displayNames(paths)
	for i, p := range paths {
		sum := e.hashStdin(p)
		c, err := e.caseOf(ctx, p)
		if err != nil {
			return nil, err
		}
		hash, err := fileHash(p, sum, e.a.stdin)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, report.Input{Name: names[i], SHA256: hash, Job: *c})
	}
	return inputs, nil
}

// displayNames are the paths without what they have in common in front.
func displayNames(paths []string) []string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = p[strings.LastIndexAny(p, `/\`)+1:]
		if p == "-" {
			names[i] = "standard input"
		}
		for _, q := range paths[:i] {
			if q[strings.LastIndexAny(q, `/\`)+1:] == names[i] {
				names[i] = p // two files of one name
			}
		}
	}
	return names
}
