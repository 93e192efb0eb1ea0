package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/policies/torch/conf"
)

// A kind of advice: what to do, what to know, and what is no use.
type adviceKind int

const (
	helps adviceKind = iota
	informs
	useless
)

// A topic is what an advice is about. Two lines of one topic must not say the
// opposite of each other.
type topic string

const (
	expandable topic = "expandable_segments"
	splitSize  topic = "max_split_size_mb"
	settings   topic = "allocator settings"
	batch      topic = "take less"
	card       topic = "larger card"
	shapes     topic = "shapes"
	emptyCache topic = "empty_cache"
	otherJobs  topic = "other processes"
	limits     topic = "the limit"
	pools      topic = "private pools"
	libraries  topic = "libraries"
	backend    topic = "native backend"
	budget     topic = "the engine's budget"
	evidence   topic = "evidence"
	hostMemory topic = "main memory"
	release    topic = "release"
)

// advice is one line: what to do, what it assumes, and about how many bytes it
// is worth.
type advice struct {
	kind    adviceKind
	topic   topic
	text    string
	assumes string
	effect  int64
}

// help, inform and noUse add a line.
func (d *diagnosis) help(t topic, effect int64, assumes, format string, args ...any) {
	d.r.advice = append(d.r.advice, advice{helps, t, fmt.Sprintf(format, args...), assumes, effect})
}

func (d *diagnosis) inform(t topic, format string, args ...any) {
	d.r.advice = append(d.r.advice, advice{kind: informs, topic: t, text: fmt.Sprintf(format, args...)})
}

func (d *diagnosis) noUse(t topic, format string, args ...any) {
	d.r.advice = append(d.r.advice, advice{kind: useless, topic: t, text: "will not help: " + fmt.Sprintf(format, args...)})
}

// advise fills in what helps, what does not, and the next command.
func (d *diagnosis) advise() {
	switch {
	case d.r.Verdict == HostMemory:
		d.adviseHost()
	case d.Cause != Unsaid && d.adviseCause():
	case d.Framework.caching():
		d.adviseTorch()
	case d.Framework == PyTorchAsync:
		d.adviseAsync()
	case d.Framework == PyTorchMPS || d.Framework == MLX:
		d.adviseMetal()
	case d.Framework == JAX || d.Framework == TensorFlow:
		d.adviseBFC()
	default:
		d.adviseLibrary()
	}
	slices.SortStableFunc(d.r.advice, func(a, b advice) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(b.effect, a.effect))
	})
	for _, a := range d.r.advice {
		text := a.text
		if a.assumes != "" {
			text += " (assumes " + a.assumes + ")"
		}
		d.r.Advice = append(d.r.Advice, text)
	}
	if d.r.Next != "" {
		d.r.Advice = append(d.r.Advice, "next: "+d.r.Next)
	}
}

// adviseTorch is for an account of a caching allocator.
func (d *diagnosis) adviseTorch() {
	switch d.r.Verdict {
	case Fragmentation:
		d.adviseFragmentation()
	case PrivatePool:
		d.advisePool()
	case Capacity:
		d.adviseCapacity()
	case OtherProcess:
		d.adviseOthers()
	case OutsideAllocator:
		d.adviseOutside()
	case Limit:
		d.adviseLimit()
	default:
		d.adviseUndecidable()
	}
	d.nextForTorch()
}

// nextForTorch names the command that answers the question that is left.
func (d *diagnosis) nextForTorch() {
	command := "tune"
	switch d.r.Verdict {
	case OtherProcess, OutsideAllocator:
		if d.vendor.tool != "" {
			d.r.Next = d.vendor.tool
			return
		}
	case Capacity:
		command = "plan"
	case Limit:
		// Without unused memory within the limit, no setting can help.
		if !d.has(Fragmentation) {
			command = "plan"
		}
	case Undecidable:
		if d.l.Problem != "" && d.vendor.tool != "" {
			d.r.Next = d.vendor.tool
			return
		}
	}
	trace := d.o.Trace
	switch {
	case trace != "":
		d.r.Next = "allocsim " + command + " " + trace
	case d.vendor.record != "":
		d.r.Next = d.vendor.record + "allocsim " + command + " NAME.pickle"
	case d.vendor.snapshot != "":
		d.inform(evidence, "to record the job, call %s", d.vendor.snapshot)
		d.r.Next = "allocsim " + command + " NAME.pickle"
	default:
		// No recorder for this device.
		d.r.Next = d.vendor.tool
	}
}

// noExpandable says why expandable segments are no choice here; empty when they
// are one.
func (d *diagnosis) noExpandable() string {
	switch {
	case d.vendor.conf == "" || d.Framework == PyTorchMUSA || d.Framework == PyTorchMLU:
		return "this device has none"
	case d.Around.Jetson:
		return "they end the program on Jetson and other Tegra chips"
	case d.Around.Windows:
		return "Windows has none"
	case d.Around.Doze:
		return "sleep mode and memory savers exclude them"
	}
	return ""
}

// old says that the release has no expandable segments.
func (d *diagnosis) old() bool {
	return d.Before21 || d.o.Version.Major != 0 && !d.o.Version.AtLeast(2, 1)
}

// adviseExpandable recommends expandable segments where they can work and are
// not on.
func (d *diagnosis) adviseExpandable(how string) {
	effect := d.l.Cached.Bytes
	switch why := d.noExpandable(); {
	case d.o.Conf.Backend == conf.CudaMallocAsync:
		d.help(backend, effect, "the configuration that you gave", "leave backend:cudaMallocAsync out and set expandable_segments:True, which only the native backend has")
	case why != "":
		d.noUse(expandable, "expandable_segments: %s", why)
		if !d.Before14 && d.vendor.conf != "" {
			d.help(splitSize, effect/2, "a value found by a recording: a wrong one makes it worse", "try max_split_size_mb in %s", d.vendor.conf)
		}
	case d.o.Conf.ExpandableSegments && d.o.Conf.MaxSplitSize < 1<<62:
		d.help(splitSize, effect, "the configuration that you gave", "drop max_split_size_mb: together with expandable_segments, which is on, it makes large free ranges unusable")
	case d.o.Conf.ExpandableSegments:
		d.help(shapes, effect, "the configuration that you gave", "free the small tensors between the large ones, or allocate what lives long first: expandable_segments is on already, and they pin what is left unused")
	case d.Framework == PyTorchXPU:
		d.help(expandable, effect, "a release that reads it for XPU; older ones ignore it", "set %s=expandable_segments:True: %s, because free pieces of one stream then join", d.vendor.conf, how)
	case d.old():
		d.help(release, effect, "Linux, and a GPU that is not a Jetson", "upgrade to PyTorch 2.1 or newer and set %s=expandable_segments:True; this release has no such option", d.vendor.conf)
		if !d.Before14 {
			d.help(splitSize, effect/2, "PyTorch 1.10 or newer, and a value found by a recording: a wrong one makes it worse", "until then try max_split_size_mb")
		}
	default:
		assumes := "Linux, no Jetson, no sleep mode or allocator of its own"
		if d.Framework == PyTorchNPU {
			assumes = "no other option of the variable, no sleep mode"
		}
		d.help(expandable, effect, assumes, "set %s=expandable_segments:True: %s, because free pieces of one stream then join", d.vendor.conf, how)
	}
}

func (d *diagnosis) adviseFragmentation() {
	d.adviseExpandable("the likeliest cure")
	if d.has(Capacity) {
		d.help(batch, 0, "", "take less memory too (batch, sequence, checkpointing), since without any holes only %s would be left; a smaller batch alone leaves the holes", about(d.l.room().minus(d.Requested).atLeast0()))
	} else {
		d.inform(batch, "helps only for now: a smaller batch; the holes remain")
	}
	d.help(shapes, d.l.Cached.Bytes/2, "sizes that change from step to step", "run the largest shapes first (warm up with the largest batch), so that later requests fit into what is cached; or pad sizes to a few fixed ones")
	if d.has(OtherProcess) {
		d.stopOthers(d.l.Cached.Bytes / 4)
	}
	if d.has(PrivatePool) {
		d.poolCure(min(d.l.Private.Bytes, d.l.Cached.Bytes/3))
	}
	if d.has(OutsideAllocator) {
		d.findOutside(d.l.Cached.Bytes / 5)
	}
	if d.vendor.empty != "" {
		d.noUse(emptyCache, "%s before the step; PyTorch has already returned everything that it could before it gave up", d.vendor.empty)
	}
}

// advisePool is for memory that is free where this request may not go.
func (d *diagnosis) advisePool() {
	d.poolCure(d.l.Private.Bytes)
	if d.has(OtherProcess) {
		d.stopOthers(1)
	}
	if d.has(Fragmentation) && d.noExpandable() == "" && !d.Around.MemPool {
		d.adviseExpandable("for what is unused outside those pools")
	}
	d.noUse(emptyCache, "%s: it returns free segments, but not those of a pool that is in use", d.vendor.empty)
	d.noUse(card, "a larger card, before the pool's free memory is put to use")
}

// poolCure says what to do about a pool's free memory, the likeliest kind
// first. CUDA graphs, MemPool scopes and sleep modes all make such pools.
func (d *diagnosis) poolCure(effect int64) {
	a := d.Around
	some := false
	if a.Doze || a.VLLM && !a.Graphs {
		some = true
		d.help(pools, effect, "that the pool is the sleep mode's", "switch sleep mode off (enable_sleep_mode, torch_memory_saver), or keep loading and converting weights out of its scope: what is freed inside stays in its pool")
	}
	if a.MemPool {
		some = true
		d.help(pools, effect-1, "that the pool is a torch.cuda.MemPool", "leave the torch.cuda.use_mem_pool scope around what need not be in it, or create the pool with use_on_oom=True (newer releases), so that others may use its free memory")
	}
	if a.Graphs || a.Compile {
		some = true
		d.help(pools, effect-2, "that the pool is that of CUDA graphs", "capture fewer sizes, let all graphs share one pool (torch.cuda.graph_pool_handle), or run without graphs (enforce_eager, torch.compile without reduce-overhead)")
	}
	if !some {
		d.help(pools, effect, "that the pool is a torch.cuda.MemPool or a sleep mode's", "keep loading, conversion and other large temporary work out of the pool's scope (torch.cuda.use_mem_pool, sleep mode): what is freed inside stays in the pool; or switch sleep mode off")
		d.help(pools, effect-1, "that the pool is that of CUDA graphs", "capture fewer sizes, let all graphs share one pool (torch.cuda.graph_pool_handle), or run without graphs")
	}
}

func (d *diagnosis) adviseCapacity() {
	worth := max(d.l.Tensors.Bytes, 1)
	less := "a smaller batch or sequence, gradient accumulation, activation checkpointing, bf16"
	if d.Around.VLLM || d.Around.SGLang {
		less = "a lower gpu-memory-utilization or mem-fraction-static, fewer or shorter sequences at a time, a quantized model"
	}
	missing := d.short
	if missing.Bytes <= 0 {
		missing = d.Requested.minus(d.l.Free) // what joining holes would have to give
	}
	switch {
	case missing.Known && missing.High() > 0 && missing.Bytes < huge/2 && d.Total.Known && !d.Requested.surelyMore(d.Total):
		text := fmt.Sprintf("take off at least %s", bytesize.Format(missing.High()))
		if of := d.l.Tensors.plus(d.Requested); of.Known && of.Bytes > 0 {
			text += fmt.Sprintf(", %s of what tensors hold", share(Exact(missing.High()), of))
			if missing.High() < of.Bytes/20 {
				text += ", better a tenth, so that later requests fit too"
			}
		}
		d.help(batch, worth, "that the batch is most of it; weights do not shrink with it", "%s: %s", text, less)
	default:
		d.help(batch, worth, "", "take less memory: %s", less)
	}
	if d.Requested.Known && d.Total.Known && d.Requested.Bytes > d.Total.Bytes/2 {
		d.help(shapes, worth+1, "", "find the one tensor of %s: a single request of that size is often a mistake or can be computed in tiles or chunks", about(d.Requested))
	} else if !d.Around.VLLM && !d.Around.SGLang {
		d.help(batch, worth-1, "training", "if the optimizer and the weights are most of it, shard or offload them (FSDP, ZeRO), or use an 8-bit optimizer")
	}
	d.help(card, worth/2, "", "or take a larger card: allocsim plan says which is the smallest that works")
	if d.has(OtherProcess) {
		d.stopOthers(min(worth/2-1, d.l.Others.Bytes))
	}
	if d.has(OutsideAllocator) {
		d.findOutside(min(worth/2-2, d.l.Context.Bytes))
	}
	if d.has(PrivatePool) {
		d.poolCure(min(worth/2-3, d.l.Private.Bytes))
	}
	if d.o.Conf.ExpandableSegments && d.o.Conf.MaxSplitSize < 1<<62 {
		d.inform(splitSize, "drop max_split_size_mb: together with expandable_segments, which is on, it makes large free ranges unusable")
	}
	switch {
	case d.has(Fragmentation) || d.l.Cached.Known && d.Requested.surelyAtMost(d.l.room()):
		d.inform(settings, "an allocator setting could at best put the %s that is unused to use: the next larger request would fail", about(d.l.Cached))
	default:
		d.noUse(settings, "any allocator setting")
	}
	if d.vendor.empty != "" {
		d.noUse(emptyCache, "%s; PyTorch does it before it gives up", d.vendor.empty)
	}
}

func (d *diagnosis) adviseOthers() {
	d.stopOthers(max(d.l.Rest.Bytes, d.l.Others.Bytes))
	if !d.l.Others.Known {
		d.help(libraries, 1, "no other process there", "if nobody else is on the device, this process holds it outside PyTorch: look for another library that allocates (TensorFlow and JAX take most of a device at the start)")
	}
	if d.has(Fragmentation) {
		d.adviseExpandable("it may help, too")
	}
	if d.has(OutsideAllocator) {
		d.findOutside(min(d.l.Context.Bytes, d.l.Others.Bytes-1))
	}
	d.noUse(batch, "a smaller model or batch only postpones it, and allocator settings do not touch the memory of others")
}

// stopOthers says what to do about other processes, and who they are if the
// message tells.
func (d *diagnosis) stopOthers(effect int64) {
	see := "see who holds the rest"
	if d.vendor.tool != "" {
		see += " with " + d.vendor.tool
	}
	var who []string
	for _, p := range d.Others {
		if p.PID == d.l.Self {
			continue
		}
		uses := "an unknown amount"
		if p.Uses.Known {
			uses = about(p.Uses)
		}
		who = append(who, fmt.Sprintf("process %d with %s", p.PID, uses))
	}
	if len(who) > 8 {
		who = append(who[:8], fmt.Sprintf("%d more", len(who)-8))
	}
	switch {
	case d.l.Hidden && d.l.Self == 0:
		d.help(otherJobs, effect, "", "%s, and stop or move what is not this job (%s; one of them is this job)", see, strings.Join(who, ", "))
	case len(who) > 0:
		d.help(otherJobs, effect, "that they are not needed there", "%s, and stop or move the others: %s", see, strings.Join(who, ", "))
	default:
		d.help(otherJobs, effect, "", "%s: a forgotten notebook, a crashed run that still lives, another user, a desktop", see)
	}
	if d.vendor.visible != "" {
		d.help(otherJobs, effect-1, "a machine with several", "or take another device: %s=N", d.vendor.visible)
	}
}

// adviseOutside is for a process that holds much beside its allocator.
func (d *diagnosis) adviseOutside() {
	d.findOutside(d.l.Context.Bytes)
	if d.has(OtherProcess) {
		d.stopOthers(min(d.l.Others.Bytes, d.l.Context.Bytes-8))
	}
	if d.has(Fragmentation) {
		d.adviseExpandable("it may help, too")
	}
	d.noUse(settings, "any allocator setting, which does not touch what is outside the allocator")
}

// findOutside names who takes memory beside the allocator, with usual sizes,
// and how to find out.
func (d *diagnosis) findOutside(effect int64) {
	d.help(libraries, effect, "", "find out who takes it: compare %s with torch.cuda.memory_reserved() after the imports, the model, the first step and the first collective", cmp.Or(d.vendor.tool, "the system's view of the process"))
	several := effect - 1
	if d.Around.Distributed {
		several = effect + 1 // the likeliest
	}
	d.help(libraries, several, "a job on several GPUs", "NCCL takes 0.2 to 1 GiB for each communicator: use fewer process groups, NCCL_BUFFSIZE or NCCL_MAX_NCHANNELS smaller, NCCL_NVLS_ENABLE=0; NVSHMEM and symmetric memory take what they are told")
	d.help(libraries, effect-2, "such a library in this process", "make another library that allocates take less: TensorFlow and JAX (most of the device at the start), CuPy and RMM pools, TensorRT, ONNX Runtime, DALI, extensions that call cudaMalloc")
	d.inform(libraries, "usual sizes: a context with its kernels 0.4 to 0.8 GiB; cuBLAS and cuDNN 0.1 to 0.5 GiB; a captured CUDA graph some MiB")
}

func (d *diagnosis) adviseLimit() {
	gained := d.l.Cached.Bytes
	switch {
	case d.Allowed.Known:
		need := d.Reserved.plus(d.Requested)
		at, enough := "", "how far, allocsim plan or tune tells from a recording of the whole job"
		if need.Known && d.Total.Known && need.Bytes < d.Total.Bytes {
			at = " to at least " + roundUp(float64(need.High())/float64(d.Total.Bytes))
			enough = "that is enough for this request, but later ones may need more: allocsim plan or tune tells from a recording of the whole job"
		}
		d.help(limits, max(gained, d.Requested.Bytes)+1, "", "raise the limit: torch.cuda.set_per_process_memory_fraction or per_process_memory_fraction%s (serving frameworks have their own setting for it); %s", at, enough)
		d.inform(limits, "the limit counts what PyTorch reserves, not the %s context (0.6 to 1.5 GiB): to imitate a smaller card, subtract that yourself", d.vendor.api)
	default:
		windows := "Windows or WSL (the page file caps what can be committed: raise it)"
		if d.Around.Windows {
			d.help(limits, gained+3, "", "raise the page file: Windows commits GPU memory against it, and refuses when it is full")
			windows = "a driver that caps one process"
		}
		d.help(limits, gained+2, "", "look for a limit that PyTorch does not know: %s, %s", d.vendor.limits, windows)
		see := "look again while the job runs"
		if d.vendor.tool != "" {
			see = "run " + d.vendor.tool + " while the job runs"
		}
		d.help(otherJobs, gained+1, "", "a process that used the rest for a moment looks the same: %s", see)
	}
	if d.has(Fragmentation) {
		d.adviseExpandable(fmt.Sprintf("PyTorch already holds %s unused within the limit, which may do", about(d.l.Cached)))
	}
	if d.has(PrivatePool) {
		d.poolCure(d.l.Private.Bytes)
	}
	if d.Allowed.Known && d.l.Tensors.Known && d.Requested.surelyMore(d.Allowed.minus(d.l.Tensors)) {
		d.noUse(settings, "any allocator setting, because tensors hold %s of the limit", about(d.l.Tensors))
	}
	d.noUse(emptyCache, "%s", cmp.Or(d.vendor.empty, "emptying the cache"))
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

func (d *diagnosis) adviseUndecidable() {
	switch {
	case d.l.Problem == Shared:
		d.help(limits, 9, "an APU or another chip without memory of its own", "raise what the GPU may take of the computer's memory: the BIOS's UMA frame buffer, or amdgpu's GTT size (ttm.pages_limit)")
		d.help(batch, 8, "", "or take less memory: a smaller batch or sequence, a quantized model")
		d.noUse(otherJobs, "stopping processes by these figures: they do not say what others hold")
		return
	case d.l.Problem == Virtual:
		d.help(pools, 9, "that one of them is in use", "see what allocates beside or below PyTorch: a pluggable allocator, a sleep mode that has given memory back, managed or unified memory; its memory counts as reserved without being on the device")
		d.help(evidence, 8, "", "compare the figures with %s, which shows what is on the device", cmp.Or(d.vendor.tool, "the system's own view"))
		d.noUse(settings, "any allocator setting, as long as the figures are not those of the device")
		return
	case d.l.Problem == Impossible:
		d.help(evidence, 9, "", "check that the message is whole and unchanged; figures of several GPUs or processes may have been mixed")
		d.help(evidence, 8, "", "compare them with %s", cmp.Or(d.vendor.tool, "the system's own view"))
		return
	}
	if d.Truncated {
		end := "\"reserved in total\" or \"reserved by PyTorch but unallocated\""
		if d.Framework == PyTorchNPU {
			end = "\"reserved in total by PyTorch\""
		}
		d.help(evidence, 9, "", "paste the whole message, up to %s", end)
	} else if !d.Requested.Known {
		d.help(evidence, 9, "", "use a newer release, whose message has the figures")
	}
	if d.has(OtherProcess) {
		d.help(otherJobs, 10, "", "look first at who else is on the device%s: that is where most of it may be", with(d.vendor.tool))
	}
	if d.has(Fragmentation) {
		d.adviseExpandable("it may be just enough")
	}
	if d.has(Limit) {
		d.help(limits, 8, "", "look for a limit that PyTorch does not know (%s), or another process that held the rest for a moment", d.vendor.limits)
	}
	if d.vendor.record != "" {
		d.help(evidence, 1, "", "record the job: a recording has the exact numbers")
	} else {
		d.help(batch, 1, "", "take less memory: a smaller batch or sequence, bf16")
	}
}

// with names a tool in parentheses, if there is one.
func with(tool string) string {
	if tool == "" {
		return ""
	}
	return " (" + tool + ")"
}
