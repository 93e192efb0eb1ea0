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

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/sim"
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
	draw, ok := drawings[p.kind]
	if !ok {
		return fmt.Errorf("--kind %q: known kinds are %s", p.kind, strings.Join(kindNames(), ", "))
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
	c := &canvas{plotting: p, ctx: cmd.Context(), Case: subject, source: filepath.Base(path)}
	if p.axis == "events" {
		c.axis = plots.ByEvent
	} else if p.axis != "time" {
		return fmt.Errorf("--x %q: time or events", p.axis)
	}
	c.notes = append(slices.Clone(c.Trace.Notes), c.Recovered.Inferred...)
	fig, err := draw(c)
	if err != nil {
		return err
	}
	err = out.Write(func(w io.Writer) error { return plots.Render(w, fig, o) })
	if errors.Is(err, plots.ErrNothing) {
		return fmt.Errorf("%s: %w", path, c.nothing())
	}
	if err != nil {
		return err
	}
	doc.Runs, doc.Notes = append([]string{}, c.shown...), append([]string{}, c.notes...)
	if a.json {
		return a.printJSON(doc)
	}
	a.notes(c.notes)
	return nil
}

// drawings are the kinds of figure and how their data are made.
var drawings = map[string]func(*canvas) (plots.Figure, error){
	"timeline":      (*canvas).timeline,
	"map":           (*canvas).addresses,
	"fragmentation": (*canvas).fragmentation,
	"sizes":         (*canvas).sizes,
	"compare":       (*canvas).compare,
	"pareto":        (*canvas).pareto,
	"fit":           (*canvas).fit,
}

func kindNames() []string {
	var names []string
	for k := range drawings {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// canvas is a figure in the making.
type canvas struct {
	*plotting
	*planner.Case
	ctx    context.Context
	axis   plots.Axis
	source string
	shown  []string // the runs
	notes  []string
	tuning *planner.Tuning
	limit  int64 // of the run that may take most; 0 = none or not simulated
}

// nothing says why a figure has no data.
func (c *canvas) nothing() error {
	if sim.Need(c.Trace) == 0 {
		return fmt.Errorf("%w: the trace has no allocations", plots.ErrNothing)
	}
	limit := c.limit
	if limit == 0 { // as the recording ran
		limit = c.Machine.Room()
	}
	return fmt.Errorf("every allocation fails in %s, so there is nothing to draw", bytesize.Format(limit))
}

// variant is one run to show.
type variant struct {
	name string
	spec *policies.Spec
}

// variants are the runs that the flags ask for: the recorded setting unless
// they name others, and the best.
func (c *canvas) variants(more ...*policies.Spec) ([]variant, error) {
	var out []variant
	seen := make(map[string]bool)
	add := func(s *policies.Spec) {
		if n := s.Label(); !seen[n] {
			seen[n] = true
			out = append(out, variant{n, s})
			c.shown = append(c.shown, s.String())
			c.notes = append(c.notes, s.Notes...)
		}
	}
	v := c.env.version(c.Trace)
	for _, s := range c.confs {
		spec, err := torch.Parse(s, v)
		if err != nil {
			return nil, fmt.Errorf("--conf: %w", err)
		}
		add(spec)
	}
	for _, s := range c.names {
		spec, err := planner.ParsePolicy(s, v)
		if err != nil {
			return nil, err
		}
		add(spec)
	}
	if len(out) == 0 {
		add(c.Policy)
		for _, s := range more {
			add(s)
		}
	}
	if c.best {
		t, err := c.tune(false)
		if err != nil {
			return nil, err
		}
		add(t.Best.Spec())
	}
	return out, nil
}

// tune searches for the best setting, once; whole simulates to their end also
// the settings that cannot win, to be drawn.
func (c *canvas) tune(whole bool) (*planner.Tuning, error) {
	if c.tuning != nil {
		return c.tuning, nil
	}
	bar := c.env.a.progress("searching", "runs")
	defer bar.Done()
	t, err := planner.Tune(c.ctx, []planner.Case{*c.Case}, planner.TuneOptions{Version: c.env.version(c.Trace), Whole: whole, Progress: bar.Set})
	if err != nil {
		return nil, err
	}
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	c.tuning = t
	return t, nil
}

// simulate runs one variant with observers.
func (c *canvas) simulate(v variant, obs ...sim.Observer) (*sim.Result, error) {
	cfg := c.Config()
	cfg.Policy = v.spec
	res, err := sim.Run(c.ctx, c.Trace, cfg, obs...)
	if err == nil {
		c.limit = max(c.limit, res.Room())
	}
	return res, err
}

func (c *canvas) timeline() (plots.Figure, error) {
	vs, err := c.variants()
	if err != nil {
		return nil, err
	}
	fig := &plots.Timeline{Source: c.source}
	if len(vs) > 1 {
		fig.Bound = sim.Bound(c.Trace)
	}
	for _, v := range vs {
		r := plots.NewRecorder(c.Trace, c.axis, plots.Columns)
		res, err := c.simulate(v, r)
		if err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, plots.Run{Name: v.name, Memory: r.Memory(), Limit: res.Room()})
	}
	return fig, nil
}

func (c *canvas) addresses() (plots.Figure, error) {
	vs, err := c.variants()
	if err != nil {
		return nil, err
	}
	fig := &plots.Map{Source: c.source}
	for _, v := range vs {
		r := plots.NewSpaceRecorder(c.Trace, v.spec, c.axis, 1, true)
		if _, err := c.simulate(v, r); err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, plots.MapRun{Name: v.name, Layout: r.Layout()})
	}
	return fig, nil
}

func (c *canvas) fragmentation() (plots.Figure, error) {
	vs, err := c.variants()
	if err != nil {
		return nil, err
	}
	fig := &plots.Fragmentation{Source: c.source}
	for _, v := range vs {
		r := plots.NewSpaceRecorder(c.Trace, v.spec, c.axis, plots.Columns, false)
		if _, err := c.simulate(v, r); err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, plots.FragmentationRun{Name: v.name, Fragments: r.Fragments()})
	}
	return fig, nil
}

func (c *canvas) sizes() (plots.Figure, error) {
	vs, err := c.variants()
	if err != nil {
		return nil, err
	}
	if len(vs) > 1 {
		return nil, errors.New("--kind sizes shows one allocator; give one --conf or --policy")
	}
	r := plots.NewSizeRecorder()
	if _, err := c.simulate(vs[0], r); err != nil {
		return nil, err
	}
	return &plots.Sizes{Source: c.source, Policy: vs[0].name, Bins: r.Bins(), Marks: plots.SizeMarks(vs[0].spec)}, nil
}

func (c *canvas) compare() (plots.Figure, error) {
	var others []*policies.Spec
	if s, err := torch.Expandable(c.env.version(c.Trace)); err == nil { // else an old PyTorch
		others = append(others, s)
	}
	for _, name := range []string{"cupy", "rmm-pool", "direct"} {
		s, err := policies.Parse(name)
		if err != nil {
			return nil, err
		}
		others = append(others, s)
	}
	vs, err := c.variants(others...)
	if err != nil {
		return nil, err
	}
	// As the compare command has it: with the requests that failed.
	fig := &plots.Compare{Source: c.source, Bound: sim.Need(c.Trace)}
	bar := c.env.a.progress("simulating", "runs")
	defer bar.Done()
	for i, v := range vs {
		res, err := c.simulate(v)
		if err != nil {
			return nil, err
		}
		o := plots.OutcomeOf(v.name, res)
		if res.Completed {
			cfg := c.Config()
			cfg.Policy = v.spec
			span, err := sim.SampleSpan(c.ctx, c.Trace, cfg, sim.SpanOrders, 0)
			if err != nil {
				return nil, err
			}
			o.Low, o.High = span.ReservedPeak[0], span.ReservedPeak[1]
		}
		fig.Limit = max(fig.Limit, res.Room())
		fig.Outcomes = append(fig.Outcomes, o)
		bar.Set(int64(i+1), int64(len(vs)))
	}
	return fig, nil
}

func (c *canvas) pareto() (plots.Figure, error) {
	if len(c.confs)+len(c.names) > 0 {
		return nil, errors.New("--kind pareto shows every setting that tune simulates; leave --conf and --policy out")
	}
	t, err := c.tune(true)
	if err != nil {
		return nil, err
	}
	c.notes = append(c.notes, t.Notes...)
	return plots.ParetoOf(c.source, t), nil
}

func (c *canvas) fit() (plots.Figure, error) {
	if len(c.confs)+len(c.names) == 0 {
		c.best = true
	}
	vs, err := c.variants()
	if err != nil {
		return nil, err
	}
	fig := &plots.Fit{Source: c.source}
	for _, v := range vs {
		_, safe, err := planner.SmallestCapacity(c.ctx, []planner.Case{*c.Case}, v.spec, 0)
		if err != nil {
			return nil, err
		}
		fig.Settings = append(fig.Settings, v.name)
		fig.Needs = append(fig.Needs, safe)
	}
	cat, err := c.env.catalog()
	if err != nil {
		return nil, err
	}
	cards := cat.All()
	if c.env.gpu != "" {
		card, err := c.env.card()
		if err != nil {
			return nil, err
		}
		cards = append([]gpus.Card{card}, card.Slices()...)
	}
	fig.Cards = plots.FitCards(cards, fig.Needs, c.rows)
	if len(fig.Cards) == 0 {
		return nil, errors.New("the catalogue knows the memory of none of these cards")
	}
	return fig, nil
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
