package conf

import (
	"math/bits"
	"slices"
	"strconv"
)

// Type says what kind of value a key takes.
type Type string

// The types.
const (
	Bool      Type = "True or False"
	MiB       Type = "whole number of MiB"
	Count     Type = "whole number"
	Fraction  Type = "number"
	Choice    Type = "name"
	Divisions Type = "power of two or list"
)

// Key describes one option.
type Key struct {
	Name    string
	Type    Type
	Default string
	// Since is the first release that takes the key, Until the last one; the
	// zero Until means that it still exists.
	Since, Until Version
	// Alias is the name under which the normal form writes this key; it is set
	// for the ROCm spellings only.
	Alias string
	// Native marks what backend:cudaMallocAsync ignores.
	Native bool
	// Does says what the option does, Hurts when it does harm: a line each.
	Does, Hurts string

	field any // func(*Config) *T for the field's type T
}

// keys lists the options in the order of the normal form.
var keys = []Key{
	{
		Name: "backend", Type: Choice, Default: "native", Since: Version{2, 0},
		Does:  "chooses the allocator: PyTorch's own (native) or the driver's stream-ordered pools (cudaMallocAsync).",
		Hurts: "cudaMallocAsync ignores every other device option and has no snapshots; it must be set before import torch.",
	},
	{
		Name: "expandable_segments", Type: Bool, Default: "False", Since: Version{2, 1}, Native: true,
		Does:  "grows one address range per stream and pool page by page, so that free pieces join instead of being stranded in segments.",
		Hurts: "maps 20 MiB pages one by one, which is slower at the start; its memory cannot be shared by CUDA IPC the classic way, and other tools that take over the allocator may refuse it.",
		field: func(c *Config) *bool { return &c.ExpandableSegments },
	},
	{
		Name: "large_segment_size_mb", Type: MiB, Default: "20", Since: Version{2, 11}, Native: true,
		Does:  "sets the segment taken for requests between 1 and 10 MiB, and the page of large expandable segments.",
		Hurts: "a large value reserves that much for a single small tensor; an odd one fails with expandable segments.",
		field: func(c *Config) *int64 { return &c.LargeSegmentSize },
	},
	{
		Name: "max_split_size_mb", Type: MiB, Default: "unlimited", Since: Version{1, 9}, Native: true,
		Does:  "keeps blocks of this size or more whole, for large requests only, so that small tensors do not break them up.",
		Hurts: "a small value makes large blocks unusable for anything else: more cudaMalloc and cudaFree calls, often more memory; with expandable_segments it can grow without bound.",
		field: func(c *Config) *int64 { return &c.MaxSplitSize },
	},
	{
		Name: "max_non_split_rounding_mb", Type: MiB, Default: "large_segment_size_mb", Since: Version{2, 6}, Native: true,
		Does:  "lets a request above max_split_size_mb take a whole cached block that is larger by less than this.",
		Hurts: "the slack is lost while the block is in use; without max_split_size_mb the option does nothing.",
		field: func(c *Config) *int64 { return &c.MaxNonSplitRounding },
	},
	{
		Name: "garbage_collection_threshold", Type: Fraction, Default: "0 (off)", Since: Version{1, 12}, Native: true,
		Does:  "gives back cached segments that were idle longest once this share of the memory limit is in use, instead of waiting for a full flush.",
		Hurts: "does nothing without a memory limit below 1.0; a low value frees segments that are needed again at once.",
		field: func(c *Config) *float64 { return &c.GCThreshold },
	},
	{
		Name: "roundup_power2_divisions", Type: Divisions, Default: "0 (off)", Since: Version{1, 12}, Native: true,
		Does:  "rounds requests up to one of N steps between powers of two, so that tensors of similar size can reuse each other's blocks.",
		Hurts: "every tensor takes up to 1/N more; few divisions waste much, and many help little.",
	},
	{
		Name: "roundup_bypass_threshold_mb", Type: MiB, Default: "off", Since: Version{1, 13}, Until: Version{1, 13}, Native: true,
		Does:  "exempts requests above this size from roundup_power2_divisions.",
		Hurts: "exists in PyTorch 1.13 only; later releases take a list of divisions instead.",
		field: func(c *Config) *int64 { return &c.RoundupBypassThreshold },
	},
	{
		Name: "per_process_memory_fraction", Type: Fraction, Default: "1.0", Since: Version{2, 10}, Native: true,
		Does:  "limits the process to this share of the device's memory, as torch.cuda.set_per_process_memory_fraction does.",
		Hurts: "the CUDA context and libraries are not counted; a limit below the peak turns a fitting job into an OOM.",
		field: func(c *Config) *float64 { return &c.PerProcessMemoryFraction },
	},
	{
		Name: "release_lock_on_cudamalloc", Type: Bool, Default: "False", Since: Version{2, 2}, Native: true,
		Does:  "lets other threads allocate while one waits in cudaMalloc.",
		Hurts: "no use to a program that allocates from one thread; changes no sizes.",
		field: func(c *Config) *bool { return &c.ReleaseLockOnCudaMalloc },
	},
	{
		Name: "release_lock_on_hipmalloc", Type: Bool, Default: "False", Since: Version{2, 2}, Native: true, Alias: "release_lock_on_cudamalloc",
		Does:  "is ROCm's spelling of release_lock_on_cudamalloc.",
		Hurts: "no use to a program that allocates from one thread; changes no sizes.",
		field: func(c *Config) *bool { return &c.ReleaseLockOnCudaMalloc },
	},
	{
		Name: "graph_capture_record_stream_reuse", Type: Bool, Default: "False", Since: Version{2, 9}, Native: true,
		Does:  "reuses, within a CUDA graph capture, blocks that other streams have provably finished with.",
		Hurts: "makes capture slower; matters only to captures that use record_stream.",
		field: func(c *Config) *bool { return &c.GraphCaptureRecordStreamReuse },
	},
	{
		Name: "pinned_use_cuda_host_register", Type: Bool, Default: "False", Since: Version{2, 2},
		Does:  "takes pinned host memory with malloc and cudaHostRegister instead of cudaHostAlloc.",
		Hurts: "concerns host memory only; registering is slow for small buffers.",
		field: func(c *Config) *bool { return &c.PinnedUseCudaHostRegister },
	},
	{
		Name: "pinned_use_hip_host_register", Type: Bool, Default: "False", Since: Version{2, 2}, Alias: "pinned_use_cuda_host_register",
		Does:  "is ROCm's spelling of pinned_use_cuda_host_register.",
		Hurts: "concerns host memory only; registering is slow for small buffers.",
		field: func(c *Config) *bool { return &c.PinnedUseCudaHostRegister },
	},
	{
		Name: "pinned_num_register_threads", Type: Count, Default: "1", Since: Version{2, 2},
		Does:  "touches the pages of pinned host memory with this many threads (a power of two, at most 128).",
		Hurts: "does nothing without pinned_use_cuda_host_register; concerns host memory only.",
		field: func(c *Config) *int64 { return &c.PinnedNumRegisterThreads },
	},
	{
		Name: "pinned_use_background_threads", Type: Bool, Default: "False", Since: Version{2, 5},
		Does:  "processes the events of pinned host memory on a thread in the background.",
		Hurts: "concerns host memory only; one thread more.",
		field: func(c *Config) *bool { return &c.PinnedUseBackgroundThreads },
	},
	{
		Name: "pinned_reserve_segment_size_mb", Type: MiB, Default: "0 (off)", Since: Version{2, 9},
		Does:  "takes one segment of pinned host memory at the start and serves small requests from it.",
		Hurts: "that much host memory stays pinned for the whole run.",
		field: func(c *Config) *int64 { return &c.PinnedReserveSegmentSize },
	},
}

// future lists keys of releases newer than Latest, whose rules are not
// modelled, with the first release that takes them.
var future = map[string]Version{
	"throw_on_cudamalloc_oom":       {2, 12},
	"pinned_free_catch_all":         {2, 12},
	"pinned_max_round_threshold_mb": {2, 12},
	"pinned_max_cached_size_mb":     {2, 12},
}

// Keys lists every option that some release takes, in the order of the normal
// form.
func Keys() []Key { return slices.Clone(keys) }

func lookup(name string) *Key {
	for i := range keys {
		if keys[i].Name == name {
			return &keys[i]
		}
	}
	return nil
}

func (k *Key) knownTo(v Version) bool {
	return v.Compare(k.Since) >= 0 && (k.Until == Version{} || v.Compare(k.Until) <= 0)
}

func (k *Key) setBool(c *Config, x bool)     { *k.field.(func(*Config) *bool)(c) = x }
func (k *Key) setInt(c *Config, x int64)     { *k.field.(func(*Config) *int64)(c) = x }
func (k *Key) setFloat(c *Config, x float64) { *k.field.(func(*Config) *float64)(c) = x }

// badFraction is PyTorch's message if x is out of range, else empty.
func (k *Key) badFraction(x float64) string {
	if k.Name == "garbage_collection_threshold" {
		if !(x > 0 && x < 1) {
			return "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"
		}
	} else if !(x >= 0 && x <= 1) {
		return "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"
	}
	return ""
}

// badSize is PyTorch's message if n is out of range, else empty.
func (k *Key) badSize(n uint64, c *Config, v Version) string {
	switch k.Name {
	case "max_split_size_mb", "max_non_split_rounding_mb":
		if least := v.minSplitMiB(c.LargeSegmentSize); n < uint64(least) {
			if v.sharedParser() {
				return "CachingAllocator option " + k.Name + " too small, must be >= " + itoa(least)
			}
			return "CachingAllocator option " + k.Name + " too small, must be > " + itoa(least-1)
		}
	case "large_segment_size_mb":
		if n <= 10 {
			return "CachingAllocator option large_segment_size_mb must be > 10 MB"
		}
	case "roundup_bypass_threshold_mb":
		if n <= 20 {
			return "CachingAllocator option roundup_bypass_threshold_mb too small, must be > 20"
		}
	case "pinned_num_register_threads":
		if bits.OnesCount64(n) != 1 {
			return "Number of register threads has to be power of 2, got " + itoa(int64(n))
		}
		if n > 128 {
			return "Number of register threads should be less than or equal to 128, got " + itoa(int64(n))
		}
	case "pinned_reserve_segment_size_mb":
		if n == 0 {
			return "Pinned reserve segment size has to be greater than 0"
		}
	}
	return ""
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
