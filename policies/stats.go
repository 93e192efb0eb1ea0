package policies

// Stat follows one quantity as PyTorch's struct Stat does (spec
// pytorch-allocator A5): increases raise Current, Allocated and, if exceeded,
// Peak; decreases lower Current. What PyTorch calls "freed" is
// Allocated − Current.
type Stat struct {
	Current   int64
	Peak      int64
	Allocated int64
}

// Add increases the stat by x ≥ 0.
func (s *Stat) Add(x int64) {
	s.Current += x
	s.Allocated += x
	if s.Current > s.Peak {
		s.Peak = s.Current
	}
}

// Sub decreases the stat by x ≥ 0.
func (s *Stat) Sub(x int64) { s.Current -= x }

// Freed is the sum of all decreases.
func (s *Stat) Freed() int64 { return s.Allocated - s.Current }

// Class indexes a StatArray: everything, or one of PyTorch's two size classes.
// Policies without the distinction count everything as Large.
type Class uint8

// The classes.
const (
	All Class = iota
	Small
	Large
)

// StatArray is a Stat for each class.
type StatArray [3]Stat

// Add increases the class's stat and All by x ≥ 0.
func (a *StatArray) Add(c Class, x int64) {
	a[All].Add(x)
	a[c].Add(x)
}

// Sub decreases the class's stat and All by x ≥ 0.
func (a *StatArray) Sub(c Class, x int64) {
	a[All].Current -= x
	a[c].Current -= x
}

// Stats are PyTorch's allocator statistics (spec pytorch-allocator A5.1–A5.2).
// Every policy keeps them; those that have no meaning for it stay 0.
type Stats struct {
	Allocation         StatArray // blocks allocated
	AllocatedBytes     StatArray // block bytes allocated
	Active             StatArray // blocks allocated or pending free
	ActiveBytes        StatArray
	RequestedBytes     StatArray // as the program asked, until the free completes
	Segment            StatArray // cudaMalloc segments
	ReservedBytes      StatArray // bytes obtained from the device
	InactiveSplit      StatArray // free pieces of split segments
	InactiveSplitBytes StatArray

	OversizeAllocations Stat
	OversizeSegments    Stat

	NumAllocRetries   int64 // flushes of the cache to serve a request
	NumOOMs           int64
	NumSyncAllStreams int64
	NumDeviceAlloc    int64 // cudaMalloc and map calls
	NumDeviceFree     int64 // cudaFree and unmap calls
	MaxSplitSize      int64 // -1 = unlimited
}

// each visits the StatArrays with the names of torch.cuda.memory_stats().
func (s *Stats) each(f func(name string, a *StatArray)) {
	f("allocation", &s.Allocation)
	f("allocated_bytes", &s.AllocatedBytes)
	f("active", &s.Active)
	f("active_bytes", &s.ActiveBytes)
	f("requested_bytes", &s.RequestedBytes)
	f("segment", &s.Segment)
	f("reserved_bytes", &s.ReservedBytes)
	f("inactive_split", &s.InactiveSplit)
	f("inactive_split_bytes", &s.InactiveSplitBytes)
}

// Flat returns the statistics with the flat keys of
// torch.cuda.memory_stats(): 122 keys in torch 2.11.
func (s *Stats) Flat() map[string]int64 {
	m := make(map[string]int64, 122)
	put := func(name string, t *Stat) {
		m[name+".current"] = t.Current
		m[name+".peak"] = t.Peak
		m[name+".allocated"] = t.Allocated
		m[name+".freed"] = t.Freed()
	}
	s.each(func(name string, a *StatArray) {
		put(name+".all", &a[All])
		put(name+".small_pool", &a[Small])
		put(name+".large_pool", &a[Large])
	})
	put("oversize_allocations", &s.OversizeAllocations)
	put("oversize_segments", &s.OversizeSegments)
	m["num_alloc_retries"] = s.NumAllocRetries
	m["num_ooms"] = s.NumOOMs
	m["num_sync_all_streams"] = s.NumSyncAllStreams
	m["num_device_alloc"] = s.NumDeviceAlloc
	m["num_device_free"] = s.NumDeviceFree
	m["max_split_size"] = s.MaxSplitSize
	return m
}
