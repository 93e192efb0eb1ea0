package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gonum.org/v1/plot/vg"

	"allocsim/internal/progress"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
)

// plotting is the plot command.
type plotting struct {
	env           *environment
	kind, out     string
	confs, names  []string
	best          bool
	axis          string
	width, height string
	dpi           int
	dark          bool
	title         string
	noFooter      bool
	rows          int
}

// plotted is the JSON of plot.
type plotted struct {
	File   string   `json:"file"`
	Kind   string   `json:"kind"`
	Source string   `json:"source"`
	SHA256 string   `json:"sha256"`
	Runs   []string `json:"runs"`
	Notes  []string `json:"notes"`
}

func newPlot(a *app) *cobra.Command {
	p := &plotting{env: &environment{a: a}}
	cmd := &cobra.Command{
		Use:   "plot TRACE --kind KIND -o FILE.(png|svg|pdf)",
		Short: "Draw a figure: memory over time, map of addresses, comparison …",
		Long: `Draws one figure, ready for a paper or a report:

  timeline       reserved, allocated and active bytes over time, limit, OOMs
  map            what lay where: address over time, stranded space
  fragmentation  what reserved memory consists of over time
  sizes          how often each size is asked for; what rounding costs
  compare        several allocators side by side against the bound
  pareto         what less memory costs: peak against time in driver calls
  fit            which cards fit under which setting, and what is left

Without --conf and --policy the recorded setting is shown; with several of them
each has its panel, bar or column, in the order given (settings first), and
--best adds the setting that tune finds. --width and --height are sizes on
paper (text keeps a readable size on it) or pixels.

A small line at the bottom says how to make the figure again: the command, the
hash of the input, the program's version. The same command gives the same
bytes.`,
		Example: `  allocsim plot snapshot.pickle --kind timeline -o timeline.png
  allocsim plot snapshot.pickle --kind timeline --best -o before-and-after.svg
  allocsim plot snapshot.pickle --kind map --x events --dark -o map.png
  allocsim plot snapshot.pickle --kind compare --policy packing -o compare.pdf`,
		Args: arguments(1, 1, "one TRACE (a snapshot, CSV, Parquet …; - is standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&p.kind, "kind", "timeline", "`KIND` of figure (see above)")
	addOutput(cmd, &p.out, "output", "o", "`FILE` to write; its ending (.png, .svg, .pdf) is the format")
	f.StringArrayVar(&p.confs, "conf", nil, "a PYTORCH_CUDA_ALLOC_CONF `STRING` to show (repeatable; default: as recorded)")
	f.StringArrayVar(&p.names, "policy", nil, "an allocator `NAME[:OPTIONS]` to show (repeatable)")
	f.BoolVar(&p.best, "best", false, "also show the best setting that tune finds")
	f.StringVar(&p.axis, "x", "time", "`AXIS` from left to right: time or events")
	f.StringVar(&p.width, "width", "7in", "`WIDTH`: 7in, 18cm, 180mm, 500pt or 1000px")
	f.StringVar(&p.height, "height", "4.2in", "`HEIGHT`, likewise")
	f.IntVar(&p.dpi, "dpi", plots.DefaultDPI, "`DOTS` per inch of a PNG (and of px)")
	f.BoolVar(&p.dark, "dark", false, "light on dark")
	f.StringVar(&p.title, "title", "", "`TEXT` in place of the usual title")
	f.BoolVar(&p.noFooter, "no-footer", false, "leave out the line that says how the figure was made")
	f.IntVar(&p.rows, "rows", 16, "with --kind fit: at most `N` rows of cards")
	p.env.addDevice(cmd)
	return cmd
}

// length reads a width or height: a number with a unit, pixels without one.
func length(flag, s string, dpi int) (vg.Length, error) {
	t := strings.TrimSpace(s)
	unit := vg.Inch / vg.Length(dpi)
	for _, u := range []struct {
		name string
		size vg.Length
	}{{"in", vg.Inch}, {"cm", vg.Centimeter}, {"mm", vg.Millimeter}, {"pt", 1}, {"px", unit}} {
		if rest, ok := strings.CutSuffix(t, u.name); ok {
			t, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	x, err := strconv.ParseFloat(t, 64)
	if err != nil || !(x > 0) || x > 1e6 {
		return 0, fmt.Errorf("--%s %q: write a size such as 7in, 16cm or 1200px", flag, s)
	}
	return vg.Length(x) * unit, nil
}

func (p *plotting) run(cmd *cobra.Command, path string) error {
	e, a := p.env, p.env.a
	if err := e.parse(cmd); err != nil {
		return err
	}
	e.confSet = false // --conf is a list here
	if !slices.Contains(plots.Kinds(), p.kind) {
		return fmt.Errorf("--kind %q: known kinds are %s", p.kind, strings.Join(plots.Kinds(), ", "))
	}
	if p.out == "" {
		return errors.New("say where the figure goes: -o FILE.png, FILE.svg or FILE.pdf")
	}
	if p.rows < 1 {
		return fmt.Errorf("--rows %d: give 1 or more", p.rows)
	}
	o := plots.Options{Dark: p.dark, DPI: p.dpi, Title: p.title}
	var err error
	if o.Format, err = plots.FormatOf(p.out); err != nil {
		return err
	}
	out, err := a.output(cmd, "output", figureKinds[o.Format])
	if err != nil {
		return err
	}
	if p.dpi < 1 {
		return fmt.Errorf("--dpi %d: it must be positive", p.dpi)
	}
	if o.Width, err = length("width", p.width, p.dpi); err != nil {
		return err
	}
	if o.Height, err = length("height", p.height, p.dpi); err != nil {
		return err
	}
	sum := e.hashStdin(path)
	subject, err := e.caseOf(cmd.Context(), path)
	if err != nil {
		return err
	}
	doc := plotted{File: p.out, Kind: p.kind, Source: path}
	if doc.SHA256, err = fileHash(path, sum, a.stdin); err != nil {
		return err
	}
	if !p.noFooter {
		o.Footer = fmt.Sprintf("%s | input sha256 %.16s | allocsim %s", commandLine(cmd, []string{path}), doc.SHA256, version())
	}
	about := plots.Subject{Case: subject, Source: filepath.Base(path)}
	if p.axis == "events" {
		about.Axis = plots.ByEvent
	} else if p.axis != "time" {
		return fmt.Errorf("--x %q: time or events", p.axis)
	}
	fig, err := p.draw(cmd.Context(), about)
	if err != nil {
		return err
	}
	err = out.Write(func(w io.Writer) error { return plots.Render(w, fig.Figure, o) })
	if errors.Is(err, plots.ErrNothing) {
		return fmt.Errorf("%s: %w", path, fig.Nothing(subject))
	}
	if err != nil {
		return err
	}
	doc.Runs = append([]string{}, fig.Runs...)
	doc.Notes = append([]string{}, slices.Concat(subject.Trace.Notes, subject.Recovered.Inferred, fig.Notes)...)
	if a.json {
		return a.printJSON(doc)
	}
	a.notes(doc.Notes)
	return nil
}

// specs are the policies that the flags name.
func (p *plotting) specs(v conf.Version) ([]*policies.Spec, error) {
	var out []*policies.Spec
	for _, s := range p.confs {
		spec, err := torch.Parse(s, v)
		if err != nil {
			return nil, fmt.Errorf("--conf: %w", err)
		}
		out = append(out, spec)
	}
	for _, s := range p.names {
		spec, err := planner.ParsePolicy(s, v)
		if err != nil {
			return nil, err
		}
		out = append(out, spec)
	}
	return out, nil
}

// draw makes the figure of a case, with progress.
func (p *plotting) draw(ctx context.Context, s plots.Subject) (*plots.Drawn, error) {
	var bar *progress.Bar
	what := ""
	s.Progress = func(now string, done, total int64) {
		if now != what {
			bar.Done()
			what, bar = now, p.env.a.progress(now, "runs")
		}
		bar.Set(done, total)
	}
	defer func() { bar.Done() }()
	var err error
	v := s.Case.Version
	s.Version, s.Best, s.Rows = v, p.best, p.rows
	if s.Specs, err = p.specs(v); err != nil {
		return nil, err
	}
	if p.kind == "fit" {
		cat, err := p.env.catalog()
		if err != nil {
			return nil, err
		}
		s.Cards = cat.All()
		if p.env.gpu != "" {
			card, err := p.env.card()
			if err != nil {
				return nil, err
			}
			s.Cards = append([]gpus.Card{card}, card.Slices()...)
		}
	}
	d, err := plots.Draw(ctx, p.kind, s)
	switch {
	case errors.Is(err, plots.ErrOneRun):
		return nil, fmt.Errorf("--kind %s shows one allocator; give one --conf or --policy", p.kind)
	case errors.Is(err, plots.ErrAllRuns):
		return nil, fmt.Errorf("--kind %s shows every setting that tune simulates; leave --conf and --policy out", p.kind)
	}
	return d, err
}

// hashStdin makes what is read from standard input go through a hash.
func (e *environment) hashStdin(path string) hash.Hash {
	h := sha256.New()
	if path == "-" {
		e.a.stdin = io.TeeReader(e.a.stdin, h)
	}
	return h
}

// fileHash is the SHA-256 of a file's bytes, in hex; h has those of standard
// input.
func fileHash(path string, h hash.Hash, stdin io.Reader) (string, error) {
	if path == "-" {
		if _, err := io.Copy(io.Discard, stdin); err != nil {
			return "", err
		}
		return fmt.Sprintf("%x", h.Sum(nil)), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// version is the program's own version.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "(devel)"
}

// commandLine is what to type to do the same again.
func commandLine(cmd *cobra.Command, args []string) string {
	words := strings.Fields(cmd.CommandPath())
	words = append(words, args...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		name := "--" + f.Name
		if f.Name == "quiet" || f.Name == "json" {
			return // they change nothing in the file
		}
		if f.Name == "output" {
			name = "-o"
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				words = append(words, name, v)
			}
			return
		}
		if f.Value.Type() == "bool" {
			words = append(words, name)
			return
		}
		words = append(words, name, f.Value.String())
	})
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n\"'$&|;<>()*?[]#~`\\") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
