package cuda

import (
	"errors"
	"fmt"

	"allocsim/policies"
)

// fake is a driver without a GPU. It counts calls by name, can fail any one of
// them, and knows at any time what is held. It refuses what the real driver
// refuses: wrong sizes, double frees, unmapping what is not mapped, freeing
// address space with mappings in it.
type fake struct {
	card  Card
	total int64 // bytes of the card
	other int64 // bytes that others hold

	next     uint64
	allocs   map[uint64]int64
	ranges   map[uint64]int64
	handles  map[uint64]*fakeHandle
	mapped   map[uint64]uint64 // address → handle
	calls    map[string]int
	failName string // this call fails …
	failAt   int    // … the failAt-th time (from 1)
	failed   bool
	closed   int
}

type fakeHandle struct {
	size     int64
	released bool
	maps     int
}

var errInjected = errors.New("injected failure")

const gran = 2 << 20

func newFake(total int64) *fake {
	return &fake{
		card:  Card{Name: "Fake GPU", Total: total, Granularity: gran, DriverVersion: 13000},
		total: total, next: 0x302000000,
		allocs: map[uint64]int64{}, ranges: map[uint64]int64{},
		handles: map[uint64]*fakeHandle{}, mapped: map[uint64]uint64{},
		calls: map[string]int{},
	}
}

func (f *fake) call(name string) error {
	if f.closed > 0 {
		return fmt.Errorf("%s after Close", name)
	}
	f.calls[name]++
	if name == f.failName && f.calls[name] == f.failAt {
		f.failed = true
		return fmt.Errorf("%s: %w", name, errInjected)
	}
	return nil
}

func round(n int64) int64 { return (n + gran - 1) / gran * gran }

func (f *fake) used() int64 {
	n := f.other
	for _, s := range f.allocs {
		n += round(s)
	}
	for _, h := range f.handles {
		n += h.size
	}
	return n
}

// leaks describes what is held; empty when nothing is.
func (f *fake) leaks() string {
	if len(f.allocs)+len(f.ranges)+len(f.handles)+len(f.mapped) == 0 {
		return ""
	}
	return fmt.Sprintf("%d allocations, %d reservations, %d handles, %d mappings", len(f.allocs), len(f.ranges), len(f.handles), len(f.mapped))
}

func (f *fake) Card() Card { return f.card }

func (f *fake) MemInfo() (free, total int64, err error) {
	if err := f.call("MemInfo"); err != nil {
		return 0, 0, err
	}
	return f.total - f.used(), f.total, nil
}

func (f *fake) room(name string, size int64) error {
	if round(size) > f.total-f.used() {
		return fmt.Errorf("%s: %w", name, policies.ErrOutOfMemory)
	}
	return nil
}

func (f *fake) take(size int64) uint64 {
	a := f.next
	f.next += uint64(round(size)) + gran
	return a
}

func (f *fake) MemAlloc(size int64) (uint64, error) {
	if err := errors.Join(f.call("MemAlloc"), f.room("MemAlloc", size)); err != nil {
		return 0, err
	}
	a := f.take(size)
	f.allocs[a] = size
	return a, nil
}

func (f *fake) MemFree(addr uint64) error {
	if err := f.call("MemFree"); err != nil {
		return err
	}
	if _, ok := f.allocs[addr]; !ok {
		return fmt.Errorf("MemFree: %#x is not allocated", addr)
	}
	delete(f.allocs, addr)
	return nil
}

func (f *fake) AddressReserve(size int64) (uint64, error) {
	if err := f.call("AddressReserve"); err != nil {
		return 0, err
	}
	if size <= 0 || size%gran != 0 {
		return 0, fmt.Errorf("AddressReserve: %d bytes are not whole granules", size)
	}
	a := f.take(size)
	f.ranges[a] = size
	return a, nil
}

func (f *fake) AddressFree(addr uint64, size int64) error {
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

func (f *fake) MemCreate(size int64) (uint64, error) {
	if err := errors.Join(f.call("MemCreate"), f.room("MemCreate", size)); err != nil {
		return 0, err
	}
	if size <= 0 || size%gran != 0 {
		return 0, fmt.Errorf("MemCreate: %d bytes are not whole granules", size)
	}
	f.next++
	f.handles[f.next] = &fakeHandle{size: size}
	return f.next, nil
}

func (f *fake) MemRelease(handle uint64) error {
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

func (f *fake) MemMap(addr uint64, size int64, handle uint64) error {
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
	f.mapped[addr] = handle
	h.maps++
	return nil
}

func (f *fake) MemUnmap(addr uint64, size int64) error {
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

func (f *fake) MemSetAccess(addr uint64, size int64) error {
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

func (f *fake) Synchronize() error { return f.call("Synchronize") }

func (f *fake) Close() error {
	if err := f.call("Close"); err != nil {
		return err
	}
	f.closed++
	return nil
}
