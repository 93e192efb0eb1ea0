// Package snapshot reads PyTorch's CUDA memory snapshots: the pickles that
// torch.cuda.memory._dump_snapshot writes, of every age from a bare list of
// segments (1.8) to the newest (spec pytorch-allocator, section B).
//
// A snapshot holds the trace of what the program asked of its allocator, a
// ring buffer of the newest entries, and the allocator's final segments. Read
// checks the one against the other: each entry must be possible in the memory
// that the entries before it left, and the last must leave the final segments.
// A file that contradicts itself is refused with the event that does.
//
// If the beginning is missing, the state before the first entry is what walking
// back from the final segments leaves; see reconstruct. A file with segments
// alone gives a trace without events.
//
// What a snapshot cannot say (configuration string, memory fraction,
// empty_cache calls, final statistics) comes from a JSON sidecar when there is
// one.
package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"allocsim/internal/pickle"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Format is the name of this format in traces.Trace.Format.
const Format = "torch-snapshot"

// maxDevices bounds the device index.
const maxDevices = 1024

// Options says how to read a snapshot.
type Options struct {
	// Source names the file in messages and in the traces.
	Source string
	// Sidecar is the content of the JSON file beside the snapshot; nil
	// without one.
	Sidecar *Sidecar
	// Progress, if set, is called now and then with the bytes read so far.
	Progress func(bytesRead int64)

	// drop, in tests, says how many of a device's entries to ignore at the
	// beginning.
	drop func(entries int) int
}

// Read reads one snapshot from r, which must be decompressed already, and
// returns a trace for each device that the file says anything about. It reads
// the stream once.
//
// Peak memory is about 70 bytes for each trace entry plus the distinct strings
// and call stacks: about the size of a file without frames and half that of one
// with frames.
//
// Errors name Options.Source, and the byte of the pickle or the event of the
// trace that is wrong. Nothing is repaired silently: what had to be inferred or
// put in order is said in the trace's Notes.
func Read(ctx context.Context, r io.Reader, opts Options) (*traces.Recording, error) {
	rec, err := read(ctx, r, opts)
	if err != nil && ctx.Err() == nil {
		if opts.Source == "" {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", opts.Source, err)
	}
	return rec, err
}

func read(ctx context.Context, r io.Reader, opts Options) (*traces.Recording, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(r, head)
	head = head[:n]
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !Detect(head) {
		return nil, notASnapshot(head)
	}
	rec := newRecords()
	whole := &counted{r: io.MultiReader(bytes.NewReader(head), r)}
	var in io.Reader = whole
	if detectJSON(head) {
		piped := pickled(whole)
		defer piped.Close()
		in = piped
	}
	dec := pickle.NewDecoder(ctx, in, rec, known...)
	dec.Progress = opts.Progress
	root, err := dec.Decode()
	switch {
	case errors.Is(err, pickle.ErrTruncated):
		return nil, fmt.Errorf("%w: it was cut off while it was written or copied; copy or record it again", err)
	case err != nil:
		return nil, err
	}
	more := in == io.Reader(whole) && whole.exceeds(dec.Offset())
	dec.Release()
	out, err := rec.recording(ctx, dec, root, opts)
	if err == nil && more {
		for _, t := range out.Devices {
			t.Notes = append(t.Notes, "The file goes on behind the snapshot, perhaps with a second one; only the first is read.")
		}
	}
	return out, err
}

// counted counts the bytes read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// exceeds reports that there are bytes beyond the first n.
func (c *counted) exceeds(n int64) bool {
	var b [1]byte
	c.Read(b[:]) // at the end it reads nothing
	return c.n > n
}

// recording converts what was decoded.
func (r *records) recording(ctx context.Context, dec *pickle.Decoder, root pickle.Value, opts Options) (*traces.Recording, error) {
	k, i, ok := split(root)
	switch {
	case ok && k == recRoot && r.roots > 0:
	case r.roots == 1 && !(ok && k == recList):
		// The snapshot lies in a list, a tuple or a dict.
	case r.roots > 1:
		return nil, fmt.Errorf("the file holds %d snapshots in one list or dict; dump each to a file of its own", r.roots)
	case ok && k == recList && r.lists[i].of == recSegment:
		// torch.cuda.memory_snapshot() pickled: a bare list of segments.
		r.root[0], r.rootSeen[0] = root, true
	case ok && k == recEmpty:
		return nil, fmt.Errorf("the pickle is empty: no CUDA memory was in use when it was written; %s", howTo)
	default:
		if ok || r.malformed != nil {
			return nil, r.wrong("the pickle holds a dict or list that is no memory snapshot, which has the keys segments and device_traces; " + howTo)
		}
		return nil, fmt.Errorf("the pickle holds %s and no memory snapshot (is it a model or an old torch.save file?); %s", root.Kind(), howTo)
	}
	perDevice, err := r.deviceTraces()
	if err != nil {
		return nil, err
	}
	segs, err := r.finalSegments()
	if err != nil {
		return nil, err
	}
	settings := r.settings(dec)
	cut := r.cut(perDevice)

	out := &traces.Recording{}
	for dev := range max(len(perDevice), len(segs)) {
		c := &converter{
			ctx: ctx, rec: r, dec: dec, source: opts.Source, device: dev,
			hasFinal: r.rootSeen[0], caches: opts.Sidecar.emptyCaches(), settings: settings, cut: cut,
		}
		if dev < len(perDevice) && perDevice[dev] >= 0 {
			l := r.lists[perDevice[dev]]
			c.first, c.n = l.start, l.n
			if opts.drop != nil {
				k := opts.drop(c.n)
				c.first, c.n = c.first+k, c.n-k
			}
		}
		if dev < len(segs) {
			c.segs = segs[dev]
		}
		if c.n == 0 && len(c.segs) == 0 {
			continue
		}
		t, err := c.convert()
		if err != nil {
			return nil, err
		}
		out.Devices = append(out.Devices, t)
	}
	if len(out.Devices) == 0 {
		return nil, errors.New("the snapshot holds neither events nor segments: no CUDA memory was in use and recording was off; call torch.cuda.memory._record_memory_history() before the model is built")
	}
	r.complete(dec, out, settings, opts.Sidecar)
	return out, nil
}

// wrong is the error for a part of the snapshot that has not the right form:
// the malformed dict in it, if there was one.
func (r *records) wrong(what string) error {
	if r.malformed != nil {
		return r.malformed
	}
	return errors.New(what)
}

// deviceTraces lists, for each device, its list of entries, -1 without any.
func (r *records) deviceTraces() ([]int, error) {
	v := r.root[1]
	k, i, ok := split(v)
	switch {
	case !r.rootSeen[1] || v.IsNone() || (ok && k == recEmpty):
		return nil, nil
	case !ok || k != recNested:
		return nil, r.wrong("device_traces is no list of lists of trace entries")
	case len(r.nested[i]) > maxDevices:
		return nil, fmt.Errorf("device_traces has %d devices; at most %d are supported", len(r.nested[i]), maxDevices)
	}
	out := make([]int, len(r.nested[i]))
	for dev, v := range r.nested[i] {
		k, l, _ := split(v)
		switch {
		case k == recEmpty:
			out[dev] = -1
		case r.lists[l].of != recEntry:
			return nil, r.wrong(fmt.Sprintf("device_traces[%d] is no list of trace entries", dev))
		case r.lists[l].used:
			return nil, fmt.Errorf("device_traces[%d] shares its entries with another device", dev)
		default:
			r.lists[l].used = true
			r.traceEntries += r.lists[l].n
			out[dev] = l
		}
	}
	return out, nil
}

// finalSegments groups the segments by device.
func (r *records) finalSegments() ([][]segment, error) {
	k, i, ok := split(r.root[0])
	switch {
	case !r.rootSeen[0] || (ok && k == recEmpty):
		return nil, nil
	case !ok || k != recList || r.lists[i].of != recSegment:
		return nil, r.wrong("segments is no list of segments")
	}
	l := r.lists[i]
	var out [][]segment
	for _, s := range r.segments[l.start:][:l.n] {
		if s.device >= maxDevices {
			return nil, fmt.Errorf("a segment names device %d; at most %d are supported", s.device, maxDevices)
		}
		for len(out) <= s.device {
			out = append(out, nil)
		}
		out[s.device] = append(out[s.device], s)
	}
	return out, nil
}

// convert makes the device's trace.
func (c *converter) convert() (*traces.Trace, error) {
	if c.hasFinal {
		c.prepareFinal()
	}
	if c.n == 0 || c.cut {
		return c.stateOnly()
	}
	c.scan()
	c.findPrivates()
	if c.at(c.n-1).timeUS == 0 {
		c.note("The entries carry no time (PyTorch before 2.2): all events are at time 0.")
		if len(c.caches) > 0 {
			c.note("The sidecar's empty_cache calls cannot be placed without times and are left out.")
			c.caches = nil
		}
	}
	t, err := c.replayAny()
	if err != nil && c.moved.n > 0 {
		// The order of time contradicts itself: perhaps the clock is wrong.
		c.keepOrder()
		if t2, err2 := c.replayAny(); err2 == nil {
			t, err = t2, nil
		}
	}
	if err != nil {
		return nil, err
	}
	t.Notes = append(c.notes, t.Notes...)
	return t, nil
}

// replayAny replays the entries from an empty allocator or, if that cannot be,
// from the start state that they imply.
func (c *converter) replayAny() (*traces.Trace, error) {
	t, err := c.replay(nil)
	var con *contradiction
	if errors.As(err, &con) && con.early {
		t, err := c.fromTheMiddle(con)
		if err != nil && c.kinds[actFreeRequested] == 0 && c.kinds[actFreeCompleted] > 0 && !c.noSegments {
			err = fmt.Errorf("%w; no free_requested is recorded (skip_actions), so which frees wait is unknown: record again without skipping it", err)
		}
		return t, err
	}
	return t, err
}

// cut reports that no device has more than one entry that says what was asked of
// its allocator. A ring buffer of one entry, which is PyTorch's default for
// _record_memory_history(True), is no history: the first allocation of a program
// makes two.
func (r *records) cut(perDevice []int) bool {
	for _, l := range perDevice {
		if l < 0 {
			continue
		}
		n := 0
		for i := range r.lists[l].n {
			if r.entries.at(r.lists[l].start+i).action < actSnapshot {
				n++
			}
			if n > 1 {
				return false
			}
		}
	}
	return true
}

// stateOnly makes a trace without events from the final segments.
func (c *converter) stateOnly() (*traces.Trace, error) {
	o := c.newOutput(0)
	final, err := c.final(o, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case c.n == 0:
		c.note("The file holds the segments at one moment and no history, so nothing can be replayed. Call torch.cuda.memory._record_memory_history() before the model is built.")
	default:
		c.note("The history was cut to %s (max_entries=1 is what _record_memory_history(True) takes), from which nothing can be replayed or concluded: the file holds the segments at one moment. Record with max_entries=sys.maxsize.", plural.Count(c.n, "entry", "entries"))
	}
	t, renumber, err := o.b.Build()
	if err != nil {
		return nil, err
	}
	for i := range final.Segments {
		final.Segments[i].Stream = renumber[final.Segments[i].Stream]
	}
	t.Source, t.Format, t.Device, t.Notes = c.source, Format, c.device, c.notes
	t.Recorded = &traces.Recorded{Final: final}
	t.Stacks = &traces.Stacks{}
	return t, nil
}

// complete adds what the file and the sidecar say about the whole recording.
func (r *records) complete(dec *pickle.Decoder, out *traces.Recording, settings map[string]string, side *Sidecar) {
	stacks := r.materialise(dec)
	since, before := r.releases(settings)
	for _, t := range out.Devices {
		m := &t.Meta
		m.Settings = settings
		m.TorchSince, m.TorchBefore = since, before
		if conf, ok := settings["PYTORCH_CUDA_ALLOC_CONF"]; ok {
			m.Conf, m.ConfKnown = conf, true
		}
		if side != nil {
			m.Sidecar = true
			if side.Conf != nil {
				if m.ConfKnown && m.Conf != *side.Conf {
					t.Notes = append(t.Notes, fmt.Sprintf("The sidecar's conf %q is not the snapshot's own %q; the sidecar's is used. It may belong to another recording.", *side.Conf, m.Conf))
				}
				m.Conf, m.ConfKnown = *side.Conf, true
			}
			m.Fraction, m.Torch, m.DeviceTotal = side.Fraction, side.Torch, side.DeviceTotal
			m.DeviceName, _ = side.Device.(string)
			m.Ranks = side.WorldSize
			if set := side.fractions(); len(set) > 1 {
				t.Notes = append(t.Notes, fmt.Sprintf("The program changed its memory fraction during the run (%v); the last one is taken to hold all the time.", set))
			}
			if n := r.traceEntries; side.TraceEntries > 0 && side.TraceEntries != n {
				t.Notes = append(t.Notes, fmt.Sprintf("The sidecar speaks of %d trace entries, the snapshot has %d: it may belong to another recording.", side.TraceEntries, n))
			}
		}
		if stacks == nil {
			t.Stacks = nil
		} else {
			t.Stacks.Frames, t.Stacks.Stack = stacks.Frames, stacks.Stack
		}
		for _, a := range r.rootAnnotations() {
			if a.device == t.Device || (a.device < 0 && len(out.Devices) == 1) {
				t.Annotations = append(t.Annotations, traces.Annotation{TimeUS: a.timeUS - t.StartUS, Name: dec.StringByID(a.name), End: a.end})
			}
		}
		slices.SortStableFunc(t.Annotations, func(a, b traces.Annotation) int {
			return int(min(1, max(-1, a.TimeUS-b.TimeUS)))
		})
	}
	r.placeStats(out, side)
}

func (r *records) rootAnnotations() []annotation {
	if k, i, ok := split(r.root[3]); ok && k == recList && r.lists[i].of == recAnnotate {
		return r.annotations[r.lists[i].start:][:r.lists[i].n]
	}
	return nil
}

// placeStats gives the sidecar's statistics, which are those of one device, to
// the device whose final segments they describe.
func (r *records) placeStats(out *traces.Recording, side *Sidecar) {
	stats := side.stats()
	if stats == nil {
		return
	}
	if len(out.Devices) == 1 {
		out.Devices[0].Recorded.Stats = stats
		return
	}
	for _, t := range out.Devices {
		if t.Recorded.Final == nil {
			continue
		}
		if want, ok := stats["reserved_bytes.all.current"]; ok && want == t.Recorded.Final.Reserved() {
			t.Recorded.Stats = stats
			return
		}
	}
}

// materialise makes the interned stacks into the trace model's form; nil
// without frames.
func (r *records) materialise(dec *pickle.Decoder) *traces.Stacks {
	if len(r.stacks.ends) == 0 {
		return nil
	}
	s := &traces.Stacks{
		Frames: make([]traces.Frame, len(r.frames)),
		Stack:  make([][]uint32, len(r.stacks.ends)),
	}
	text := make(map[uint32]string)
	str := func(id uint32) string {
		if id == noString {
			return ""
		}
		t, ok := text[id]
		if !ok {
			t = dec.StringByID(id)
			text[id] = t
		}
		return t
	}
	for i, f := range r.frames {
		s.Frames[i] = traces.Frame{Function: str(f.name), File: str(f.file), Line: int(f.line)}
	}
	for i := range s.Stack {
		s.Stack[i] = r.stacks.get(i)
	}
	return s
}
