package diagnose

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	reKV       = regexp.MustCompile(`max(?:imum)? seq(?:uence)? len(?:gth)? \(?([0-9,]+)\)?`)
	reKVNeeded = regexp.MustCompile(`\(?` + size + ` KV cache is needed`)
	reKVThere  = regexp.MustCompile(`available KV cache memory \(` + size + `\)`)
	reKVFits   = regexp.MustCompile(`estimated maximum model length is ([0-9,]+)`)
	reKVStored = regexp.MustCompile(`stored in KV cache \(([0-9,]+)\)`)
	reStartup  = regexp.MustCompile(`Free memory on device ?(?:cuda:|xpu:|npu:)?([0-9]*) ?\(([0-9.]+)/([0-9.]+) GiB\) on startup is less than desired GPU memory utilization \(([0-9.]+), ([0-9.]+) GiB\)`)
	reProfile  = regexp.MustCompile(`Initial free memory ([0-9.]+)( GiB)?, current free memory ([0-9.]+)( GiB)?`)
	reFraction = regexp.MustCompile(`mem[-_]fraction[-_]static ?= ?([0-9.]*[0-9])`)
	reAbove    = regexp.MustCompile(`Raise --mem-fraction-static above ([0-9.]*[0-9])`)
	reTokens   = regexp.MustCompile(`Try to allocate ([0-9]+) tokens`)
	reKVLeft   = regexp.MustCompile(`(?:[Aa]vailable[ _]tokens|available_size|token_to_kv_pool_allocator\.available_size\(\)) ?[=:] ?([0-9]+)`)
	rePrefill  = regexp.MustCompile(`handle ([0-9]+) `)
	reModelRAM = regexp.MustCompile(`requires more (?:system|GPU) memory \(` + size + `\) than is available \(` + size + `\)`)

	reGGML      = regexp.MustCompile(`allocating ([0-9.]+) (MiB) on device ([0-9]+)`)
	reGGMLBytes = regexp.MustCompile(`(?:buffer of size|allocation of size) ([0-9]+)`)
	reGGMLGPU   = regexp.MustCompile(`allocate [A-Za-z]+?([0-9]+) `)

	rePaddle      = regexp.MustCompile(`Cannot (?:allocate|malloc) ` + size + `(?: GPU)? memory`)
	rePaddleHeld  = regexp.MustCompile(size + ` memory has been allocated`)
	rePaddleFree  = regexp.MustCompile(`available memory is only ` + size)
	rePaddleLimit = regexp.MustCompile("FLAGS_gpu_memory_limit_mb`? is ([0-9]+)")

	reExactRequest = regexp.MustCompile(`(?:Failed to allocate request for|failed to allocate) [0-9.]+ ?[KMGT]?i?B? \(([0-9]+) ?(?:bytes|B)\)|rounded to ([0-9]+)\)|cuMemAllocAsync failed to allocate ([0-9]+) bytes|[Ff]ailed to allocate ([0-9]+) bytes|size ([0-9]+) bytes|OOM when allocating ([0-9]+) bytes`)
	reOldXLA       = regexp.MustCompile(`[Oo]ut of memory allocating ([0-9]+) bytes`)
	reLimit        = regexp.MustCompile(`Limit: *([0-9]+)\b`)
	reInUse        = regexp.MustCompile(`\bInUse: *([0-9]+)\b`)
	reRegions      = regexp.MustCompile(`total_region_allocated_bytes_: ?([0-9]+)`)
	reMemoryLimit  = regexp.MustCompile(`memory_limit_: ?([0-9]+)`)
	reLargest      = regexp.MustCompile(`LargestFreeBlock: *([0-9]+)`)
	reFreeTotal    = regexp.MustCompile(`Free memory/Total memory: ?([0-9]+)/([0-9]+)`)
	reShape        = regexp.MustCompile(`(?:with|of) shape ?\[([0-9,]*)\](?: and type ([a-z0-9_]+))?`)
	reTPU          = regexp.MustCompile(`[Uu]sed ([0-9.]+) ?([KMGT]?i?B?) of ([0-9.]+) ?([KMGT]?i?B?) `)
	reTPUUsage     = regexp.MustCompile(`Hbm usage: ([0-9.]+) ?([KMGT]).{0,60}exceeding available bytes: ([0-9.]+) ?([KMGT])`)
	reExceeds      = regexp.MustCompile(`Allocation \(size=([0-9]+)\) would exceed memory \(size=([0-9]+)\)`)
	reReserve      = regexp.MustCompile(`Attempting to (?:reserve|allocate) ([0-9.]+) ?([KMGT])i?B?`)
	reReserveFree  = regexp.MustCompile(`[Tt]here (?:are|is) ([0-9.]+) ?([KMGT])i?B? free`)

	reCuPy      = regexp.MustCompile(`[Oo]ut of memory (?:allocating|to allocate) ([0-9,]+) bytes`)
	reCuPySoFar = regexp.MustCompile(`\((?:allocated so far:|total) ([0-9,]+) bytes`)
	reCuPyLimit = regexp.MustCompile(`limit set to:? ([0-9,]+) bytes`)

	reRMM      = regexp.MustCompile(`failed to allocate ` + size)
	reRMMSizes = regexp.MustCompile(`current/max/try size = ` + size + `, ` + size + `, ` + size)

	reJuliaAsk  = regexp.MustCompile(`trying to allocate ` + size)
	reJuliaUsed = regexp.MustCompile(`Effective GPU memory usage: [0-9.]+ ?% \(` + size + `/` + size + `\)`)
	reJuliaPool = regexp.MustCompile(`Memory pool usage: ` + size + ` \(` + size + ` reserved`)
	reXGBFree   = regexp.MustCompile(`Free memory: ([0-9.]+) ?([KMGT]?i?B?)\b`)
	reXGBAsked  = regexp.MustCompile(`Requested memory: ([0-9.]+) ?([KMGT]?i?B?)\b`)
	reMLX       = regexp.MustCompile(`allocate ([0-9]+) bytes`)
	reMLXMost   = regexp.MustCompile(`maximum allowed buffer size of ([0-9]+)`)
	reKilled    = regexp.MustCompile(`anon-rss: ?([0-9]+) ?kB`)
	reShm       = regexp.MustCompile(`\(size ([0-9]+)`)
)

// scaled reads a number and a unit of which nothing may be left.
func scaled(number, unit string) Quantity {
	if unit == "" {
		unit = "B"
	}
	return parseSize(number, unit)
}

func (r *reader) kvCache(m *Message) {
	m.Tokens = r.number(reKV).Bytes
	m.Requested = r.quantity(reKVNeeded)
	m.Allowed = r.quantity(reKVThere)
	m.FitTokens = r.number(reKVFits).Bytes
}

func (r *reader) kvTokens(m *Message) {
	if i := strings.LastIndex(r.before, "max seq len ("); i >= 0 {
		if g := reKV.FindStringSubmatch(r.before[i:]); g != nil {
			m.Tokens = whole(g[1]).Bytes
		}
	}
	m.FitTokens = r.number(reKVStored).Bytes
}

// startup reads vLLM's check of what is free: budget = utilization × total.
func (r *reader) startup(m *Message) {
	g := r.match(reStartup)
	if g == nil {
		return
	}
	if n, err := strconv.Atoi(g[1]); err == nil {
		m.GPU = n
	}
	m.Free, m.Total, m.Requested = parseSize(g[2], "GiB"), parseSize(g[3], "GiB"), parseSize(g[5], "GiB")
	m.Fraction, _ = strconv.ParseFloat(g[4], 64)
}

func (r *reader) profiling(m *Message) {
	if g := r.match(reProfile); g != nil {
		unit := func(s string) string {
			if s == "" {
				return "B"
			}
			return "GiB"
		}
		// What was free when the measurement began stands as the request: it
		// must not grow.
		m.Requested, m.Free = parseSize(g[1], unit(g[2])), parseSize(g[3], unit(g[4]))
	}
}

func (r *reader) sglang(m *Message) {
	if g := r.match(reAbove); g != nil {
		m.Fraction, _ = strconv.ParseFloat(g[1], 64)
	}
	r.match(reFraction)
}

func (r *reader) sglangTokens(m *Message) {
	m.Tokens = r.number(reTokens).Bytes
	m.FitTokens = r.number(reKVLeft).Bytes
}

func (r *reader) tgi(m *Message) { m.Tokens = r.number(rePrefill).Bytes }

func (r *reader) ollama(m *Message) {
	if g := r.match(reModelRAM); g != nil {
		m.Requested, m.Free = parseSize(g[1], g[2]), parseSize(g[3], g[4])
	}
	if r.has("more gpu memory") {
		m.Cause = Unsaid
	}
}

// ggml reads llama.cpp's messages; the size stands before the reason.
func (r *reader) ggml(m *Message) {
	if all := reGGML.FindAllStringSubmatch(r.before, -1); len(all) > 0 && m.Framework != Vulkan {
		g := all[len(all)-1]
		m.Requested = parseSize(g[1], g[2])
		if n, err := strconv.Atoi(g[3]); err == nil {
			m.GPU = n
		}
	} else if q := r.number(reGGMLBytes); q.Known {
		m.Requested = q
		if n := r.number(reGGMLGPU); n.Known && n.Bytes < 1<<16 {
			m.GPU = int(n.Bytes)
		}
	}
	if strings.HasPrefix(strings.ToLower(r.s), "failed to allocate cpu") {
		m.Framework = Host
	}
	if r.near("llama runner", "ollama") {
		m.Framework = Ollama
	}
	if m.Framework == LlamaCPP && !r.near("ggml", "llama", "alloc_tensor_range", "buffer") {
		m.Framework = CUDA
	}
}

func (r *reader) paddle(m *Message) {
	r.gpu(m)
	m.Requested = r.quantity(rePaddle)
	m.Allocated = r.quantity(rePaddleHeld)
	m.Free = r.quantity(rePaddleFree)
	if q := r.number(rePaddleLimit); q.Known {
		m.Allowed = Exact(q.Bytes << 20)
	}
	if !m.Requested.Known {
		r.any(m)
	}
}

// bfc reads TensorFlow's and XLA's messages.
func (r *reader) bfc(m *Message) {
	start := strings.ToLower(r.s[:min(len(r.s), 160)])
	if strings.Contains(start, "out of memory error on") || strings.Contains(start, "received message larger") || strings.Contains(start, "quota") {
		m.Framework = "" // PaddlePaddle's words follow, or another thing was exhausted
		return
	}
	r.gpu(m)
	r.tried(m)
	if q := r.number(reExactRequest); q.Known {
		m.Requested = q
	}
	if q := r.number(reOldXLA); q.Known {
		m.Requested = q
	}
	if g := r.match(reShape); g != nil && !m.Requested.Known {
		m.Requested = tensorBytes(g[1], g[2])
	}
	if r.has("in memory space", "that was not possible", "hbm usage", "would exceed memory (size=") {
		r.tpu(m)
	}
	m.Reserved = r.number(reRegions)
	m.Allowed = r.number(reMemoryLimit)
	m.LargestFree = r.number(reLargest)
	limit, inUse := r.number(reLimit), r.number(reInUse)
	if limit.Known && limit.Bytes > 0 {
		m.Allowed = limit
	}
	if inUse.Known {
		m.Allocated = inUse
	}
	if g := r.match(reFreeTotal); g != nil {
		m.Free, m.Total = whole(g[1]), whole(g[2])
	}
	if m.LargestFree.Known && m.LargestFree.Bytes == 0 {
		m.LargestFree = Quantity{} // not kept by this allocator
	}
	m.Handled = r.has("the caller indicates that this is not a failure")
	if m.Framework == JAX && m.Cause != StatsOnly && (r.near("tensorflow/core", "op:", "resourceexhaustederror", "by allocator", "tf_gpu_allocator") || r.has("oom when allocating tensor")) && !r.near("jax", "xla", "org_tensorflow") {
		m.Framework = TensorFlow
	}
	m.complete()
}

// tpu reads what XLA says of a TPU's memory at compile time or at run time.
func (r *reader) tpu(m *Message) {
	if g := r.match(reTPU); g != nil {
		m.Requested, m.Total, m.Cause = scaled(g[1], g[2]), scaled(g[3], g[4]), CompileTime
	}
	if g := r.match(reTPUUsage); g != nil {
		m.Requested, m.Total, m.Cause = scaled(g[1], g[2]), scaled(g[3], g[4]), CompileTime
	}
	if g := r.match(reExceeds); g != nil {
		m.Requested, m.Total, m.Cause = whole(g[1]), whole(g[2]), CompileTime
	}
	if g := r.match(reReserve); g != nil {
		m.Requested = scaled(g[1], g[2])
	}
	if g := r.match(reReserveFree); g != nil {
		m.Free = scaled(g[1], g[2])
	}
}

// cupy reads CuPy's message; the old one of JAX has the same words, but no
// commas in its number and no account in parentheses.
func (r *reader) cupy(m *Message) {
	g := r.match(reCuPy)
	if g == nil {
		return
	}
	m.Requested = whole(g[1])
	m.Allocated = r.number(reCuPySoFar)
	m.Allowed = r.number(reCuPyLimit)
	if !m.Allocated.Known && !strings.Contains(g[1], ",") && !r.near("cupy") {
		m.Framework = JAX
	}
}

func (r *reader) rmm(m *Message) {
	low := strings.ToLower(r.s)
	if strings.Contains(low, "maximum pool size exceeded") || strings.Contains(low, "exceeded memory limit") {
		m.Cause = PoolFull
	}
	m.Requested = r.quantity(reRMM)
	if g := r.match(reRMMSizes); g != nil {
		m.Reserved, m.Allowed = parseSize(g[1], g[2]), parseSize(g[3], g[4])
		if !m.Requested.Known {
			m.Requested = parseSize(g[5], g[6])
		}
	}
	if m.Cause != PoolFull && !r.near("rmm", "cudf", "cuml", "cugraph", "out_of_memory", "cuda") {
		m.Framework = Host // C++'s own bad_alloc
		return
	}
	r.used = max(r.used, min(len(r.s), 200))
}

func (r *reader) julia(m *Message) {
	m.Requested = r.quantity(reJuliaAsk)
	if g := r.match(reJuliaUsed); g != nil {
		used, total := parseSize(g[1], g[2]), parseSize(g[3], g[4])
		m.Total, m.Free = total, total.minus(used).atLeast0()
	}
	if g := r.match(reJuliaPool); g != nil {
		m.Allocated, m.Reserved = parseSize(g[1], g[2]), parseSize(g[3], g[4])
		m.complete()
	}
}

func (r *reader) xgboost(m *Message) {
	if g := r.match(reXGBFree); g != nil {
		m.Free = scaled(g[1], g[2])
	}
	if g := r.match(reXGBAsked); g != nil {
		m.Requested = scaled(g[1], g[2])
	}
}

func (r *reader) mlx(m *Message) {
	m.Requested = r.number(reMLX)
	m.Allowed = r.number(reMLXMost)
	if !m.Allowed.Known {
		m.Cause = Unsaid
	}
}

// driver reads what names only the driver's error.
func (r *reader) driver(m *Message) {
	r.gpu(m)
	switch {
	case r.near("cumem_allocator", "cumem.cpp"):
		m.Framework, m.Cause = VLLM, SleepPool
	case r.near("torch_memory_saver"):
		m.Framework, m.Cause = SGLang, SleepPool
	case r.near("ggml"):
		m.Framework = LlamaCPP
	case r.near("rmm", "cudf"):
		m.Framework = RMM
	case r.near("cupy"):
		m.Framework = CuPy
	case r.near("stream_executor", "xla", "jax", "tensorflow"):
		m.Framework = JAX
		if r.near("tensorflow") && !r.near("xla", "jax", "org_tensorflow") {
			m.Framework = TensorFlow
		}
	}
	if q := r.number(reExactRequest); q.Known {
		m.Requested = q
	}
	if g := r.match(reFreeTotal); g != nil {
		m.Free, m.Total = whole(g[1]), whole(g[2])
	}
}

func (r *reader) worker(m *Message) {
	switch {
	case r.has("bus error", "shared memory"):
		m.Cause = SharedMemory
		r.used = max(r.used, min(len(r.s), 200))
	default:
		r.used = max(r.used, min(len(r.s), 80))
	}
}

// killed reads the kernel's line: the resident memory of the process killed.
func (r *reader) killed(m *Message) {
	if q := r.number(reKilled); q.Known {
		m.Allocated = Quantity{Bytes: min(q.Bytes, huge>>10) << 10, Rounding: 512, Known: true}
	}
}

func (r *reader) shm(m *Message) { m.Requested = r.number(reShm) }

// any reads words that no known program says in this way. Which memory it was
// is known only if a device is named near them.
func (r *reader) any(m *Message) {
	switch {
	case r.near("mem-fraction-static", "sglang"):
		m.Framework = SGLang
	case r.near("no executable batch size"):
		m.Framework = PyTorch
	case r.near("hip", "rocm"):
		m.Framework = HIP
	case r.near("cuda", "gpu", "vram", "nvidia"):
		m.Framework = CUDA
	default:
		m.Framework = Unknown
	}
}
