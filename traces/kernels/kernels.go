// Package kernels knows what PyTorch's CUDA operations take from the caching
// allocator besides their results: staging buffers of split reductions, the
// arrays of sorts and scans, the workspaces of cuBLAS, cuBLASLt and cuDNN, the
// auxiliary results of attention, copies that a kernel makes of an operand
// whose layout it cannot read.
//
// Everything here is a pure function of an operation, the shapes, strides and
// element types of its tensors, and the [Device]. Nothing is allocated: a rule
// answers with bytes, or with a [Plan], the order in which an operation asks
// for its results and its scratch buffers and gives the scratch buffers back.
// Synthetic workloads (traces/synth) and dry runs (traces/dryrun) carry the
// plans out.
//
// Each rule names its source. Unless it says otherwise, the source is PyTorch
// 2.11 (folder aten/src/ATen unless a path says more), CUDA 13.0 and cuDNN 9,
// and the rule was compared with runs on an H200. Libraries whose choice of
// kernels is not public (cuDNN) are fitted to such runs; their rules say so and
// how far off they were.
package kernels

// Device is what the rules need to know about a GPU.
type Device struct {
	// SMs is the number of multiprocessors; it decides how reductions split.
	SMs int64
	// GEMMWorkspace is cuBLAS's workspace in bytes, one per thread and stream:
	// 33,554,432 from Hopper on, 8,519,680 before (cuda/CublasHandlePool.cpp,
	// parseChosenWorkspaceSize).
	GEMMWorkspace int64
	// LtWorkspace is cuBLASLt's workspace in bytes, one per thread and stream
	// (cuda/CublasHandlePool.cpp, _parseChosenWorkspaceSize).
	LtWorkspace int64
	// CuDNNAttention says that attention prefers cuDNN for 16-bit inputs
	// (Hopper and newer); flash attention otherwise
	// (native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention).
	CuDNNAttention bool
}

// H200 is the device of the runs that the rules were compared with.
var H200 = DeviceOf(9, 132)

// DeviceOf is the device with a compute capability of major and a number of
// multiprocessors.
func DeviceOf(major int, sms int64) Device {
	d := Device{SMs: sms, GEMMWorkspace: 8519680, LtWorkspace: 1 << 20}
	if major >= 9 {
		d.GEMMWorkspace = 32 << 20
		d.CuDNNAttention = true
	}
	return d
}

// Action is one step of a [Plan].
type Action uint8

// The actions of a plan.
const (
	// Result asks for the memory of result N of the operation.
	Result Action = iota + 1
	// Scratch asks for scratch buffer N of Bytes bytes.
	Scratch
	// Drop gives scratch buffer N back.
	Drop
	// Library asks for library workspace N of Bytes bytes, unless the calling
	// thread has it on the current stream already. It is never given back.
	Library
)

// The workspaces that libraries keep for each thread and stream.
const (
	GEMM = iota // cuBLAS
	Lt          // cuBLASLt
)

// Step is one request of an operation.
type Step struct {
	Do    Action
	N     int   // number of the result, buffer or workspace, from 0
	Bytes int64 // of a scratch buffer or workspace; of a result whose storage is larger than its elements
}

// Plan is what one operation asks of the allocator, in order. Every scratch
// buffer is dropped within the plan.
type Plan struct {
	Steps   []Step
	scratch int
}

// Result appends the request for result n.
func (p *Plan) Result(n int) { p.Steps = append(p.Steps, Step{Do: Result, N: n}) }

// ResultOf is Result with a storage of more bytes than the elements need.
func (p *Plan) ResultOf(n int, bytes int64) {
	p.Steps = append(p.Steps, Step{Do: Result, N: n, Bytes: bytes})
}

// Results appends the requests for results 0 to n-1.
func (p *Plan) Results(n int) {
	for i := range n {
		p.Result(i)
	}
}

// Scratch appends the request for a scratch buffer and returns its number; -1
// for one without bytes, which asks for nothing.
func (p *Plan) Scratch(bytes int64) int {
	if bytes <= 0 {
		return -1
	}
	n := p.scratch
	p.scratch++
	p.Steps = append(p.Steps, Step{Do: Scratch, N: n, Bytes: bytes})
	return n
}

// Drop appends the return of scratch buffers, in order; -1 is skipped.
func (p *Plan) Drop(ns ...int) {
	for _, n := range ns {
		if n >= 0 {
			p.Steps = append(p.Steps, Step{Do: Drop, N: n})
		}
	}
}

// Library appends the request for a library's workspace.
func (p *Plan) Library(n int, bytes int64) {
	p.Steps = append(p.Steps, Step{Do: Library, N: n, Bytes: bytes})
}

// Transient appends a scratch buffer that is given back at once.
func (p *Plan) Transient(bytes int64) { p.Drop(p.Scratch(bytes)) }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func roundUp(n, to int64) int64 { return ceilDiv(n, to) * to }
