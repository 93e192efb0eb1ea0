package recovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// Divergence is the first place where a replay and its recording differ.
type Divergence struct {
	// Event is the index in Trace.Events of the request concerned; the number
	// of events for a difference at the end.
	Event  int    `json:"event"`
	TimeUS int64  `json:"time_us"`
	What   string `json:"what"`
	// Recorded and Simulated describe the two sides.
	Recorded  string `json:"recorded"`
	Simulated string `json:"simulated"`

	// recorded and simulated are what the two sides asked of the driver there.
	recorded, simulated driverStep
	// and the addresses concerned; 0 = none.
	recordedAddr, simulatedAddr uint64
}

// driverStep is a kind of driver call.
type driverStep uint8

const (
	noStep  driverStep = iota
	release            // gives memory back
	grow               // takes memory
)

func stepOf(a traces.Action) driverStep {
	if a.Releases() {
		return release
	}
	return grow
}

// StatMismatch is a statistic that differs at the end.
type StatMismatch struct {
	Key       string `json:"key"`
	Recorded  int64  `json:"recorded"`
	Simulated int64  `json:"simulated"`
}

// CheckResult compares a replay with what the recorded allocator did.
type CheckResult struct {
	Exact bool `json:"exact"`
	// Allocs counts the recorded allocations, AddressesMatched those that got
	// the recorded address before the first divergence.
	Allocs               int            `json:"allocs"`
	AddressesMatched     int            `json:"addresses_matched"`
	SegmentEvents        int            `json:"segment_events"`
	SegmentEventsMatched int            `json:"segment_events_matched"`
	OOMs                 int            `json:"ooms"`
	OOMsMatched          int            `json:"ooms_matched"`
	FinalBlocks          int            `json:"final_blocks"`
	FinalBlocksMatched   int            `json:"final_blocks_matched"`
	StatsCompared        int            `json:"stats_compared"`
	StatsMismatched      []StatMismatch `json:"stats_mismatched"`
	FirstDivergence      *Divergence    `json:"first_divergence"`
	// Inferred lists what was not in the recording and had to be found out.
	Inferred []string `json:"inferred"`
	// Contradicted lists what the recording contradicts of what the user or the
	// sidecar says, with the event that does.
	Contradicted []string `json:"contradicted"`
	// Open lists what the recording cannot tell.
	Open []string `json:"open"`
	// Notes say what cannot be known.
	Notes []string `json:"notes"`
}

// compare replays tr under cfg, taking segment addresses from the recording,
// and compares event by event up to the first divergence. The trace must have
// a Recorded part. A start state is restored if the policy can do that.
func compare(ctx context.Context, r *sim.Runner, tr *traces.Trace, cfg sim.Config) (*CheckResult, error) {
	c := &comparison{tr: tr, rec: tr.Recorded, out: &CheckResult{StatsMismatched: []StatMismatch{}}}
	machine, err := cfg.Resolve(cfg.Policy, tr.Meta.DeviceTotal)
	if err != nil {
		return nil, err
	}
	cfg.Device = &recordedDevice{Device: sim.NewDevice(sim.DeviceConfig{Capacity: machine.Capacity, Total: machine.Total}), c: c}
	run, err := r.Start(tr, cfg, c)
	if err != nil {
		return nil, err
	}
	c.run = run
	restored, err := run.Restore()
	if err != nil {
		return nil, err
	}
	from := 0
	if restored {
		from = tr.StartEvents
	}
	for _, e := range tr.Events[from:] {
		switch e.Kind {
		case traces.Alloc:
			c.out.Allocs++
		case traces.OOM:
			c.out.OOMs++
		}
	}
	c.out.SegmentEvents = len(c.rec.Driver)
	if err := run.Run(ctx, from, len(tr.Events)); err != nil {
		return nil, err
	}
	if c.out.FirstDivergence == nil {
		c.atEnd(run.Policy())
	}
	c.out.Exact = c.out.FirstDivergence == nil && len(c.out.StatsMismatched) == 0
	return c.out, nil
}

// comparison is the observer that holds a replay against its recording.
type comparison struct {
	tr     *traces.Trace
	rec    *traces.Recorded
	run    *sim.Session
	cursor int // next recorded driver event
	out    *CheckResult
}

func (c *comparison) diverge(d Divergence) {
	if c.out.FirstDivergence != nil {
		return
	}
	if d.Event < len(c.tr.Events) {
		d.TimeUS = c.tr.Events[d.Event].TimeUS
	}
	c.out.FirstDivergence = &d
	if c.run != nil {
		c.run.Stop()
	}
}

// Observe compares one event of the policy.
func (c *comparison) Observe(at sim.At, e *policies.Event) {
	if c.out.FirstDivergence != nil {
		return
	}
	switch e.Action {
	case policies.ActionAlloc:
		if !c.caughtUp(at.Event, e.Addr) {
			return
		}
		if c.tr.Events[at.Event].Kind == traces.OOM {
			c.diverge(Divergence{Event: at.Event, What: "an allocation that failed in the recording succeeds",
				Recorded: "oom", Simulated: fmt.Sprintf("alloc at %#x", e.Addr)})
			return
		}
		if want := c.rec.Addr[at.ID]; want != e.Addr {
			c.diverge(Divergence{Event: at.Event, What: "another address",
				Recorded: fmt.Sprintf("alloc of %d bytes at %#x", e.Requested, want), Simulated: fmt.Sprintf("at %#x", e.Addr),
				recordedAddr: want, simulatedAddr: e.Addr})
			return
		}
		c.out.AddressesMatched++
	case policies.ActionOOM:
		if !c.caughtUp(at.Event, 0) {
			return
		}
		ev := c.tr.Events[at.Event]
		if ev.Kind != traces.OOM {
			c.diverge(Divergence{Event: at.Event, What: "an allocation of the recording fails",
				Recorded: fmt.Sprintf("alloc of %d bytes at %#x", ev.Size, c.rec.Addr[at.ID]), Simulated: "oom"})
			return
		}
		c.out.OOMsMatched++
	case policies.ActionFreeCompleted:
		// A flush completes pending frees by itself; the reader has put the
		// recorded completions of a flush in front of it.
		if k := c.tr.Events[at.Event].Kind; k != traces.Free && k != traces.FreeCompleted && k != traces.OOM {
			c.diverge(Divergence{Event: at.Event, What: "a pending free completes too early",
				Recorded: "still pending", Simulated: fmt.Sprintf("free_completed of %#x", e.Addr)})
		}
	case policies.ActionSegmentAlloc, policies.ActionSegmentFree, policies.ActionSegmentMap, policies.ActionSegmentUnmap:
		c.driver(at, e)
	}
}

func (c *comparison) driver(at sim.At, e *policies.Event) {
	div := Divergence{
		Event: at.Event, What: "a segment event that the recording does not have", Recorded: "none",
		Simulated: fmt.Sprintf("%s of %d bytes at %#x", e.Action, e.Size, e.Addr), simulated: stepOf(e.Action), simulatedAddr: e.Addr,
	}
	if c.cursor < len(c.rec.Driver) {
		d := c.rec.Driver[c.cursor]
		if int(d.Before) < at.Event {
			c.caughtUp(at.Event, 0)
			return
		}
		if int(d.Before) == at.Event || c.tr.Events[at.Event].Kind == traces.EmptyCache {
			if d.Action == e.Action && d.Addr == e.Addr && d.Size == e.Size && d.Stream == e.Stream {
				c.cursor++
				c.out.SegmentEventsMatched++
				return
			}
			div.What, div.Recorded, div.recorded, div.recordedAddr = "another segment event", describe(d), stepOf(d.Action), d.Addr
		}
	}
	c.diverge(div)
}

// caughtUp reports that every recorded driver event up to the request has been
// simulated; the simulation served it at addr instead.
func (c *comparison) caughtUp(event int, addr uint64) bool {
	if c.cursor >= len(c.rec.Driver) || int(c.rec.Driver[c.cursor].Before) > event {
		return true
	}
	d := c.rec.Driver[c.cursor]
	c.diverge(Divergence{
		Event: int(d.Before), What: "a recorded segment event does not happen",
		Recorded: describe(d), Simulated: "none", recorded: stepOf(d.Action), recordedAddr: d.Addr, simulatedAddr: addr,
	})
	return false
}

func describe(d traces.DriverEvent) string {
	return fmt.Sprintf("%s of %d bytes at %#x", d.Action, d.Size, d.Addr)
}

// atEnd compares the final blocks and statistics.
func (c *comparison) atEnd(p policies.Policy) {
	if !c.caughtUp(len(c.tr.Events), 0) {
		return
	}
	if c.rec.Final != nil {
		c.finalBlocks(p)
	}
	if c.rec.Stats == nil {
		return
	}
	flat := p.Stats().Flat()
	if c.tr.Start != nil {
		c.out.Notes = append(c.out.Notes, "The recording starts late, so of its statistics only the current values at the end are compared: peaks and sums include what came before.")
	}
	for _, key := range slices.Sorted(maps.Keys(c.rec.Stats)) {
		if c.tr.Start != nil && !strings.HasSuffix(key, ".current") {
			continue
		}
		got, known := flat[key]
		if !known {
			c.out.Notes = append(c.out.Notes, fmt.Sprintf("The recording has a statistic %s that is not simulated.", key))
			continue
		}
		c.out.StatsCompared++
		if want := c.rec.Stats[key]; want != got {
			c.out.StatsMismatched = append(c.out.StatsMismatched, StatMismatch{key, want, got})
		}
	}
}

func (c *comparison) finalBlocks(p policies.Policy) {
	type piece struct {
		addr            uint64
		size, requested int64
		state           policies.BlockState
	}
	var want, got []piece
	for _, s := range c.rec.Final.Segments {
		for _, b := range s.Blocks {
			w := piece{b.Addr, b.Size, b.Requested, b.State}
			if b.State == traces.Inactive {
				w.requested = 0
			}
			want = append(want, w)
		}
	}
	for _, s := range p.Segments(nil) {
		for _, b := range s.Blocks {
			got = append(got, piece{b.Addr, b.Size, b.Requested, b.State})
		}
	}
	byAddr := func(x, y piece) int {
		if x.addr < y.addr {
			return -1
		}
		return 1
	}
	slices.SortFunc(want, byAddr)
	slices.SortFunc(got, byAddr)
	c.out.FinalBlocks = len(want)
	text := func(ps []piece, k int) string {
		if k >= len(ps) {
			return "none"
		}
		state := [...]string{"inactive", "allocated", "pending"}[ps[k].state]
		return fmt.Sprintf("%s block of %d bytes (%d requested) at %#x", state, ps[k].size, ps[k].requested, ps[k].addr)
	}
	for k := range max(len(want), len(got)) {
		if k >= len(want) || k >= len(got) || want[k] != got[k] {
			c.diverge(Divergence{Event: len(c.tr.Events), What: "another block at the end",
				Recorded: text(want, k), Simulated: text(got, k)})
			return
		}
		c.out.FinalBlocksMatched++
	}
}

// recordedDevice answers with the addresses that the real driver gave.
type recordedDevice struct {
	*sim.Device
	c *comparison
}

// Malloc returns the recorded address if the recording takes a segment of this
// size next. Otherwise the address does not matter: the comparison reports the
// difference.
func (d *recordedDevice) Malloc(size int64) (uint64, error) {
	addr, err := d.Device.Malloc(size)
	if err == nil && d.c.cursor < len(d.c.rec.Driver) {
		if e := d.c.rec.Driver[d.c.cursor]; e.Action == traces.SegmentAlloc && e.Size == size {
			addr = e.Addr
		}
	}
	return addr, err
}

// Reserve returns the address of the first recorded mapping that follows: a
// reservation is mapped from its start.
func (d *recordedDevice) Reserve(size int64) (uint64, error) {
	addr, err := d.Device.Reserve(size)
	if err == nil && d.c.cursor < len(d.c.rec.Driver) {
		if e := d.c.rec.Driver[d.c.cursor]; e.Action == traces.SegmentMap {
			addr = e.Addr
		}
	}
	return addr, err
}
