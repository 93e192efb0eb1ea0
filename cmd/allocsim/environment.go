package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"allocsim/planner"
	"allocsim/planner/gpus"
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
	assume    string
	stdinRead bool
}

// addDevice adds the flags of the device and its limit.
func (e *environment) addDevice(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&e.capacity, "capacity", "device memory the allocator can get, e.g. 24GiB (default: as recorded, else unlimited)")
	f.StringVar(&e.gpu, "gpu", "", "a `CARD`, e.g. \"RTX 4090\" or \"A100 80GB\"; allocsim help gpus lists them")
	f.StringVar(&e.catalogue, "catalogue", "", "a CSV `FILE` with more cards (columns name, reported_bytes, …)")
	f.Float64Var(&e.fraction, "memory-fraction", 0, "the program's set_per_process_memory_fraction(`F`) (default: as recorded)")
	f.StringVar(&e.assume, "assume", "", "`WHAT` the recorded run met, where the recording cannot tell: fraction, capacity or none")
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
	for _, name := range []string{"gpu", "policy", "catalogue", "torch", "sidecar", "into"} {
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

// choice is what the flags ask for in place of what was recorded.
func (e *environment) choice() (planner.Choice, error) {
	c := planner.Choice{Policy: e.policy, Version: e.release(), Assume: e.assume}
	if e.confSet {
		c.Conf = &e.conf
	}
	if e.fracSet {
		c.Fraction = e.fraction
	}
	switch {
	case e.capacity != 0:
		m := sim.On(int64(e.capacity), 0)
		c.Device = &m
	case e.gpu != "":
		card, err := e.card()
		if err != nil {
			return c, err
		}
		m, err := planner.OnCard(card)
		if err != nil {
			return c, fmt.Errorf("--gpu %w", err)
		}
		c.Device = &m
	}
	return c, nil
}

// release is what --torch asks for; zero when it is not given.
func (e *environment) release() conf.Version {
	v, _ := conf.ParseVersion(e.torch) // parse has refused what is no release
	return v
}

// caseOf opens a trace with the run that the flags ask for: where they say
// nothing, the recorded configuration on the recorded device.
func (e *environment) caseOf(ctx context.Context, path string) (*planner.Case, error) {
	tr, err := e.replayable(ctx, path)
	if err != nil {
		return nil, err
	}
	choice, err := e.choice()
	if err != nil {
		return nil, err
	}
	return planner.NewCase(ctx, tr, choice)
}

// cases opens several traces with the runs that the flags ask for.
func (e *environment) cases(ctx context.Context, paths []string) ([]planner.Case, error) {
	var cases []planner.Case
	for _, p := range paths {
		c, err := e.caseOf(ctx, p)
		if err != nil {
			return nil, err
		}
		cases = append(cases, *c)
	}
	return cases, nil
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
