package diagnose

import (
	"cmp"
	"fmt"
	"math"
)

// adviseAsync is for backend:cudaMallocAsync.
func (d *diagnosis) adviseAsync() {
	switch d.r.Verdict {
	case Limit:
		d.adviseLimit()
	case Capacity:
		d.help(batch, 9, "", "take less memory: a smaller batch or sequence, gradient accumulation, activation checkpointing, bf16")
		d.help(card, 8, "", "or take a larger card: allocsim plan says which is the smallest that works")
		d.noUse(emptyCache, "torch.cuda.empty_cache()")
	default:
		if d.Truncated {
			d.help(evidence, 9, "", "paste the whole message, up to \"PyTorch limit\"")
		}
		if d.has(OtherProcess) {
			d.help(otherJobs, 8, "", "look first at who else is on the GPU (nvidia-smi): that is where most of it may be")
		}
		d.help(backend, 7, "", "use the native backend (leave backend:cudaMallocAsync out): its message tells unused from foreign memory, and it can be recorded")
		d.help(evidence, 1, "", "record the job: a recording has the exact numbers")
	}
	d.nextForTorch()
}

// adviseMetal is for Apple's GPUs.
func (d *diagnosis) adviseMetal() {
	look := "python -c 'print(__import__(\"torch\").mps.driver_allocated_memory())'"
	if d.Framework == MLX {
		look = "python -c 'print(__import__(\"mlx.core\").core.metal.device_info())'"
	}
	if d.r.Verdict == OutsideAllocator {
		d.help(shapes, 9, "", "compute the large operation in tiles or chunks (attention slicing, VAE tiling, a shorter sequence): its intermediates are Metal's, not PyTorch's")
	}
	d.help(emptyCache, 8, "that tensors were freed before", "call %s between stages: it gives Metal's cached buffers back", d.vendor.empty)
	d.help(batch, 7, "", "make the batch, the resolution or the sequence smaller, or use half precision")
	if d.Framework == PyTorchMPS {
		d.help(limits, 1, "that a swapping or frozen computer is acceptable", "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit")
	}
	d.noUse(settings, "PYTORCH_CUDA_ALLOC_CONF, which only CUDA builds read")
	d.r.Next = look
}

// adviseHost is for the computer's main memory.
func (d *diagnosis) adviseHost() {
	d.r.Next = "free -h"
	switch d.Cause {
	case SharedMemory:
		d.help(hostMemory, 9, "a container", "give it more shared memory: docker run --shm-size=8g or --ipc=host, in Kubernetes an emptyDir with medium: Memory at /dev/shm")
		d.help(hostMemory, 8, "data-loader workers", "or use fewer workers (num_workers=0 needs none), smaller batches, or torch.multiprocessing.set_sharing_strategy('file_system')")
		d.r.Next = "df -h /dev/shm"
	case WorkerKilled:
		d.help(hostMemory, 9, "", "use fewer data-loader workers (num_workers) and a smaller prefetch_factor: each worker has its own copy of what the dataset holds")
		d.help(hostMemory, 8, "", "keep the dataset in arrays or files that workers share (NumPy, Arrow, memory maps) instead of Python lists")
		d.help(evidence, 1, "Linux", "see whether the kernel did it: dmesg names the process that it killed")
		d.r.Next = "dmesg | grep -i 'killed process'"
	case KernelKilled:
		if d.Framework == Ollama {
			d.help(hostMemory, 9, "", "take a smaller or more quantized model, or a shorter context (num_ctx)")
			d.help(hostMemory, 8, "", "free main memory, or load more layers on the GPU (num_gpu)")
			break
		}
		d.help(hostMemory, 9, "", "raise the limit of main memory: --mem in Slurm, resources.limits.memory in Kubernetes, docker run --memory")
		d.help(hostMemory, 8, "", "use fewer data-loader workers, load the checkpoint with mmap=True or map_location=\"meta\", and let one rank at a time load it")
		if d.weak {
			d.help(evidence, 7, "Linux", "see whether the kernel did it: dmesg names the process that it killed; a batch system's time limit also sends signal 9")
			d.r.Next = "dmesg | grep -i 'killed process'"
		}
	default:
		d.help(hostMemory, 9, "", "use fewer data-loader workers, load the checkpoint with mmap=True or map_location=\"meta\", or take a machine with more RAM")
		if d.Around.Windows {
			d.help(hostMemory, 8, "", "raise the page file: Windows refuses what it cannot back with it")
		}
	}
	d.noUse(settings, "any GPU allocator setting")
}

// adviseCause is for wordings that prove more than "out of memory", and reports
// whether there is anything of its own to say.
func (d *diagnosis) adviseCause() bool {
	switch d.Cause {
	case ReportFailed, VMMOutOfMemory, VMMUnsupported, SleepPool:
		d.adviseDriverCause()
	case KVTooSmall, NoKV, StartBudget, ProfileDisturbed, Warmup, KVPoolEmpty:
		d.adviseServing()
	case BufferTooLarge:
		d.help(shapes, 9, "", "compute it in tiles or chunks (attention slicing, a shorter sequence, a smaller resolution), so that no single tensor is that large")
		d.noUse(limits, "PYTORCH_MPS_HIGH_WATERMARK_RATIO: it limits the sum, and this is one buffer")
		d.r.Next = "python -c 'print(__import__(\"torch\").mps.recommended_max_memory())'"
	case NotInitialized:
		d.help(batch, 9, "that it is memory", "leave %s free memory: a smaller batch, or a lower limit for the framework that takes the whole device at the start", d.Framework)
		d.help(evidence, 8, "", "run once with batch size 1: if it works, it was memory; if not, the versions of driver and library do not match")
		d.r.Next = "nvidia-smi"
	case SharedBlock:
		d.help(shapes, 9, "a kernel that you tune", "use smaller tiles or fewer stages (BLOCK_SIZE, num_stages), or a kernel built for this GPU")
		d.noUse(settings, "any allocator setting, a smaller model or a larger card's memory")
		d.r.Next = "nvidia-smi"
	case CompileTime:
		d.help(batch, 9, "", "take less memory: a smaller batch or sequence, rematerialisation (jax.checkpoint), bf16")
		d.help(card, 8, "", "or shard over more devices")
		d.noUse(settings, "allocator settings: the compiler knows beforehand that it does not fit")
		d.r.Next = "python -c 'print(__import__(\"jax\").devices()[0].memory_stats())'"
	case StatsOnly:
		d.help(evidence, 9, "", "paste the line that says how much was requested (\"Out of memory while trying to allocate …\")")
		d.r.Next = "nvidia-smi"
	default:
		return false // PoolFull is RMM's own
	}
	return true
}

// adviseDriverCause is for PyTorch's failures without figures.
func (d *diagnosis) adviseDriverCause() {
	d.r.Next = d.vendor.tool
	switch d.Cause {
	case ReportFailed:
		d.help(evidence, 9, "", "get the figures: print torch.cuda.memory_summary() where it fails, or record the job; a container or driver without NVML hides PyTorch's message")
		d.help(batch, 8, "", "take less memory: a smaller batch or sequence, activation checkpointing")
		d.help(otherJobs, 7, "", "see whether others hold the device (nvidia-smi, on the host if this is a container)")
		d.noUse(release, "reporting it to PyTorch as the message asks, nor reinstalling: the memory ran out before")
		d.r.Next = d.vendor.record + "allocsim tune NAME.pickle"
	case VMMOutOfMemory:
		d.help(evidence, 9, "", "get the figures: run once without expandable_segments, whose message has them, or record the job")
		d.help(otherJobs, 8, "", "see whether others hold the device (%s)", d.vendor.tool)
		d.help(batch, 7, "", "take less memory: a smaller batch or sequence, activation checkpointing")
		d.r.Next = d.vendor.record + "allocsim tune NAME.pickle"
	case VMMUnsupported:
		d.noUse(expandable, "expandable_segments on this device: take it out of %s (Jetson and other Tegra chips, vGPUs, some containers and WSL have no virtual-memory calls)", d.vendor.conf)
		d.help(settings, 9, "", "remove expandable_segments:True from %s and run again: the native segments work everywhere", d.vendor.conf)
	case SleepPool:
		d.help(budget, 9, "", "%s", map[bool]string{true: "lower --gpu-memory-utilization, so that the pool and what PyTorch takes beside it fit", false: "lower --mem-fraction-static, so that the pool and what PyTorch takes beside it fit"}[d.Framework == VLLM])
		d.help(pools, 8, "", "switch sleep mode off if it is not needed (enable_sleep_mode=False)")
		d.help(otherJobs, 7, "", "see whether others hold the device, such as an engine that was put to sleep but not fully (nvidia-smi)")
		d.noUse(expandable, "expandable_segments, which sleep mode excludes")
	}
}

// adviseServing is for the budgets of serving engines, by the engine's own
// names.
func (d *diagnosis) adviseServing() {
	d.r.Next = "nvidia-smi"
	util, length, seqs, kv := "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs", "--kv-cache-dtype fp8"
	switch d.Framework {
	case SGLang:
		util, length, seqs, kv = "--mem-fraction-static", "--context-length", "--max-running-requests", "--kv-cache-dtype fp8_e5m2"
	case TGI:
		util, length, seqs, kv = "--cuda-memory-fraction", "--max-total-tokens", "--max-batch-size", "--kv-cache-dtype fp8_e5m2"
	}
	switch d.Cause {
	case KVTooSmall:
		if d.FitTokens > 0 {
			d.help(batch, 9, "that shorter requests are enough", "lower %s to %d or less, which is what fits", length, d.FitTokens)
		} else {
			d.help(batch, 9, "that shorter requests are enough", "lower %s%s", length, d.fitting())
		}
		d.help(budget, 8, "that the card has more than the engine was given", "or raise %s: every hundredth of the card adds that much KV cache%s", util, d.missing())
		d.help(batch, 7, "a model that keeps its quality", "or halve the KV cache: %s", kv)
		d.help(card, 6, "", "or spread the model over more GPUs (--tensor-parallel-size), or take a larger card or a quantized model")
		d.noUse(settings, "expandable_segments and other settings of PyTorch's allocator: it is the engine's own budget")
	case NoKV:
		at := ""
		if d.Fraction > 0 {
			at = fmt.Sprintf(" above %.3g", d.Fraction)
		}
		d.help(budget, 9, "that the card has more than the engine was given", "raise %s%s", util, at)
		d.help(card, 8, "", "or take a quantized model, more GPUs (tensor parallel), or a larger card: the weights alone use the budget")
		d.help(batch, 7, "", "or make the profiling run smaller: --max-num-batched-tokens, %s", seqs)
		d.help(otherJobs, 6, "", "see whether others hold the device (nvidia-smi): the budget counts what they hold as used")
		d.noUse(settings, "settings of PyTorch's allocator: it is the engine's own budget")
	case StartBudget:
		d.adviseStart(util)
	case ProfileDisturbed:
		d.help(otherJobs, 9, "", "start the engines on one GPU one after the other, or wait until the process that ends has given its memory back")
		d.help(budget, 8, "vLLM", "or give the KV cache a fixed size (--kv-cache-memory-bytes), which skips the measurement")
		d.noUse(settings, "settings of PyTorch's allocator")
	case Warmup:
		if d.Framework == TGI {
			d.help(batch, 9, "", "lower --max-batch-prefill-tokens%s (and --max-input-tokens), as the message says", below(d.Tokens))
		} else {
			d.help(batch, 9, "", "lower %s, or --max-num-batched-tokens", seqs)
		}
		d.help(budget, 8, "", "or lower %s, which leaves more for what is not the KV cache", util)
		d.noUse(settings, "settings of PyTorch's allocator, beyond a few percent")
	case KVPoolEmpty:
		d.help(batch, 9, "", "lower %s or the length of requests%s", seqs, below(d.Tokens))
		d.help(budget, 8, "that the card has memory left", "or raise %s, which makes the KV cache larger", util)
		d.noUse(settings, "settings of PyTorch's allocator: the KV cache is one block of a fixed size")
	}
}

// fitting is the length that fits by proportion, where the message gives both
// sizes but no length.
func (d *diagnosis) fitting() string {
	if d.Tokens > 0 && d.Requested.Known && d.Allowed.Known && d.Requested.Bytes > 0 && d.Allowed.Bytes > 0 {
		fits := float64(d.Tokens) * float64(d.Allowed.Low()) / float64(d.Requested.High())
		return fmt.Sprintf(" to about %d: the KV cache grows with the length", int64(fits)/16*16)
	}
	return ""
}

func (d *diagnosis) missing() string {
	if m := d.Requested.minus(d.Allowed); m.Known && m.Bytes > 0 && d.Cause == KVTooSmall {
		return fmt.Sprintf("; %s are missing", about(m))
	}
	return ""
}

func below(tokens int64) string {
	if tokens <= 0 {
		return ""
	}
	return fmt.Sprintf(" (now %d tokens)", tokens)
}

func (d *diagnosis) adviseStart(util string) {
	fits := ""
	if d.Free.Known && d.Total.Known && d.Total.Bytes > 0 && d.Free.Low() > 0 {
		fits = fmt.Sprintf(" below %.2f, which is all that is free", math.Floor(100*float64(d.Free.Low())/float64(d.Total.Bytes))/100)
	}
	lower := int64(8)
	if d.r.Verdict == Limit {
		lower = 10
	}
	d.help(otherJobs, 9, "", "see who holds the rest with nvidia-smi: an engine that still shuts down, an orphan of a crashed one (EngineCore), another user")
	d.help(budget, lower, "that the model and its KV cache fit into that", "lower %s%s", util, fits)
	d.noUse(settings, "settings of PyTorch's allocator: nothing has been allocated yet")
}

// adviseBFC is for the allocator of TensorFlow and XLA.
func (d *diagnosis) adviseBFC() {
	jax := d.Framework == JAX
	d.r.Next = "nvidia-smi"
	switch d.r.Verdict {
	case Fragmentation:
		if jax {
			d.help(settings, 9, "that it was switched off", "let the allocator have all its memory at the start (XLA_PYTHON_CLIENT_PREALLOCATE=true, the default): a pool that grows is fragmented")
		} else {
			d.help(settings, 9, "", "do not set memory growth (TF_FORCE_GPU_ALLOW_GROWTH): a pool that grows is fragmented; or try TF_GPU_ALLOCATOR=cuda_malloc_async")
		}
		d.help(shapes, 8, "", "keep shapes fixed, and allocate long-lived arrays first")
	case Capacity:
		d.help(batch, 9, "", "take less memory: a smaller batch or sequence, rematerialisation, bf16; or shard over more devices")
	default:
		d.help(batch, 5, "", "take less memory: a smaller batch or sequence, bf16")
		d.help(evidence, 9, "", "paste the lines around it with \"Limit\" and \"InUse\": the allocator logs them before or after the error")
	}
	if jax {
		d.help(limits, 4, "that the card has more than the limit", "raise XLA_PYTHON_CLIENT_MEM_FRACTION (default 0.75)")
		d.help(otherJobs, 3, "another framework on the GPU", "it competes with JAX's preallocation: set XLA_PYTHON_CLIENT_PREALLOCATE=false in one of them")
	} else {
		d.help(otherJobs, 3, "another process on the GPU", "it competes with TensorFlow, which takes all memory at the start: give each a share (tf.config.set_logical_device_configuration)")
	}
	d.noUse(expandable, "PYTORCH_CUDA_ALLOC_CONF, which only PyTorch reads")
}

// adviseLibrary is for other frameworks, libraries and drivers.
func (d *diagnosis) adviseLibrary() {
	d.r.Next = d.vendor.tool
	others := func(effect int64) {
		if d.vendor.tool != "" {
			d.help(otherJobs, effect, "", "see who holds the rest with %s: other processes, or a second framework in this one that took it all at the start", d.vendor.tool)
		}
	}
	less := func(effect int64, what string) { d.help(batch, effect, "", "take less memory: %s", what) }
	noTorch := func() { d.noUse(expandable, "PYTORCH_CUDA_ALLOC_CONF, which only PyTorch reads") }
	switch d.Framework {
	case CuPy:
		if d.r.Verdict == Limit {
			d.help(limits, 9, "that the card has more", "raise the pool's limit: cupy.get_default_memory_pool().set_limit(…), or CUPY_GPU_MEMORY_LIMIT")
		}
		d.help(emptyCache, 8, "that much of the pool is unused", "see how much that is: pool.total_bytes() − pool.used_bytes(); if it is much, pool.free_all_blocks() before the large request helps")
		d.help(settings, 7, "other frameworks in the same process", "let them share one pool (cupy.cuda.set_allocator)")
		others(6)
		noTorch()
	case RMM:
		if d.Cause == PoolFull {
			d.help(limits, 9, "that the card has more", "raise maximum_pool_size if the pool reached it; give the pool its full size at once (initial_pool_size), because a pool that grows is fragmented")
		}
		d.help(settings, 8, "data larger than the card", "use a managed or async memory resource (rmm.mr.ManagedMemoryResource, CudaAsyncMemoryResource), or spill (cudf.set_option(\"spill\", True))")
		less(7, "smaller partitions or row groups, fewer columns")
		others(6)
		noTorch()
	case Paddle:
		if d.r.Verdict == Limit && d.Allowed.Known {
			d.help(limits, 10, "", "raise FLAGS_gpu_memory_limit_mb, which is in force")
		}
		if d.r.Verdict == Capacity {
			less(9, "a smaller batch_size, use_recompute, amp")
			others(8)
		} else {
			others(9)
			less(8, "a smaller batch_size, use_recompute, amp")
		}
		d.help(settings, 7, "holes in the pool", "try FLAGS_allocator_strategy=auto_growth, or naive_best_fit with FLAGS_fraction_of_gpu_memory_to_use")
		noTorch()
	case LlamaCPP, Ollama, Vulkan:
		if d.Framework == Ollama {
			less(9, "a smaller or more quantized model, a shorter context (num_ctx), fewer layers on the GPU (num_gpu)")
		} else {
			less(9, "fewer layers on the GPU (-ngl), a shorter context (-c), a smaller KV cache (--cache-type-k q8_0 --cache-type-v q8_0), a smaller batch (-ub), a smaller quantization")
		}
		others(8)
		noTorch()
	case Julia:
		d.help(emptyCache, 9, "that much is unused", "call GC.gc(true); CUDA.reclaim() between stages, and CUDA.unsafe_free! on what is done with")
		less(8, "smaller arrays or batches, Float32")
		others(7)
		noTorch()
	case XGBoost:
		less(9, "external memory (ExtMemQuantileDMatrix), a smaller max_bin, a subsample, or more GPUs")
		others(8)
		noTorch()
	case ONNX:
		d.help(limits, 9, "that the card has more", "raise gpu_mem_limit of the CUDA execution provider, and set arena_extend_strategy to kSameAsRequested")
		less(8, "a smaller batch or sequence")
		others(7)
		noTorch()
	case TensorRT:
		less(9, "a smaller workspace (memory pool limit), batch or profile; build with other jobs off the GPU")
		others(8)
		noTorch()
	case DirectML:
		less(9, "a smaller batch, tiles, half precision")
		d.noUse(expandable, "PYTORCH_CUDA_ALLOC_CONF, which DirectML does not read")
		d.r.Next = "dxdiag"
	case NCCL:
		d.help(batch, 9, "a job on several GPUs", "leave room outside PyTorch's pool: a lower memory fraction (torch.cuda.set_per_process_memory_fraction, --gpu-memory-utilization) or a smaller batch; NCCL takes 0.2 to 1 GiB for each communicator")
		d.help(libraries, 8, "", "let it take less: fewer process groups, a smaller NCCL_BUFFSIZE or NCCL_MAX_NCHANNELS, NCCL_NVLS_ENABLE=0; create the groups before the memory is full")
		d.help(otherJobs, 7, "", "see whether several ranks share one GPU by mistake (%s): each must set its own device", d.vendor.tool)
		d.noUse(emptyCache, "a retry: NCCL does not ask PyTorch to empty its cache")
	case CuBLAS, CuDNN:
		d.help(batch, 9, "", "leave the library room: a smaller batch, or a memory fraction below 1 so that PyTorch does not take everything")
		d.help(emptyCache, 8, "PyTorch", "call torch.cuda.empty_cache() before the first call of the library, which does not ask PyTorch to empty its cache")
		if d.Framework == CuBLAS {
			d.help(libraries, 7, "PyTorch", "make its workspace smaller: CUBLAS_WORKSPACE_CONFIG=:16:8")
		} else {
			d.help(libraries, 7, "PyTorch", "let it choose algorithms without a large workspace: torch.backends.cudnn.benchmark = False")
		}
		others(6)
	case OpenCL:
		less(9, "a smaller batch or tiles; one buffer may have CL_DEVICE_MAX_MEM_ALLOC_SIZE at most")
		noTorch()
		d.r.Next = "clinfo"
	case LevelZero:
		less(9, "a smaller batch or sequence, half precision")
		d.help(limits, 8, "a single tensor above 4 GiB", "allow large buffers: UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1")
		others(7)
		d.noUse(expandable, "PYTORCH_CUDA_ALLOC_CONF, which only CUDA builds read")
	case Unknown:
		d.help(evidence, 9, "", "paste more of it: the lines before and after, with the program's name and its figures")
		d.help(evidence, 8, "", "see which memory is full while the job runs: free -h shows the computer's, nvidia-smi (or the device's own tool) the device's")
	default: // the bare driver
		others(9)
		d.help(evidence, 8, "PyTorch", "get the figures: print torch.cuda.memory_summary() where it fails; PyTorch before 1.0 has no figures in its message")
		less(7, "a smaller batch or sequence")
	}
	if d.r.Next == "" {
		d.r.Next = cmp.Or(d.vendor.tool, "free -h")
	}
}
