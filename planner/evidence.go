package planner

import (
	"fmt"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/inspect"
)

// Level is how an answer is known, from the strongest to the weakest. An
// answer carries the weakest level that it stands on.
type Level string

// The levels.
const (
	// LevelRecorded: the file or its sidecar says it.
	LevelRecorded Level = "recorded"
	// LevelModelled: the requests are recorded, the rest is simulated.
	LevelModelled Level = "modelled"
	// LevelAssumed: the recording leaves something open.
	LevelAssumed Level = "assumed"
	// LevelPart: only a part of the program's run is in the recording.
	LevelPart Level = "part of a run"
	// LevelSynthetic: the requests are those of a model description.
	LevelSynthetic Level = "synthetic"
	// LevelDryRun: the requests are those of a program that was not really
	// run.
	LevelDryRun Level = "dry run"
)

// Evidence is what an answer stands on.
type Evidence struct {
	Level Level `json:"level"`
	// Source says what a dry run or a synthetic trace stands on; empty for a
	// recording.
	Source string `json:"source,omitempty"`
	// Missing says, one sentence each, what a verdict would need that the
	// evidence does not hold; empty when it holds all.
	Missing []string `json:"missing"`
	// Doubt says that the recording does not follow the rules by which it is
	// replayed, so that every figure is in doubt; empty if it does.
	Doubt string `json:"doubt,omitempty"`
	// Record is what to record instead; empty when nothing is missing.
	Record string `json:"record,omitempty"`
}

// Complete reports that nothing is missing.
func (e *Evidence) Complete() bool { return len(e.Missing) == 0 }

// open notes that the recording fits several explanations.
func (e *Evidence) open() {
	if e.Level == LevelRecorded || e.Level == LevelModelled {
		e.Level = LevelAssumed
	}
}

// why is what is missing as a clause.
func (e *Evidence) why() string { return strings.Join(e.Missing, " ") }

// wholeRun is what to record where the beginning is missing.
const wholeRun = "Record the whole run, from before the model is built (allocsim record --help)."

// Evidence says what answers about the case stand on.
func (c *Case) Evidence() Evidence {
	e := Evidence{Level: LevelModelled, Missing: []string{}}
	tr := c.Trace
	switch {
	case strings.HasPrefix(tr.Format, "synth"):
		e.Level = LevelSynthetic
	case strings.HasPrefix(tr.Format, "dry"):
		e.Level = LevelDryRun
		if len(tr.Notes) > 0 {
			e.Source = tr.Notes[0]
		}
	case c.AsRecorded():
		e.Level = LevelRecorded
	}
	if c.Recovered != nil {
		e.Doubt = c.Recovered.Doubt
	}
	if IsPart(tr) {
		e.Level = LevelPart
		text := fmt.Sprintf("The beginning of %s is missing", tr.Source)
		if k := c.Known(); k.Reserved > 0 && k.Counters {
			text += fmt.Sprintf("; the process's own counters say that it reserved up to %s", bytesize.Format(k.Reserved))
		}
		e.Missing = append(e.Missing, text+".")
		e.Record = wholeRun
	}
	if g := c.growth(); g != "" {
		e.Missing = append(e.Missing, g)
		if e.Record == "" {
			e.Record = "Mend the growth first: allocsim inspect --leaks shows it."
		}
	}
	return e
}

// evidenceOf is what an answer about what could be stands on: the weakest
// evidence of its cases, with what each misses, and a model at best.
func evidenceOf(cases []Case) Evidence {
	order := []Level{LevelRecorded, LevelModelled, LevelAssumed, LevelPart, LevelSynthetic, LevelDryRun}
	rank := func(l Level) int {
		for i, o := range order {
			if o == l {
				return i
			}
		}
		return 0
	}
	all := Evidence{Level: LevelModelled, Missing: []string{}}
	for i := range cases {
		e := cases[i].Evidence()
		if rank(e.Level) > rank(all.Level) {
			all.Level = e.Level
		}
		all.Missing = append(all.Missing, e.Missing...)
		if all.Doubt == "" {
			all.Doubt = e.Doubt
		}
		if all.Record == "" {
			all.Record = e.Record
		}
		if all.Source == "" {
			all.Source = e.Source
		}
	}
	return all
}

// IsPart reports that a trace begins in the middle of its program's run.
func IsPart(tr *traces.Trace) bool { return tr.StartEvents > 0 || tr.Start != nil }

// growth says that memory grows from iteration to iteration; empty if it does
// not, or if that cannot be told.
func (c *Case) growth() string {
	r := inspect.FindLeaks(c.Trace, 0)
	if len(r.Leaks) == 0 {
		return ""
	}
	var per int64
	for _, l := range r.Leaks {
		per += l.BytesPerIteration
	}
	return fmt.Sprintf("Memory grows by %s an iteration in %s (%s), so any amount is used up in the end.",
		bytesize.Format(per), c.Trace.Source, r.Leaks[0].Where)
}

// growthPerIteration is the bytes that an iteration leaves behind, and those
// still free on a device of capacity bytes are used up after so many more.
func (c *Case) iterationsLeft(capacity int64) (n int, grows bool) {
	r := inspect.FindLeaks(c.Trace, capacity)
	return r.IterationsLeft, len(r.Leaks) > 0
}

// Known is what a recording says of the whole process, whatever part of its
// history it holds: peaks in bytes, 0 = not said.
type Known struct {
	// Requested must live at once in any placement; Allocated and Reserved are
	// those of the recorded allocator.
	Requested, Allocated, Reserved int64
	// Counters reports that the peaks come from the process's own counters,
	// and not only from what is seen in the file.
	Counters bool
	// Free reports that by these counters nothing ever bounded the allocator:
	// no request failed and no cache was flushed to serve one. It would then
	// have reserved as much on every device with room for that.
	Free bool
}

// Known reads the process's counters and the layouts at the start and the end.
func (c *Case) Known() Known {
	var k Known
	tr := c.Trace
	k.Allocated, k.Reserved = tr.Meta.PeakAllocated, tr.Meta.PeakReserved
	k.Counters = k.Reserved > 0
	take := func(st *traces.State) {
		if st != nil {
			s := sim.SummarizeState(st)
			k.Allocated, k.Reserved = max(k.Allocated, s.Allocated), max(k.Reserved, s.Reserved)
		}
	}
	take(tr.Start)
	if r := tr.Recorded; r != nil {
		take(r.Final)
		// Counters that do not fit the segments are another process's.
		if r.Stats != nil && (r.Final == nil || r.Stats["reserved_bytes.all.current"] == sim.SummarizeState(r.Final).Reserved) {
			k.Allocated = max(k.Allocated, r.Stats["allocated_bytes.all.peak"])
			k.Reserved = max(k.Reserved, r.Stats["reserved_bytes.all.peak"])
			k.Counters = true
			k.Free = r.Stats["num_ooms"] == 0 && r.Stats["num_alloc_retries"] == 0
			if len(tr.Streams) == 1 {
				// With several, what waits for another stream counts as requested.
				k.Requested = r.Stats["requested_bytes.all.peak"]
			}
		}
	}
	return k
}

// Need is the most bytes that the case's program must have live at once, the
// requests that failed in the recording and what the process's own counters
// say included: no placement needs less.
func (c *Case) Need() int64 { return max(sim.Need(c.Trace), c.Known().Requested) }

// undecided is the sentence for a verdict that the evidence does not carry.
func (e *Evidence) undecided() string {
	return fmt.Sprintf("Undecidable. %s %s", e.why(), e.Record)
}
