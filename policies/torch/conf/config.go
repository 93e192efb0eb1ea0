// Package conf reads PyTorch's allocator configuration string, the value of
// PYTORCH_CUDA_ALLOC_CONF such as
//
//	max_split_size_mb:128,expandable_segments:True
//
// There are two readers. [Parse] is for people: it is strict where PyTorch is
// silently lenient, says where the mistake is and how to mend it, and knows
// which release takes which key. [ParseLenient] is for recordings: it does what
// PyTorch itself did with the string, so that a replay follows the program
// that ran, however sloppy its string was. Both give a [Config], the resolved
// values in bytes.
//
// The rules are those of spec pytorch-allocator, section A6.
package conf

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

const mib = 1 << 20

// Unlimited is the MaxSplitSize that splits blocks of any size.
const Unlimited = math.MaxInt64

// Backend is the allocator behind torch.cuda.
type Backend string

// The backends.
const (
	Native          Backend = "native"
	CudaMallocAsync Backend = "cudaMallocAsync"
)

// Intervals is the number of size intervals in a rounding table.
const Intervals = 16

// Config holds the value of every option, defaults resolved. Sizes are bytes.
// Configs are comparable with ==.
type Config struct {
	Backend Backend
	// MaxSplitSize: blocks of at least this many bytes are not split and serve
	// only requests of at least this many. Unlimited when not set.
	MaxSplitSize int64
	// MaxNonSplitRounding is the slack, in bytes, that an oversize request may
	// leave unused in an oversize block: it must be strictly less than this.
	MaxNonSplitRounding int64
	// GCThreshold is the share of the memory limit above which cached segments
	// are collected, in (0, 1); 0 is off.
	GCThreshold float64
	// Roundup is the number of steps between powers of two that a request is
	// rounded up to, by interval: entry 0 for requests below 2 MiB, entry k for
	// [2^k, 2^(k+1)) MiB, entry 15 for 32 GiB and more. 0 and 1 mean plain
	// rounding to 512 bytes.
	Roundup [Intervals]int64
	// ExpandableSegments grows one address range per stream page by page
	// instead of calling cudaMalloc for each segment.
	ExpandableSegments bool
	// LargeSegmentSize is the segment taken for requests between 1 and 10 MiB,
	// and the page of large expandable segments.
	LargeSegmentSize int64
	// PerProcessMemoryFraction is the share of the device's memory that the
	// process may take, in [0, 1]; 1 is the default (see
	// Rules.FractionOneLimits). torch.cuda.set_per_process_memory_fraction
	// overrides it.
	PerProcessMemoryFraction float64
	// RoundupBypassThreshold exists in PyTorch 1.13 only: requests above it
	// get plain rounding. 0 is off.
	RoundupBypassThreshold int64

	// The rest changes no device memory that can be replayed.

	// ReleaseLockOnCudaMalloc lets other threads in while cudaMalloc runs.
	ReleaseLockOnCudaMalloc bool
	// GraphCaptureRecordStreamReuse reuses, within a CUDA graph capture,
	// blocks that other streams have provably finished with.
	GraphCaptureRecordStreamReuse bool
	// PinnedUseCudaHostRegister, PinnedNumRegisterThreads,
	// PinnedUseBackgroundThreads and PinnedReserveSegmentSize (bytes) belong
	// to the allocator of pinned host memory.
	PinnedUseCudaHostRegister  bool
	PinnedNumRegisterThreads   int64
	PinnedUseBackgroundThreads bool
	PinnedReserveSegmentSize   int64
}

// Default is what an empty string means to release v.
func Default(v Version) Config {
	return Config{
		Backend:                  Native,
		MaxSplitSize:             Unlimited,
		MaxNonSplitRounding:      20 * mib,
		LargeSegmentSize:         20 * mib,
		PerProcessMemoryFraction: 1,
		PinnedNumRegisterThreads: 1,
	}
}

// RoundupInterval is the index in Config.Roundup that a request of size bytes
// (> 0) falls into.
func RoundupInterval(size int64) int {
	return max(0, min(bits.Len64(uint64(size))-21, Intervals-1))
}

// String is the normal form for the latest release: see Format.
func (c Config) String() string { return c.Format(Latest) }

// Format writes c as the shortest string that release v reads as c: keys in a
// fixed order, options at their default left out, the empty string for
// Default(v). A key that v does not know is written all the same.
func (c Config) Format(v Version) string {
	v = v.orLatest()
	d := Default(v)
	var b strings.Builder
	put := func(key, value string) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(key)
		b.WriteByte(':')
		b.WriteString(value)
	}
	size := func(key string, value, unset int64) {
		if value != unset {
			put(key, strconv.FormatInt(value/mib, 10))
		}
	}
	boolean := func(key string, value bool) {
		if value {
			put(key, "True")
		}
	}
	if c.Backend != d.Backend {
		put("backend", string(c.Backend))
	}
	boolean("expandable_segments", c.ExpandableSegments)
	size("large_segment_size_mb", c.LargeSegmentSize, d.LargeSegmentSize)
	size("max_split_size_mb", c.MaxSplitSize, d.MaxSplitSize)
	size("max_non_split_rounding_mb", c.MaxNonSplitRounding, c.LargeSegmentSize)
	if c.GCThreshold != 0 {
		put("garbage_collection_threshold", formatFloat(c.GCThreshold))
	}
	if c.Roundup != d.Roundup {
		put("roundup_power2_divisions", formatRoundup(c.Roundup, v))
	}
	size("roundup_bypass_threshold_mb", c.RoundupBypassThreshold, 0)
	if c.PerProcessMemoryFraction != d.PerProcessMemoryFraction {
		put("per_process_memory_fraction", formatFloat(c.PerProcessMemoryFraction))
	}
	boolean("release_lock_on_cudamalloc", c.ReleaseLockOnCudaMalloc)
	boolean("graph_capture_record_stream_reuse", c.GraphCaptureRecordStreamReuse)
	boolean("pinned_use_cuda_host_register", c.PinnedUseCudaHostRegister)
	if c.PinnedNumRegisterThreads != d.PinnedNumRegisterThreads {
		put("pinned_num_register_threads", strconv.FormatInt(c.PinnedNumRegisterThreads, 10))
	}
	boolean("pinned_use_background_threads", c.PinnedUseBackgroundThreads)
	size("pinned_reserve_segment_size_mb", c.PinnedReserveSegmentSize, 0)
	return b.String()
}

// formatFloat is the shortest decimal that reads back as x.
func formatFloat(x float64) string {
	f, g := strconv.FormatFloat(x, 'f', -1, 64), strconv.FormatFloat(x, 'e', -1, 64)
	if len(g) < len(f) {
		return g
	}
	return f
}

// formatRoundup is the shortest scalar or list that release v reads as table.
func formatRoundup(table [Intervals]int64, v Version) string {
	run := 1 // length of the leading run of equal entries
	for run < Intervals && table[run] == table[0] {
		run++
	}
	if run == Intervals && table[0] != 0 {
		return strconv.FormatInt(table[0], 10)
	}
	last := table[Intervals-1]
	tail := Intervals // start of the trailing run
	for tail > 0 && table[tail-1] == last {
		tail--
	}
	best := roundupList(table, run, Intervals, v)
	if last == 0 {
		return best
	}
	// ">" may start anywhere in the trailing run. The newer rule fills from
	// behind the last listed interval, the older one from that interval on.
	for from := max(tail, 1); from < Intervals; from++ {
		if s := roundupList(table, run, from, v); len(s) < len(best) {
			best = s
		}
	}
	return best
}

// roundupList lists the entries below from one by one and the rest, if any,
// with ">".
func roundupList(table [Intervals]int64, run, from int, v Version) string {
	listed := from // entries below this index are written out
	anchor := from - 1
	if from < Intervals && !v.fillsAfterLast() {
		listed, anchor = from+1, from
	}
	var explicit [Intervals]bool
	for i := run; i < listed; i++ {
		explicit[i] = table[i] != 0
	}
	if from < Intervals {
		explicit[anchor] = true
	}
	// The first entry of a list also fills the intervals below it.
	if table[0] != 0 {
		explicit[min(run, listed)-1] = true
	} else if !(from < Intervals && anchor < run) {
		explicit[0] = true
	}
	if from == 1 && table[0] == 0 && v.fillsAfterLast() {
		explicit[0] = false // a lone ">" leaves interval 0 as it is
	}
	var b strings.Builder
	b.WriteByte('[')
	put := func(interval string, d int64) {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(interval)
		b.WriteByte(':')
		b.WriteString(strconv.FormatInt(d, 10))
	}
	for i, ok := range explicit {
		if ok {
			put(strconv.Itoa(1<<i), table[i])
		}
	}
	if from < Intervals {
		put(">", table[Intervals-1])
	}
	b.WriteByte(']')
	return b.String()
}
