package cuda

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Cost is what driver calls cost on one machine: [median, 90th percentile] in
// µs. Its JSON is what the simulator's cost table is read from.
type Cost struct {
	// Driver is cuDriverGetVersion, such as 13000.
	Driver int `json:"driver"`
	// Source says where the figures come from: the card and its driver.
	Source string `json:"source"`
	// Unit is always "µs [median, p90]".
	Unit string `json:"unit"`
	// Alloc and Free are one call alone, by MiB.
	Alloc map[string][2]float64 `json:"cuMemAlloc"`
	Free  map[string][2]float64 `json:"cuMemFree"`
	// BurstAlloc and BurstFree are one call of many in a row, by MiB.
	BurstAlloc map[string][2]float64 `json:"burst_alloc"`
	BurstFree  map[string][2]float64 `json:"burst_free"`
	// VMM holds the virtual memory calls by "N pages of M MiB", all N together.
	VMM map[string]VMMCost `json:"vmm"`
}

// VMMCost is the time of the calls behind an expandable segment.
type VMMCost struct {
	// ReserveOnce is one cuMemAddressReserve in µs.
	ReserveOnce float64    `json:"reserve_once"`
	Create      [2]float64 `json:"create"`
	Map         [2]float64 `json:"map"`
	Access      [2]float64 `json:"access"`
	Unmap       [2]float64 `json:"unmap"`
	Release     [2]float64 `json:"release"`
}

const (
	mib       = 1 << 20
	costUnit  = "µs [median, p90]"
	costReps  = 15 // repetitions of each measurement
	costBurst = 60 // calls in one burst
)

var (
	costSizes  = []int64{1, 2, 4, 8, 20, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768} // MiB
	burstSizes = []int64{2, 20, 100, 400}                                                             // MiB
	pageSizes  = []int64{2, 20, 64}                                                                   // MiB
	pageCounts = []int64{1, 5, 25}
)

// MeasureCost times the driver's calls by size on a device that nobody else
// uses. Sizes that would take more than half of what is free are left out. It
// takes some seconds and leaves nothing allocated.
func MeasureCost(ctx context.Context, d *Device) (*Cost, error) {
	c := &Cost{
		Driver: d.card.DriverVersion, Source: d.card.String(), Unit: costUnit,
		Alloc: map[string][2]float64{}, Free: map[string][2]float64{},
		BurstAlloc: map[string][2]float64{}, BurstFree: map[string][2]float64{},
		VMM: map[string]VMMCost{},
	}
	most := (d.usage.Available - d.held) / 2
	for _, m := range costSizes {
		if m*mib > most {
			break
		}
		a, f, err := d.timeAllocs(ctx, m*mib, 1)
		if err != nil {
			return nil, err
		}
		key := strconv.FormatInt(m, 10)
		c.Alloc[key], c.Free[key] = quantiles(a), quantiles(f)
	}
	for _, m := range burstSizes {
		if m*mib*costBurst > most {
			break
		}
		a, f, err := d.timeAllocs(ctx, m*mib, costBurst)
		if err != nil {
			return nil, err
		}
		key := strconv.FormatInt(m, 10)
		c.BurstAlloc[key], c.BurstFree[key] = quantiles(a), quantiles(f)
	}
	for _, m := range pageSizes {
		for _, n := range pageCounts {
			if m*mib*n > most || m*mib%max(d.card.Granularity, 1) != 0 {
				continue
			}
			v, err := d.timePages(ctx, m*mib, n)
			if err != nil {
				return nil, err
			}
			c.VMM[fmt.Sprintf("%d pages of %d MiB", n, m)] = v
		}
	}
	return c, nil
}

// timeAllocs allocates burst times size bytes, frees them in the same order
// and repeats; it returns each call's µs. The first repetition warms up and is
// not counted.
func (d *Device) timeAllocs(ctx context.Context, size int64, burst int) (alloc, free []float64, err error) {
	for rep := range costReps + 1 {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		for range burst {
			t := time.Now()
			a, err := d.drv.MemAlloc(size)
			us := microseconds(time.Since(t))
			if err != nil {
				return nil, nil, err // Close frees the rest
			}
			d.loose = append(d.loose, a)
			if rep > 0 {
				alloc = append(alloc, us)
			}
		}
		for len(d.loose) > 0 {
			t := time.Now()
			err := d.drv.MemFree(d.loose[0])
			us := microseconds(time.Since(t))
			if err != nil {
				return nil, nil, err
			}
			d.loose = d.loose[1:]
			if rep > 0 {
				free = append(free, us)
			}
		}
	}
	return alloc, free, nil
}

// timePages times the virtual memory calls for n pages. It goes through Map and
// Unmap, which measure the same calls for every run.
func (d *Device) timePages(ctx context.Context, pageSize, n int64) (VMMCost, error) {
	size := pageSize * n
	t := time.Now()
	addr, err := d.Reserve(size)
	if err != nil {
		return VMMCost{}, err
	}
	v := VMMCost{ReserveOnce: microseconds(time.Since(t))}
	all := d.lat
	d.lat = Latencies{}
	defer func() { d.lat = all }()
	for rep := range costReps + 1 {
		if err = ctx.Err(); err != nil {
			break
		}
		if err = d.Map(addr, size, pageSize); err != nil {
			break
		}
		if err = d.Unmap(addr, size, pageSize); err != nil {
			break
		}
		if rep == 0 {
			d.lat = Latencies{} // warm-up
		}
	}
	if err != nil {
		return VMMCost{}, err // Close gives the reservation back
	}
	q := func(c Call) [2]float64 { return quantiles(d.lat.samples[latencyKey{c, pageSize, int(n)}]) }
	v.Create, v.Map, v.Access, v.Unmap, v.Release = q(CallCreate), q(CallMap), q(CallAccess), q(CallUnmap), q(CallRelease)
	return v, d.Release(addr, size)
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
