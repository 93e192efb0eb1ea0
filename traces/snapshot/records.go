package snapshot

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/pickle"
	"allocsim/traces"
)

// Ids of the strings that a snapshot is made of (spec pytorch-allocator B2):
// dict keys first, then values. The order is that of known.
const (
	kAction = iota
	kAddr
	kSize
	kStream
	kTimeUS
	kFrames
	kDeviceFree
	kPoolID
	kDevice
	kAddress
	kTotalSize
	kSegmentType
	kSegmentPoolID
	kIsExpandable
	kBlocks
	kRequestedSize
	kState
	kHistory
	kRealSize
	kFilename
	kLine
	kName
	kStage
	kSegments
	kDeviceTraces
	kTraces
	kAllocatorSettings
	kExternalAnnotations
	kConf
	kMaxSplitSize
	kCompileContext
	kUserMetadata
	numKeys

	sAlloc = iota - 1
	sFreeRequested
	sFreeCompleted
	sSegmentAlloc
	sSegmentFree
	sSegmentMap
	sSegmentUnmap
	sOOM
	sSnapshot
	sActiveAllocated
	sActivePendingFree
	sActiveAwaitingFree
	sInactive
	sSmall
	sLarge
	sStart
	sEnd
)

var known = []string{
	"action", "addr", "size", "stream", "time_us", "frames", "device_free", "pool_id",
	"device", "address", "total_size", "segment_type", "segment_pool_id", "is_expandable", "blocks",
	"requested_size", "state", "history", "real_size",
	"filename", "line", "name", "stage",
	"segments", "device_traces", "traces", "allocator_settings", "external_annotations",
	"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "compile_context", "user_metadata",

	"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "snapshot",
	"active_allocated", "active_pending_free", "active_awaiting_free", "inactive",
	"small", "large", "START", "END",
}

// action is a trace entry's action; the ones that matter are in the order of
// sAlloc….
type action uint8

const (
	actAlloc action = iota
	actFreeRequested
	actFreeCompleted
	actSegmentAlloc
	actSegmentFree
	actSegmentMap
	actSegmentUnmap
	actOOM
	actSnapshot
	actOther // something newer
)

func (a action) String() string {
	if a < actOther {
		return known[sAlloc+int(a)]
	}
	return "unknown action"
}

// entry is one element of device_traces in 32 bytes.
type entry struct {
	addr   uint64 // of an oom: device_free, or noDeviceFree
	size   int64
	timeUS int64
	stack  traces.StackID
	stream uint16
	pool   uint8 // index into records.pools
	action action
}

const noDeviceFree = ^uint64(0)

const (
	entryChunkBits = 12
	entryChunk     = 1 << entryChunkBits
)

// entryStore keeps all entries of the file in order. Growing by chunks avoids
// the copies and the garbage of a growing slice.
type entryStore struct {
	chunks []*[entryChunk]entry
	n      int
}

func (s *entryStore) at(i int) *entry { return &s.chunks[i>>entryChunkBits][i&(entryChunk-1)] }

func (s *entryStore) add() *entry {
	if s.n&(entryChunk-1) == 0 {
		s.chunks = append(s.chunks, new([entryChunk]entry))
	}
	s.n++
	return s.at(s.n - 1)
}

// block is an element of a segment's blocks.
type block struct {
	addr      uint64
	size      int64
	requested int64
	stack     traces.StackID
	state     traces.BlockState
	hasAddr   bool
	// hasRequested is false in old files, where requested is the block's size.
	hasRequested bool
}

// segment is an element of segments. Its blocks are records.blocks[first:][:n].
type segment struct {
	addr       uint64
	size       int64
	device     int
	first, n   int
	stream     uint16
	pool       uint8
	small      bool
	expandable bool
}

type annotation struct {
	timeUS int64
	name   uint32 // string id
	device int
	end    bool
}

// A record's number is its kind and an index.
type kind uint64

const (
	recEmpty    kind = iota // an empty list, tuple or dict
	recEntry                // index into entries
	recFrame                // frames
	recStack                // stacks
	recBlock                // blocks
	recSegment              // segments
	recAnnotate             // annotations
	recHistory              // histories
	recPool                 // pools
	recList                 // lists: a run of entries, blocks, segments or annotations
	recNested               // nested: a list of such lists
	recMap                  // maps: a small dict of plain values
	recRoot                 // root

	kindShift = 56
)

func record(k kind, i int) pickle.Value { return pickle.Record(uint64(k)<<kindShift | uint64(i)) }

func split(v pickle.Value) (kind, int, bool) {
	n, ok := v.Record()
	return kind(n >> kindShift), int(n & (1<<kindShift - 1)), ok
}

// list is a run of n records of one kind. A list of entries or blocks belongs
// to one owner: used guards against files that refer to it many times.
type list struct {
	of    kind
	start int
	n     int
	used  bool
}

// Limits on what a snapshot can sensibly hold; they bound the memory that a
// hostile file can claim.
const (
	maxPools    = traces.MaxPools
	maxStreams  = traces.MaxStreams
	maxMapPairs = 256     // pairs of a settings dict
	maxMapTotal = 1 << 16 // pairs of all such dicts
	// lists in lists of lists; device_traces is the only one that matters
	maxNestedTotal = 1 << 16
)

// records is the pickle.Handler: it stores what the dicts and lists of a
// snapshot say in flat tables.
type records struct {
	entries     entryStore
	frames      []frameKey
	frameIndex  map[frameKey]int
	stacks      stackTable
	blocks      []block
	segments    []segment
	annotations []annotation
	histories   []int64 // real_size
	lists       []list
	nested      [][]pickle.Value
	maps        [][]pickle.Value
	nestedTotal int
	mapTotal    int

	streams     []uint64
	streamIndex map[uint64]uint16
	lastStream  uint64
	lastIndex   uint16
	pools       []traces.PoolID

	traceEntries int // of all devices

	// entryKeys and stateKeys are the keys that some entry of a request or
	// segment has, and some segment or block of the final state: bits of k….
	entryKeys, stateKeys uint64

	root      [4]pickle.Value // segments, device_traces, allocator_settings, external_annotations
	rootSeen  [4]bool
	roots     int   // dicts that are snapshots
	malformed error // of the first dict that could not be read
	fieldVals [numKeys]pickle.Value
	layout    layout
}

// layout says where the pairs of the dicts that arrive at present have the
// fields of a trace entry: the index of the value, -1 without that key.
type layout struct {
	known, entry bool // entry: all of the first four are there
	keys         uint64
	action, addr, size, timeUS,
	stream, pool, frames int
}

type frameKey struct {
	name, file uint32 // string ids; noString
	line       int32
}

const noString = ^uint32(0)

func newRecords() *records {
	return &records{
		frameIndex:  make(map[frameKey]int),
		streamIndex: make(map[uint64]uint16),
		pools:       []traces.PoolID{{0, 0}},
		stacks:      newStackTable(),
	}
}

// Dict implements pickle.Handler: the keys say what the dict is. One that is
// malformed becomes opaque, and its error is kept for the case that it was
// needed: newer versions add dicts of their own that share these keys.
func (r *records) Dict(d *pickle.Decoder, pairs []pickle.Value, same bool) (pickle.Value, error) {
	if !same {
		r.layout.known = false
	} else {
		if !r.layout.known {
			r.layout = layoutOf(pairs)
		}
		if r.layout.entry {
			if v, ok := r.plainEntry(d, pairs); ok {
				return v, nil
			}
		}
	}
	var seen uint64
	for i := 0; i+1 < len(pairs); i += 2 {
		if id, ok := pairs[i].StringID(); ok && id < numKeys {
			r.fieldVals[id] = pairs[i+1]
			seen |= 1 << id
		}
	}
	v, err := r.dict(d, seen, pairs)
	if err != nil {
		if r.malformed == nil {
			r.malformed = fmt.Errorf("pickle, byte %d: %w", d.Offset(), err)
		}
		return pickle.Opaque, nil
	}
	return v, nil
}

func (r *records) dict(d *pickle.Decoder, seen uint64, pairs []pickle.Value) (pickle.Value, error) {
	has := func(key int) bool { return seen&(1<<key) != 0 }
	switch {
	case has(kAction):
		return r.entry(d, seen)
	case has(kTotalSize):
		return r.segment(d, seen)
	case has(kSegments) || has(kDeviceTraces):
		return r.rootDict(seen), nil
	case has(kState):
		return r.block(d, seen)
	case has(kStage):
		return r.annotation(d, seen)
	case has(kFilename) || has(kLine):
		return r.frame(d, seen)
	case has(kRealSize):
		n, _ := d.Int(r.fieldVals[kRealSize])
		r.histories = append(r.histories, n)
		return record(recHistory, len(r.histories)-1), nil
	case len(pairs) == 0:
		return record(recEmpty, 0), nil
	}
	return r.plainMap(pairs), nil
}

// plainMap keeps a small dict of plain values, such as allocator_settings.
func (r *records) plainMap(pairs []pickle.Value) pickle.Value {
	if len(pairs) > 2*maxMapPairs || r.mapTotal+len(pairs) > 2*maxMapTotal {
		return pickle.Opaque
	}
	r.mapTotal += len(pairs)
	r.maps = append(r.maps, slices.Clone(pairs))
	return record(recMap, len(r.maps)-1)
}

func (r *records) rootDict(seen uint64) pickle.Value {
	for i, key := range [...]int{kSegments, kDeviceTraces, kAllocatorSettings, kExternalAnnotations} {
		if r.rootSeen[i] = seen&(1<<key) != 0; r.rootSeen[i] {
			r.root[i] = r.fieldVals[key]
		} else {
			r.root[i] = pickle.None // fieldVals has what an earlier dict had there
		}
	}
	r.roots++
	return record(recRoot, 0)
}

// integer returns a field that must be a non-negative integer.
func (r *records) integer(d *pickle.Decoder, what string, key int) (int64, error) {
	n, ok := d.Int(r.fieldVals[key])
	if !ok {
		return 0, fmt.Errorf("%s: %s is %s, not an integer", what, known[key], r.fieldVals[key].Kind())
	}
	if n < 0 {
		return 0, fmt.Errorf("%s: %s is negative (%d)", what, known[key], n)
	}
	return n, nil
}

func missing(what string, key int) error {
	return fmt.Errorf("%s has no %s", what, known[key])
}

// stream numbers a stream handle.
func (r *records) stream(d *pickle.Decoder, what string, seen uint64) (uint16, error) {
	if seen&(1<<kStream) == 0 {
		return r.streamNumber(0)
	}
	n, ok := d.Int(r.fieldVals[kStream])
	if !ok {
		return 0, fmt.Errorf("%s: stream is %s, not an integer", what, r.fieldVals[kStream].Kind())
	}
	return r.streamNumber(uint64(n))
}

func (r *records) streamNumber(handle uint64) (uint16, error) {
	if handle == r.lastStream && len(r.streams) > 0 {
		return r.lastIndex, nil
	}
	i, ok := r.streamIndex[handle]
	if !ok {
		if len(r.streams) >= maxStreams {
			return 0, fmt.Errorf("more than %d streams", maxStreams)
		}
		i = uint16(len(r.streams))
		r.streams = append(r.streams, handle)
		r.streamIndex[handle] = i
	}
	r.lastStream, r.lastIndex = handle, i
	return i, nil
}

// pool is the number of a pool id, which arrives as a pair of integers.
func (r *records) pool(what string, v pickle.Value) (uint8, error) {
	if v.IsNone() {
		return 0, nil
	}
	k, i, ok := split(v)
	if !ok || k != recPool {
		return 0, fmt.Errorf("%s: the pool id is no pair of integers, or the file has more than %d pools", what, maxPools)
	}
	return uint8(i), nil
}

// stackOf is the stack of a dict's frames; NoStack without frames.
func (r *records) stackOf(seen uint64) traces.StackID {
	if seen&(1<<kFrames) != 0 {
		if k, i, ok := split(r.fieldVals[kFrames]); ok && k == recStack {
			return traces.StackID(i)
		}
	}
	return traces.NoStack
}

func (r *records) entry(d *pickle.Decoder, seen uint64) (pickle.Value, error) {
	e := entry{action: actOther}
	if id, ok := r.fieldVals[kAction].StringID(); ok && id >= sAlloc && id <= sSnapshot {
		e.action = action(id - sAlloc)
	}
	what := func() string { return fmt.Sprintf("trace entry %d (%s)", r.entries.n, e.action) }
	if e.action == actOOM {
		e.addr = noDeviceFree
		if seen&(1<<kDeviceFree) != 0 {
			if n, ok := d.Int(r.fieldVals[kDeviceFree]); ok && n >= 0 {
				e.addr = uint64(n)
			}
		}
	} else if seen&(1<<kAddr) != 0 {
		n, ok := d.Int(r.fieldVals[kAddr])
		if !ok || n < 0 {
			_, err := r.integer(d, what(), kAddr)
			return 0, err
		}
		e.addr = uint64(n)
	} else if e.action < actSnapshot {
		return 0, missing(what(), kAddr)
	}
	if seen&(1<<kSize) != 0 {
		n, ok := d.Int(r.fieldVals[kSize])
		if !ok || n < 0 {
			_, err := r.integer(d, what(), kSize)
			return 0, err
		}
		e.size = n
	} else if e.action < actSnapshot {
		return 0, missing(what(), kSize)
	}
	if seen&(1<<kTimeUS) != 0 {
		n, ok := d.Int(r.fieldVals[kTimeUS])
		if !ok || n < 0 {
			_, err := r.integer(d, what(), kTimeUS)
			return 0, err
		}
		e.timeUS = n
	}
	var err error
	if e.stream, err = r.stream(d, "a trace entry", seen); err != nil {
		return 0, err
	}
	if seen&(1<<kPoolID) != 0 {
		if e.pool, err = r.pool("a trace entry", r.fieldVals[kPoolID]); err != nil {
			return 0, err
		}
	}
	e.stack = r.stackOf(seen)
	if e.action < actSnapshot {
		r.entryKeys |= seen
	}
	*r.entries.add() = e
	return record(recEntry, r.entries.n-1), nil
}

func layoutOf(pairs []pickle.Value) layout {
	var at [numKeys]int
	for k := range at {
		at[k] = -1
	}
	var keys uint64
	for i := 0; i+1 < len(pairs); i += 2 {
		if id, ok := pairs[i].StringID(); ok && id < numKeys {
			at[id] = i + 1
			keys |= 1 << id
		}
	}
	return layout{
		known: true, keys: keys,
		entry:  at[kAction] >= 0 && at[kAddr] >= 0 && at[kSize] >= 0 && at[kTimeUS] >= 0,
		action: at[kAction], addr: at[kAddr], size: at[kSize], timeUS: at[kTimeUS],
		stream: at[kStream], pool: at[kPoolID], frames: at[kFrames],
	}
}

// plainEntry is entry for a dict in the current layout. It reports false, and
// does nothing, for what is not quite usual.
func (r *records) plainEntry(d *pickle.Decoder, pairs []pickle.Value) (pickle.Value, bool) {
	l := &r.layout
	id, ok := pairs[l.action].StringID()
	addr, ok1 := d.Int(pairs[l.addr])
	size, ok2 := d.Int(pairs[l.size])
	timeUS, ok3 := d.Int(pairs[l.timeUS])
	if !ok || id < sAlloc || id > sSegmentUnmap || !ok1 || !ok2 || !ok3 || addr|size|timeUS < 0 {
		return 0, false
	}
	e := entry{addr: uint64(addr), size: size, timeUS: timeUS, stack: traces.NoStack, action: action(id - sAlloc)}
	var handle int64
	if l.stream >= 0 {
		if handle, ok = d.Int(pairs[l.stream]); !ok {
			return 0, false
		}
	}
	if l.pool >= 0 {
		k, i, ok := split(pairs[l.pool])
		if !ok || k != recPool {
			return 0, false
		}
		e.pool = uint8(i)
	}
	if l.frames >= 0 {
		if k, i, ok := split(pairs[l.frames]); ok && k == recStack {
			e.stack = traces.StackID(i)
		}
	}
	var err error
	if e.stream, err = r.streamNumber(uint64(handle)); err != nil {
		return 0, false
	}
	r.entryKeys |= l.keys
	*r.entries.add() = e
	return record(recEntry, r.entries.n-1), true
}

func (r *records) segment(d *pickle.Decoder, seen uint64) (pickle.Value, error) {
	what := fmt.Sprintf("segment %d", len(r.segments))
	var s segment
	if seen&(1<<kAddress) == 0 {
		return 0, missing(what, kAddress)
	}
	n, err := r.integer(d, what, kAddress)
	if err != nil {
		return 0, err
	}
	s.addr = uint64(n)
	if s.size, err = r.integer(d, what, kTotalSize); err != nil {
		return 0, err
	}
	if s.addr+uint64(s.size) > 1<<63 {
		return 0, fmt.Errorf("%s: %d bytes at 0x%x end beyond any address", what, s.size, s.addr)
	}
	if seen&(1<<kDevice) != 0 {
		if n, err = r.integer(d, what, kDevice); err != nil {
			return 0, err
		}
		s.device = int(n)
	}
	if s.stream, err = r.stream(d, what, seen); err != nil {
		return 0, err
	}
	if seen&(1<<kSegmentPoolID) != 0 {
		if s.pool, err = r.pool(what, r.fieldVals[kSegmentPoolID]); err != nil {
			return 0, err
		}
	}
	if seen&(1<<kSegmentType) != 0 {
		id, _ := r.fieldVals[kSegmentType].StringID()
		s.small = id == sSmall
	} else {
		s.small = s.size == 2<<20
	}
	if seen&(1<<kIsExpandable) != 0 {
		s.expandable, _ = r.fieldVals[kIsExpandable].Bool()
	}
	if seen&(1<<kBlocks) != 0 {
		k, i, ok := split(r.fieldVals[kBlocks])
		switch {
		case ok && k == recEmpty:
		case ok && k == recList && r.lists[i].of == recBlock:
			if r.lists[i].used {
				return 0, fmt.Errorf("%s shares its list of blocks with another segment", what)
			}
			r.lists[i].used = true
			s.first, s.n = r.lists[i].start, r.lists[i].n
		default:
			return 0, fmt.Errorf("%s: blocks is no list of blocks", what)
		}
	}
	r.stateKeys |= seen
	r.segments = append(r.segments, s)
	return record(recSegment, len(r.segments)-1), nil
}

func (r *records) block(d *pickle.Decoder, seen uint64) (pickle.Value, error) {
	what := fmt.Sprintf("block %d", len(r.blocks))
	var b block
	if seen&(1<<kSize) == 0 {
		return 0, missing(what, kSize)
	}
	var err error
	if b.size, err = r.integer(d, what, kSize); err != nil {
		return 0, err
	}
	if seen&(1<<kAddress) != 0 {
		n, err := r.integer(d, what, kAddress)
		if err != nil {
			return 0, err
		}
		b.addr, b.hasAddr = uint64(n), true
	}
	id, _ := r.fieldVals[kState].StringID()
	switch id {
	case sActiveAllocated:
		b.state = traces.ActiveAllocated
	case sActivePendingFree, sActiveAwaitingFree:
		b.state = traces.ActivePendingFree
	case sInactive:
		b.state = traces.Inactive
	default:
		return 0, fmt.Errorf("%s: unknown state %q", what, d.String(r.fieldVals[kState]))
	}
	// As torch.cuda._memory_viz reads old files (spec B6).
	b.requested = b.size
	if seen&(1<<kRequestedSize) != 0 {
		if b.requested, err = r.integer(d, what, kRequestedSize); err != nil {
			return 0, err
		}
		b.hasRequested = true
	} else if seen&(1<<kHistory) != 0 {
		if k, i, ok := split(r.fieldVals[kHistory]); ok && k == recHistory {
			b.requested, b.hasRequested = r.histories[i], true
		}
	}
	b.stack = r.stackOf(seen)
	r.blocks = append(r.blocks, b)
	return record(recBlock, len(r.blocks)-1), nil
}

func (r *records) annotation(d *pickle.Decoder, seen uint64) (pickle.Value, error) {
	a := annotation{device: -1}
	id, _ := r.fieldVals[kStage].StringID()
	name, ok := r.fieldVals[kName].StringID()
	if seen&(1<<kName) == 0 || !ok || (id != sStart && id != sEnd) {
		return pickle.Opaque, nil
	}
	a.name, a.end = name, id == sEnd
	if seen&(1<<kTimeUS) != 0 {
		a.timeUS, _ = d.Int(r.fieldVals[kTimeUS])
	}
	if seen&(1<<kDevice) != 0 {
		if n, ok := d.Int(r.fieldVals[kDevice]); ok {
			a.device = int(n)
		}
	}
	r.annotations = append(r.annotations, a)
	return record(recAnnotate, len(r.annotations)-1), nil
}

func (r *records) frame(d *pickle.Decoder, seen uint64) (pickle.Value, error) {
	f := frameKey{name: noString, file: noString}
	if id, ok := r.fieldVals[kName].StringID(); ok && seen&(1<<kName) != 0 {
		f.name = id
	}
	if id, ok := r.fieldVals[kFilename].StringID(); ok && seen&(1<<kFilename) != 0 {
		f.file = id
	}
	if n, ok := d.Int(r.fieldVals[kLine]); ok && seen&(1<<kLine) != 0 {
		f.line = int32(max(-1, min(n, 1<<31-1)))
	}
	i, ok := r.frameIndex[f]
	if !ok {
		i = len(r.frames)
		r.frames = append(r.frames, f)
		r.frameIndex[f] = i
	}
	return record(recFrame, i), nil
}

// Seq implements pickle.Handler: the first item says what the list holds.
func (r *records) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	k := recEmpty
	l := -1
	if acc != 0 {
		var i int
		var ok bool
		if k, i, ok = split(acc); !ok {
			return pickle.Opaque, nil
		}
		switch k {
		case recList:
			l, k = i, r.lists[i].of
		default:
			return pickle.Opaque, nil
		}
	} else {
		if len(items) == 0 {
			return record(recEmpty, 0), nil
		}
		var ok bool
		if k, _, ok = split(items[0]); !ok {
			return r.poolPair(d, items), nil
		}
	}
	switch k {
	case recFrame:
		if !last {
			return pickle.Opaque, nil // thousands of frames are no call stack
		}
		return r.stack(items), nil
	case recEntry, recBlock, recSegment, recAnnotate:
		return r.run(k, l, items), nil
	case recHistory:
		return items[0], nil // the newest use of the block
	case recList, recEmpty:
		for _, v := range items {
			if k, _, ok := split(v); !ok || (k != recList && k != recEmpty) {
				return pickle.Opaque, nil
			}
		}
		if r.nestedTotal += len(items); r.nestedTotal > maxNestedTotal {
			return pickle.Opaque, nil
		}
		r.nested = append(r.nested, slices.Clone(items))
		return record(recNested, len(r.nested)-1), nil
	}
	return pickle.Opaque, nil
}

// run adds records of one kind to list l, or to a new one if l < 0. Records
// follow each other in their table except when the file refers to one of them
// again; then they are copied.
func (r *records) run(k kind, l int, items []pickle.Value) pickle.Value {
	for _, v := range items {
		if vk, _, ok := split(v); !ok || vk != k {
			return pickle.Opaque
		}
	}
	if l < 0 {
		_, first, _ := split(items[0])
		r.lists = append(r.lists, list{of: k, start: first})
		l = len(r.lists) - 1
	}
	li := &r.lists[l]
	for _, v := range items {
		_, i, _ := split(v)
		if i == li.start+li.n {
			li.n++
			continue
		}
		if li.start+li.n != r.tableLen(k) {
			start := r.tableLen(k)
			for j := range li.n {
				r.copyRecord(k, li.start+j)
			}
			li.start = start
		}
		r.copyRecord(k, i)
		li.n++
	}
	return record(recList, l)
}

func (r *records) tableLen(k kind) int {
	switch k {
	case recEntry:
		return r.entries.n
	case recBlock:
		return len(r.blocks)
	case recSegment:
		return len(r.segments)
	}
	return len(r.annotations)
}

func (r *records) copyRecord(k kind, i int) {
	switch k {
	case recEntry:
		e := *r.entries.at(i)
		*r.entries.add() = e
	case recBlock:
		r.blocks = append(r.blocks, r.blocks[i])
	case recSegment:
		r.segments = append(r.segments, r.segments[i])
	default:
		r.annotations = append(r.annotations, r.annotations[i])
	}
}

// poolPair recognises a pair of integers as a pool id.
func (r *records) poolPair(d *pickle.Decoder, items []pickle.Value) pickle.Value {
	if len(items) != 2 {
		return pickle.Opaque
	}
	a, ok := d.Int(items[0])
	b, ok2 := d.Int(items[1])
	if !ok || !ok2 {
		return pickle.Opaque
	}
	id := traces.PoolID{a, b}
	i := slices.Index(r.pools, id)
	if i < 0 {
		if len(r.pools) > maxPools {
			return pickle.Opaque
		}
		i = len(r.pools)
		r.pools = append(r.pools, id)
	}
	return record(recPool, i)
}

// stack interns a list of frames.
func (r *records) stack(items []pickle.Value) pickle.Value {
	start := len(r.stacks.frames)
	for _, v := range items {
		k, i, ok := split(v)
		if !ok || k != recFrame {
			r.stacks.frames = r.stacks.frames[:start]
			return pickle.Opaque
		}
		r.stacks.frames = append(r.stacks.frames, uint32(i))
	}
	return record(recStack, r.stacks.intern(start))
}

// stackTable interns lists of frame numbers. All frames lie in one slice.
type stackTable struct {
	seed   maphash.Seed
	frames []uint32
	ends   []int
	table  []uint64 // high half: hash, low half: index+1
}

func newStackTable() stackTable {
	return stackTable{seed: maphash.MakeSeed(), table: make([]uint64, 256)}
}

func (t *stackTable) get(i int) []uint32 {
	start := 0
	if i > 0 {
		start = t.ends[i-1]
	}
	return t.frames[start:t.ends[i]:t.ends[i]]
}

func (t *stackTable) hash(f []uint32) uint64 {
	h := uint64(len(f))
	for _, x := range f {
		h = (h ^ uint64(x)) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	return maphash.Comparable(t.seed, h)
}

// intern numbers the frames from start on, dropping them again if the same
// stack is already there.
func (t *stackTable) intern(start int) int {
	f := t.frames[start:]
	h := t.hash(f)
	tagged := h &^ 0xffffffff
	mask := uint64(len(t.table) - 1)
	i := h & mask
	for ; t.table[i] != 0; i = (i + 1) & mask {
		if e := t.table[i]; e&^0xffffffff == tagged {
			if id := int(uint32(e)) - 1; slices.Equal(t.get(id), f) {
				t.frames = t.frames[:start]
				return id
			}
		}
	}
	t.ends = append(t.ends, len(t.frames))
	t.table[i] = tagged | uint64(len(t.ends))
	if 2*len(t.ends) > len(t.table) {
		t.grow()
	}
	return len(t.ends) - 1
}

func (t *stackTable) grow() {
	table := make([]uint64, 2*len(t.table))
	mask := uint64(len(table) - 1)
	for id := range t.ends {
		h := t.hash(t.get(id))
		i := h & mask
		for table[i] != 0 {
			i = (i + 1) & mask
		}
		table[i] = h&^0xffffffff | uint64(id+1)
	}
	t.table = table
}

// settings returns allocator_settings as text, values as Python prints them.
func (r *records) settings(d *pickle.Decoder) map[string]string {
	k, i, ok := split(r.root[2])
	if !ok || k != recMap {
		return nil
	}
	m := make(map[string]string)
	for j := 0; j+1 < len(r.maps[i]); j += 2 {
		if _, ok := r.maps[i][j].StringID(); ok {
			m[d.String(r.maps[i][j])] = r.text(d, r.maps[i][j+1], true)
		}
	}
	return m
}

func (r *records) text(d *pickle.Decoder, v pickle.Value, deep bool) string {
	if n, ok := d.Int(v); ok {
		return strconv.FormatInt(n, 10)
	}
	if f, ok := d.Float(v); ok {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	if b, ok := v.Bool(); ok {
		if b {
			return "True"
		}
		return "False"
	}
	if _, ok := v.StringID(); ok {
		return d.String(v)
	}
	if k, i, ok := split(v); ok && k == recMap && deep {
		var parts []string
		for j := 0; j+1 < len(r.maps[i]); j += 2 {
			parts = append(parts, r.text(d, r.maps[i][j], false)+":"+r.text(d, r.maps[i][j+1], false))
		}
		return strings.Join(parts, ",")
	}
	if v.IsNone() {
		return "None"
	}
	return ""
}
