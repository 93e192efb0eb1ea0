package traces

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Limits of the model; a Builder refuses what exceeds them.
const (
	MaxStreams = math.MaxUint16
	MaxPools   = math.MaxUint8
	// MaxAlloc is the largest block and MaxLive the most bytes of blocks live
	// at once: far above any device, and small enough that no sum of sizes
	// overflows. A request that failed may be larger, up to MaxFailed.
	MaxAlloc  = 1 << 50
	MaxLive   = 1 << 56
	MaxFailed = 1 << 62
)

// Builder makes a Trace event by event. Times must not decrease and frees must
// name a live block; the first violation is kept and returned by Build, so
// callers may ignore errors until then.
type Builder struct {
	events  []Event
	state   []blockState // by BlockID
	streams []uint64
	byValue map[uint64]uint16
	pools   []PoolID
	lastUS  int64
	live    int64 // bytes
	err     error
}

type blockState struct {
	size   int64
	stream uint16
	pool   uint8
	state  uint8 // 0 live, 1 pending, 2 gone
}

const (
	blockLive = iota
	blockPending
	blockGone
)

// NewBuilder returns an empty Builder with room for about sizeHint events.
func NewBuilder(sizeHint int) *Builder {
	return &Builder{
		events:  make([]Event, 0, sizeHint),
		state:   make([]blockState, 0, sizeHint/2),
		byValue: make(map[uint64]uint16),
		pools:   []PoolID{{0, 0}},
	}
}

// Stream returns the builder's number for a stream handle; 0 is the default
// stream's handle.
func (b *Builder) Stream(handle uint64) uint16 {
	if i, ok := b.byValue[handle]; ok {
		return i
	}
	if len(b.streams) >= MaxStreams {
		b.fail("more than %d streams", MaxStreams)
		return 0
	}
	i := uint16(len(b.streams))
	b.streams = append(b.streams, handle)
	b.byValue[handle] = i
	return i
}

// Pool returns the number of a pool id; the default pool is 0.
func (b *Builder) Pool(id PoolID) uint8 {
	for i, p := range b.pools {
		if p == id {
			return uint8(i)
		}
	}
	if len(b.pools) > MaxPools {
		b.fail("more than %d memory pools", MaxPools)
		return 0
	}
	b.pools = append(b.pools, id)
	return uint8(len(b.pools) - 1)
}

// Len is the number of events so far.
func (b *Builder) Len() int { return len(b.events) }

// Err is the first violation so far.
func (b *Builder) Err() error { return b.err }

func (b *Builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("event %d: %w", len(b.events), fmt.Errorf(format, args...))
	}
}

func (b *Builder) add(e Event) {
	if e.TimeUS < b.lastUS {
		b.fail("time goes back from %d to %d µs", b.lastUS, e.TimeUS)
		e.TimeUS = b.lastUS
	}
	b.lastUS = e.TimeUS
	b.events = append(b.events, e)
}

func (b *Builder) request(kind Kind, timeUS, size int64, stream uint16, pool uint8, state uint8) BlockID {
	if size <= 0 {
		b.fail("%s of %d bytes: a size must be positive", kind, size)
		size = 1
	}
	if len(b.state) >= int(NoBlock) {
		b.fail("more than %d allocations", NoBlock)
		return 0
	}
	id := BlockID(len(b.state))
	b.state = append(b.state, blockState{size, stream, pool, state})
	b.add(Event{TimeUS: timeUS, Size: size, ID: id, Stream: stream, Pool: pool, Kind: kind})
	return id
}

// Alloc adds a request for size > 0 bytes on a stream number from Stream in a
// pool number from Pool, at timeUS µs, and returns its block.
func (b *Builder) Alloc(timeUS, size int64, stream uint16, pool uint8) BlockID {
	switch b.live += min(size, MaxAlloc); {
	case size > MaxAlloc:
		b.fail("alloc of %d bytes: no device has more than %d", size, int64(MaxAlloc))
	case b.live > MaxLive:
		b.fail("%d bytes live at once: no device has more than %d", b.live, int64(MaxLive))
	}
	return b.request(Alloc, timeUS, size, stream, pool, blockLive)
}

// OOM adds a request that the recorded allocator could not serve.
func (b *Builder) OOM(timeUS, size int64, stream uint16, pool uint8) BlockID {
	if size > MaxFailed {
		b.fail("oom of %d bytes: at most %d can be read", size, int64(MaxFailed))
	}
	return b.request(OOM, timeUS, size, stream, pool, blockGone)
}

func (b *Builder) release(kind Kind, timeUS int64, id BlockID, from, to uint8) {
	if int(id) >= len(b.state) {
		b.fail("%s of block %d, which was never allocated", kind, id)
		return
	}
	s := &b.state[id]
	if s.state != from {
		b.fail("%s of block %d, which is %s", kind, id, [...]string{"still allocated", "freed and pending", "not live"}[s.state])
		return
	}
	s.state = to
	if to == blockGone {
		b.live -= s.size
	}
	b.add(Event{TimeUS: timeUS, ID: id, Stream: s.stream, Pool: s.pool, Kind: kind})
}

// Free adds the free of a live block that is reusable at once.
func (b *Builder) Free(timeUS int64, id BlockID) { b.release(Free, timeUS, id, blockLive, blockGone) }

// FreeRequested adds the free of a live block that other streams still use.
func (b *Builder) FreeRequested(timeUS int64, id BlockID) {
	b.release(FreeRequested, timeUS, id, blockLive, blockPending)
}

// FreeCompleted adds the completion of a FreeRequested.
func (b *Builder) FreeCompleted(timeUS int64, id BlockID) {
	b.release(FreeCompleted, timeUS, id, blockPending, blockGone)
}

// EmptyCache adds a user's call that empties the cache.
func (b *Builder) EmptyCache(timeUS int64) {
	b.add(Event{TimeUS: timeUS, ID: NoBlock, Kind: EmptyCache})
}

// EmptyPool adds a call that empties the cache of one memory pool; 0 = all.
func (b *Builder) EmptyPool(timeUS int64, pool uint8) {
	b.add(Event{TimeUS: timeUS, ID: NoBlock, Pool: pool, Kind: EmptyCache})
}

// ReleasePool adds the end of a private memory pool.
func (b *Builder) ReleasePool(timeUS int64, pool uint8) {
	b.add(Event{TimeUS: timeUS, ID: NoBlock, Pool: pool, Kind: ReleasePool})
}

// Build returns the trace. Streams are renumbered so that they ascend with the
// handles; the second result maps the builder's numbers to the trace's. The
// builder must not be used afterwards.
func (b *Builder) Build() (*Trace, []uint16, error) {
	if b.err != nil {
		return nil, nil, b.err
	}
	if len(b.streams) == 0 {
		b.streams = []uint64{0}
	}
	order := make([]uint16, len(b.streams))
	for i := range order {
		order[i] = uint16(i)
	}
	slices.SortFunc(order, func(x, y uint16) int { return cmp.Compare(b.streams[x], b.streams[y]) })
	sorted := make([]uint64, len(order))
	renumber := make([]uint16, len(order))
	for i, old := range order {
		sorted[i] = b.streams[old]
		renumber[old] = uint16(i)
	}
	if !slices.Equal(sorted, b.streams) {
		for i := range b.events {
			if b.events[i].ID != NoBlock {
				b.events[i].Stream = renumber[b.events[i].Stream]
			}
		}
	}
	return &Trace{
		Events:    b.events,
		NumBlocks: len(b.state),
		Streams:   sorted,
		Pools:     b.pools,
	}, renumber, nil
}
