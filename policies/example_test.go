package policies_test

import (
	"errors"
	"fmt"

	"allocsim/policies"
	_ "allocsim/policies/all"
)

// A policy is driven by calls alone. It takes memory from a Device: here one
// of 100 MiB that hands out ascending addresses.
func Example() {
	spec, err := policies.Parse("torch:max_split_size_mb:64")
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := spec.New(policies.Env{Device: &device{free: 100 << 20}})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, _ := policy.Malloc(policies.Request{Size: 3 << 20})
	b, _ := policy.Malloc(policies.Request{Size: 5 << 20})
	fmt.Println("b lies", (b.Addr-a.Addr)>>20, "MiB behind a")
	_, err = policy.Malloc(policies.Request{Size: 90 << 20})
	fmt.Println("out of memory:", errors.Is(err, policies.ErrOutOfMemory))
	stats := policy.Stats()
	fmt.Println("allocated", stats.AllocatedBytes[policies.All].Current>>20, "MiB")
	fmt.Println("reserved ", stats.ReservedBytes[policies.All].Current>>20, "MiB")
	fmt.Println("retries  ", stats.NumAllocRetries)
	// Output:
	// b lies 3 MiB behind a
	// out of memory: true
	// allocated 8 MiB
	// reserved  20 MiB
	// retries   1
}

// Names and options are those of --policy; mistakes are named.
func ExampleParse() {
	for _, s := range []string{"bfc:limit=3GiB", "rmm-pool:initial=1GiB", "cupy:limt=1"} {
		spec, err := policies.Parse(s)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println(spec)
	}
	// Output:
	// bfc:limit=3GiB
	// rmm-pool:initial=1GiB
	// error: policy cupy: unknown option "limt"; known: limit, retry-at-limit
}

// device is the least that a Device can be.
type device struct {
	free, next int64
}

func (d *device) Total() int64            { return 100 << 20 }
func (d *device) MemInfo() (int64, int64) { return d.free, d.Total() }

func (d *device) Malloc(size int64) (uint64, error) {
	if size > d.free {
		return 0, policies.ErrOutOfMemory
	}
	d.free -= size
	d.next += size
	return uint64(1<<32 + d.next - size), nil
}

func (d *device) Free(_ uint64, size int64) error {
	d.free += size
	return nil
}

// Virtual memory, which only expandable segments need.
var errNone = errors.New("no virtual memory here")

func (d *device) Reserve(int64) (uint64, error)    { return 0, errNone }
func (d *device) Release(uint64, int64) error      { return errNone }
func (d *device) Map(uint64, int64, int64) error   { return errNone }
func (d *device) Unmap(uint64, int64, int64) error { return errNone }
