package diagnose

import "errors"

// Framework says whose message it is.
type Framework string

// The frameworks. A library that allocates beside an allocator (cuDNN, NCCL)
// is one of its own, because its failure asks for other steps.
const (
	PyTorch      Framework = "PyTorch"
	PyTorchHIP   Framework = "PyTorch HIP"
	PyTorchXPU   Framework = "PyTorch XPU"
	PyTorchNPU   Framework = "PyTorch NPU"
	PyTorchMUSA  Framework = "PyTorch MUSA"
	PyTorchMLU   Framework = "PyTorch MLU"
	PyTorchAsync Framework = "PyTorch cudaMallocAsync"
	PyTorchMPS   Framework = "PyTorch MPS"
	VLLM         Framework = "vLLM"
	SGLang       Framework = "SGLang"
	TGI          Framework = "TGI"
	LlamaCPP     Framework = "llama.cpp"
	Ollama       Framework = "Ollama"
	Paddle       Framework = "PaddlePaddle"
	JAX          Framework = "JAX/XLA"
	TensorFlow   Framework = "TensorFlow"
	CuPy         Framework = "CuPy"
	RMM          Framework = "RMM"
	Julia        Framework = "CUDA.jl"
	XGBoost      Framework = "XGBoost"
	ONNX         Framework = "ONNX Runtime"
	TensorRT     Framework = "TensorRT"
	MLX          Framework = "MLX"
	DirectML     Framework = "DirectML"
	Triton       Framework = "Triton"
	CuBLAS       Framework = "cuBLAS"
	CuDNN        Framework = "cuDNN"
	NCCL         Framework = "NCCL"
	CUDA         Framework = "CUDA"
	HIP          Framework = "HIP"
	LevelZero    Framework = "Level Zero"
	Vulkan       Framework = "Vulkan"
	OpenCL       Framework = "OpenCL"
	DataLoader   Framework = "PyTorch DataLoader"
	Host         Framework = "host memory"
	// Unknown is for words that no known program uses.
	Unknown Framework = "unknown"
	// Recorded marks numbers from a recording or a simulation.
	Recorded Framework = "recording"
)

// caching reports whether f prints the ledger of PyTorch's caching allocator
// or of a port of it.
func (f Framework) caching() bool {
	switch f {
	case PyTorch, PyTorchHIP, PyTorchXPU, PyTorchNPU, PyTorchMUSA, PyTorchMLU, Recorded:
		return true
	}
	return false
}

// Cause is what a wording says besides its numbers.
type Cause int

// The causes that a wording itself proves.
const (
	// Unsaid: the wording says only that memory ran out.
	Unsaid Cause = iota
	// PoolFull: RMM's pool reached the maximum size that it was given.
	PoolFull
	// ReportFailed: PyTorch ran out of memory and failed while it wrote the
	// message, because NVML gave no answer.
	ReportFailed
	// VMMOutOfMemory: the driver refused physical memory to expandable segments.
	VMMOutOfMemory
	// VMMUnsupported: the driver cannot do what expandable segments need.
	VMMUnsupported
	// SleepPool: vLLM's allocator for sleep mode got no memory.
	SleepPool
	// KVTooSmall: the KV cache does not hold one request of the model's length.
	KVTooSmall
	// NoKV: nothing is left for the KV cache within the budget.
	NoKV
	// StartBudget: less is free at the start than the budget asks for.
	StartBudget
	// ProfileDisturbed: others changed their memory during the profile run.
	ProfileDisturbed
	// Warmup: the warm-up batch did not fit.
	Warmup
	// KVPoolEmpty: requests used up the KV cache while serving.
	KVPoolEmpty
	// GraphCapture: capturing CUDA graphs ran out.
	GraphCapture
	// NotInitialized: a library did not start, which usually is memory.
	NotInitialized
	// BufferTooLarge: one buffer is larger than the API allows.
	BufferTooLarge
	// SharedMemory: /dev/shm is too small.
	SharedMemory
	// WorkerKilled: a data-loader worker was killed.
	WorkerKilled
	// KernelKilled: the kernel, a batch system or an orchestrator killed the
	// process for the memory of the computer.
	KernelKilled
	// SharedBlock: a kernel asks for more on-chip memory than a block may have.
	SharedBlock
	// CompileTime: the compiler knows that the program cannot fit.
	CompileTime
	// StatsOnly: only the allocator's counters are there, not the failure.
	StatsOnly
)

// Process is another process that the message names.
type Process struct {
	PID  int64
	Uses Quantity
}

// Message is what an out-of-memory message says.
type Message struct {
	Framework Framework
	// Cause is what the wording says besides its numbers.
	Cause Cause
	// Offset and Length are the place of the message in the text, in bytes.
	Offset int64
	Length int
	// GPU is the device index, Rank the process's rank; -1 when not said.
	GPU, Rank int
	// Time is the time that the log gives for the message, as written there.
	Time string
	// Handled is set when the text says that the program went on.
	Handled bool
	// Repeats is how often the very same message came again.
	Repeats int

	// Requested is what the allocator asked the driver for. PyTorch prints the
	// segment, not the tensor: 2 MiB for up to 1 MiB, 20 MiB for up to 10 MiB.
	Requested Quantity
	// Total is the device's memory and Free what of it is free.
	Total, Free Quantity
	// Allocated is what tensors hold, Reserved what the allocator holds,
	// Unallocated the difference.
	Allocated, Reserved, Unallocated Quantity
	// PrivatePools is free memory inside private pools such as those of CUDA
	// graphs, which others cannot use. PyTorch counts it as allocated.
	PrivatePools Quantity
	// Allowed is the limit in force, unknown when there is none.
	Allowed Quantity
	// Process is what this process holds on the device in all, Others what
	// other processes hold, or what one of them that is this process under
	// another id holds.
	Process Quantity
	Others  []Process
	// LargestFree is the largest free block; only recordings know it.
	LargestFree Quantity
	// Unlimited is set for a simulated device without bounds.
	Unlimited bool

	// Tokens is the length that a model asks for, FitTokens what would fit,
	// Fraction the share of the card that a serving engine was given; 0 when
	// not said.
	Tokens, FitTokens int64
	Fraction          float64

	// Before21 and Before14 say that the wording is that of PyTorch before 2.1,
	// and before 1.4 respectively.
	Before21, Before14 bool
	// Variable is the environment variable that the message itself names.
	Variable string
	// Truncated is set when the message breaks off before its usual end.
	Truncated bool
	// Around is what the text near the message tells of the program.
	Around Around

	weak bool   // words that people also write about errors
	text string // the message, for telling repeats
	end  int64  // offset of its last repeat
}

// Around is what the lines near a message tell: names of platforms and
// libraries that decide which advice applies.
type Around struct {
	Windows, Jetson       bool
	Graphs, MemPool, Doze bool // CUDA graphs, torch.cuda.MemPool, sleep mode
	VLLM, SGLang          bool
	Distributed           bool // NCCL or several ranks
	Compile               bool // torch.compile
}

// ErrNoMessage is returned for a text without an out-of-memory message.
var ErrNoMessage = errors.New("no out-of-memory message found; paste the line that says \"out of memory\" with its numbers")
