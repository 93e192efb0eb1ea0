package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"allocsim/policies"
)

// DefaultReserve is the bytes of a card's free memory that a run leaves alone
// unless told otherwise.
const DefaultReserve = 512 << 20

// Options say how much of a card a Device may take.
type Options struct {
	// Total is what Device.Total tells the policy, the base of a memory
	// fraction, in bytes; 0 = the card's own.
	Total int64
	// Card emulates a smaller card: so much memory is set aside that the driver
	// hands out exactly Card bytes, in whole granules of its own. 0 = the
	// whole card. The driver itself then says "out of memory", so Reserve does
	// not apply, and nobody else may use the card.
	Card int64
	// Reserve is the free bytes that are never taken; 0 = DefaultReserve.
	Reserve int64
	// Force allows a card that other processes use.
	Force bool
}

// Device is a GPU as a policy sees it. It implements policies.Device. It is
// used by the goroutine that opened its Driver, which must call Close.
type Device struct {
	ctx    context.Context
	drv    Driver
	card   Card
	total  int64
	budget int64 // bytes the policy may hold; math.MaxInt64 with a ballast
	notes  []string

	segments map[uint64]int64 // cuMemAlloc ranges by address
	ranges   []*reservation   // ascending by address
	orphans  []uint64         // handles whose release failed
	ballast  []uint64         // handles that make the card smaller
	loose    []uint64         // allocations that are not the policy's

	held     int64 // bytes the policy holds
	peak     int64 // most of it
	segs     int   // segments and mapped pages held
	peakSegs int   // at the peak
	base     int64 // bytes free when the policy got the card
	usage    Usage
	lat      Latencies
}

var _ policies.Device = (*Device)(nil)

// reservation is address space with the pages mapped in it, ascending.
type reservation struct {
	addr  uint64
	size  int64
	pages []page
}

type page struct {
	addr   uint64
	size   int64
	handle uint64
	mapped bool
}

// Usage is device memory in use by the policy as cuMemGetInfo shows it: the
// free bytes when the policy got the card less the free bytes then.
type Usage struct {
	// Available is the bytes free for the policy at the start.
	Available int64 `json:"available"`
	// Peak is the bytes in use when the policy held most, Held what it held
	// by its own account then, in PeakPieces segments and mapped pages.
	Peak       int64 `json:"peak"`
	Held       int64 `json:"held_at_peak"`
	PeakPieces int   `json:"pieces_at_peak"`
	// After is the bytes still in use when everything was given back; set by
	// Close. 0 means that nothing leaked.
	After int64 `json:"after"`
}

// NewDevice takes a card for a policy. It closes drv if it fails, and so does
// Device.Close; cancelling ctx makes every call that takes memory fail with
// its error.
func NewDevice(ctx context.Context, drv Driver, o Options) (*Device, error) {
	d := &Device{
		ctx: ctx, drv: drv, card: drv.Card(), total: o.Total,
		budget:   math.MaxInt64,
		segments: make(map[uint64]int64),
	}
	if err := d.start(o); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Device) start(o Options) error {
	if d.total == 0 {
		d.total = d.card.Total
	}
	free, total, err := d.drv.MemInfo()
	if err != nil {
		return err
	}
	if who := inUse(d.card, free, total); who != "" {
		if !o.Force {
			return fmt.Errorf("%w: %s; wait, or use --force to share it", ErrInUse, who)
		}
		if o.Card > 0 {
			return fmt.Errorf("%w: %s; --card fills the card to the last granule and therefore needs it alone, even with --force", ErrInUse, who)
		}
		d.notes = append(d.notes, "Others use the card as well: "+who+". Device memory figures may include their changes.")
	}
	if o.Card > 0 {
		if d.usage.Available, err = d.shrink(free, o.Card); err != nil {
			return err
		}
		d.base, _, err = d.drv.MemInfo()
		return err
	}
	d.base = free
	reserve := o.Reserve
	if reserve == 0 {
		reserve = DefaultReserve
	}
	d.budget = d.floor(free - reserve)
	if d.budget <= 0 {
		return fmt.Errorf("only %d bytes of %s are free, which the reserve of %d bytes leaves alone", free, d.card.Name, reserve)
	}
	d.usage.Available = d.budget
	return nil
}

// foreign is the bytes that a card without process information may show as
// used before another user is assumed: a CUDA context takes 0.3–0.7 GiB
// (spec driver.md, section 4).
const foreign = 1 << 30

// inUse says who else uses the card; empty when nobody does.
func inUse(c Card, free, total int64) string {
	switch {
	case c.Users > 0:
		return fmt.Sprintf("%d other process(es) use %s", c.Users, c.Name)
	case c.UsedBefore > foreign:
		return fmt.Sprintf("%d bytes of %s are in use by others", c.UsedBefore, c.Name)
	case c.Users < 0 && c.UsedBefore < 0 && total-free > foreign:
		return fmt.Sprintf("%d bytes of %s are in use, and the driver does not say by whom", total-free, c.Name)
	}
	return ""
}

func (d *Device) floor(n int64) int64 {
	if g := d.card.Granularity; g > 0 {
		n -= n % g
	}
	return n
}

const (
	// ballastPiece is the most bytes in one physical allocation of the
	// ballast: few calls, none of them slow.
	ballastPiece = 1 << 30
	// ballastMargin is what the coarse ballast leaves for the fine one, which
	// is made of single granules.
	ballastMargin = 64 << 20
	// ballastTries bounds the adjustments of the fine ballast.
	ballastTries = 16
)

// shrink sets memory aside until the driver hands out want bytes, to the
// granule, and not one granule more. It returns that number of bytes.
//
// What cuMemGetInfo calls free is a little more than what can be had: on an
// H200 with driver 580 the last 3.1 MiB cannot, and the first mapping takes one
// granule more for its page tables. So the driver is asked: everything it gives
// is taken and given back. Physical memory that is never mapped needs no page
// tables, so the ballast takes nothing else.
func (d *Device) shrink(free, want int64) (int64, error) {
	g := max(d.card.Granularity, 1)
	if want < g {
		return 0, fmt.Errorf("a card of %d bytes is smaller than the driver's granule of %d", want, g)
	}
	want -= want % g
	if err := d.warmUp(g); err != nil {
		return 0, err
	}
	aside := func(n int64) error {
		h, err := d.drv.MemCreate(n)
		if err != nil {
			return fmt.Errorf("setting %d bytes aside to make the card smaller: %w", n, err)
		}
		d.ballast = append(d.ballast, h)
		return nil
	}
	for coarse := d.floor(free - want - ballastMargin); coarse > 0; coarse -= ballastPiece {
		if err := d.ctx.Err(); err != nil {
			return 0, err
		}
		if err := aside(min(coarse, ballastPiece)); err != nil {
			return 0, err
		}
	}
	singles := 0
	for range ballastTries {
		can, err := d.capacity(g)
		if err != nil {
			return 0, err
		}
		if can == want {
			return want, nil
		}
		for ; can > want; can -= g {
			if err := aside(g); err != nil {
				return 0, err
			}
			singles++
		}
		for ; can < want; can += g {
			if singles == 0 {
				return 0, fmt.Errorf("%s hands out %d bytes at most: a card of %d bytes cannot be emulated on it", d.card.Name, can, want)
			}
			last := len(d.ballast) - 1
			if err := d.drv.MemRelease(d.ballast[last]); err != nil {
				return 0, err
			}
			d.ballast = d.ballast[:last]
			singles--
		}
	}
	return 0, fmt.Errorf("the memory of %s changes while %d bytes of it are set apart: somebody else uses it", d.card.Name, want)
}

// warmUp makes both kinds of allocation once, so that what the driver takes
// for itself at the first of each is taken.
func (d *Device) warmUp(g int64) error {
	a, err := d.drv.MemAlloc(g)
	if err != nil {
		return err
	}
	d.loose = append(d.loose, a)
	if err := d.freeLoose(); err != nil {
		return err
	}
	r := &reservation{size: g}
	if r.addr, err = d.drv.AddressReserve(g); err != nil {
		return err
	}
	d.ranges = append(d.ranges, r)
	h, err := d.drv.MemCreate(g)
	if err != nil {
		return err
	}
	r.pages = []page{{addr: r.addr, size: g, handle: h}}
	if err := d.drv.MemMap(r.addr, g, h); err != nil {
		return err
	}
	r.pages[0].mapped = true
	if err := d.drv.MemSetAccess(r.addr, g); err != nil {
		return err
	}
	if r.pages, err = d.takeDown(r.pages, nil); err != nil {
		return err
	}
	if err := d.drv.AddressFree(r.addr, g); err != nil {
		return err
	}
	d.ranges = d.ranges[:0]
	return nil
}

// capacity is what the driver hands out in whole granules.
func (d *Device) capacity(g int64) (total int64, err error) {
	for size := g << 11; size >= g; size /= 2 {
		for {
			if err := d.ctx.Err(); err != nil {
				return 0, err
			}
			a, err := d.drv.MemAlloc(size)
			if errors.Is(err, policies.ErrOutOfMemory) {
				break
			}
			if err != nil {
				return 0, err
			}
			d.loose = append(d.loose, a)
			total += size
		}
	}
	return total, d.freeLoose()
}

// freeLoose frees what belongs to no policy; what cannot be freed stays for
// Close.
func (d *Device) freeLoose() error {
	var errs []error
	left := d.loose[:0]
	for _, a := range d.loose {
		if err := d.drv.MemFree(a); err != nil {
			errs = append(errs, err)
			left = append(left, a)
		}
	}
	d.loose = left
	return errors.Join(errs...)
}

// Card describes the GPU.
func (d *Device) Card() Card { return d.card }

// Notes say what a reader of the figures should know.
func (d *Device) Notes() []string { return d.notes }

// Latencies are the times of the driver calls so far.
func (d *Device) Latencies() *Latencies { return &d.lat }

// Total implements policies.Device.
func (d *Device) Total() int64 { return d.total }

// Available is the bytes that the policy could take at the start: the free
// bytes less the reserve, or those the ballast left.
func (d *Device) Available() int64 { return d.usage.Available }

// MemInfo implements policies.Device. A driver that cannot say counts as full.
func (d *Device) MemInfo() (free, total int64) {
	free, _, err := d.drv.MemInfo()
	if err != nil {
		return 0, d.total
	}
	if d.budget != math.MaxInt64 {
		free = max(0, min(free, d.budget-d.held))
	}
	return free, d.total
}

// InUse measures the device memory that the policy holds now, in bytes.
func (d *Device) InUse() (int64, error) {
	free, _, err := d.drv.MemInfo()
	return d.base - free, err
}

// Usage is the device memory measured so far.
func (d *Device) Usage() Usage { return d.usage }

// room refuses what a cancelled run or the reserve forbid.
func (d *Device) room(size int64) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if size > d.budget-d.held {
		return fmt.Errorf("%w: %d bytes are held, %d more would eat into the card's reserve", policies.ErrOutOfMemory, d.held, size)
	}
	return nil
}

// took books size bytes in n pieces and measures the card at each new peak.
func (d *Device) took(size int64, n int) error {
	d.held += size
	d.segs += n
	if d.held <= d.peak {
		return nil
	}
	used, err := d.InUse()
	if err != nil {
		return err
	}
	d.peak, d.peakSegs = d.held, d.segs
	d.usage.Peak, d.usage.Held, d.usage.PeakPieces = used, d.held, d.segs
	return nil
}

func (d *Device) gave(size int64, n int) {
	d.held -= size
	d.segs -= n
}

// Malloc implements policies.Device.
func (d *Device) Malloc(size int64) (uint64, error) {
	if err := d.room(size); err != nil {
		return 0, err
	}
	t := time.Now()
	addr, err := d.drv.MemAlloc(size)
	if err != nil {
		return 0, err
	}
	d.lat.add(CallAlloc, size, 1, time.Since(t))
	d.segments[addr] = size
	return addr, d.took(size, 1)
}

// Free implements policies.Device. What could not be freed stays in the books
// for Close.
func (d *Device) Free(addr uint64, size int64) error {
	if have, ok := d.segments[addr]; !ok || have != size {
		return fmt.Errorf("cuMemFree of %d bytes at %#x, which is not an allocation of this size", size, addr)
	}
	t := time.Now()
	if err := d.drv.MemFree(addr); err != nil {
		return err
	}
	d.lat.add(CallFree, size, 1, time.Since(t))
	delete(d.segments, addr)
	d.gave(size, 1)
	return nil
}

// Reserve implements policies.Device.
func (d *Device) Reserve(size int64) (uint64, error) {
	if err := d.room(0); err != nil {
		return 0, err
	}
	t := time.Now()
	addr, err := d.drv.AddressReserve(size)
	if err != nil {
		return 0, err
	}
	d.lat.add(CallReserve, size, 1, time.Since(t))
	i, _ := d.find(addr)
	d.ranges = slices.Insert(d.ranges, i, &reservation{addr: addr, size: size})
	return addr, nil
}

// find is the place of the first reservation that ends above addr, and whether
// it contains addr.
func (d *Device) find(addr uint64) (int, bool) {
	i, _ := slices.BinarySearchFunc(d.ranges, addr, func(r *reservation, a uint64) int {
		if r.addr+uint64(r.size) <= a {
			return -1
		}
		return 1
	})
	return i, i < len(d.ranges) && d.ranges[i].addr <= addr
}

// Release implements policies.Device.
func (d *Device) Release(addr uint64, size int64) error {
	i, ok := d.find(addr)
	if !ok || d.ranges[i].addr != addr || d.ranges[i].size != size || len(d.ranges[i].pages) > 0 {
		return fmt.Errorf("cuMemAddressFree of %d bytes at %#x, which is not a completely unmapped reservation of this size", size, addr)
	}
	t := time.Now()
	if err := d.drv.AddressFree(addr, size); err != nil {
		return err
	}
	d.lat.add(CallUnreserve, size, 1, time.Since(t))
	d.ranges = slices.Delete(d.ranges, i, i+1)
	return nil
}

// at finds the reservation around [addr, addr+size) and the place of its first
// page at or above addr.
func (d *Device) at(call string, addr uint64, size, pageSize int64) (*reservation, int, error) {
	i, ok := d.find(addr)
	if !ok || pageSize <= 0 || size <= 0 || size%pageSize != 0 || size > d.ranges[i].size-int64(addr-d.ranges[i].addr) {
		return nil, 0, fmt.Errorf("%s of %d bytes in pages of %d at %#x: not whole pages inside one reservation", call, size, pageSize, addr)
	}
	r := d.ranges[i]
	j, _ := slices.BinarySearchFunc(r.pages, addr, func(p page, a uint64) int {
		if p.addr < a {
			return -1
		}
		return 1
	})
	return r, j, nil
}

// Map implements policies.Device: as PyTorch does it, one handle for each page,
// all created before the first is mapped, and access set once for the range.
func (d *Device) Map(addr uint64, size, pageSize int64) error {
	r, at, err := d.at("cuMemMap", addr, size, pageSize)
	if err != nil {
		return err
	}
	if g := d.card.Granularity; g > 0 && pageSize%g != 0 {
		return fmt.Errorf("cuMemCreate of pages of %d bytes, which is not a multiple of the driver's granule of %d", pageSize, g)
	}
	if at < len(r.pages) && r.pages[at].addr < addr+uint64(size) {
		return fmt.Errorf("cuMemMap of %d bytes at %#x, part of which is mapped already", size, addr)
	}
	if err := d.room(size); err != nil {
		return err
	}
	n := int(size / pageSize)
	pages := make([]page, 0, n)
	undo := func(err error) error {
		pages, uerr := d.takeDown(pages, nil)
		for _, p := range pages {
			if p.mapped { // stays where it is, for Close
				r.pages = slices.Insert(r.pages, at, p)
				at++
				d.held, d.segs = d.held+p.size, d.segs+1
				continue
			}
			d.orphans = append(d.orphans, p.handle)
		}
		if uerr != nil {
			// Not an "out of memory" that a policy may answer by trying again.
			return fmt.Errorf("%v; then, giving the pages back: %w", err, uerr)
		}
		return err
	}
	t := time.Now()
	for i := range n {
		h, err := d.drv.MemCreate(pageSize)
		if err != nil {
			return undo(err)
		}
		pages = append(pages, page{addr: addr + uint64(i)*uint64(pageSize), size: pageSize, handle: h})
	}
	created := time.Now()
	for i := range pages {
		if err := d.drv.MemMap(pages[i].addr, pageSize, pages[i].handle); err != nil {
			return undo(err)
		}
		pages[i].mapped = true
	}
	mapped := time.Now()
	if err := d.drv.MemSetAccess(addr, size); err != nil {
		return undo(err)
	}
	done := time.Now()
	d.lat.add(CallCreate, pageSize, n, created.Sub(t))
	d.lat.add(CallMap, pageSize, n, mapped.Sub(created))
	d.lat.add(CallAccess, pageSize, n, done.Sub(mapped))
	r.pages = slices.Insert(r.pages, at, pages...)
	return d.took(size, n)
}

// Unmap implements policies.Device. PyTorch waits for the segment's stream
// first; nothing runs here, so there is nothing to wait for.
func (d *Device) Unmap(addr uint64, size, pageSize int64) error {
	r, at, err := d.at("cuMemUnmap", addr, size, pageSize)
	if err != nil {
		return err
	}
	n := int(size / pageSize)
	if at+n > len(r.pages) || r.pages[at].addr != addr || r.pages[at+n-1].addr != addr+uint64(size-pageSize) || r.pages[at].size != pageSize {
		return fmt.Errorf("cuMemUnmap of %d bytes at %#x, not all of which is mapped in pages of %d", size, addr, pageSize)
	}
	left, err := d.takeDown(slices.Clone(r.pages[at:at+n]), func(unmap, release time.Duration) {
		d.lat.add(CallUnmap, pageSize, n, unmap)
		d.lat.add(CallRelease, pageSize, n, release)
	})
	r.pages = slices.Replace(r.pages, at, at+n, left...)
	d.gave(size-int64(len(left))*pageSize, n-len(left))
	return err
}

// takeDown unmaps and releases pages. It goes on after failures and returns
// the pages that are still there; each of them knows whether it is mapped.
// Without a failure it reports the time of all unmaps and of all releases.
func (d *Device) takeDown(pages []page, report func(unmap, release time.Duration)) ([]page, error) {
	var errs []error
	var unmap, release time.Duration
	left := pages[:0]
	for _, p := range pages {
		t := time.Now()
		if p.mapped {
			if err := d.drv.MemUnmap(p.addr, p.size); err != nil {
				errs = append(errs, err)
				left = append(left, p)
				continue
			}
			p.mapped = false
		}
		u := time.Now()
		if err := d.drv.MemRelease(p.handle); err != nil {
			errs = append(errs, err)
			left = append(left, p)
			continue
		}
		unmap += u.Sub(t)
		release += time.Since(u)
	}
	if len(errs) > 0 {
		return left, errors.Join(errs...)
	}
	if report != nil {
		report(unmap, release)
	}
	return nil, nil
}

// GiveBack frees everything that the policy still holds and measures what
// remains in use. A first pass goes on after failures; what failed is tried
// once more, and only what fails twice is reported.
func (d *Device) GiveBack() error {
	err := d.release()
	if err != nil {
		err = d.release()
	}
	if err != nil {
		return fmt.Errorf("giving the card's memory back: %w (the driver takes it when this process ends)", err)
	}
	after, err := d.InUse()
	d.usage.After = after
	return err
}

func (d *Device) release() error {
	var errs []error
	addrs := make([]uint64, 0, len(d.segments))
	for a := range d.segments {
		addrs = append(addrs, a)
	}
	slices.Sort(addrs)
	for _, a := range addrs {
		if err := d.drv.MemFree(a); err != nil {
			errs = append(errs, err)
			continue
		}
		d.gave(d.segments[a], 1)
		delete(d.segments, a)
	}
	var keep []*reservation
	for _, r := range d.ranges {
		size, n := sum(r.pages)
		left, err := d.takeDown(r.pages, nil)
		r.pages = left
		size2, n2 := sum(left)
		d.gave(size-size2, n-n2)
		if err == nil {
			err = d.drv.AddressFree(r.addr, r.size)
		}
		if err != nil {
			errs = append(errs, err)
			keep = append(keep, r)
		}
	}
	d.ranges = keep
	var err error
	if d.orphans, err = d.releaseHandles(d.orphans); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, d.freeLoose())
	return errors.Join(errs...)
}

func sum(pages []page) (size int64, n int) {
	for _, p := range pages {
		size += p.size
	}
	return size, len(pages)
}

func (d *Device) releaseHandles(hs []uint64) ([]uint64, error) {
	var errs []error
	left := hs[:0]
	for _, h := range hs {
		if err := d.drv.MemRelease(h); err != nil {
			errs = append(errs, err)
			left = append(left, h)
		}
	}
	return left, errors.Join(errs...)
}

// Close gives everything back, the ballast and the driver's context too. It is
// safe to call twice.
func (d *Device) Close() error {
	if d.drv == nil {
		return nil
	}
	var errs []error
	errs = append(errs, d.GiveBack())
	left, err := d.releaseHandles(d.ballast)
	if err != nil {
		left, err = d.releaseHandles(left)
	}
	d.ballast = left
	errs = append(errs, err, d.drv.Close())
	d.drv = nil
	return errors.Join(errs...)
}
