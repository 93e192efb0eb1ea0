package diagnose

import (
	"regexp"
	"strings"
)

// A wording is a way in which a program says that memory ran out.
type wording struct {
	// phrase begins the message, in lower case with single blanks.
	phrase string
	// framework and cause are what the phrase proves.
	framework Framework
	cause     Cause
	// check must match what follows the phrase's start; nil if the phrase
	// alone is enough.
	check *regexp.Regexp
	// read fills in the numbers; nil if there are none.
	read func(*reader, *Message)
	// weak marks words that people also write about errors: such a message
	// counts only where there is no better one.
	weak bool
}

// Wordings that need a second look.
var (
	isTried     = regexp.MustCompile(`(?i)^tried to allocate (?:[0-9]|more than 1EB)`)
	isNVML      = regexp.MustCompile(`(?i)^nvml_success == .{0,120}internal assert failed at .{0,120}cuda`)
	isAsync     = regexp.MustCompile(`(?i)^allocation on device \d+ would exceed`)
	isMemory    = regexp.MustCompile(`(?i)memory|alloc|OOM`)
	isStartup   = regexp.MustCompile(`(?i)^free memory on device.{0,60} on startup is less`)
	isRequests  = regexp.MustCompile(`(?i)^(?:not enough memory to handle \d+ (?:prefill )?tokens|not enough memory to handle .{0,60}prefill)`)
	isBuffer    = regexp.MustCompile(`(?i)^failed to allocate (?:CUDA|ROCm|HIP|Vulkan|Metal|SYCL|CANN|MUSA|OpenCL|Kompute|CPU|compute)\w* (?:pinned )?buffers?`)
	isFromGPU   = regexp.MustCompile(`(?i)^failed to allocate (?:[0-9.]+ ?[KMGT]?i?B? \([0-9]+ bytes\) from device|[0-9]+ bytes)`)
	isPoolSize  = regexp.MustCompile(`(?i)^allocation failed for size::`)
	isReserve   = regexp.MustCompile(`(?i)^attempting to (?:reserve|allocate) [0-9.]+ ?[KMGT]?i?B?.{0,60} that was not possible`)
	isPaddleOld = regexp.MustCompile(`(?i)^cannot malloc [0-9.]+ ?[KMGT]?i?B? gpu memory`)
	isBytes     = regexp.MustCompile(`(?i)^(?:out of memory (?:allocating|to allocate)|exceeded memory limit \(failed to allocate) [0-9]`)
	isMetalSize = regexp.MustCompile(`(?i)^\[metal::malloc\] (?:attempting to allocate|unable to allocate) [0-9]+ bytes`)
	isInvalid   = regexp.MustCompile(`(?i)^invalid buffer size: [0-9.]+ ?[KMGT]`)
	isArray     = regexp.MustCompile(`(?i)^unable to allocate [0-9.]+ ?[KMGT]?i?B(?:ytes)? for an array`)
	isCreate    = regexp.MustCompile(`(?i)^(?:cublas|hipblas)_status_not_initialized.{0,40}(?:create|handle)`)
	isWorkers   = regexp.MustCompile(`(?i)^dataloader worker \(pid(?:\(s\))? [0-9, ]+\) (?:is killed by signal|exited unexpectedly)`)
	isBudget    = regexp.MustCompile(`(?i)^memory budget\b`)
	isModelRAM  = regexp.MustCompile(`(?i)^model requires more (?:system|gpu) memory`)
	isShm       = regexp.MustCompile(`(?i)^error while creating shared memory segment`)
	isPython    = regexp.MustCompile(`^MemoryError(?::|\s*$)`)
	isShell     = regexp.MustCompile(`^Killed +(?:\S*/)?(?:python|torchrun|accelerate|deepspeed|julia)`)
	isExceeds   = regexp.MustCompile(`(?i)^allocation \(size=\d+\) would exceed memory \(size=\d+\)`)
	isStats     = regexp.MustCompile(`(?i)^stats: ?limit: ?\d+ inuse: ?\d+`)
	isTorchDims = regexp.MustCompile(`(?i)^(?:cuda|hip) driver error: (?:out of memory|operation not supported)`)
)

// wordings lists every wording. Where two begin at the same place the first
// one counts.
var wordings = []wording{
	// PyTorch's caching allocator and its ports (c10/cuda, c10/xpu, torch_npu).
	{phrase: "cuda out of memory", framework: PyTorch, read: (*reader).torch},
	{phrase: "hip out of memory", framework: PyTorchHIP, read: (*reader).torch},
	{phrase: "xpu out of memory", framework: PyTorchXPU, read: (*reader).torch},
	{phrase: "npu out of memory", framework: PyTorchNPU, read: (*reader).torch},
	{phrase: "musa out of memory", framework: PyTorchMUSA, read: (*reader).torch},
	{phrase: "mlu out of memory", framework: PyTorchMLU, read: (*reader).torch},
	{phrase: "tried to allocate", framework: PyTorch, check: isTried, read: (*reader).torch},
	{phrase: "allocation on device", framework: PyTorchAsync, check: isAsync, read: (*reader).async},
	{phrase: "outofmemoryerror: allocation on device", framework: PyTorchAsync, read: (*reader).async},
	{phrase: "mps backend out of memory", framework: PyTorchMPS, read: (*reader).mps},
	{phrase: "invalid buffer size: ", framework: PyTorchMPS, cause: BufferTooLarge, check: isInvalid, read: (*reader).oneSize},
	{phrase: "error: total bytes of ndarray > 2**32", framework: PyTorchMPS, cause: BufferTooLarge},
	{phrase: "kiogpucommandbuffercallbackerroroutofmemory", framework: PyTorchMPS, read: (*reader).metal},
	{phrase: "nvml_success == ", framework: PyTorch, cause: ReportFailed, check: isNVML},
	{phrase: "cuda driver error: out of memory", framework: PyTorch, cause: VMMOutOfMemory, check: isTorchDims},
	{phrase: "hip driver error: out of memory", framework: PyTorchHIP, cause: VMMOutOfMemory, check: isTorchDims},
	{phrase: "cuda driver error: operation not supported", framework: PyTorch, cause: VMMUnsupported, check: isTorchDims},
	{phrase: "hip driver error: operation not supported", framework: PyTorchHIP, cause: VMMUnsupported, check: isTorchDims},

	// Serving engines, with a budget of their own.
	{phrase: "to serve at least one request with the model", framework: VLLM, cause: KVTooSmall, read: (*reader).kvCache},
	{phrase: "kv cache is needed, which is larger than", framework: VLLM, cause: KVTooSmall, read: (*reader).kvCache},
	{phrase: "is larger than the maximum number of tokens that can be stored in kv cache", framework: VLLM, cause: KVTooSmall, read: (*reader).kvTokens},
	{phrase: "no available memory for the cache blocks", framework: VLLM, cause: NoKV},
	{phrase: "free memory on device", framework: VLLM, cause: StartBudget, check: isStartup, read: (*reader).startup},
	{phrase: "error in memory profiling", framework: VLLM, cause: ProfileDisturbed, read: (*reader).profiling},
	{phrase: "not enough memory. please try to increase --mem-fraction-static", framework: SGLang, cause: NoKV, read: (*reader).sglang},
	{phrase: "not enough memory. please try increasing --mem-fraction-static", framework: SGLang, cause: NoKV, read: (*reader).sglang},
	{phrase: "loaded weights leave no gpu memory for the kv cache", framework: SGLang, cause: NoKV, read: (*reader).sglang},
	{phrase: "state cache is too small to serve any requests", framework: SGLang, cause: NoKV},
	{phrase: "decode out of memory. try to lower your batch size", framework: SGLang, cause: KVPoolEmpty, read: (*reader).sglangTokens},
	{phrase: "prefill out of memory. try to lower your batch size", framework: SGLang, cause: KVPoolEmpty, read: (*reader).sglangTokens},
	{phrase: "the memory capacity is unbalanced", framework: SGLang, cause: StartBudget},
	{phrase: "not enough memory to handle", framework: TGI, cause: Warmup, check: isRequests, read: (*reader).tgi},
	{phrase: "model requires more", framework: Ollama, cause: KernelKilled, check: isModelRAM, read: (*reader).ollama},

	// ggml. "allocating … on device" stands before the phrase.
	{phrase: "cudamalloc failed: out of memory", framework: LlamaCPP, read: (*reader).ggml},
	{phrase: "hipmalloc failed: out of memory", framework: LlamaCPP, read: (*reader).ggml},
	{phrase: "failed to allocate ", framework: LlamaCPP, check: isBuffer, read: (*reader).ggml},
	{phrase: "failed to allocate buffer for kv cache", framework: LlamaCPP},
	{phrase: "device memory allocation of size", framework: Vulkan, read: (*reader).ggml},

	// Libraries that allocate beside an allocator.
	{phrase: "cublas_status_alloc_failed", framework: CuBLAS},
	{phrase: "hipblas_status_alloc_failed", framework: CuBLAS},
	{phrase: "rocblas_status_memory_error", framework: CuBLAS},
	{phrase: "cusolver_status_alloc_failed", framework: CuBLAS},
	{phrase: "cusparse_status_alloc_failed", framework: CuBLAS},
	{phrase: "cusparse_status_insufficient_resources", framework: CuBLAS},
	{phrase: "cufft_alloc_failed", framework: CuBLAS},
	{phrase: "curand_status_allocation_failed", framework: CuBLAS},
	{phrase: "cublas_status_not_initialized", framework: CuBLAS, cause: NotInitialized, check: isCreate},
	{phrase: "hipblas_status_not_initialized", framework: CuBLAS, cause: NotInitialized, check: isCreate},
	{phrase: "cudnn_status_alloc_failed", framework: CuDNN},
	{phrase: "cudnn_status_internal_error_device_allocation_failed", framework: CuDNN},
	{phrase: "miopenstatusallocfailed", framework: CuDNN},
	{phrase: "cudnn_status_not_initialized", framework: CuDNN, cause: NotInitialized},
	{phrase: "could not create cudnn handle", framework: CuDNN, cause: NotInitialized},
	{phrase: "unable to find a valid cudnn algorithm", framework: CuDNN, cause: NotInitialized},
	{phrase: "unable to find an engine to execute this computation", framework: CuDNN, cause: NotInitialized},
	{phrase: "cuda failure 2 'out of memory'", framework: NCCL},
	{phrase: "cuda failure 'out of memory'", framework: NCCL},
	{phrase: "hip failure 2 'out of memory'", framework: NCCL},
	{phrase: "hip failure 'out of memory'", framework: NCCL},
	{phrase: "failed to cuda calloc", framework: NCCL, read: (*reader).oneSize},
	{phrase: "failed to cuda malloc", framework: NCCL, read: (*reader).oneSize},
	{phrase: "failed to cuda host alloc", framework: NCCL, read: (*reader).oneSize},
	{phrase: "error while creating shared memory segment", framework: NCCL, cause: SharedMemory, check: isShm, read: (*reader).shm},

	// Other frameworks on a GPU.
	{phrase: "out of memory error on ", framework: Paddle, read: (*reader).paddle},
	{phrase: "cannot malloc ", framework: Paddle, check: isPaddleOld, read: (*reader).paddle},
	{phrase: "stats: limit:", framework: JAX, cause: StatsOnly, check: isStats, read: (*reader).bfc},
	{phrase: "ran out of memory in memory space", framework: JAX, cause: CompileTime, read: (*reader).tpu},
	{phrase: "tpu tensorcore hbm usage", framework: JAX, cause: CompileTime, read: (*reader).tpu},
	{phrase: "attempting to reserve", framework: JAX, check: isReserve, read: (*reader).tpu},
	{phrase: "attempting to allocate", framework: JAX, check: isReserve, read: (*reader).tpu},
	{phrase: "allocation (size=", framework: JAX, cause: CompileTime, check: isExceeds, read: (*reader).tpu},
	{phrase: "resource_exhausted", framework: JAX, check: isMemory, read: (*reader).bfc},
	{phrase: "resource exhausted", framework: JAX, check: isMemory, read: (*reader).bfc},
	{phrase: "resourceexhaustederror", framework: TensorFlow, check: isMemory, read: (*reader).bfc},
	{phrase: "oom when allocating tensor", framework: TensorFlow, read: (*reader).bfc},
	{phrase: "failed to allocate memory [op:", framework: TensorFlow},
	{phrase: "dst tensor is not initialized", framework: TensorFlow},
	{phrase: "unable to allocate output tensor", framework: TensorFlow},
	{phrase: "allocator (", framework: JAX, check: regexp.MustCompile(`(?i)^allocator \([\w/:]+\) ran out of memory trying to allocate`), read: (*reader).bfc},
	{phrase: "ran out of memory trying to allocate", framework: JAX, read: (*reader).bfc},
	{phrase: "out of memory while trying to allocate", framework: JAX, read: (*reader).bfc},
	{phrase: "failed to allocate request for", framework: JAX, read: (*reader).bfc},
	{phrase: "cumemallocasync failed to allocate", framework: JAX, read: (*reader).driver},
	{phrase: "out of memory allocating", framework: CuPy, check: isBytes, read: (*reader).cupy},
	{phrase: "out of memory to allocate", framework: CuPy, check: isBytes, read: (*reader).cupy},
	{phrase: "maximum pool size exceeded", framework: RMM, cause: PoolFull, read: (*reader).rmm},
	{phrase: "exceeded memory limit (failed to allocate", framework: RMM, cause: PoolFull, check: isBytes, read: (*reader).rmm},
	{phrase: "rmm_error_out_of_memory", framework: RMM},
	{phrase: "std::bad_alloc: ", framework: RMM, read: (*reader).rmm},
	{phrase: "out of gpu memory trying to allocate", framework: Julia, read: (*reader).julia},
	{phrase: "memory allocation error on worker", framework: XGBoost, read: (*reader).xgboost},
	{phrase: "failed to allocate memory for requested buffer of size", framework: ONNX, read: (*reader).oneSize},
	{phrase: "is smaller than requested bytes of", framework: ONNX, read: (*reader).oneSize},
	{phrase: "error code 2: outofmemory", framework: TensorRT, read: (*reader).oneSize},
	{phrase: "requested amount of gpu memory (", framework: TensorRT, read: (*reader).oneSize},
	{phrase: "[metal::malloc]", framework: MLX, cause: BufferTooLarge, check: isMetalSize, read: (*reader).mlx},
	{phrase: "there is not enough gpu video memory available", framework: DirectML},
	{phrase: "out of resource: shared memory", framework: Triton, cause: SharedBlock},
	{phrase: "allocation failed for size::", framework: LevelZero, check: isPoolSize, read: (*reader).oneSize},

	// The drivers.
	{phrase: "cuda error: out of memory", framework: CUDA, read: (*reader).driver},
	{phrase: "cuda error: cudaerrormemoryallocation", framework: CUDA, read: (*reader).driver},
	{phrase: "cuda runtime error (2)", framework: CUDA},
	{phrase: "cuda_error_out_of_memory", framework: CUDA, read: (*reader).driver},
	{phrase: "cudaerrormemoryallocation", framework: CUDA, read: (*reader).driver},
	{phrase: "failed to allocate ", framework: CUDA, check: isFromGPU, read: (*reader).driver},
	{phrase: "error=2 : out of memory", framework: CUDA},
	{phrase: "(2 vs. 0) out of memory", framework: CUDA},
	{phrase: "cudamalloc retry failed: out of memory", framework: CUDA},
	{phrase: "cudamalloc error out of memory", framework: CUDA, read: (*reader).driver},
	{phrase: "out of memory at line", framework: CUDA},
	{phrase: "hip error: out of memory", framework: HIP},
	{phrase: "hiperroroutofmemory", framework: HIP},
	{phrase: "hsa_status_error_out_of_resources", framework: HIP},
	{phrase: "ur_result_error_out_of_device_memory", framework: LevelZero},
	{phrase: "ur_result_error_out_of_resources", framework: LevelZero},
	{phrase: "ze_result_error_out_of_device_memory", framework: LevelZero},
	{phrase: "pi_error_out_of_resources", framework: LevelZero},
	{phrase: "erroroutofdevicememory", framework: Vulkan},
	{phrase: "vk_error_out_of_device_memory", framework: Vulkan},
	{phrase: "cl_mem_object_allocation_failure", framework: OpenCL},
	{phrase: "cl_out_of_resources", framework: OpenCL},

	// The computer's own memory.
	{phrase: "dataloader worker (pid", framework: DataLoader, cause: WorkerKilled, check: isWorkers, read: (*reader).worker},
	{phrase: "you tried to allocate", framework: Host, read: (*reader).oneSize},
	{phrase: "defaultcpuallocator: not enough memory", framework: Host, read: (*reader).oneSize},
	{phrase: "defaultcpuallocator: can't allocate memory", framework: Host, read: (*reader).oneSize},
	{phrase: "unable to allocate ", framework: Host, check: isArray, read: (*reader).oneSize},
	{phrase: "memory cgroup out of memory", framework: Host, cause: KernelKilled, read: (*reader).killed},
	{phrase: "out of memory: kill", framework: Host, cause: KernelKilled, read: (*reader).killed},
	{phrase: "invoked oom-killer", framework: Host, cause: KernelKilled},
	{phrase: "oom-kill:constraint", framework: Host, cause: KernelKilled},
	{phrase: "oom-kill event", framework: Host, cause: KernelKilled},
	{phrase: "oom_kill event", framework: Host, cause: KernelKilled},
	{phrase: "oomkilled", framework: Host, cause: KernelKilled},
	{phrase: "task was killed due to the node running low on memory", framework: Host, cause: KernelKilled},
	{phrase: "killed due to memory pressure", framework: Host, cause: KernelKilled},
	{phrase: "memory budget", framework: Host, cause: KernelKilled, check: isBudget, weak: true},
	{phrase: "unable to mmap", framework: Host, check: isMemory},
	{phrase: "cannot allocate memory", framework: Host},
	{phrase: "the paging file is too small", framework: Host},
	{phrase: "out of shared memory", framework: Host, cause: SharedMemory},
	{phrase: "insufficient shared memory (shm)", framework: Host, cause: SharedMemory},
	{phrase: "java.lang.outofmemoryerror", framework: Host},
	{phrase: "what(): std::bad_alloc", framework: Host},
	{phrase: "memoryerror", framework: Host, check: isPython, weak: true},
	{phrase: "sigkill", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exitcode: -9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exit code: -9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "return code = -9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exit code 137", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exit code: 137", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exit status 137", framework: Host, cause: KernelKilled, weak: true},

	{phrase: "exitcode -9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "exit code -9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "returncode=-9", framework: Host, cause: KernelKilled, weak: true},
	{phrase: "killed ", framework: Host, cause: KernelKilled, check: isShell, weak: true},
	{phrase: "oomkilling", framework: Host, cause: KernelKilled},
	{phrase: "exceeded job memory limit", framework: Host, cause: KernelKilled},
	{phrase: "exceeded step memory limit", framework: Host, cause: KernelKilled},
	{phrase: "term_memlimit", framework: Host, cause: KernelKilled},
	{phrase: "unable to open shared memory object", framework: Host, cause: SharedMemory},
	{phrase: "unable to write to file </torch_", framework: Host, cause: SharedMemory},

	// Any other words for it.
	{phrase: "out of memory", framework: CUDA, read: (*reader).any, weak: true},
	{phrase: "insufficient memory", framework: CUDA, read: (*reader).any, weak: true},
	{phrase: "not enough memory", framework: CUDA, read: (*reader).any, weak: true},
	{phrase: "not enough gpu memory", framework: CUDA, read: (*reader).any, weak: true},
	{phrase: "no executable batch size found", framework: CUDA, read: (*reader).any, weak: true},
}

// A reader takes the numbers of one message out of a flattened text.
type reader struct {
	before, s string
	used      int // how much of s belongs to the message
}

// match returns the groups of re's first match, or nil.
func (r *reader) match(re *regexp.Regexp) []string {
	loc := re.FindStringSubmatchIndex(r.s)
	if loc == nil {
		return nil
	}
	r.used = max(r.used, loc[1])
	groups := make([]string, len(loc)/2)
	for i := range groups {
		if loc[2*i] >= 0 {
			groups[i] = r.s[loc[2*i]:loc[2*i+1]]
		}
	}
	return groups
}

// quantity is the first pair of groups (number, unit) that took part.
func (r *reader) quantity(re *regexp.Regexp) Quantity { return firstSize(r.match(re)) }

func firstSize(g []string) Quantity {
	for i := 1; i+1 < len(g); i += 2 {
		if g[i] != "" {
			return parseSize(g[i], g[i+1])
		}
	}
	return Quantity{}
}

// number is the first group of digits.
func (r *reader) number(re *regexp.Regexp) Quantity {
	g := r.match(re)
	for i := 1; i < len(g); i++ {
		if g[i] != "" && g[i][0] >= '0' && g[i][0] <= '9' {
			return whole(g[i])
		}
	}
	return Quantity{}
}

// has reports whether the message's text contains one of subs, in any case.
func (r *reader) has(subs ...string) bool {
	low := strings.ToLower(r.s)
	for _, sub := range subs {
		if strings.Contains(low, sub) {
			return true
		}
	}
	return false
}

// near is has for the words before the message and its beginning.
func (r *reader) near(subs ...string) bool {
	low := strings.ToLower(r.before + r.s[:min(len(r.s), 400)])
	for _, sub := range subs {
		if strings.Contains(low, sub) {
			return true
		}
	}
	return false
}

var reAnySize = regexp.MustCompile(`(?i)` + size)

// oneSize reads the first size as the request.
func (r *reader) oneSize(m *Message) {
	if loc := reAnySize.FindStringIndex(r.s); loc != nil && loc[0] < 120 {
		m.Requested = r.quantity(reAnySize)
	} else if q := r.number(reBare); q.Known {
		m.Requested = q
	}
}

var reBare = regexp.MustCompile(`^[^0-9]{0,80}([0-9]{4,})`)
