package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/formats"
	"allocsim/traces/native"
)

// environment is the flags that say where a trace runs: allocator, device and
// limit. They are common to the commands that simulate.
type environment struct {
	a *app

	conf      string
	policy    string
	confSet   bool
	capacity  sizeFlag
	gpu       string
	catalogue string
	fraction  float64
	fracSet   bool
	device    int
	torch     string
	sidecar   string
	stdinRead bool
}

// addDevice adds the flags of the device and its limit.
func (e *environment) addDevice(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&e.capacity, "capacity", "device memory the allocator can get, e.g. 24GiB (default: as recorded, else unlimited)")
	f.StringVar(&e.gpu, "gpu", "", "a `CARD`, e.g. \"RTX 4090\" or \"A100 80GB\"; allocsim help gpus lists them")
	f.StringVar(&e.catalogue, "catalogue", "", "a CSV `FILE` with more cards (columns name, reported_bytes, …)")
	f.Float64Var(&e.fraction, "memory-fraction", 0, "the program's set_per_process_memory_fraction(`F`) (default: as recorded)")
	e.addTrace(cmd)
}

// addTrace adds the flags that say how a file is read.
func (e *environment) addTrace(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&e.device, "device", -1, "device number `N` in a snapshot of several (default: the busiest)")
	f.Lookup("device").DefValue = "0" // the text says what holds
	f.StringVar(&e.torch, "torch", "", "PyTorch `VERSION` whose rules hold (default: as recorded, else "+conf.Latest.String()+")")
	f.StringVar(&e.sidecar, "sidecar", "", "the recording's sidecar `FILE` (default: NAME.json beside NAME.pickle)")
}

// addPolicy adds the flags of the allocator.
func (e *environment) addPolicy(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&e.conf, "conf", "", "PYTORCH_CUDA_ALLOC_CONF `STRING` to use, e.g. expandable_segments:True (default: as recorded)")
	f.StringVar(&e.policy, "policy", "", "allocator `NAME[:OPTIONS]`; see allocsim help policies")
}

// parse looks at which flags were set; it is called first by every command.
func (e *environment) parse(cmd *cobra.Command) error {
	e.confSet = cmd.Flags().Changed("conf")
	e.fracSet = cmd.Flags().Changed("memory-fraction")
	// An empty name is a shell variable that is not set, not the wish for the
	// default. (An empty --conf means PyTorch's defaults.)
	for _, name := range []string{"gpu", "policy", "catalogue", "torch", "sidecar"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return fmt.Errorf("--%s is empty; is a variable of the shell not set?", name)
		}
	}
	if e.capacity != 0 && e.gpu != "" {
		return errors.New("--capacity and --gpu both say how large the device is; give one of them")
	}
	if e.confSet && e.policy != "" {
		return errors.New("--conf is short for --policy torch:…; give one of them")
	}
	if e.fracSet && !(e.fraction > 0 && e.fraction <= 1) {
		return fmt.Errorf("--memory-fraction %v: a fraction is above 0 and at most 1 (no limit)", e.fraction)
	}
	if cmd.Flags().Changed("device") && e.device < 0 {
		return fmt.Errorf("--device %d: devices count from 0", e.device)
	}
	if e.torch != "" {
		if _, err := conf.ParseVersion(e.torch); err != nil {
			return fmt.Errorf("--torch: %w", err)
		}
	}
	return nil
}

// versionNotes say that --torch asks for other rules than those of the
// recording, or for newer ones than are known.
func (e *environment) versionNotes(tr *traces.Trace) []string {
	v, err := conf.ParseVersion(e.torch)
	if err != nil {
		return nil
	}
	var notes []string
	if was, err := conf.ParseVersion(tr.Meta.Torch); err == nil && was != v {
		notes = append(notes, fmt.Sprintf("Rules of PyTorch %s; the recording is of %s, and another release may ask for other sizes.", v, was))
	}
	if conf.Latest.Compare(v) < 0 {
		notes = append(notes, fmt.Sprintf("PyTorch %s is newer than what is known; the rules of %s hold.", v, conf.Latest))
	}
	return notes
}

// version is the PyTorch release whose rules hold for a trace.
func (e *environment) version(tr *traces.Trace) conf.Version {
	for _, s := range []string{e.torch, tr.Meta.Torch} {
		if v, err := conf.ParseVersion(s); err == nil {
			return v
		}
	}
	return conf.Latest
}

// open reads a trace.
func (e *environment) open(ctx context.Context, path string) (*traces.Trace, error) {
	switch {
	case path == "":
		return nil, errors.New("the name of a trace is empty; is a variable of the shell not set?")
	case path == "-" && e.stdinRead:
		return nil, errors.New("standard input (-) can be read once only; give files")
	case path == "-":
		e.stdinRead = true
	}
	bar := e.a.progress("reading", "bytes")
	defer bar.Done()
	rec, err := interruptible(ctx, func() (*traces.Recording, error) {
		return formats.Open(ctx, path, formats.Options{Sidecar: e.sidecar, Progress: bar.Set, Stdin: e.a.stdin})
	})
	if err != nil {
		return nil, err
	}
	return rec.Device(e.device)
}

// replayable is open for commands that need requests.
func (e *environment) replayable(ctx context.Context, path string) (*traces.Trace, error) {
	tr, err := e.open(ctx, path)
	if err != nil {
		return nil, err
	}
	if len(tr.Events) == 0 {
		if tr.Recorded == nil {
			hint := ""
			if tr.Format == native.FormatCSV {
				hint = "; after the header each line is an event, such as 0,alloc,1,512,0"
			}
			return nil, fmt.Errorf("%s holds no requests, so there is nothing to replay%s", tr.Source, hint)
		}
		return nil, fmt.Errorf("%s has no history, so it cannot be replayed; record from before the model is built (allocsim record --help), or look at its segments with allocsim inspect", tr.Source)
	}
	return tr, nil
}

// recovered is a trace with what the recording leaves open found out, and the
// run that the flags ask for.
func (e *environment) recovered(ctx context.Context, path string) (*sim.Recovered, sim.Config, error) {
	tr, err := e.replayable(ctx, path)
	if err != nil {
		return nil, sim.Config{}, err
	}
	rec, err := sim.Recover(ctx, tr, sim.RecoverOptions{})
	if err != nil {
		return nil, sim.Config{}, err
	}
	rec.Inferred = append(rec.Inferred, e.versionNotes(tr)...)
	cfg, err := e.config(rec)
	return rec, cfg, err
}

// config is the run the flags ask for: where they say nothing, the recorded
// configuration on the recorded device.
func (e *environment) config(rec *sim.Recovered) (sim.Config, error) {
	cfg := rec.Config()
	spec, err := e.spec(rec)
	if err != nil {
		return cfg, err
	}
	cfg.Policy = spec
	if err := e.applyDevice(&cfg); err != nil {
		return cfg, err
	}
	if e.fracSet {
		cfg.Limit, cfg.Fraction = 0, e.fraction
	}
	return cfg, nil
}

// applyDevice puts the device of the flags in place of the recorded one.
func (e *environment) applyDevice(cfg *sim.Config) error {
	switch {
	case e.capacity != 0:
		cfg.Capacity, cfg.Total, cfg.Limit = int64(e.capacity), int64(e.capacity), 0
	case e.gpu != "":
		card, err := e.card()
		if err != nil {
			return err
		}
		low, _, ok := card.Usable()
		if !ok {
			return fmt.Errorf("--gpu %s: the catalogue has no memory size for this card; give --capacity from torch.cuda.mem_get_info()", card.Name)
		}
		cfg.Capacity, cfg.Total, cfg.Limit = low, card.Total, 0
	}
	return nil
}

// catalog is the catalogue of cards with the user's own.
func (e *environment) catalog() (*gpus.Catalogue, error) {
	cat := gpus.Default()
	if e.catalogue == "" {
		return cat, nil
	}
	f, err := os.Open(e.catalogue)
	if err != nil {
		return nil, fmt.Errorf("--catalogue: %w", err)
	}
	defer f.Close()
	return cat.Extend(f, e.catalogue)
}

func (e *environment) card() (gpus.Card, error) {
	cat, err := e.catalog()
	if err != nil {
		return gpus.Card{}, err
	}
	card, err := cat.Find(e.gpu)
	if err != nil {
		var unknown *gpus.NameError
		if errors.As(err, &unknown) && len(unknown.Near) == 0 {
			return gpus.Card{}, fmt.Errorf("--gpu: %w; allocsim help gpus lists the cards", err)
		}
		return gpus.Card{}, fmt.Errorf("--gpu: %w", err)
	}
	return card, nil
}

// spec is the allocator that the flags ask for.
func (e *environment) spec(rec *sim.Recovered) (*policies.Spec, error) {
	v := e.version(rec.Trace)
	switch {
	case e.policy != "":
		return parsePolicy(e.policy, v)
	case e.confSet:
		spec, err := torch.Parse(e.conf, v)
		if err != nil {
			return nil, fmt.Errorf("--conf: %w", err)
		}
		return spec, nil
	case e.torch != "":
		return torch.Spec(rec.Conf, v)
	}
	return rec.Policy, nil
}

// parsePolicy reads --policy; torch's options follow the rules of version v.
func parsePolicy(s string, v conf.Version) (*policies.Spec, error) {
	const name = "torch"
	if s == name {
		return torch.Parse("", v)
	}
	if len(s) > len(name) && s[:len(name)+1] == name+":" {
		spec, err := torch.Parse(s[len(name)+1:], v)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		return spec, nil
	}
	spec, err := policies.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	return spec, nil
}

// jobs opens several traces with the runs that the flags ask for.
func (e *environment) jobs(ctx context.Context, paths []string) ([]planner.Job, error) {
	var jobs []planner.Job
	for _, p := range paths {
		rec, cfg, err := e.recovered(ctx, p)
		if err != nil {
			return nil, err
		}
		j := planner.Job{Trace: rec.Trace, Base: cfg, Recovered: rec}
		if e.confSet {
			c, _ := conf.Parse(e.conf, e.version(rec.Trace))
			j.Conf = &c
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}
