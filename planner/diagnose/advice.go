package diagnose

import (
	"fmt"
	"math"
	"strconv"

	"allocsim/internal/bytesize"
)

// advise fills in what helps, what does not, and the next command.
func (d *diagnosis) advise() {
	add := func(format string, args ...any) { d.r.Advice = append(d.r.Advice, fmt.Sprintf(format, args...)) }
	torch := d.Framework == PyTorch || d.Framework == Recorded || d.Framework == PyTorchAsync
	switch {
	case d.Framework == Host:
		add("use fewer data-loader workers, load the checkpoint with mmap=True or map_location=\"meta\", or take a machine with more RAM")
		add("will not help: any GPU allocator setting")
		d.next("free -h")
		return
	case d.Framework == PyTorchMPS:
		add("close other programs, or make the batch smaller; PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit but can freeze the computer")
		add("will not help: PYTORCH_CUDA_ALLOC_CONF, which MPS does not read")
		d.next("python -c 'import torch; print(torch.mps.driver_allocated_memory())'")
		return
	case d.Framework == RMM:
		add("raise maximum_pool_size if the pool reached it; give the pool its full size at once (initial_pool_size), because a pool that grows is fragmented")
		add("use a managed or async memory resource if the data are larger than the card")
		d.next("nvidia-smi")
		return
	case d.Framework == CuPy:
		if d.r.Verdict == Limit {
			add("raise the pool's limit: cupy.get_default_memory_pool().set_limit(…), or CUPY_GPU_MEMORY_LIMIT")
		}
		add("see how much of the pool is unused: pool.total_bytes() − pool.used_bytes(); if it is much, pool.free_all_blocks() before the large request helps")
		add("if other frameworks run in the same process, let them share one pool")
		d.next("nvidia-smi")
		return
	case d.Framework == JAX || d.Framework == TensorFlow:
		d.adviseBFC(add)
		return
	case !torch: // the bare driver
		add("find out who holds the memory: other processes on the same GPU, or a second framework in this one that took it all at the start (TensorFlow and JAX do)")
		add("run with a PyTorch of 1.0 or newer for a message with numbers")
		d.next("nvidia-smi")
		return
	}
	switch d.r.Verdict {
	case Fragmentation:
		d.adviseFragmentation(add)
	case Capacity:
		d.adviseCapacity(add)
	case OtherProcess:
		d.adviseOthers(add)
		if d.has(Fragmentation) {
			d.adviseExpandable(add, "may also help")
		}
	case Limit:
		d.adviseLimit(add)
	default:
		d.adviseUndecidable(add)
	}
	d.nextForTorch()
}

func (d *diagnosis) has(v Verdict) bool {
	for _, a := range d.r.Also {
		if a == v {
			return true
		}
	}
	return false
}

// next sets the next command and ends the advice with it.
func (d *diagnosis) next(command string) {
	d.r.Next = command
	d.r.Advice = append(d.r.Advice, "next: "+command)
}

func (d *diagnosis) nextForTorch() {
	trace := d.o.Trace
	record := trace == ""
	if record {
		trace = "NAME.pickle"
	}
	command := ""
	switch d.r.Verdict {
	case OtherProcess:
		d.next("nvidia-smi")
		return
	case Capacity:
		command = "allocsim plan " + trace
	case Limit:
		// Without unused memory within the limit, no setting can help.
		command = "allocsim plan " + trace
		if d.has(Fragmentation) {
			command = "allocsim tune " + trace
		}
	default:
		command = "allocsim tune " + trace
	}
	if record {
		command = "allocsim record > allocsim_record.py && python allocsim_record.py -o NAME YOUR_SCRIPT.py; " + command
	}
	d.next(command)
}

// variable is the environment variable to name.
func (d *diagnosis) variable() string {
	if d.ROCm {
		return "PYTORCH_HIP_ALLOC_CONF"
	}
	return "PYTORCH_CUDA_ALLOC_CONF"
}

// old says that the release has no expandable segments.
func (d *diagnosis) old() bool {
	if d.o.Version.Major != 0 {
		return !d.o.Version.AtLeast(2, 1)
	}
	return d.Before21
}

// adviseExpandable recommends expandable segments, unless they are on.
func (d *diagnosis) adviseExpandable(add func(string, ...any), how string) {
	switch {
	case d.o.Conf.ExpandableSegments:
		if d.o.Conf.MaxSplitSize < 1<<62 {
			add("drop max_split_size_mb: together with expandable_segments, which is on, it makes large free ranges unusable")
		} else {
			add("expandable_segments is on already; what is left unused is pinned by small tensors between the large ones: free those, or allocate the long-lived ones first")
		}
	case d.old():
		add("upgrade to PyTorch 2.1 or newer and set %s=expandable_segments:True; this release has no such option (its message says it is older)", d.variable())
		add("until then max_split_size_mb may help; which value, only a recording can tell (it can also make things worse)")
	default:
		add("set %s=expandable_segments:True: %s, because free pieces of one stream then join", d.variable(), how)
	}
}

func (d *diagnosis) adviseFragmentation(add func(string, ...any)) {
	if d.Framework == PyTorchAsync {
		add("use the native backend with expandable_segments:True")
	} else {
		d.adviseExpandable(add, "the likeliest cure")
	}
	if d.has(Capacity) {
		add("take less memory too (batch, sequence, checkpointing), since without any holes only %s would be left; a smaller batch alone leaves the holes", about(d.room.minus(d.Requested)))
	}
	add("run the largest shapes first (warm up with the largest batch), so that later requests fit into what is cached")
	add("if sizes change from step to step, pad them to a few fixed ones, or try roundup_power2_divisions")
	add("will not help: torch.cuda.empty_cache() before the step; PyTorch has already returned everything that it could before it gave up")
	if !d.has(Capacity) {
		add("helps only for now: a smaller batch; the holes remain")
	}
}

func (d *diagnosis) adviseCapacity(add func(string, ...any)) {
	if d.short.Known && d.short.Bytes > 0 && d.short.Bytes < 1<<60 {
		add("take off at least %s: a smaller batch or sequence, gradient accumulation, activation checkpointing, bf16", bytesize.Format(d.short.High()))
	} else {
		add("take less memory: a smaller batch or sequence, gradient accumulation, activation checkpointing, bf16")
	}
	if d.Requested.Known && d.Total.Known && d.Requested.Bytes > d.Total.Bytes/2 {
		add("find the one tensor of %s: a single request of that size is often a mistake or can be computed in tiles or chunks", about(d.Requested))
	} else {
		add("if the optimizer and the weights are most of it, shard or offload them (FSDP, ZeRO), or use an 8-bit optimizer")
	}
	add("or take a larger card: allocsim plan says which is the smallest that works")
	if d.has(OtherProcess) {
		d.adviseOthers(add)
	}
	add("will not help: any allocator setting, also expandable_segments and max_split_size_mb; torch.cuda.empty_cache()")
}

func (d *diagnosis) adviseOthers(add func(string, ...any)) {
	if len(d.Others) > 0 {
		var who []string
		for i, p := range d.Others {
			if i == 8 {
				who = append(who, fmt.Sprintf("%d more", len(d.Others)-i))
				break
			}
			who = append(who, fmt.Sprintf("process %d with %s", p.PID, about(p.Uses)))
		}
		add("stop or move the others: %s", join(who))
	} else {
		add("see who holds the rest with nvidia-smi: a forgotten notebook, a crashed run that still lives, another user, a desktop")
	}
	add("or take another GPU: CUDA_VISIBLE_DEVICES=N")
	add("will not help: a smaller model only postpones it, allocator settings do not touch memory of others")
}

func (d *diagnosis) adviseLimit(add func(string, ...any)) {
	if d.Allowed.Known {
		need := d.Reserved.plus(d.Requested)
		at, enough := "", "how far, allocsim plan or tune tells from a recording of the whole job"
		if need.Known && d.Total.Known && need.Bytes < d.Total.Bytes {
			at = " to at least " + roundUp(float64(need.High())/float64(d.Total.Bytes))
			enough = "that is enough for this request, but later ones may need more: allocsim plan or tune tells from a recording of the whole job"
		}
		add("raise the limit: torch.cuda.set_per_process_memory_fraction or per_process_memory_fraction%s (serving frameworks have their own setting for it); %s", at, enough)
	} else {
		if margin := d.Free.minus(d.Requested); margin.Known && margin.Bytes < d.Total.Bytes/50 {
			add("the free memory is hardly more than was requested, and the driver keeps a reserve: the device is as good as full; take less memory")
		}
		add("look for a limit that PyTorch does not know: a MIG slice or vGPU profile, CUDA MPS, WSL or Windows (which caps one process), a container's hook")
		add("a process that used the rest for a moment looks the same: run nvidia-smi while the job runs")
	}
	if d.has(Fragmentation) && d.Framework != PyTorchAsync {
		d.adviseExpandable(add, fmt.Sprintf("PyTorch already holds %s unused within the limit, which may do", about(d.Unallocated)))
	}
	if d.Allowed.Known {
		add("the limit counts what PyTorch reserves, not the CUDA context (0.6 to 1.5 GiB): to imitate a smaller card, subtract that yourself")
	}
	if d.Allowed.Known && d.Allocated.Known && d.Requested.surelyMore(d.Allowed.minus(d.Allocated)) {
		add("will not help: any allocator setting, because tensors hold %s of the limit; torch.cuda.empty_cache()", about(d.Allocated))
	} else {
		add("will not help: torch.cuda.empty_cache()")
	}
}

// roundUp writes a fraction with two significant digits, not below x.
func roundUp(x float64) string {
	decimals := 2
	for y := x; y < 0.1 && decimals < 8; y *= 10 {
		decimals++
	}
	scale := math.Pow10(decimals)
	return strconv.FormatFloat(math.Ceil(x*scale)/scale, 'f', -1, 64)
}

func (d *diagnosis) adviseUndecidable(add func(string, ...any)) {
	if d.Truncated {
		add("paste the whole message, up to \"reserved in total\" or \"reserved by PyTorch but unallocated\"")
	}
	if d.has(OtherProcess) {
		add("look first at who else is on the GPU (nvidia-smi): that is where most of it may be")
	}
	switch {
	case d.Framework == PyTorchAsync:
		add("use the native backend (leave backend:cudaMallocAsync out): its message tells unused from foreign memory, and it can be recorded")
	case d.has(Fragmentation):
		d.adviseExpandable(add, "it may be just enough")
	}
	add("record the job: a recording has the exact numbers")
}

func (d *diagnosis) adviseBFC(add func(string, ...any)) {
	jax := d.Framework == JAX
	switch d.r.Verdict {
	case Fragmentation:
		if jax {
			add("let the allocator have all its memory at the start (XLA_PYTHON_CLIENT_PREALLOCATE=true, the default): a pool that grows is fragmented")
		} else {
			add("do not set memory growth (TF_FORCE_GPU_ALLOW_GROWTH): a pool that grows is fragmented; or try TF_GPU_ALLOCATOR=cuda_malloc_async")
		}
		add("keep shapes fixed, and allocate long-lived arrays first")
	case Capacity:
		add("take less memory: a smaller batch or sequence, rematerialisation, bf16; or shard over more devices")
		add("will not help: allocator settings")
	}
	if jax {
		add("if the card has more than the limit, raise XLA_PYTHON_CLIENT_MEM_FRACTION (default 0.75)")
		add("if another framework shares the GPU, it competes with JAX's preallocation: set XLA_PYTHON_CLIENT_PREALLOCATE=false in one of them")
	} else {
		add("if another process shares the GPU, it competes with TensorFlow, which takes all memory at the start")
	}
	add("will not help: PYTORCH_CUDA_ALLOC_CONF, which only PyTorch reads")
	d.next("nvidia-smi")
}
