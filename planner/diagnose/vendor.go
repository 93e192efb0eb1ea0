package diagnose

// A vendor is what a kind of device calls things.
type vendor struct {
	api     string // whose context a process has
	tool    string // shows who is on the device; "" where there is none
	visible string // chooses devices; "" where there is none
	conf    string // configures PyTorch's allocator; "" where there is none
	// record is the command that records a job with this device; "" where
	// there is none.
	record string
	// snapshot names the calls that record where record is empty and there are
	// such calls.
	snapshot string
	empty    string // the call that returns what is cached
	// limits are what may limit a process without PyTorch\'s knowledge.
	limits string
}

const recorder = "allocsim record > allocsim_record.py && python allocsim_record.py -o NAME YOUR_SCRIPT.py; "

var vendors = map[Framework]vendor{
	PyTorch:     {api: "CUDA", tool: "nvidia-smi", visible: "CUDA_VISIBLE_DEVICES", conf: "PYTORCH_CUDA_ALLOC_CONF", record: recorder, empty: "torch.cuda.empty_cache()", limits: "a MIG slice or vGPU profile, CUDA MPS, a container's hook"},
	PyTorchHIP:  {api: "HIP", tool: "rocm-smi --showpids", visible: "HIP_VISIBLE_DEVICES", conf: "PYTORCH_HIP_ALLOC_CONF", record: recorder, empty: "torch.cuda.empty_cache()"},
	PyTorchXPU:  {api: "Level Zero", tool: "xpu-smi ps", visible: "ZE_AFFINITY_MASK", conf: "PYTORCH_ALLOC_CONF", empty: "torch.xpu.empty_cache()", limits: "a container's hook, or for one buffer above 4 GiB Level Zero's own (UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 lifts it)"},
	PyTorchNPU:  {api: "CANN", tool: "npu-smi info", visible: "ASCEND_RT_VISIBLE_DEVICES", conf: "PYTORCH_NPU_ALLOC_CONF", snapshot: "torch_npu.npu.memory._record_memory_history() and _dump_snapshot(\"NAME.pickle\")", empty: "torch_npu.npu.empty_cache()", limits: "a virtual NPU (vNPU) template, a container's hook"},
	PyTorchMUSA: {api: "MUSA", tool: "mthreads-gmi", visible: "MUSA_VISIBLE_DEVICES", conf: "PYTORCH_MUSA_ALLOC_CONF", empty: "torch.musa.empty_cache()"},
	PyTorchMLU:  {api: "CNRT", tool: "cnmon", visible: "MLU_VISIBLE_DEVICES", conf: "PYTORCH_MLU_ALLOC_CONF", empty: "torch.mlu.empty_cache()"},
	PyTorchMPS:  {api: "Metal", empty: "torch.mps.empty_cache()"},
	MLX:         {api: "Metal", empty: "mlx.core.clear_cache()"},
	HIP:         {api: "HIP", tool: "rocm-smi --showpids", visible: "HIP_VISIBLE_DEVICES"},
	LevelZero:   {api: "Level Zero", tool: "xpu-smi ps", visible: "ZE_AFFINITY_MASK"},
	Host:        {tool: "free -h"},
	DataLoader:  {tool: "free -h"},
	Unknown:     {tool: "free -h"},
	DirectML:    {},
	Vulkan:      {},
	OpenCL:      {},
}

// vendorOf is the kind of device that m is about. What no table names runs on
// NVIDIA's.
func vendorOf(m Message) vendor {
	v, ok := vendors[m.Framework]
	if !ok {
		v = vendors[PyTorch]
	}
	if v.limits == "" {
		v.limits = "a partition of the device, a container's hook"
	}
	// The message names the variable that its release reads.
	if m.Variable != "" && v.conf != "" {
		v.conf = m.Variable
	}
	return v
}
