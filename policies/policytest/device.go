package policytest

import (
	"fmt"
	"math"
	"slices"

	"allocsim/policies"
)

// Device is a small, strict device for tests of policies: it hands out
// deterministic addresses, never two at once for the same bytes, and refuses
// with a descriptive error what a driver would call an invalid argument, such
// as a free of something it did not hand out.
//
// cudaMalloc ranges go down from 0x7f38e2000000, each at the highest address
// that fits, in multiples of 2 MiB for ranges of 1 MiB and more and else of
// 512 bytes: as the driver does, a later segment lies lower (spec driver.md,
// section 2, of which this is a coarse form). Reservations go up from
// 0x302000000.
type Device struct {
	// Up turns the direction of cudaMalloc addresses around; set it before
	// the first call. An allocator whose results differ breaks ties by
	// address.
	Up bool
	// Base shifts all addresses, in bytes; a multiple of 2 MiB, set before the
	// first call.
	Base uint64

	capacity int64
	used     int64
	taken    int64  // successful Malloc and Map calls
	returned int64  // successful Free and Unmap calls
	ranges   []span // live cudaMalloc ranges, descending by address
	next     uint64 // next reservation
	reserved []span
	pages    map[uint64]int64
	fail     int64 // see FailAfter
	failing  bool
}

type span struct {
	addr uint64
	size int64
	room uint64 // bytes of address space taken
}

const (
	mallocTop   = 0x7f38e2000000
	reserveBase = 0x302000000
	// AddressSpace is the most bytes one call to an unlimited Device can get.
	AddressSpace = 1 << 46
	// maxPages is the most pages one Map call gets; the device keeps a record
	// of each.
	maxPages = 1 << 16
)

var _ policies.Device = (*Device)(nil)

// NewDevice returns a device of capacity bytes; 0 means unlimited.
func NewDevice(capacity int64) *Device {
	return &Device{capacity: capacity, next: reserveBase, pages: make(map[uint64]int64)}
}

// Used is the bytes handed out: cudaMalloc ranges and mapped pages.
func (d *Device) Used() int64 { return d.used }

// Taken is the number of Malloc and Map calls that succeeded.
func (d *Device) Taken() int64 { return d.taken }

// Returned is the number of Free and Unmap calls that succeeded.
func (d *Device) Returned() int64 { return d.returned }

// FailAfter makes every Malloc and Map after the next n successful ones run
// out of memory, as when another process takes the rest of the card; a
// negative n ends that.
func (d *Device) FailAfter(n int64) { d.failing, d.fail = n >= 0, n }

// Total implements policies.Device.
func (d *Device) Total() int64 { return d.capacity }

// MemInfo implements policies.Device.
func (d *Device) MemInfo() (free, total int64) {
	if d.capacity == 0 {
		return math.MaxInt64, 0
	}
	return d.capacity - d.used, d.capacity
}

func (d *Device) take(size int64) error {
	switch {
	case size <= 0:
		return fmt.Errorf("device: a size of %d bytes is invalid", size)
	case size > AddressSpace,
		d.capacity > 0 && size > d.capacity-d.used,
		d.failing && d.fail == 0:
		return fmt.Errorf("device: %d bytes asked for, %d in use: %w", size, d.used, policies.ErrOutOfMemory)
	}
	if d.failing {
		d.fail--
	}
	d.used += size
	d.taken++
	return nil
}

// Malloc implements policies.Device.
func (d *Device) Malloc(size int64) (uint64, error) {
	if err := d.take(size); err != nil {
		return 0, err
	}
	unit := uint64(512)
	if size >= 1<<20 {
		unit = 2 << 20
	}
	room := (uint64(size) + unit - 1) &^ (unit - 1)
	// Offsets count from the first address handed out, away from it; each
	// range occupies [offset, offset+room).
	offset := uint64(0)
	i := 0
	for ; i < len(d.ranges); i++ {
		start := (offset + unit - 1) &^ (unit - 1)
		if start+room <= d.offset(d.ranges[i]) {
			break
		}
		offset = d.offset(d.ranges[i]) + d.ranges[i].room
	}
	start := (offset + unit - 1) &^ (unit - 1)
	addr := mallocTop + d.Base
	if d.Up {
		addr += start
	} else {
		addr -= start + room
	}
	d.ranges = slices.Insert(d.ranges, i, span{addr, size, room})
	return addr, nil
}

func (d *Device) offset(s span) uint64 {
	if d.Up {
		return s.addr - mallocTop - d.Base
	}
	return mallocTop + d.Base - s.addr - s.room
}

// Free implements policies.Device.
func (d *Device) Free(addr uint64, size int64) error {
	i := slices.IndexFunc(d.ranges, func(s span) bool { return s.addr == addr })
	if i < 0 || d.ranges[i].size != size {
		return fmt.Errorf("device: free of %d bytes at %#x, which were not handed out like this", size, addr)
	}
	d.ranges = slices.Delete(d.ranges, i, i+1)
	d.used -= size
	d.returned++
	return nil
}

// Reserve implements policies.Device.
func (d *Device) Reserve(size int64) (uint64, error) {
	if size <= 0 || size > AddressSpace {
		return 0, fmt.Errorf("device: a reservation of %d bytes is invalid", size)
	}
	addr := d.next + d.Base
	d.next += (uint64(size) + 32<<20 - 1) &^ (32<<20 - 1)
	d.reserved = append(d.reserved, span{addr: addr, size: size})
	return addr, nil
}

// Release implements policies.Device.
func (d *Device) Release(addr uint64, size int64) error {
	i := slices.IndexFunc(d.reserved, func(s span) bool { return s.addr == addr && s.size == size })
	if i < 0 {
		return fmt.Errorf("device: release of %d bytes at %#x, which were not reserved like this", size, addr)
	}
	for page := range d.pages {
		if page >= addr && page < addr+uint64(size) {
			return fmt.Errorf("device: release of a reservation with %#x still mapped", page)
		}
	}
	d.reserved = slices.Delete(d.reserved, i, i+1)
	return nil
}

// inside checks that a range of whole pages lies in a reservation.
func (d *Device) inside(addr uint64, size, page int64) error {
	if page <= 0 || size <= 0 || size%page != 0 {
		return fmt.Errorf("device: %d bytes are not a number of pages of %d bytes", size, page)
	}
	for _, r := range d.reserved {
		if addr >= r.addr && uint64(size) <= uint64(r.size) && addr-r.addr <= uint64(r.size-size) {
			return nil
		}
	}
	return fmt.Errorf("device: %d bytes at %#x are outside every reservation", size, addr)
}

// Map implements policies.Device.
func (d *Device) Map(addr uint64, size, page int64) error {
	if err := d.inside(addr, size, page); err != nil {
		return err
	}
	if size/page > maxPages {
		return fmt.Errorf("device: %d pages at once: %w", size/page, policies.ErrOutOfMemory)
	}
	for a := addr; a < addr+uint64(size); a += uint64(page) {
		if _, mapped := d.pages[a]; mapped {
			return fmt.Errorf("device: %#x is mapped already", a)
		}
	}
	if err := d.take(size); err != nil {
		return err
	}
	for a := addr; a < addr+uint64(size); a += uint64(page) {
		d.pages[a] = page
	}
	return nil
}

// Unmap implements policies.Device.
func (d *Device) Unmap(addr uint64, size, page int64) error {
	if err := d.inside(addr, size, page); err != nil {
		return err
	}
	for a := addr; a < addr+uint64(size); a += uint64(page) {
		if d.pages[a] != page {
			return fmt.Errorf("device: %#x is not mapped as a page of %d bytes", a, page)
		}
	}
	for a := addr; a < addr+uint64(size); a += uint64(page) {
		delete(d.pages, a)
	}
	d.used -= size
	d.returned++
	return nil
}
