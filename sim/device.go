package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"allocsim/policies"
	"allocsim/traces"
)

// Device is the modelled device: a capacity, a rule for addresses, and the
// counts and costs of the calls made. Physical memory has no fragmentation
// (it is paged), so a call succeeds exactly when enough bytes are free.
type Device struct {
	mem    *memory
	total  int64
	place  placer
	nextVA uint64 // next address-space reservation
	cost   *CostTable
	driver Driver
	// What calls cost, by size.
	mallocUS, freeUS costMemo
}

var _ policies.Device = (*Device)(nil)

// memory is the physical memory of a device; processes on one card share it.
type memory struct {
	capacity int64 // bytes; math.MaxInt64 = unlimited
	used     int64
	peak     int64
	refused  int64 // least bytes that would have had to fit for a call that failed; 0 = none failed
}

// take claims size bytes, or fails.
func (m *memory) take(size int64) error {
	if size > m.capacity-m.used {
		if need := m.used + size; m.refused == 0 || need < m.refused {
			m.refused = need
		}
		return policies.ErrOutOfMemory
	}
	m.used += size
	m.peak = max(m.peak, m.used)
	return nil
}

// placer decides where cudaMalloc puts a segment.
type placer interface {
	alloc(size int64) uint64
	free(addr uint64, size int64)
}

// DeviceConfig describes a modelled device.
type DeviceConfig struct {
	Capacity  int64 // bytes an allocator can get; 0 = unlimited
	Total     int64 // bytes the runtime reports; 0 = Capacity
	Addresses Addresses
	Seed      uint64
	// SideStreams says that streams besides the default one are made before
	// the first segment, which changes where the driver model starts (spec
	// driver.md section 2).
	SideStreams bool
	Cost        *CostTable // nil = DefaultCost
}

// NewDevice returns an empty device.
func NewDevice(c DeviceConfig) *Device {
	d := &Device{mem: &memory{capacity: c.Capacity}, total: c.Total, nextVA: firstReservation, cost: c.Cost}
	if c.Capacity <= 0 {
		d.mem.capacity = math.MaxInt64
	}
	if d.total <= 0 {
		d.total = max(c.Capacity, 0)
	}
	if d.cost == nil {
		d.cost = DefaultCost
	}
	switch c.Addresses {
	case AddressesDown:
		d.place = &downward{next: modelA}
	case AddressesUp:
		d.place = &upward{next: modelA}
	case AddressesRandom:
		d.place = &scattered{rng: rand.New(rand.NewPCG(c.Seed, 0x5eed)), used: make(map[uint64]bool)}
	default:
		d.place = newDriverModel(c.SideStreams)
	}
	return d
}

// Total is the device's memory in bytes; 0 = unlimited.
func (d *Device) Total() int64 { return d.total }

// MemInfo returns the bytes that the allocator can still get, and Total.
func (d *Device) MemInfo() (free, total int64) {
	if d.mem.capacity == math.MaxInt64 {
		return math.MaxInt64, d.total
	}
	return d.mem.capacity - d.mem.used, d.total
}

// Hold counts size bytes at addr as taken before the run began. What is placed
// later lies elsewhere, and giving the range back makes room.
func (d *Device) Hold(addr uint64, size int64, expandable bool) {
	s := span{addr, size}
	d.mem.used += s.size
	d.mem.peak = max(d.mem.peak, d.mem.used)
	if expandable {
		// A reservation is a little larger than the device.
		d.nextVA = max(d.nextVA, roundUp64(s.addr+uint64(d.total+d.total/8), chunkUnit))
		return
	}
	switch p := d.place.(type) {
	case *pinned:
		p.hold(s)
	case *scattered:
		for k := range uint64(s.size)>>slotBits + 2 {
			p.used[s.addr>>slotBits+k] = true
		}
	default:
		// What the model places later must lie below.
		d.place = &pinned{other: p, low: min(modelA, s.addr), live: []span{s}}
	}
}

// Alike is the range of capacities, low ≤ c < high, in which every call so far
// would have been answered as it was: on each of them a run goes the same way,
// if its policy does not look at the device's size. high is math.MaxInt64 when
// no call has failed.
func (d *Device) Alike() (low, high int64) {
	if d.mem.refused == 0 {
		return d.mem.peak, math.MaxInt64
	}
	return d.mem.peak, d.mem.refused
}

// Driver sums up the calls so far.
func (d *Device) Driver() Driver { return d.driver }

// Malloc is cudaMalloc: whole granules of 2 MiB.
func (d *Device) Malloc(size int64) (uint64, error) {
	if size <= 0 {
		return 0, fmt.Errorf("cudaMalloc of %d bytes", size)
	}
	granules := roundUp(size, Granule)
	if err := d.mem.take(granules); err != nil {
		return 0, err
	}
	d.driver.Mallocs++
	d.driver.StallUS += d.mallocUS.of(size, d.cost.Malloc)
	return d.place.alloc(granules), nil
}

// Free is cudaFree.
func (d *Device) Free(addr uint64, size int64) error {
	granules := roundUp(size, Granule)
	d.mem.used -= granules
	d.driver.Frees++
	d.driver.StallUS += d.freeUS.of(size, d.cost.Free)
	d.place.free(addr, granules)
	return nil
}

// Reserve is cuMemAddressReserve: ascending, in steps of 32 MiB (spec
// driver.md section 3).
func (d *Device) Reserve(size int64) (uint64, error) {
	if size <= 0 || size > 1<<60 {
		return 0, fmt.Errorf("reserve %d bytes of address space: %w", size, policies.ErrOutOfMemory)
	}
	addr := d.nextVA
	d.nextVA += uint64(roundUp(size, chunkUnit))
	return addr, nil
}

// Release gives a reservation back; its addresses are not used again.
func (d *Device) Release(uint64, int64) error { return nil }

// Map backs whole pages with memory.
func (d *Device) Map(_ uint64, size, page int64) error {
	if err := d.mem.take(size); err != nil {
		return err
	}
	d.driver.Maps++
	d.driver.StallUS += d.cost.Map(size/page, page)
	return nil
}

// Unmap takes pages away.
func (d *Device) Unmap(_ uint64, size, page int64) error {
	d.mem.used -= size
	d.driver.Unmaps++
	d.driver.StallUS += d.cost.Unmap(size/page, page)
	return nil
}

func roundUp(x, unit int64) int64 { return (x + unit - 1) / unit * unit }

// Granule is the unit, in bytes, of what cudaMalloc takes from the device:
// every segment's address and size (spec driver.md section 1).
const Granule = 2 << 20

// Constants of the driver's address choice, fitted to an H200 with driver
// 580.159 and CUDA 13.0 (spec driver.md sections 2 and 3).
const (
	chunkUnit = 32 << 20 // address space comes from the OS in these
	// modelA is the 32 MiB boundary A of the model. On a real machine it
	// varies with address randomisation; only differences matter.
	modelA           = 0x7f38e2000000
	firstReservation = 0x302000000
)

// chunk is a range of address space taken from the OS. Segments lie inside one
// chunk.
type chunk struct {
	span
	gaps    []span // free ranges, by address
	maxGap  int64
	index   int  // in driverModel.chunks
	initial bool // left over from context creation: never returned
}

type span struct {
	addr uint64
	size int64
}

func (s span) end() uint64 { return s.addr + uint64(s.size) }

// driverModel is where cudaMalloc puts a segment (spec driver.md section 2):
// the newest chunk that has room, there the smallest gap that fits; else a new
// chunk in the highest hole.
type driverModel struct {
	chunks []*chunk // oldest first; nil where one has been given back
	room   maxTree  // maxGap of each of chunks
	gone   int      // entries of chunks that are nil
	byAddr []*chunk // those in chunks, highest first
	holes  []span   // address space between chunks, highest first
}

// lift is added to addresses inside driverModel, so that they stay positive and
// in order when an unlimited device is asked for more than lies below modelA.
const lift = 1 << 62

func newDriverModel(sideStreams bool) *driverModel {
	m := &driverModel{}
	initial := func(addr uint64, size int64) { m.add(span{addr + lift, size}).initial = true }
	var top uint64 // new chunks end at or below
	if sideStreams {
		initial(modelA-26<<20, 26<<20)
		top = modelA - 32<<20
	} else {
		initial(modelA+72<<20, 24<<20)
		initial(modelA-2<<20, 2<<20)
		top = modelA - 416<<20
	}
	m.holes = append(m.holes, span{0, int64(top + lift)})
	return m
}

// add makes a range a chunk, the newest.
func (m *driverModel) add(s span) *chunk {
	c := &chunk{span: s, gaps: []span{s}, maxGap: s.size, index: m.room.push(s.size)}
	m.chunks = append(m.chunks, c)
	m.byAddr = slices.Insert(m.byAddr, m.at(s.addr), c)
	return c
}

// at is where the first chunk that starts at or below an address is in byAddr.
func (m *driverModel) at(addr uint64) int {
	at, _ := slices.BinarySearchFunc(m.byAddr, addr, func(c *chunk, addr uint64) int { return cmp.Compare(addr, c.addr) })
	return at
}

func (m *driverModel) alloc(size int64) uint64 {
	if k := m.room.last(size); k >= 0 {
		return m.take(m.chunks[k], size)
	}
	cs := roundUp(size, chunkUnit)
	// A new chunk needs 32 MiB more than its size: the driver maps that much
	// and trims to an aligned range. The last hole is all space below.
	k := slices.IndexFunc(m.holes, func(h span) bool { return h.size >= cs+chunkUnit })
	if k < 0 {
		k = len(m.holes) - 1
	}
	h := &m.holes[k]
	h.size -= cs
	return m.take(m.add(span{h.end(), cs}), size)
}

func (m *driverModel) take(c *chunk, size int64) uint64 {
	addr := c.take(size)
	m.room.set(c.index, c.maxGap)
	return addr - lift
}

// take carves size bytes from the start of the smallest gap that has them.
func (c *chunk) take(size int64) uint64 {
	best := -1
	for k, g := range c.gaps {
		if g.size >= size && (best < 0 || g.size < c.gaps[best].size) {
			best = k
		}
	}
	g := &c.gaps[best]
	addr := g.addr
	g.addr += uint64(size)
	g.size -= size
	if g.size == 0 {
		c.gaps = slices.Delete(c.gaps, best, best+1)
	}
	c.measure()
	return addr
}

func (c *chunk) measure() {
	c.maxGap = 0
	for _, g := range c.gaps {
		c.maxGap = max(c.maxGap, g.size)
	}
}

func (m *driverModel) free(addr uint64, size int64) {
	addr += lift
	at := m.at(addr)
	if at == len(m.byAddr) || addr >= m.byAddr[at].end() {
		return
	}
	c := m.byAddr[at]
	c.give(span{addr, size})
	m.room.set(c.index, c.maxGap)
	if c.maxGap == c.size && !c.initial {
		m.byAddr = slices.Delete(m.byAddr, at, at+1)
		m.drop(c)
	}
}

// drop gives a chunk back to the OS.
func (m *driverModel) drop(c *chunk) {
	m.chunks[c.index] = nil
	m.room.set(c.index, 0)
	if m.gone++; m.gone > 64 && m.gone > len(m.chunks)/2 {
		m.chunks = slices.DeleteFunc(m.chunks, func(c *chunk) bool { return c == nil })
		m.room, m.gone = maxTree{}, 0
		for _, c := range m.chunks {
			c.index = m.room.push(c.maxGap)
		}
	}
	at, _ := slices.BinarySearchFunc(m.holes, c.addr, func(h span, addr uint64) int { return cmp.Compare(addr, h.addr) })
	m.holes = slices.Insert(m.holes, at, c.span)
	if below := at + 1; below < len(m.holes) && m.holes[below].end() == m.holes[at].addr {
		m.holes[below].size += m.holes[at].size
		m.holes = slices.Delete(m.holes, at, below)
	}
	if at > 0 && m.holes[at].end() == m.holes[at-1].addr {
		m.holes[at].size += m.holes[at-1].size
		m.holes = slices.Delete(m.holes, at-1, at)
	}
}

// give makes a range of the chunk a gap again.
func (c *chunk) give(s span) {
	at, _ := slices.BinarySearchFunc(c.gaps, s.addr, func(g span, addr uint64) int { return cmp.Compare(g.addr, addr) })
	c.gaps = slices.Insert(c.gaps, at, s)
	if at+1 < len(c.gaps) && c.gaps[at].end() == c.gaps[at+1].addr {
		c.gaps[at].size += c.gaps[at+1].size
		c.gaps = slices.Delete(c.gaps, at+1, at+2)
	}
	if at > 0 && c.gaps[at-1].end() == s.addr {
		c.gaps[at-1].size += c.gaps[at].size
		c.gaps = slices.Delete(c.gaps, at, at+1)
	}
	c.measure()
}

// pinned gives the recorded addresses as long as the same sizes are asked for
// in the same order, then those of another rule, moved below all recorded ones.
type pinned struct {
	queue []span // recorded segments still to come
	other placer
	below uint64 // what other's addresses are moved down by; 0 = still pinned
	low   uint64 // lowest recorded address
	live  []span // ranges in use at recorded addresses, by address
}

func newPinned(driver []traces.DriverEvent, other placer) *pinned {
	p := &pinned{other: other, low: modelA}
	for _, d := range driver {
		if d.Action == traces.SegmentAlloc {
			p.queue = append(p.queue, span{d.Addr, d.Size})
			p.low = min(p.low, d.Addr)
		}
	}
	return p
}

// modelTop is above every address of the driver model.
const modelTop = modelA + 1<<30

func roundUp64(x, unit uint64) uint64 { return (x + unit - 1) / unit * unit }

func (p *pinned) alloc(size int64) uint64 {
	if p.below == 0 {
		if len(p.queue) > 0 && p.queue[0].size == size && p.hold(p.queue[0]) {
			addr := p.queue[0].addr
			p.queue = p.queue[1:]
			return addr
		}
		// The other rule's space must lie below all recorded addresses.
		p.below = chunkUnit
		if modelTop > p.low {
			p.below += roundUp64(modelTop-p.low, chunkUnit)
		}
	}
	return p.other.alloc(size) - p.below
}

// hold takes a recorded range into use, unless a part of it is: a run that no
// longer goes as recorded may not have given it back.
func (p *pinned) hold(s span) bool {
	at := p.at(s.addr)
	if at > 0 && p.live[at-1].end() > s.addr || at < len(p.live) && p.live[at].addr < s.end() {
		return false
	}
	p.live = slices.Insert(p.live, at, s)
	p.low = min(p.low, s.addr)
	return true
}

// at is where the first live range that starts at or above addr is.
func (p *pinned) at(addr uint64) int {
	at, _ := slices.BinarySearchFunc(p.live, addr, func(s span, addr uint64) int { return cmp.Compare(s.addr, addr) })
	return at
}

func (p *pinned) free(addr uint64, size int64) {
	if at := p.at(addr); at < len(p.live) && p.live[at].addr == addr {
		p.live = slices.Delete(p.live, at, at+1)
		return
	}
	if p.below > 0 {
		p.other.free(addr+p.below, size)
	}
}

// downward never uses an address twice and always goes down.
type downward struct{ next uint64 }

func (p *downward) alloc(size int64) uint64 {
	p.next -= uint64(size)
	return p.next
}

func (p *downward) free(uint64, int64) {}

// upward never uses an address twice and always goes up.
type upward struct{ next uint64 }

func (p *upward) alloc(size int64) uint64 {
	addr := p.next
	p.next += uint64(size)
	return addr
}

func (p *upward) free(uint64, int64) {}

// scattered draws a slot of address space for each segment from a seeded
// generator.
type scattered struct {
	rng  *rand.Rand
	used map[uint64]bool
}

const (
	slotBits = 36 // 64 GiB of address space a segment
	// Slots are drawn from fewSlots, which keeps a draw cheap, and from
	// allSlots once there are so many segments that free ones become rare.
	fewSlots = 1 << 22
	allSlots = 1 << 28
)

func (p *scattered) alloc(size int64) uint64 {
	slots := uint64(size)>>slotBits + 1
	space := uint64(fewSlots)
	if len(p.used) > fewSlots/4 || slots > fewSlots/64 {
		space = allSlots
	}
	for {
		slot := p.rng.Uint64N(space) + 1
		free := true
		for k := range slots {
			free = free && !p.used[slot+k]
		}
		if free {
			for k := range slots {
				p.used[slot+k] = true
			}
			return slot << slotBits
		}
	}
}

func (p *scattered) free(addr uint64, size int64) {
	for k := range uint64(size)>>slotBits + 1 {
		delete(p.used, addr>>slotBits+k)
	}
}
