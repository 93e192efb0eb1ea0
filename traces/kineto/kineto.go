// Package kineto reads the memory events of PyTorch profiler traces: Chrome
// trace JSON written with profile(profile_memory=True) and
// export_chrome_trace.
//
// Each allocation and free of the CUDA allocator is an instant event named
// "[memory]" with the address, the signed bytes of the block and the
// allocator's totals after it (spec pytorch-allocator B7, trace-formats 7.1).
// The events carry no streams and no requested sizes, and the file is not in
// the order of time; what follows from that is said in the trace's notes.
//
// The file is scanned as a stream and only memory events and the program's own
// annotations are kept.
package kineto

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Format is Trace.Format of these traces.
const Format = "kineto"

// Detect reports whether a file that begins with head looks like a Chrome
// trace.
func Detect(head []byte) bool {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	if len(head) == 0 {
		return false
	}
	has := func(s string) bool { return bytes.Contains(head, []byte(s)) }
	switch head[0] {
	case '{':
		return has(`"traceEvents"`) || has(`"schemaVersion"`) && has(`"deviceProperties"`)
	case '[':
		return has(`"ph"`) && has(`"name"`)
	}
	return false
}

// The "Device Type" of the CUDA allocator (c10::DeviceType::CUDA, also HIP
// builds).
const deviceCUDA = 1

// number reads a JSON number or a quoted one, decimal or 0x hexadecimal.
type number struct {
	v   int64
	set bool
}

func (n *number) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	if s == "null" || s == "" {
		return nil
	}
	v, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		u, uerr := strconv.ParseUint(s, 0, 64)
		if uerr != nil {
			f, ferr := strconv.ParseFloat(s, 64)
			if ferr != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
				return fmt.Errorf("%q is not a whole number", s)
			}
			u = uint64(int64(f))
		}
		v = int64(u)
	}
	n.v, n.set = v, true
	return nil
}

// literal is the text of a value without its quotes, whatever its type; empty
// for null. What it means is looked at by those who need it.
type literal string

func (l *literal) UnmarshalJSON(b []byte) error {
	if s := strings.Trim(string(b), `"`); s != "null" {
		*l = literal(s)
	}
	return nil
}

// show is the literal as a message has it.
func (l literal) show() string {
	const most = 40
	if r := []rune(string(l)); len(r) > most {
		l = literal(r[:most]) + "…"
	}
	return strconv.Quote(string(l))
}

// memoryKeys are the keys of memoryArgs.
var memoryKeys = map[string]bool{"Device Type": true, "Device Id": true, "Addr": true, "Bytes": true, "Total Allocated": true, "Total Reserved": true}

// chromeEvent is what is read of an event.
type chromeEvent struct {
	Name string     `json:"name"`
	Ph   string     `json:"ph"`
	Cat  string     `json:"cat"`
	Ts   literal    `json:"ts"`
	Dur  literal    `json:"dur"`
	Args memoryArgs `json:"args"`
}

type memoryArgs struct {
	DeviceType number `json:"Device Type"`
	DeviceID   number `json:"Device Id"`
	Addr       number `json:"Addr"`
	Bytes      number `json:"Bytes"`
	Allocated  number `json:"Total Allocated"`
	Reserved   number `json:"Total Reserved"`
}

// event is a memory event that is kept.
type event struct {
	ts        int64 // ns of the file's clock
	addr      uint64
	bytes     int64 // > 0 alloc, < 0 free
	allocated int64 // -1 = absent
	reserved  int64 // -1 = absent
	oom       bool
}

type reader struct {
	byDevice    map[int64][]event
	annotations []mark
	devices     map[int64]deviceProperties
	memory      int // memory events of any device type
	cpu         int
	events      int
	baseNS      int64
	profiled    number // "profile_memory"
}

type mark struct {
	ts   int64
	name string
	end  bool
}

type deviceProperties struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Total int64  `json:"totalGlobalMem"`
}

// Read reads a profiler trace; name is the file's name for the trace.
func Read(ctx context.Context, r io.Reader, name string) (*traces.Recording, error) {
	k := reader{byDevice: make(map[int64][]event), devices: make(map[int64]deviceProperties)}
	s := newScanner(r)
	if b, err := s.r.Peek(3); err == nil && bytes.Equal(b, []byte("\xef\xbb\xbf")) {
		s.r.Discard(3)
		s.off += 3
	}
	first, err := s.next()
	if err != nil {
		return nil, err
	}
	element := func(text []byte) error {
		k.events++
		if k.events%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if err := k.event(text); err != nil {
			return fmt.Errorf("event %d (before byte %d): %w", k.events, s.off, err)
		}
		return nil
	}
	if first == '[' {
		err = s.elements(element)
	} else {
		err = s.members(func(key string) error {
			switch key {
			case "traceEvents":
				return s.elements(element)
			case "deviceProperties":
				return s.small(func(text []byte) error {
					var d []deviceProperties
					if json.Unmarshal(text, &d) == nil {
						for _, p := range d {
							k.devices[p.ID] = p
						}
					}
					return nil
				})
			case "baseTimeNanoseconds":
				return s.small(func(text []byte) error {
					var n number
					err := n.UnmarshalJSON(text)
					k.baseNS = n.v
					return keyError(key, err)
				})
			case "profile_memory":
				return s.small(func(text []byte) error { return keyError(key, k.profiled.UnmarshalJSON(text)) })
			}
			_, err := s.value(false)
			return err
		})
	}
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("the JSON ends in the middle, after %d bytes and %d events: %w", s.off, k.events, err)
		}
		return nil, err
	}
	return k.recording(name)
}

// keyError adds the key that err is about.
func keyError(key string, err error) error {
	if err != nil {
		err = fmt.Errorf("%q: %w", key, err)
	}
	return err
}

// small passes on the next value, decoded or not.
func (s *scanner) small(f func(text []byte) error) error {
	text, err := s.value(true)
	if err != nil {
		return err
	}
	return f(text)
}

var (
	memoryName     = []byte("[memory]")
	oomName        = []byte("[OutOfMemory]")
	userAnnotation = []byte(`"user_annotation"`)
)

func (k *reader) event(text []byte) error {
	// Looking for the words first spares decoding what does not concern us.
	memory := bytes.Contains(text, memoryName) || bytes.Contains(text, oomName)
	if !memory && !bytes.Contains(text, userAnnotation) {
		return nil
	}
	var e chromeEvent
	if err := json.Unmarshal(text, &e); err != nil {
		if !memory {
			return nil
		}
		return explain(text)
	}
	oom := e.Name == string(oomName)
	if !oom && e.Name != string(memoryName) {
		if e.Cat == "user_annotation" && e.Ph == "X" {
			ts, err := nanoseconds(e.Ts)
			dur, err2 := nanoseconds(cmp.Or(e.Dur, "0"))
			if err == nil && err2 == nil && ts > 0 && dur >= 0 {
				k.annotations = append(k.annotations, mark{ts, e.Name, false}, mark{ts + dur, e.Name, true})
			}
		}
		return nil
	}
	if e.Ph != "i" && e.Ph != "I" {
		return nil
	}
	k.memory++
	a := &e.Args
	if a.DeviceType.v != deviceCUDA {
		k.cpu++
		return nil
	}
	if !a.Bytes.set || !oom && !a.Addr.set {
		return errors.New(`a [memory] event without "Addr" or "Bytes"`)
	}
	if a.Bytes.v > 1<<60 || a.Bytes.v < -(1<<60) {
		return fmt.Errorf("a [memory] event of %d bytes", a.Bytes.v)
	}
	ts, err := nanoseconds(e.Ts)
	if err != nil {
		return err
	}
	ev := event{ts: ts, addr: uint64(a.Addr.v), bytes: a.Bytes.v, allocated: -1, reserved: -1, oom: oom}
	if a.Allocated.set && a.Allocated.v >= 0 {
		ev.allocated = a.Allocated.v
	}
	if a.Reserved.set && a.Reserved.v >= 0 {
		ev.reserved = a.Reserved.v
	}
	k.byDevice[a.DeviceID.v] = append(k.byDevice[a.DeviceID.v], ev)
	return nil
}

// explain says what is wrong with the text of an event that is no event.
func explain(text []byte) error {
	fields := make(map[string]json.RawMessage)
	if json.Unmarshal(text, &fields) != nil {
		return errors.New("not valid JSON of an event; write the trace again")
	}
	for _, key := range []string{"name", "ph", "cat"} {
		var s string
		if v, ok := fields[key]; ok && json.Unmarshal(v, &s) != nil {
			return fmt.Errorf("its %q is %s, not text", key, literal(v).show())
		}
	}
	args := make(map[string]json.RawMessage)
	if json.Unmarshal(fields["args"], &args) != nil {
		return fmt.Errorf("its \"args\" are %s, not an object in braces", literal(strings.Trim(string(fields["args"]), `"`)).show())
	}
	for _, key := range slices.Sorted(maps.Keys(args)) {
		var n number
		if memoryKeys[key] && n.UnmarshalJSON(args[key]) != nil {
			return fmt.Errorf("its %q is %s, not a whole number", key, literal(strings.Trim(string(args[key]), `"`)).show())
		}
	}
	return errors.New("not an event as the profiler writes it")
}

// nanoseconds reads a time in µs with up to three decimals exactly, which a
// float64 cannot for times since the epoch.
func nanoseconds(n literal) (int64, error) {
	s := string(n)
	whole, frac, _ := strings.Cut(s, ".")
	us, err := strconv.ParseInt(whole, 10, 64)
	if err == nil && us > math.MinInt64/1000 && us < math.MaxInt64/1000 {
		frac = (frac + "000")[:3]
		if ns, err := strconv.ParseUint(frac, 10, 16); err == nil {
			if strings.HasPrefix(s, "-") {
				return us*1000 - int64(ns), nil
			}
			return us*1000 + int64(ns), nil
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(math.Abs(f) <= 9e15) {
		if s == "" {
			return 0, errors.New("it has no time (ts)")
		}
		return 0, fmt.Errorf("its time (ts) is %s, not a number of µs", n.show())
	}
	return int64(f * 1000), nil
}

func (k *reader) recording(name string) (*traces.Recording, error) {
	if len(k.byDevice) == 0 {
		switch {
		case k.cpu > 0:
			return nil, fmt.Errorf("%s, but none of the GPU; profile a run that uses it", plural.Of(k.cpu, "[memory] event"))
		case k.profiled.set && k.profiled.v == 0:
			return nil, errors.New("the trace was profiled without memory events; turn them on with profile(profile_memory=True)")
		}
		return nil, fmt.Errorf("%s, but none is a [memory] event; turn them on with profile(profile_memory=True)", plural.Of(k.events, "event"))
	}
	zero := int64(math.MaxInt64)
	late := make(map[int64]int)
	for d, ev := range k.byDevice {
		late[d] = putInOrder(ev)
		zero = min(zero, ev[0].ts)
	}
	for _, m := range k.annotations {
		zero = min(zero, m.ts)
	}
	zero = max(zero, 0) / 1000 * 1000
	slices.SortStableFunc(k.annotations, func(x, y mark) int { return cmp.Compare(x.ts, y.ts) })
	rec := new(traces.Recording)
	for d, ev := range k.byDevice {
		t, err := k.trace(d, ev, zero)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", d, err)
		}
		t.Source = name
		if n := late[d]; n > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%d of %s without a time (ts 0): kept where the file has them, which may be wrong.", n, plural.Of(len(ev), "event")))
		}
		rec.Devices = append(rec.Devices, t)
	}
	slices.SortFunc(rec.Devices, func(x, y *traces.Trace) int { return cmp.Compare(x.Device, y.Device) })
	return rec, nil
}

// putInOrder sorts by time; ties keep the order of the file, as totals in real
// traces confirm. An event without a time goes where the file has it. It
// returns how many such there are, if others have times.
func putInOrder(ev []event) (untimed int) {
	first := slices.IndexFunc(ev, func(e event) bool { return e.ts > 0 })
	if first < 0 {
		return 0
	}
	prev := ev[first].ts
	for i := range ev {
		if ev[i].ts <= 0 {
			ev[i].ts = prev
			untimed++
		}
		prev = ev[i].ts
	}
	slices.SortStableFunc(ev, func(x, y event) int { return cmp.Compare(x.ts, y.ts) })
	return untimed
}

type liveBlock struct {
	id    traces.BlockID
	bytes int64
}

func (k *reader) trace(device int64, ev []event, zero int64) (*traces.Trace, error) {
	if device < 0 || device > math.MaxInt32 {
		return nil, errors.New("not a device index")
	}
	var (
		b        = traces.NewBuilder(len(ev))
		stream   = b.Stream(0)
		live     = make(map[uint64]liveBlock)
		notes    = []string{"Profiler traces hold no streams: everything is replayed on one stream, and every free is complete at once."}
		m        = traces.Meta{DeviceName: k.devices[device].Name, DeviceTotal: max(0, k.devices[device].Total)}
		breaks   int // totals that do not follow
		lost     int // frees that are missing
		sizes    int // frees of another size than the allocation
		caches   int // empty_cache calls that Total Reserved shows
		lastBase = int64(-1)
	)
	// What is freed without having been allocated was live at the start, and
	// so was the rest of the total before the first event (case R27).
	type block struct {
		addr  uint64
		bytes int64
	}
	var start []block
	seen := make(map[uint64]bool)
	for _, e := range ev {
		if !e.oom && !seen[e.addr] {
			seen[e.addr] = true
			if e.bytes < 0 {
				start = append(start, block{e.addr, -e.bytes})
			}
		}
	}
	slices.SortFunc(start, func(x, y block) int { return cmp.Compare(x.addr, y.addr) })
	var orphans int64
	for _, s := range start {
		live[s.addr] = liveBlock{b.Alloc(0, s.bytes, stream, 0), s.bytes}
		orphans += s.bytes
	}
	rest := int64(0)
	if i := slices.IndexFunc(ev, func(e event) bool { return !e.oom && e.allocated >= 0 }); i >= 0 {
		base := ev[i].allocated
		for _, e := range ev[:i+1] {
			if !e.oom {
				base -= e.bytes
			}
		}
		rest = base - orphans
		if rest > 0 {
			b.Alloc(0, rest, stream, 0)
		}
	}
	startEvents := b.Len()

	place := placement{known: startEvents == 0}
	if startEvents > 0 {
		place.reserved = max(0, ev[0].reserved)
	}
	recorded := &traces.Recorded{}
	for i := range ev {
		e := &ev[i]
		t := max(0, e.ts-zero) / 1000
		if place.before(e, b.Len()) {
			caches++
			b.EmptyCache(t)
		}
		m.PeakReserved = max(m.PeakReserved, e.reserved)
		m.PeakAllocated = max(m.PeakAllocated, e.allocated)
		if e.oom {
			if e.bytes > 0 {
				b.OOM(t, e.bytes, stream, 0)
				recorded.Addr = append(recorded.Addr, 0)
				recorded.OOMDeviceFree = append(recorded.OOMDeviceFree, -1)
			}
			continue
		}
		if e.allocated >= 0 {
			if lastBase >= 0 && e.allocated-e.bytes != lastBase {
				breaks++
			}
			lastBase = e.allocated
		} else {
			lastBase = -1
		}
		old, ok := live[e.addr]
		switch {
		case e.bytes > 0:
			if ok {
				// The address proves that it was freed.
				lost++
				b.Free(t, old.id)
				place.use(e.addr, -old.bytes)
			}
			live[e.addr] = liveBlock{b.Alloc(t, e.bytes, stream, 0), e.bytes}
			recorded.Addr = append(recorded.Addr, e.addr)
			place.use(e.addr, e.bytes)
		case e.bytes < 0 && ok:
			if old.bytes != -e.bytes {
				sizes++
			}
			b.Free(t, old.id)
			place.use(e.addr, -old.bytes)
			delete(live, e.addr)
		case e.bytes < 0:
			lost++
		}
	}
	t, _, err := b.Build()
	if err != nil {
		return nil, err
	}
	t.Format, t.Device, t.StartEvents = Format, int(device), startEvents
	t.Meta = m
	if place.known && breaks+lost+sizes == 0 {
		recorded.Driver = place.driver
		t.Recorded = recorded
		notes = append(notes, "The allocator's segments are worked out from the addresses of the blocks and the steps of Total Reserved.")
	}
	t.Meta.ClockUS = zero / 1000
	t.StartUS = (k.baseNS + zero) / 1000
	if k.baseNS == 0 && t.StartUS < epochTime {
		t.StartUS = 0
	}
	for _, a := range k.annotations {
		t.Annotations = append(t.Annotations, traces.Annotation{TimeUS: max(0, a.ts-zero) / 1000, Name: a.name, End: a.end})
	}
	notes = append(notes, "Sizes are those of the allocator's blocks, not of the requests: each request may have been up to 511 B smaller, or smaller still where a large block was not split.")
	if len(start) > 0 {
		notes = append(notes, fmt.Sprintf("%s (%s) of unknown age: freed in the trace without having been allocated in it, so allocated at its start.", plural.Of(len(start), "block"), bytesize.Format(orphans)))
	}
	if rest > 0 {
		notes = append(notes, fmt.Sprintf("%s more were live all along; the trace gives only their total, so they are replayed as one block.", bytesize.Format(rest)))
	}
	if rest < 0 {
		notes = append(notes, fmt.Sprintf("The trace frees %s more than its Total Allocated allows at the start: events are missing.", bytesize.Format(-rest)))
	}
	if caches > 0 {
		notes = append(notes, fmt.Sprintf("%s inferred from where Total Reserved falls.", plural.Of(caches, "empty_cache call")))
	}
	if breaks > 0 {
		notes = append(notes, fmt.Sprintf("At %d of %s Total Allocated does not follow from the one before: events are missing or out of order.", breaks, plural.Of(len(ev), "event")))
	}
	if sizes > 0 {
		notes = append(notes, fmt.Sprintf("%s of another size than the allocation, which is believed: events are missing or out of order.", plural.Of(sizes, "free")))
	}
	if lost > 0 {
		notes = append(notes, fmt.Sprintf("%s at odds with what is live at the address: events are missing or out of order.", plural.Of(lost, "event")))
	}
	if i := slices.IndexFunc(ev, func(e event) bool { return e.reserved >= 0 }); i < 0 {
		notes = append(notes, "The trace has no totals (an old profiler): what was reserved and what was live before it began is unknown.")
	} else if over := ev[i].reserved - ev[i].allocated; over > 0 && startEvents > 0 {
		notes = append(notes, fmt.Sprintf("At the first event %s were reserved, %s of them unused; how that memory was cut up is unknown, so a replay starts without it.", bytesize.Format(ev[i].reserved), bytesize.Format(over)))
	}
	t.Notes = notes
	return t, nil
}

// epochTime is 2001-09-09 in µs since the Unix epoch: below it a time counts
// from something else.
const epochTime = 1_000_000_000_000_000
