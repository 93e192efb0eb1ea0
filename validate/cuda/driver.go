package cuda

import (
	"errors"
	"fmt"
)

// Driver is what an allocator needs of the CUDA driver. Sizes are bytes. A
// Driver is used by the goroutine that opened it alone: the real one binds the
// card's context to that goroutine's thread. Errors for a full card wrap
// policies.ErrOutOfMemory.
type Driver interface {
	// Card describes the card.
	Card() Card
	// MemInfo is cuMemGetInfo: bytes of the whole card free and in all.
	MemInfo() (free, total int64, err error)

	// MemAlloc is cuMemAlloc, the driver's side of cudaMalloc.
	MemAlloc(size int64) (addr uint64, err error)
	// MemFree is cuMemFree.
	MemFree(addr uint64) error

	// AddressReserve is cuMemAddressReserve: address space only, a multiple of
	// the granularity.
	AddressReserve(size int64) (addr uint64, err error)
	// AddressFree is cuMemAddressFree.
	AddressFree(addr uint64, size int64) error
	// MemCreate is cuMemCreate: physical memory, not yet mapped, a multiple of
	// the granularity.
	MemCreate(size int64) (handle uint64, err error)
	// MemRelease is cuMemRelease.
	MemRelease(handle uint64) error
	// MemMap is cuMemMap of a whole handle.
	MemMap(addr uint64, size int64, handle uint64) error
	// MemUnmap is cuMemUnmap of what one MemMap mapped.
	MemUnmap(addr uint64, size int64) error
	// MemSetAccess is cuMemSetAccess: lets the card read and write the range.
	MemSetAccess(addr uint64, size int64) error

	// Synchronize is cuCtxSynchronize.
	Synchronize() error
	// Close gives the context back. The Driver must not be used afterwards.
	Close() error
}

// Card describes a GPU and who else uses it.
type Card struct {
	// Name is such as "NVIDIA H200".
	Name string
	// UUID is NVIDIA's identifier, "GPU-…" or "MIG-…"; empty when unknown.
	UUID string
	// Ordinal is the CUDA device number.
	Ordinal int
	// DriverVersion is cuDriverGetVersion, such as 13000.
	DriverVersion int
	// Total is cuDeviceTotalMem, which the CUDA runtime reports as
	// totalGlobalMem, in bytes.
	Total int64
	// Granularity is the smallest physical allocation of the virtual memory
	// calls and the unit in which the card's memory is handed out, in bytes.
	Granularity int64
	// Users is the number of processes that used the card before this one
	// made its context; -1 when the driver does not say.
	Users int
	// UsedBefore is the bytes in use on the card before this process made its
	// context, without what the driver keeps for itself; -1 when unknown.
	UsedBefore int64
}

// String is one line for reports.
func (c Card) String() string {
	return fmt.Sprintf("%s (%d bytes, CUDA driver %d.%d)", c.Name, c.Total, c.DriverVersion/1000, c.DriverVersion%1000/10)
}

// ErrNotBuilt is what Open returns (wrapped) in a build without the tag cuda.
var ErrNotBuilt = errors.New("this allocsim was built without CUDA")

// ErrInUse is what NewDevice returns (wrapped) when other processes use the
// card.
var ErrInUse = errors.New("the card is in use")
