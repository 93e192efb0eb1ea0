//go:build cuda

package cuda

/*
#cgo CFLAGS: -I${SRCDIR}/include -Wno-deprecated-declarations
#cgo LDFLAGS: -lcuda
#cgo linux LDFLAGS: -L/usr/local/cuda/lib64 -L/usr/lib/x86_64-linux-gnu -ldl
#cgo linux CFLAGS: -I/usr/local/cuda/include

#include <cuda.h>
#ifndef ALLOCSIM_CUDA_H
#error "CUDA's cuda.h came before allocsim's: set CGO_CFLAGS=\"-I<repository>/validate/cuda/include -I<CUDA's include directory>\" (docs/validation.md)"
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUmemAllocationProp pinned_on(int device) {
	CUmemAllocationProp p;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = device;
	return p;
}

static CUresult mem_granularity(size_t *g, int device) {
	CUmemAllocationProp p = pinned_on(device);
	return cuMemGetAllocationGranularity(g, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static CUresult mem_create(CUmemGenericAllocationHandle *h, size_t size, int device) {
	CUmemAllocationProp p = pinned_on(device);
	return cuMemCreate(h, size, &p, 0);
}

static CUresult mem_set_access(CUdeviceptr at, size_t size, int device) {
	CUmemAccessDesc d;
	memset(&d, 0, sizeof d);
	d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	d.location.id = device;
	d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return cuMemSetAccess(at, size, &d, 1);
}

// device_uuid writes "GPU-xxxxxxxx-…"; for a MIG slice, the caller replaces
// the prefix.
static CUresult device_uuid(char out[48], CUdevice dev) {
	CUuuid u;
	CUresult r = cuDeviceGetUuid_v2(&u, dev);
	if (r != CUDA_SUCCESS) return r;
	char *o = out + sprintf(out, "GPU-");
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10) *o++ = '-';
		o += sprintf(o, "%02x", (unsigned char)u.bytes[i]);
	}
	return r;
}

// NVML is loaded at run time: it is the only way to see who else uses a card
// before taking a context on it, and a machine may be without it.
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvml_memory_v2;

static void nvml_users(const char *uuid, int *users, long long *used) {
	*users = -1;
	*used = -1;
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) return;
	int (*init)(void) = (int (*)(void))dlsym(lib, "nvmlInit_v2");
	int (*shutdown)(void) = (int (*)(void))dlsym(lib, "nvmlShutdown");
	int (*by_uuid)(const char *, void **) = (int (*)(const char *, void **))dlsym(lib, "nvmlDeviceGetHandleByUUID");
	int (*memory)(void *, nvml_memory_v2 *) = (int (*)(void *, nvml_memory_v2 *))dlsym(lib, "nvmlDeviceGetMemoryInfo_v2");
	if (init && shutdown && by_uuid && init() == 0) {
		void *dev = NULL;
		if (by_uuid(uuid, &dev) == 0) {
			static const char *const lists[] = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"};
			for (int i = 0; i < 2; i++) {
				int (*list)(void *, unsigned int *, void *) = (int (*)(void *, unsigned int *, void *))dlsym(lib, lists[i]);
				unsigned int n = 0;
				// With room for none, NVML answers 0 (no process) or 7
				// (NVML_ERROR_INSUFFICIENT_SIZE) and the count.
				int r = list ? list(dev, &n, NULL) : -1;
				if (r == 0 || r == 7) *users = (*users < 0 ? 0 : *users) + (int)n;
			}
			nvml_memory_v2 m;
			memset(&m, 0, sizeof m);
			m.version = (unsigned int)(sizeof m | (2u << 24));
			if (memory && memory(dev, &m) == 0) *used = (long long)m.used;
		}
		shutdown();
	}
	dlclose(lib);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"allocsim/policies"
)

// Built reports that this program can drive a GPU.
const Built = true

// gpu is the real Driver.
type gpu struct {
	dev  cu.Device
	card Card
}

// Open makes the primary context of CUDA device ordinal current on the calling
// goroutine's thread and binds the goroutine to that thread until Close. The
// error says what the driver said.
func Open(ordinal int) (Driver, error) {
	if r := C.allocsim_init(0); r != C.CUDA_SUCCESS {
		return nil, fmt.Errorf("no usable NVIDIA GPU: %w", failed("cuInit", r))
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, wrap("cuDeviceGetCount", err)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("there is no CUDA device %d; this machine shows %d", ordinal, n)
	}
	g := &gpu{card: Card{Ordinal: ordinal, DriverVersion: cu.Version()}}
	if g.dev, err = cu.GetDevice(ordinal); err != nil {
		return nil, wrap("cuDeviceGet", err)
	}
	if g.card.Name, err = g.dev.Name(); err != nil {
		return nil, wrap("cuDeviceGetName", err)
	}
	if g.card.Total, err = g.dev.TotalMem(); err != nil {
		return nil, wrap("cuDeviceTotalMem", err)
	}
	var gran C.size_t
	if r := C.mem_granularity(&gran, C.int(ordinal)); r != C.CUDA_SUCCESS {
		return nil, failed("cuMemGetAllocationGranularity", r)
	}
	g.card.Granularity = int64(gran)
	g.lookAround()

	runtime.LockOSThread()
	ctx, err := g.dev.RetainPrimaryCtx()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, wrap("cuDevicePrimaryCtxRetain", err)
	}
	if err := cu.SetCurrentContext(ctx); err != nil {
		err = errors.Join(wrap("cuCtxSetCurrent", err), wrap("cuDevicePrimaryCtxRelease", g.dev.ReleasePrimaryCtx()))
		runtime.UnlockOSThread()
		return nil, err
	}
	return g, nil
}

// lookAround asks who uses the card. It must run before this process makes a
// context, or it would count itself.
func (g *gpu) lookAround() {
	g.card.Users, g.card.UsedBefore = -1, -1
	var buf [48]C.char
	if C.device_uuid(&buf[0], C.CUdevice(g.dev)) != C.CUDA_SUCCESS {
		return
	}
	g.card.UUID = C.GoString(&buf[0])
	for _, prefix := range []string{"GPU", "MIG"} {
		id := prefix + g.card.UUID[3:]
		cid := C.CString(id)
		var users C.int
		var used C.longlong
		C.nvml_users(cid, &users, &used)
		C.free(unsafe.Pointer(cid))
		if users >= 0 || used >= 0 {
			g.card.UUID, g.card.Users, g.card.UsedBefore = id, int(users), int64(used)
			return
		}
	}
}

func (g *gpu) Card() Card { return g.card }

func (g *gpu) MemInfo() (free, total int64, err error) {
	free, total, err = cu.MemInfo()
	return free, total, wrap("cuMemGetInfo", err)
}

func (g *gpu) MemAlloc(size int64) (uint64, error) {
	p, err := cu.MemAlloc(size)
	return uint64(p), wrap("cuMemAlloc", err)
}

func (g *gpu) MemFree(addr uint64) error {
	return wrap("cuMemFree", cu.MemFree(cu.DevicePtr(addr)))
}

func (g *gpu) AddressReserve(size int64) (uint64, error) {
	var p C.CUdeviceptr
	r := C.cuMemAddressReserve(&p, C.size_t(size), 0, 0, 0)
	return uint64(p), failed("cuMemAddressReserve", r)
}

func (g *gpu) AddressFree(addr uint64, size int64) error {
	return failed("cuMemAddressFree", C.cuMemAddressFree(C.CUdeviceptr(addr), C.size_t(size)))
}

func (g *gpu) MemCreate(size int64) (uint64, error) {
	var h C.CUmemGenericAllocationHandle
	r := C.mem_create(&h, C.size_t(size), C.int(g.card.Ordinal))
	return uint64(h), failed("cuMemCreate", r)
}

func (g *gpu) MemRelease(handle uint64) error {
	return failed("cuMemRelease", C.cuMemRelease(C.CUmemGenericAllocationHandle(handle)))
}

func (g *gpu) MemMap(addr uint64, size int64, handle uint64) error {
	return failed("cuMemMap", C.cuMemMap(C.CUdeviceptr(addr), C.size_t(size), 0, C.CUmemGenericAllocationHandle(handle), 0))
}

func (g *gpu) MemUnmap(addr uint64, size int64) error {
	return failed("cuMemUnmap", C.cuMemUnmap(C.CUdeviceptr(addr), C.size_t(size)))
}

func (g *gpu) MemSetAccess(addr uint64, size int64) error {
	return failed("cuMemSetAccess", C.mem_set_access(C.CUdeviceptr(addr), C.size_t(size), C.int(g.card.Ordinal)))
}

func (g *gpu) Synchronize() error { return wrap("cuCtxSynchronize", cu.Synchronize()) }

func (g *gpu) Close() error {
	err := wrap("cuDevicePrimaryCtxRelease", g.dev.ReleasePrimaryCtx())
	runtime.UnlockOSThread()
	return err
}

// wrap names the call of an error from cu.
func wrap(call string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cu.OutOfMemory):
		return fmt.Errorf("%s: %w", call, policies.ErrOutOfMemory)
	}
	return fmt.Errorf("%s: CUDA says %w", call, err)
}

// failed is wrap for a call of our own.
func failed(call string, r C.CUresult) error {
	switch r {
	case C.CUDA_SUCCESS:
		return nil
	case C.CUDA_ERROR_OUT_OF_MEMORY:
		return fmt.Errorf("%s: %w", call, policies.ErrOutOfMemory)
	}
	var name *C.char
	if C.cuGetErrorName(r, &name) != C.CUDA_SUCCESS || name == nil {
		return fmt.Errorf("%s: CUDA error %d", call, int(r))
	}
	return fmt.Errorf("%s: %s", call, C.GoString(name))
}
