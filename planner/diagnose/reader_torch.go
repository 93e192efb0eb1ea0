package diagnose

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	reTotal       = regexp.MustCompile(size + ` total capacity|total capac(?:i?t|it)y of ` + size)
	reFree        = regexp.MustCompile(`of which ` + size + ` is free|; ?` + size + ` free`)
	reAllocated   = regexp.MustCompile(size + ` already(?: allocated)?|Of the allocated memory ` + size + ` is allocated`)
	reReserved    = regexp.MustCompile(size + ` reserved in total`)
	reCached      = regexp.MustCompile(size + ` cached`)
	reUnallocated = regexp.MustCompile(size + ` is reserved by PyTorch but unallocated`)
	rePrivate     = regexp.MustCompile(`with ` + size + ` allocated in private pools`)
	reAllowed     = regexp.MustCompile(size + ` allowed`)
	reProcess     = regexp.MustCompile(`this process has ` + size + ` memory in use`)
	reOther       = regexp.MustCompile(`Process ([0-9]+) has ` + size + ` memory in use`)
	reGPU         = regexp.MustCompile(`\((?:[GNX]PU|MLU) ([0-9]+)|(?:[GNX]PU|MLU) ([0-9]+) has a total|[Aa]llocation on device ([0-9]+)|device ordinal ([0-9]+)|device:GPU:([0-9]+)|GPU_([0-9]+)_bfc|on (?:GPU|NPU|XPU) ([0-9]+)\b|on device (?:cuda:)?([0-9]+)\b|CUDA([0-9]+) buffer`)
	reTried       = regexp.MustCompile(`(?i)(?:tried|trying) to allocate (?:` + size + `|more than 1EB)`)
	reVariable    = regexp.MustCompile(`PYTORCH(?:_[A-Z]+)?_ALLOC_CONF`)

	reAsyncAllocated = regexp.MustCompile(`Currently allocated ?: ?` + size)
	reAsyncRequested = regexp.MustCompile(`Requested ?: ?` + size)
	reAsyncTotal     = regexp.MustCompile(`Device limit ?: ?` + size)
	reAsyncFree      = regexp.MustCompile(`Free \(according to CUDA\) ?: ?` + size)
	reAsyncAllowed   = regexp.MustCompile(`PyTorch limit \(set by user-supplied memory fraction\) ?: ?` + size)

	reMPS     = regexp.MustCompile(`MPS allocated: ` + size)
	reMPSElse = regexp.MustCompile(`other allocations: ` + size)
	reMPSMax  = regexp.MustCompile(`max allowed: ` + size)
)

// gpu reads the device's index.
func (r *reader) gpu(m *Message) {
	if q := r.number(reGPU); q.Known && q.Bytes < 1<<16 {
		m.GPU = int(q.Bytes)
	}
}

func (r *reader) tried(m *Message) {
	if g := r.match(reTried); g != nil {
		if g[1] != "" {
			m.Requested = parseSize(g[1], g[2])
		} else {
			m.Requested = Exact(huge)
		}
	}
}

// torch reads c10's message of any release and the ports of it.
func (r *reader) torch(m *Message) {
	if r.has("occurred when warming up sampler") {
		m.Framework, m.Cause = VLLM, Warmup
		r.used = max(r.used, 60)
		return
	}
	r.gpu(m)
	r.tried(m)
	if m.Framework == PyTorch {
		// Only "Tried to allocate …" was pasted: the device's word tells.
		switch {
		case r.has("(npu "), r.has("npu 0 has"):
			m.Framework = PyTorchNPU
		case r.has("(mlu "):
			m.Framework = PyTorchMLU
		}
	}
	m.Total = r.quantity(reTotal)
	m.Free = r.quantity(reFree)
	m.Allocated = r.quantity(reAllocated)
	m.Reserved = r.quantity(reReserved)
	m.Unallocated = r.quantity(reUnallocated)
	m.PrivatePools = r.quantity(rePrivate)
	m.Allowed = r.quantity(reAllowed)
	m.Process = plausible(r.quantity(reProcess), m.Total)
	for _, g := range reOther.FindAllStringSubmatch(r.s, 256) {
		if pid, err := strconv.ParseInt(g[1], 10, 64); err == nil {
			m.Others = append(m.Others, Process{pid, plausible(parseSize(g[2], g[3]), m.Total)})
		}
	}
	// Until 1.3 "cached" meant what is held but not allocated.
	if cached := r.quantity(reCached); cached.Known {
		m.Unallocated, m.Before14 = cached, true
	}
	// torch_npu keeps the old wording in every release.
	parentheses := regexp.MustCompile(`\((?:GPU|XPU|MUSA|MLU) \d`).MatchString(r.s)
	m.Before21 = parentheses && (m.Framework == PyTorch || m.Framework == PyTorchHIP)
	if v := r.match(reVariable); v != nil {
		m.Variable = v[0]
	}
	complete := m.Allocated.Known && (m.Reserved.Known || m.Unallocated.Known) && m.Total.Known && (m.Free.Known || m.Framework == PyTorchXPU)
	m.Truncated = !complete && !r.has("more than 1eb") && !r.has("empty_cache")
	m.complete()
}

// plausible drops what NVML prints where it does not know a process's memory:
// the largest number.
func plausible(q, total Quantity) Quantity {
	if q.Bytes >= 1<<50 || total.Known && total.Bytes > 0 && q.Bytes/16 > total.Bytes {
		return Quantity{}
	}
	return q
}

// async reads the message of backend:cudaMallocAsync.
func (r *reader) async(m *Message) {
	r.gpu(m)
	m.Allocated = r.quantity(reAsyncAllocated)
	m.Requested = r.quantity(reAsyncRequested)
	m.Total = r.quantity(reAsyncTotal)
	m.Free = r.quantity(reAsyncFree)
	// The largest number stands for no limit.
	if limit := r.quantity(reAsyncAllowed); limit.Known && limit.Bytes < 1<<50 {
		m.Allowed = limit
	}
	m.Truncated = !m.Total.Known || !m.Allocated.Known || !m.Requested.Known
}

// mps reads the message of PyTorch on Apple's GPUs. "Other allocations" are
// this process's too: MTLDevice.currentAllocatedSize counts one process.
func (r *reader) mps(m *Message) {
	r.tried(m)
	m.Allocated = r.quantity(reMPS)
	if other := r.quantity(reMPSElse); other.Known {
		m.Process = m.Allocated.plus(other)
	}
	m.Allowed = r.quantity(reMPSMax)
	m.Truncated = !m.Allowed.Known
}

func (r *reader) metal(m *Message) {
	switch {
	case r.near("ggml"):
		m.Framework = LlamaCPP
	case r.near("[metal]", "mlx"):
		m.Framework = MLX
	}
}

// complete fills in what follows from the other numbers.
func (m *Message) complete() {
	switch {
	case !m.Reserved.Known:
		m.Reserved = m.Allocated.plus(m.Unallocated)
	case !m.Unallocated.Known:
		m.Unallocated = m.Reserved.minus(m.Allocated)
	case !m.Allocated.Known:
		m.Allocated = m.Reserved.minus(m.Unallocated)
	}
	m.Unallocated = roundedUp(m.Unallocated)
}

// roundedUp takes a small negative difference of rounded numbers for zero.
func roundedUp(q Quantity) Quantity {
	if q.Known && q.Bytes < 0 && q.High() >= 0 {
		q.Bytes = 0
	}
	return q
}

var typeBytes = map[string]int64{
	"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "float64": 8, "int32": 4, "int64": 8,
	"uint8": 1, "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16,
}

// tensorBytes is the size of a tensor from its printed shape and TensorFlow's
// name of its type; unknown without a type.
func tensorBytes(shape, typ string) Quantity {
	n, ok := typeBytes[typ]
	if !ok {
		return Quantity{}
	}
	for _, d := range strings.Split(shape, ",") {
		if d == "" {
			continue
		}
		x, err := strconv.ParseInt(d, 10, 64)
		if err != nil || x < 0 || x != 0 && n > huge/x {
			return Quantity{}
		}
		n *= x
	}
	return Exact(n)
}
