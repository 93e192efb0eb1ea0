package planner

import (
	"context"
	"fmt"

	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
)

// Case is what a question is about: the requests of a program, what was found
// out about their recording, the allocator that is set now and the machine. It
// is made once, by NewCase, from a file and what the user chose; every question
// is a function of cases.
type Case struct {
	Trace *traces.Trace
	// Recovered is what was found out about the recording; nil for a trace
	// that is not one.
	Recovered *recovery.Recovered
	// Policy is the allocator that is set now.
	Policy *policies.Spec
	// Conf is the configuration that is set now as a value, the baseline of a
	// search; nil = that of Recovered, else PyTorch's default.
	Conf *conf.Config
	// Version is the PyTorch release whose rules hold, at most the latest known.
	Version conf.Version
	// Machine is what the allocator may take now.
	Machine sim.Machine
}

// Recorded is the case of a recording as it ran.
func Recorded(rec *recovery.Recovered) Case {
	return Case{Trace: rec.Trace, Recovered: rec, Policy: rec.Policy, Version: rec.Version, Machine: rec.Machine()}
}

// Choice is what a user asks for in place of what was recorded. The zero
// Choice is the recorded run.
type Choice struct {
	// Conf is a PYTORCH_CUDA_ALLOC_CONF; nil = as recorded. Policy is
	// NAME[:OPTIONS] of any allocator; empty = PyTorch's. Only one of the two
	// is set.
	Conf   *string
	Policy string
	// Version is the PyTorch release whose rules hold; zero = the recorded
	// one, or the newest that can have made the recording.
	Version conf.Version
	// Assume says what the recorded run met, where the recording cannot tell:
	// recovery.AssumeFraction, AssumeCapacity or AssumeNone.
	Assume string
	// Device is another device than the recorded one; nil = the recorded one.
	Device *sim.Machine
	// Fraction is set_per_process_memory_fraction's argument in (0,1]; 0 = as
	// recorded.
	Fraction float64
}

// NewCase finds out what a recording does not say and puts what the user chose
// in place of what was recorded. The error names the option that is wrong.
func NewCase(ctx context.Context, tr *traces.Trace, choice Choice) (*Case, error) {
	rec, err := recovery.Recover(ctx, tr, recovery.Options{Assume: choice.Assume})
	if err != nil {
		return nil, err
	}
	rec.Inferred = append(rec.Inferred, choice.VersionNotes(tr)...)
	c := Recorded(rec)
	v := rec.Version
	if choice.Version != (conf.Version{}) {
		if v = choice.Version; conf.Latest.Compare(v) < 0 {
			v = conf.Latest
		}
	}
	c.Version = v
	switch {
	case choice.Policy != "":
		if c.Policy, err = ParsePolicy(choice.Policy, v); err != nil {
			return nil, err
		}
	case choice.Conf != nil:
		if c.Policy, err = torch.Parse(*choice.Conf, v); err != nil {
			return nil, fmt.Errorf("--conf: %w", err)
		}
		if set, _, ok := torch.ConfigOf(c.Policy); ok {
			c.Conf = &set
		}
	case choice.Version != (conf.Version{}):
		if c.Policy, err = torch.Spec(rec.Conf, v); err != nil {
			return nil, err
		}
	}
	if choice.Device != nil {
		c.Machine = *choice.Device
	}
	if choice.Fraction != 0 {
		c.Machine = c.Machine.WithFraction(choice.Fraction)
	}
	return &c, nil
}

// VersionNotes say that the user asks for other rules than those of the
// recording, or for newer ones than are known.
func (c Choice) VersionNotes(tr *traces.Trace) []string {
	v := c.Version
	if v == (conf.Version{}) {
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

// ParsePolicy reads NAME[:OPTIONS]; PyTorch's options follow the rules of
// release v.
func ParsePolicy(s string, v conf.Version) (*policies.Spec, error) {
	spec, err := policies.ParseFor(s, v.String())
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	return spec, nil
}

// Config is the run that describes what the program has now. Where that is the
// recorded run, it goes as it was recorded.
func (c *Case) Config() sim.Config { return c.On(c.Policy, c.Machine) }

// On is the run of the case's trace under a policy on a machine. Under the
// recorded policy it begins with the recorded layout, unless that would not have
// fitted, and on the recorded machine it takes the recorded addresses.
func (c *Case) On(spec *policies.Spec, m sim.Machine) sim.Config {
	cfg := sim.Config{Policy: spec, Machine: m}
	if !c.recordedRules(spec) {
		return cfg
	}
	cfg.Pin = m == c.Recovered.Machine()
	if c.Trace.Start != nil {
		room, err := m.Resolve(spec, c.Trace.Meta.DeviceTotal)
		cfg.FromStart = err == nil && (room.Room() == 0 || sim.SummarizeState(c.Trace.Start).Reserved <= room.Room())
	}
	return cfg
}

// recordedRules reports that a policy decides as the recorded allocator did.
func (c *Case) recordedRules(spec *policies.Spec) bool {
	return c.Recovered != nil && c.Trace.Recorded != nil && spec.String() == c.Recovered.Policy.String() && c.Version == c.Recovered.Version
}

// limitKnown reports that the machine's limit is the user's word or the
// program's own, and not a guess: garbage collection works only below one.
func (c *Case) limitKnown() bool {
	m := c.Trace.Meta
	if c.Recovered != nil && len(c.Recovered.Explanations) == 1 {
		if e := c.Recovered.Explanations[0]; e.Known && e.Kind == recovery.KindFraction && c.Machine.Limit > 0 {
			return true
		}
	}
	return c.Machine.Fraction > 0 || m.Fraction > 0 || m.Sidecar && c.Machine.Limit > 0 || c.Recovered == nil && c.Machine.Limit > 0
}

// AsRecorded reports that what the case has now is the recorded run.
func (c *Case) AsRecorded() bool {
	return c.recordedRules(c.Policy) && c.Machine == c.Recovered.Machine()
}

// resolved is the case's machine with its limit worked out for a policy.
func (c *Case) resolved(spec *policies.Spec) (sim.Machine, error) {
	m, err := c.Machine.Resolve(spec, c.Trace.Meta.DeviceTotal)
	if err != nil {
		return m, fmt.Errorf("%s: %w", c.Trace.Source, err)
	}
	return m, nil
}

// OnCard is the machine of a program alone on a card. The error says that the
// catalogue does not know how much memory the card has.
func OnCard(card gpus.Card) (sim.Machine, error) {
	low, _, ok := card.Usable()
	if !ok {
		return sim.Machine{}, fmt.Errorf("%s: the catalogue has no memory size for this card; give --capacity from torch.cuda.mem_get_info()", card.Name)
	}
	return sim.On(low, card.Total), nil
}
