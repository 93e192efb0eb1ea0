// Package cudatest is a CUDA driver without a GPU, for tests.
package cudatest

import (
	"errors"
	"fmt"

	"allocsim/policies"
	"allocsim/validate/cuda"
)

// Driver is a cuda.Driver without a GPU. It counts calls by name, can fail any one of
// them, and knows at any time what is held. It refuses what the real driver
// refuses: wrong sizes, double frees, unmapping what is not mapped, freeing
// address space with mappings in it.
type Driver struct {
	Device cuda.Card
	// Others is the bytes that other processes hold.
	Others int64
	// Unusable is bytes that MemInfo calls free and that nobody gets.
	Unusable int64
	// PageTables is bytes that the first MemMap makes unusable, too, for good.
	PageTables int64
	// FailCall is the name of a method that fails once, the FailAt-th time
	// (from 1) that it is called; Failed reports that it has.
	FailCall string
	FailAt   int
	Failed   bool
	// Calls counts calls by the method's name.
	Calls map[string]int
	// Closed counts Close.
	Closed int

	total   int64
	next    uint64
	allocs  map[uint64]int64
	ranges  map[uint64]int64
	handles map[uint64]*handle
	mapped  map[uint64]uint64 // address → handle
}

type handle struct {
	size     int64
	released bool
	maps     int
}

// ErrInjected is what a call fails with.
var ErrInjected = errors.New("injected failure")

// Granule is the unit in which memory is handed out.
const Granule = 2 << 20

// New returns a driver of an idle card with total bytes.
func New(total int64) *Driver {
	return &Driver{
		Device: cuda.Card{Name: "Fake GPU", Total: total, Granularity: Granule, DriverVersion: 13000},
		Calls:  map[string]int{},
		total:  total, next: 0x302000000,
		allocs: map[uint64]int64{}, ranges: map[uint64]int64{},
		handles: map[uint64]*handle{}, mapped: map[uint64]uint64{},
	}
}

// Forget makes the driver lose an allocation, so that freeing it fails for
// good.
func (f *Driver) Forget(addr uint64) { delete(f.allocs, addr) }

func (f *Driver) call(name string) error {
	if f.Closed > 0 {
		return fmt.Errorf("%s after Close", name)
	}
	f.Calls[name]++
	if name == f.FailCall && f.Calls[name] == f.FailAt {
		f.Failed = true
		return fmt.Errorf("%s: %w", name, ErrInjected)
	}
	return nil
}

func round(n int64) int64 { return (n + Granule - 1) / Granule * Granule }

func (f *Driver) used() int64 {
	n := f.Others
	for _, s := range f.allocs {
		n += round(s)
	}
	for _, h := range f.handles {
		n += h.size
	}
	return n
}

// Leaks describes what is held; empty when nothing is.
func (f *Driver) Leaks() string {
	if len(f.allocs)+len(f.ranges)+len(f.handles)+len(f.mapped) == 0 {
		return ""
	}
	return fmt.Sprintf("%d allocations, %d reservations, %d handles, %d mappings", len(f.allocs), len(f.ranges), len(f.handles), len(f.mapped))
}

// Card implements cuda.Driver; so do the methods below.
func (f *Driver) Card() cuda.Card { return f.Device }

func (f *Driver) MemInfo() (free, total int64, err error) {
	if err := f.call("MemInfo"); err != nil {
		return 0, 0, err
	}
	return f.total - f.used(), f.total, nil
}

func (f *Driver) room(name string, size int64) error {
	if round(size) > f.total-f.used()-f.Unusable {
		return fmt.Errorf("%s: %w", name, policies.ErrOutOfMemory)
	}
	return nil
}

func (f *Driver) take(size int64) uint64 {
	a := f.next
	f.next += uint64(round(size)) + Granule
	return a
}

func (f *Driver) MemAlloc(size int64) (uint64, error) {
	if err := f.call("MemAlloc"); err != nil {
		return 0, err
	}
	if err := f.room("MemAlloc", size); err != nil {
		return 0, err
	}
	a := f.take(size)
	f.allocs[a] = size
	return a, nil
}

func (f *Driver) MemFree(addr uint64) error {
	if err := f.call("MemFree"); err != nil {
		return err
	}
	if _, ok := f.allocs[addr]; !ok {
		return fmt.Errorf("MemFree: %#x is not allocated", addr)
	}
	delete(f.allocs, addr)
	return nil
}

func (f *Driver) AddressReserve(size int64) (uint64, error) {
	if err := f.call("AddressReserve"); err != nil {
		return 0, err
	}
	if size <= 0 || size%Granule != 0 {
		return 0, fmt.Errorf("AddressReserve: %d bytes are not whole granules", size)
	}
	a := f.take(size)
	f.ranges[a] = size
	return a, nil
}

func (f *Driver) AddressFree(addr uint64, size int64) error {
	if err := f.call("AddressFree"); err != nil {
		return err
	}
	if f.ranges[addr] != size {
		return fmt.Errorf("AddressFree: no reservation of %d bytes at %#x", size, addr)
	}
	for a := range f.mapped {
		if a >= addr && a < addr+uint64(size) {
			return fmt.Errorf("AddressFree: %#x is still mapped", a)
		}
	}
	delete(f.ranges, addr)
	return nil
}

func (f *Driver) MemCreate(size int64) (uint64, error) {
	if err := f.call("MemCreate"); err != nil {
		return 0, err
	}
	if err := f.room("MemCreate", size); err != nil {
		return 0, err
	}
	if size <= 0 || size%Granule != 0 {
		return 0, fmt.Errorf("MemCreate: %d bytes are not whole granules", size)
	}
	f.next++
	f.handles[f.next] = &handle{size: size}
	return f.next, nil
}

func (f *Driver) MemRelease(handle uint64) error {
	if err := f.call("MemRelease"); err != nil {
		return err
	}
	h, ok := f.handles[handle]
	if !ok || h.released {
		return fmt.Errorf("MemRelease: no handle %d", handle)
	}
	if h.released = true; h.maps == 0 {
		delete(f.handles, handle)
	}
	return nil
}

func (f *Driver) MemMap(addr uint64, size int64, handle uint64) error {
	if err := f.call("MemMap"); err != nil {
		return err
	}
	h, ok := f.handles[handle]
	if !ok || h.released || h.size != size {
		return fmt.Errorf("MemMap: handle %d does not have %d bytes", handle, size)
	}
	for a, other := range f.mapped {
		if a < addr+uint64(size) && addr < a+uint64(f.handles[other].size) {
			return fmt.Errorf("MemMap: %#x is mapped already", addr)
		}
	}
	f.Unusable, f.PageTables = f.Unusable+f.PageTables, 0
	f.mapped[addr] = handle
	h.maps++
	return nil
}

func (f *Driver) MemUnmap(addr uint64, size int64) error {
	if err := f.call("MemUnmap"); err != nil {
		return err
	}
	handle, ok := f.mapped[addr]
	if !ok || f.handles[handle].size != size {
		return fmt.Errorf("MemUnmap: no mapping of %d bytes at %#x", size, addr)
	}
	delete(f.mapped, addr)
	if h := f.handles[handle]; h.maps == 1 && h.released {
		delete(f.handles, handle)
	} else {
		h.maps--
	}
	return nil
}

func (f *Driver) MemSetAccess(addr uint64, size int64) error {
	if err := f.call("MemSetAccess"); err != nil {
		return err
	}
	for a := addr; a < addr+uint64(size); {
		h, ok := f.mapped[a]
		if !ok {
			return fmt.Errorf("MemSetAccess: %#x is not mapped", a)
		}
		a += uint64(f.handles[h].size)
	}
	return nil
}

func (f *Driver) Synchronize() error { return f.call("Synchronize") }

func (f *Driver) Close() error {
	if err := f.call("Close"); err != nil {
		return err
	}
	f.Closed++
	return nil
}
