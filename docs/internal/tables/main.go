// Command tables writes docs/techniques.md and the table of measured runs in
// docs/synthetic.md: it fills the templates beside it with figures that it
// computes, so that every number in those pages comes from a run of the
// simulator.
//
//	go run ./docs/internal/tables -write
//
// Without -write it prints the pages. The test beside it fails when the
// committed pages differ from what the program would write.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces/synth"
)

//go:embed techniques.md.tmpl
var techniquesText string

//go:embed synthetic.md.tmpl
var syntheticText string

func main() {
	write := flag.Bool("write", false, "write the pages instead of printing them")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	pages, err := render(context.Background(), *root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tables:", err)
		os.Exit(1)
	}
	for _, p := range pages {
		if !*write {
			os.Stdout.Write(p.text)
			continue
		}
		if err := os.WriteFile(filepath.Join(*root, p.path), p.text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "tables:", err)
			os.Exit(1)
		}
	}
}

type page struct {
	path string
	text []byte
}

func render(ctx context.Context, root string) ([]page, error) {
	var pages []page
	for _, p := range []struct{ path, text string }{
		{"docs/techniques.md", techniquesText},
		{"docs/synthetic.md", syntheticText},
	} {
		b := &book{ctx: ctx, root: root, runs: map[string]*run{}}
		t, err := template.New(p.path).Funcs(b.funcs()).Parse(p.text)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := t.Execute(&out, nil); err != nil {
			return nil, err
		}
		pages = append(pages, page{p.path, out.Bytes()})
	}
	return pages, nil
}

// run is one program with what came of it.
type run struct {
	command             string
	result              *synth.Result
	allocated, reserved int64
}

// book runs programs for a template, each once.
type book struct {
	ctx  context.Context
	root string
	runs map[string]*run
	all  []comparison
}

func (b *book) funcs() template.FuncMap {
	return template.FuncMap{
		"run":       b.define,
		"cmd":       func(n string) (string, error) { r, err := b.get(n); return r.command, err },
		"alloc":     func(n string) (string, error) { r, err := b.get(n); return gib(r.allocated), err },
		"resv":      func(n string) (string, error) { r, err := b.get(n); return gib(r.reserved), err },
		"less":      b.less,
		"lessResv":  b.lessReserved,
		"more":      b.more,
		"recompute": b.recompute,
		"padded":    b.padded,
		"beyond":    b.beyond,
		"times":     b.times,
		"params":    b.params,
		"perStep":   b.perStep,
		"measured":  b.measured,
		"summary":   b.summary,
	}
}

// define names a command, "MODEL --flag value …" as allocsim synth takes it, and
// prints nothing.
func (b *book) define(name, command string) (string, error) {
	m, o, err := parse(b.root, command)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	r, err := synth.Run(b.ctx, m, o)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	a, v, err := replay(b.ctx, r)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	b.runs[name] = &run{command, r, a, v}
	return "", nil
}

func replay(ctx context.Context, r *synth.Result) (allocated, reserved int64, err error) {
	spec, err := policies.Parse("torch")
	if err != nil {
		return 0, 0, err
	}
	res, err := sim.Run(ctx, r.Trace, sim.Config{Policy: spec})
	if err != nil {
		return 0, 0, err
	}
	return res.Stats.AllocatedBytes[policies.All].Peak, res.Stats.ReservedBytes[policies.All].Peak, nil
}

func (b *book) get(name string) (*run, error) {
	r, ok := b.runs[name]
	if !ok {
		return &run{}, fmt.Errorf("no run %q", name)
	}
	return r, nil
}

// parse reads a command line of allocsim synth: flags are the JSON names of
// the options with dashes.
func parse(root, command string) (synth.Model, synth.Options, error) {
	f := strings.Fields(command)
	name := f[0]
	if strings.HasSuffix(name, ".yaml") {
		name = filepath.Join(root, name)
	}
	m, err := synth.Load(name)
	if err != nil {
		return m, synth.Options{}, err
	}
	opts := map[string]any{}
	for i := 1; i < len(f); i++ {
		key, ok := strings.CutPrefix(f[i], "--")
		if !ok {
			return m, synth.Options{}, fmt.Errorf("%q is not a flag", f[i])
		}
		key = strings.ReplaceAll(key, "-", "_")
		switch {
		case key == "infer" || key == "train":
			opts["mode"] = key
		case i+1 == len(f) || strings.HasPrefix(f[i+1], "--"):
			opts[key] = true
		default:
			i++
			if n, err := strconv.ParseInt(f[i], 10, 64); err == nil {
				opts[key] = n
			} else {
				opts[key] = f[i]
			}
		}
	}
	text, err := json.Marshal(opts)
	if err != nil {
		return m, synth.Options{}, err
	}
	var o synth.Options
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return m, o, d.Decode(&o)
}

func gib(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

func (b *book) two(x, y string) (*run, *run, error) {
	p, err := b.get(x)
	if err != nil {
		return nil, nil, err
	}
	q, err := b.get(y)
	return p, q, err
}

// less is how many percent less y allocates than x.
func (b *book) less(x, y string) (string, error) {
	p, q, err := b.two(x, y)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f %%", (1-float64(q.allocated)/float64(p.allocated))*100), nil
}

func (b *book) lessReserved(x, y string) (string, error) {
	p, q, err := b.two(x, y)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f %%", (1-float64(q.reserved)/float64(p.reserved))*100), nil
}

// more is how much more y allocates than x.
func (b *book) more(x, y string) (string, error) {
	p, q, err := b.two(x, y)
	if err != nil {
		return "", err
	}
	return gib(q.allocated - p.allocated), nil
}

// recompute is the operations that checkpointing repeats, in percent of the
// others.
func (b *book) recompute(x string) (string, error) {
	r, err := b.get(x)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f %%", r.result.RecomputeFLOPs/(r.result.FLOPs-r.result.RecomputeFLOPs)*100), nil
}

// padded is the share of padding in what the model processes.
func (b *book) padded(x string) (string, error) {
	r, err := b.get(x)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f %%", (1-float64(r.result.Tokens)/float64(r.result.Padded))*100), nil
}

// beyond is what the peak holds besides bytes bytes per parameter.
func (b *book) beyond(x string, bytes int64) (string, error) {
	r, err := b.get(x)
	if err != nil {
		return "", err
	}
	return gib(r.allocated - bytes*r.result.Params), nil
}

// times is the ratio of two runs' beyonds.
func (b *book) times(x, y string, bytes int64) (string, error) {
	p, q, err := b.two(x, y)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f", float64(q.allocated-bytes*q.result.Params)/float64(p.allocated-bytes*p.result.Params)), nil
}

// params is the parameters in millions.
func (b *book) params(x string) (string, error) {
	r, err := b.get(x)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f M", float64(r.result.Params)/1e6), nil
}

// perStep is how much y, with n more steps than x, holds more per step.
func (b *book) perStep(x, y string, n int64) (string, error) {
	p, q, err := b.two(x, y)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f MiB", float64(q.allocated-p.allocated)/float64(n)/(1<<20)), nil
}

type measuredRun struct {
	Name      string        `json:"name"`
	Round     int           `json:"round"`
	Model     string        `json:"model"`
	Options   synth.Options `json:"options"`
	Live      int64         `json:"live"`
	Allocated int64         `json:"allocated"`
	Reserved  int64         `json:"reserved"`
	Allocs    int64         `json:"allocs"`
	Predicted int64         `json:"predicted"`
}

type comparison struct {
	measuredRun
	live, allocated, reserved, allocs int64
}

// compareAll makes every measured program and runs it through the allocator.
func (b *book) compareAll() ([]comparison, error) {
	if b.all != nil {
		return b.all, nil
	}
	f, err := os.Open(filepath.Join(b.root, "traces/synth/testdata/measured.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []comparison
	for s := bufio.NewScanner(f); s.Scan(); {
		var c comparison
		if err := json.Unmarshal(s.Bytes(), &c.measuredRun); err != nil {
			return nil, err
		}
		m, err := synth.Load(c.Model)
		if err != nil {
			return nil, err
		}
		r, err := synth.Run(b.ctx, m, c.Options)
		if err != nil {
			return nil, err
		}
		c.live, c.allocs = r.LivePeak, int64(r.Trace.NumBlocks)
		if c.allocated, c.reserved, err = replay(b.ctx, r); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	b.all = out
	return out, nil
}

func pct(got, want int64) float64 { return (float64(got)/float64(want) - 1) * 100 }

// signed is an error in percent with n digits; what rounds to zero has no
// sign.
func signed(p float64, n int) string {
	s := fmt.Sprintf("%+.*f", n, p)
	if strings.Trim(s, "+-0.") == "" {
		s = s[1:]
	}
	return s + " %"
}

// measured is the table of predicted against real of a round of runs.
func (b *book) measured(round int) (string, error) {
	all, err := b.compareAll()
	if err != nil {
		return "", err
	}
	var w strings.Builder
	for _, c := range all {
		if c.Round != round {
			continue
		}
		model := c.Model
		if strings.Contains(model, "\n") {
			m, err := synth.Load(model)
			if err != nil {
				return "", err
			}
			model = fmt.Sprintf("%s %d×%d", m.Family, m.Layers, m.Hidden)
			if m.KVHeads != 0 {
				model += fmt.Sprintf(" %d/%d heads", m.Heads, m.KVHeads)
			}
		}
		o := c.Options
		what := []string{string(o.Precision)}
		add := func(cond bool, format string, args ...any) {
			if cond {
				what = append(what, fmt.Sprintf(format, args...))
			}
		}
		add(o.Mode == synth.Infer, "inference")
		add(o.Mode != synth.Infer, "%s", o.Optimizer)
		add(o.Checkpoint != "", "checkpoint %s", o.Checkpoint)
		add(o.Accumulate > 1, "accumulate %d", o.Accumulate)
		add(o.ClipNorm, "clip")
		add(o.UseCache, "use_cache")
		add(o.Lengths != "", "padding mask")
		add(o.DP > 1, "dp %d zero %d", o.DP, o.Zero)
		add(o.NewTokens > 0, "%d new tokens", o.NewTokens)
		size := fmt.Sprint(o.Batch)
		if o.Seq > 0 {
			size = fmt.Sprintf("%d×%d", o.Batch, o.Seq)
		}
		before := ""
		if c.Predicted != 0 {
			before = " " + signed(pct(c.Predicted, c.Live), 2) + " |"
		}
		mib := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
		fmt.Fprintf(&w, "| %s | %s | %s |%s %s / %s | %s | %s / %s | %s | %.0f / %.0f | %s | %s |\n",
			model, size, strings.Join(what, ", "), before,
			mib(c.live), mib(c.Live), signed(pct(c.live, c.Live), 2),
			mib(c.allocated), mib(c.Allocated), signed(pct(c.allocated, c.Allocated), 2),
			float64(c.reserved)/(1<<20), float64(c.Reserved)/(1<<20), signed(pct(c.reserved, c.Reserved), 1), signed(pct(c.allocs, c.Allocs), 1))
	}
	return strings.TrimSuffix(w.String(), "\n"), nil
}

// summary is median, 90th percentile and largest error in percent of a figure:
// predicted2 and predicted3 (before the runs of that round), live, allocated,
// reserved or requests.
func (b *book) summary(what string) (string, error) {
	all, err := b.compareAll()
	if err != nil {
		return "", err
	}
	var errs []float64
	for _, c := range all {
		switch what {
		case "predicted2", "predicted3":
			if fmt.Sprint("predicted", c.Round) == what {
				errs = append(errs, math.Abs(pct(c.Predicted, c.Live)))
			}
		case "live":
			errs = append(errs, math.Abs(pct(c.live, c.Live)))
		case "allocated":
			errs = append(errs, math.Abs(pct(c.allocated, c.Allocated)))
		case "reserved":
			errs = append(errs, math.Abs(pct(c.reserved, c.Reserved)))
		case "requests":
			errs = append(errs, math.Abs(pct(c.allocs, c.Allocs)))
		default:
			return "", fmt.Errorf("no figure %q", what)
		}
	}
	slices.Sort(errs)
	n := len(errs)
	return fmt.Sprintf("%d | %.2f %% | %.2f %% | %.2f %%", n, errs[n/2], errs[n*9/10], errs[n-1]), nil
}
