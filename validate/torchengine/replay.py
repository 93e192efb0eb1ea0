"""Replay a request stream inside PyTorch's own CUDA caching allocator.

Read by allocsim (validate/torchengine). Standard input is one JSON object on
the first line (see Job in torchengine.go), then one request a line:

    a ID BYTES STREAM POOL   allocate
    t ID BYTES STREAM POOL   allocate a block that an "r" will free
    o BYTES STREAM POOL      try to allocate; what is got is freed at once
    f ID                     free
    r ID                     free while another stream still uses the block
    c ID                     the other stream has finished with it
    e                        empty_cache
    p POOL                   give the memory pool up, which empties it
    s                        the next request waits for other streams
    m                        measure the device memory in use

Standard output is one JSON object: {"error": …} or what Answer in
torchengine.go describes. No kernel runs and no tensor is read or written: only
the allocator is at work.
"""

import ctypes
import faulthandler
import gc
import json
import os
import sys
import threading
import time

GRANULE = 2 << 20


class Refused(Exception):
    """A reason not to start, said in one line."""


class Driver:
    """The few CUDA driver and NVML calls that PyTorch does not offer."""

    def __init__(self):
        try:
            self.cu = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            raise Refused(f"no NVIDIA driver: {e}")
        r = self.cu.cuInit(0)
        if r != 0:
            raise Refused(f"no usable NVIDIA GPU (cuInit says {r})")

    def check(self, name, *args):
        r = getattr(self.cu, name)(*args)
        if r != 0:
            raise RuntimeError(f"{name}: CUDA error {r}")

    def device(self, ordinal):
        dev = ctypes.c_int()
        self.check("cuDeviceGet", ctypes.byref(dev), ordinal)
        return dev

    def users(self, ordinal):
        """Number of processes on the card and bytes in use, before this
        process has a context; None where the driver does not say."""
        uuid = (ctypes.c_ubyte * 16)()
        self.check("cuDeviceGetUuid_v2", ctypes.byref(uuid), self.device(ordinal))
        h = bytes(uuid).hex()
        text = "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            if nvml.nvmlInit_v2() != 0:
                return None, None
        except (OSError, AttributeError):
            return None, None
        users = used = None
        try:
            dev = ctypes.c_void_p()
            if (nvml.nvmlDeviceGetHandleByUUID(b"GPU-" + text.encode(), ctypes.byref(dev)) != 0
                    and nvml.nvmlDeviceGetHandleByUUID(b"MIG-" + text.encode(), ctypes.byref(dev)) != 0):
                return None, None
            for name in ("Compute", "Graphics"):
                f = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses_v3", None)
                n = ctypes.c_uint(0)
                # With room for none: 0, or 7 (insufficient size) and the count.
                if f is not None and f(dev, ctypes.byref(n), None) in (0, 7):
                    users = (users or 0) + n.value

            class Memory(ctypes.Structure):
                _fields_ = [("version", ctypes.c_uint)] + [
                    (k, ctypes.c_ulonglong) for k in ("total", "reserved", "free", "used")]

            m = Memory()
            m.version = ctypes.sizeof(Memory) | (2 << 24)
            if nvml.nvmlDeviceGetMemoryInfo_v2(dev, ctypes.byref(m)) == 0:
                used = m.used
        except AttributeError:
            pass
        finally:
            nvml.nvmlShutdown()
        return users, used

    def capacity(self):
        """Bytes that the driver hands out in whole granules: everything it
        gives is taken and given back."""
        taken, total, size = [], 0, GRANULE << 11
        while size >= GRANULE:
            p = ctypes.c_uint64()
            r = self.cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(size))
            if r == 0:
                taken.append(p)
                total += size
            elif r == 2:  # out of memory
                size //= 2
            else:
                raise RuntimeError(f"cuMemAlloc: CUDA error {r}")
        for p in taken:
            self.check("cuMemFree_v2", p)
        return total

    def warm_up(self, ordinal):
        """Maps one granule, so that what the driver takes for itself at the
        first mapping is taken."""

        class Access(ctypes.Structure):
            _fields_ = [("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int)]

        size, at, access = ctypes.c_size_t(GRANULE), ctypes.c_uint64(), Access(1, ordinal, 3)
        self.check("cuMemAddressReserve", ctypes.byref(at), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        handle = self.mem_create(ordinal, GRANULE)
        self.check("cuMemMap", at, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self.check("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))
        self.check("cuMemUnmap", at, size)
        self.check("cuMemRelease", handle)
        self.check("cuMemAddressFree", at, size)

    def mem_create(self, ordinal, size):
        """Physical memory that is never mapped."""

        class Prop(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                        ("location_type", ctypes.c_int), ("location_id", ctypes.c_int),
                        ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]

        p = Prop(type=1, location_type=1, location_id=ordinal)
        h = ctypes.c_ulonglong()
        self.check("cuMemCreate", ctypes.byref(h), ctypes.c_size_t(size), ctypes.byref(p), ctypes.c_ulonglong(0))
        return h


class Gates:
    """Streams that stand still until they are told to go on.

    A block that another stream uses is freed only when that stream has passed
    an event. Each pending block gets a stream of its own that waits for a word
    in pinned memory, so that every free completes exactly when the recording
    says. Where the allocator itself waits (it flushes its cache to serve a
    request), the gates must open while the call is under way: a timer made of
    stream operations does that, so that no Python thread has to run meanwhile.
    """

    DELAY_US = 5000  # from the start of a request known to wait to the opening
    WATCHDOG = 2.0   # seconds in one request before all gates open anyway

    def __init__(self, torch, driver, ordinal):
        self.torch, self.driver, self.ordinal = torch, driver, ordinal
        self.slots = 4096
        host = ctypes.c_void_p()
        driver.check("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(4 * self.slots), 3)  # portable, mapped
        self.words = (ctypes.c_uint32 * self.slots).from_address(host.value)
        dev = ctypes.c_uint64()
        driver.check("cuMemHostGetDevicePointer_v2", ctypes.byref(dev), host, 0)
        self.base = dev.value
        self.made = 0
        self.idle = []
        self.closed = {}  # block → gate (stream, external stream, slot)
        self.timer = self.stream()
        self.sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        self.forced = 0
        self.began = None
        threading.Thread(target=self.watch, daemon=True).start()

    def stream(self):
        s = ctypes.c_void_p()
        self.driver.check("cuStreamCreate", ctypes.byref(s), 1)  # non-blocking
        return s

    def word(self, slot):
        return ctypes.c_uint64(self.base + 4 * slot)

    def close(self, block, tensor):
        """Makes tensor's free wait for a gate of its own."""
        if not self.idle:
            if self.made == self.slots:
                raise Refused(f"more than {self.slots} frees are pending at once")
            s = self.stream()
            self.idle.append((s, self.torch.cuda.ExternalStream(s.value, device=self.ordinal), self.made))
            self.made += 1
        gate = self.idle.pop()
        stream, external, slot = gate
        self.words[slot] = 0
        self.driver.check("cuStreamWaitValue32_v2", stream, self.word(slot), ctypes.c_uint32(1), 0)  # ≥
        tensor.record_stream(external)
        self.closed[block] = gate

    def open(self, block):
        gate = self.closed.pop(block, None)
        if gate is not None:
            self.words[gate[2]] = 1
            self.passed(gate)

    def passed(self, gate):
        self.driver.check("cuStreamSynchronize", gate[0])
        self.idle.append(gate)

    def open_all(self):
        for block in list(self.closed):
            self.open(block)

    def run(self, request, waits):
        """Runs a request while gates may be closed; waits says that the
        request is known to wait for them."""
        if not self.closed:
            return request()
        gates = []
        if waits:
            gates, self.closed = list(self.closed.values()), {}
            self.driver.check("cuLaunchHostFunc", self.timer, self.sleep, ctypes.c_void_p(self.DELAY_US))
            for g in gates:
                self.driver.check("cuStreamWriteValue32_v2", self.timer, self.word(g[2]), ctypes.c_uint32(1), 0)
        self.began = time.monotonic()
        try:
            return request()
        finally:
            self.began = None
            for g in gates:
                self.passed(g)

    def watch(self):
        while True:
            time.sleep(self.WATCHDOG / 4)
            began = self.began
            if began is not None and time.monotonic() - began > self.WATCHDOG:
                self.forced += 1
                self.began = None
                for g in list(self.closed.values()):
                    self.words[g[2]] = 1


def start(job):
    driver = Driver()
    users, used = driver.users(job["device"])
    who = None
    if users:
        who = f"{users} other process(es) use the card"
    elif used is not None and used > 1 << 30:
        who = f"{used} bytes of the card are in use by others"
    if who and not job["force"]:
        raise Refused(f"the card is in use: {who}; wait, or use --force to share it")
    if who and job["card"]:
        raise Refused(f"the card is in use: {who}; --card fills the card to the last granule and therefore needs it alone, even with --force")
    try:
        import torch
    except ImportError as e:
        raise Refused(f"{sys.executable} has no PyTorch: {e}; install torch, or name another interpreter with --python")
    if not torch.cuda.is_available():
        raise Refused(f"PyTorch {torch.__version__} sees no CUDA device")
    torch.cuda.init()
    torch.cuda.set_device(job["device"])
    torch.cuda.synchronize()
    return torch, driver, who


def set_aside(torch, driver, job):
    """Makes the card smaller, or checks that the run leaves the reserve.

    The driver does not hand out all that it calls free, so the ballast is set
    by what it does hand out, as in validate/cuda. The ballast is the driver's
    to take back when this process ends."""
    ordinal, card = job["device"], job["card"] // GRANULE * GRANULE
    free = torch.cuda.mem_get_info()[0]
    if not card:
        if job["need"] + job["reserve"] > free:
            raise Refused(f"{job['need']} bytes are needed and a reserve of {job['reserve']} is kept, but only {free} bytes of the card are free")
        return
    driver.warm_up(ordinal)
    coarse = (free - card - (64 << 20)) // GRANULE * GRANULE
    while coarse > 0:
        driver.mem_create(ordinal, min(coarse, 1 << 30))
        coarse -= 1 << 30
    singles = []
    for _ in range(16):
        can = driver.capacity()
        if can == card:
            return
        while can > card:
            singles.append(driver.mem_create(ordinal, GRANULE))
            can -= GRANULE
        while can < card:
            if not singles:
                raise Refused(f"the card hands out {can} bytes at most: one of {card} bytes cannot be emulated on it")
            driver.check("cuMemRelease", singles.pop())
            can += GRANULE
    raise Refused(f"the memory of the card changes while {card} bytes of it are set apart: somebody else uses it")


def replay(job, lines):
    torch, driver, who = start(job)
    ordinal = job["device"]
    handles = []
    if job["streams"] > job["default_stream"]:
        made = [torch.cuda.Stream() for _ in range(job["streams"] - job["default_stream"])]
        if len({s.cuda_stream for s in made}) < len(made):
            raise Refused(f"PyTorch has too few streams for the {job['streams']} of this trace")
        made.sort(key=lambda s: s.cuda_stream)
    else:
        made = []
    streams = ([torch.cuda.default_stream()] if job["default_stream"] else []) + made
    handles = [s.cuda_stream for s in streams]
    gates = Gates(torch, driver, ordinal) if job["pending"] else None
    pools = [None] + [torch.cuda.MemPool() for _ in range(job["pools"] - 1)]
    set_aside(torch, driver, job)
    base = torch.cuda.mem_get_info()[0]
    total = torch.cuda.get_device_properties(ordinal).total_memory
    if job["limit"]:
        if job["limit"] > total:
            raise Refused(f"a limit of {job['limit']} bytes is more than the card has")
        # PyTorch truncates fraction × total to bytes.
        torch.cuda.set_per_process_memory_fraction((job["limit"] + 0.5) / total)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=job["entries"])

    raw_alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
    raw_free = torch._C._cuda_cudaCachingAllocator_raw_delete
    OOM = torch.cuda.OutOfMemoryError
    live, samples = {}, []
    waits = False

    def run(request):
        return gates.run(request, waits) if gates else request()

    def take(kind, size, stream, pool):
        if kind == "t":
            with torch.cuda.stream(streams[stream]):
                return torch.empty(size, dtype=torch.uint8, device="cuda")
        return raw_alloc(size, handles[stream])

    def allocate(kind, size, stream, pool):
        def request():
            if pool:
                if pools[pool] is None:
                    # Pools that were told apart by their segments alone may
                    # be one after the other.
                    pools[pool] = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pools[pool]):
                    return take(kind, size, stream, pool)
            return take(kind, size, stream, pool)
        try:
            return run(request)
        except OOM:
            return None

    gc.collect()
    gc.disable()
    for line in lines:
        t = line.split()
        op = t[0]
        if op == "a" or op == "t":
            block = allocate(op, int(t[2]), int(t[3]), int(t[4]))
            if block is not None:
                live[t[1]] = block
        elif op == "f":
            block = live.pop(t[1], None)
            if isinstance(block, int):
                raw_free(block)
            del block
        elif op == "r":
            block = live.pop(t[1], None)
            if block is not None:
                gates.close(t[1], block)
                del block
        elif op == "c":
            gates.open(t[1])
        elif op == "e":
            # It begins by waiting for every pending free.
            if gates:
                gates.open_all()
            torch.cuda.empty_cache()
        elif op == "p":
            pools[int(t[1])] = None
        elif op == "o":
            block = allocate("a", int(t[1]), int(t[2]), int(t[3]))
            if block is not None:
                raw_free(block)
        elif op == "m":
            samples.append(base - torch.cuda.mem_get_info()[0])
        elif op != "s":
            raise Refused(f"unknown request {line!r}")
        waits = op == "s"

    stats = {k: v for k, v in torch.cuda.memory_stats().items() if isinstance(v, int)}
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    index = {h: i for i, h in enumerate(handles)}
    events = {"action": [], "addr": [], "size": [], "stream": []}
    for e in snapshot["device_traces"][ordinal]:
        if e["action"] == "snapshot":
            continue
        events["action"].append(e["action"])
        events["addr"].append(e.get("addr", 0))
        events["size"].append(e["size"])
        events["stream"].append(index.get(e["stream"], -1))
    notes = []
    if who:
        notes.append("Others use the card as well: " + who + ". Device memory figures may include their changes.")
    if gates and gates.forced:
        notes.append(f"{gates.forced} requests waited for other streams although the simulation does not; their pending frees completed early.")
    if gates:
        gates.open_all()
    answer = {
        "torch": torch.__version__, "device": torch.cuda.get_device_name(ordinal), "total": total,
        "available": base, "stats": stats, "events": events,
        "samples": samples, "notes": notes,
    }
    return answer


def main():
    # Whatever libraries print belongs to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        job = json.loads(sys.stdin.readline())
        faulthandler.dump_traceback_later(job["timeout"], exit=True)
        answer = replay(job, sys.stdin)
    except Refused as e:
        answer = {"error": str(e)}
    except Exception as e:  # named for the reader, in one line
        answer = {"error": f"{type(e).__name__}: {e}"}
    json.dump(answer, out)
    out.flush()
    # Pending streams and caches are the driver's to take back; skipping the
    # interpreter's shutdown avoids waiting for them.
    os._exit(0 if "error" not in answer else 1)


main()
