"""What recording costs: events per second of PyTorch's allocator without and
with recording, bytes per event on disk, host memory per event.

    python testdata/bench.py
"""

import gc
import json
import os
import resource
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch
import allocsim_record

SIZES = [(i * 7919) % (8 << 20) + 1 for i in range(64)]


def allocate(rounds):
    """rounds × 64 tensors, eight live at a time; 3 trace entries each."""
    live = [None] * 8
    began = time.perf_counter()
    for r in range(rounds):
        for i, n in enumerate(SIZES):
            live[i & 7] = torch.empty(n, dtype=torch.uint8, device="cuda")
    for i in range(8):
        live[i] = None
    return 3 * 64 * rounds / (time.perf_counter() - began)


def best(rounds):
    return max(allocate(rounds) for _ in range(5))


def deep(n, rounds):
    return deep(n - 1, rounds) if n else best(rounds)


def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def history(frames):
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc" if frames else None, stacks="python", max_entries=10**7, clear_history=True
    )


allocate(100)
result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}
result["events_per_s"] = {"off": best(2000)}
history(False)
before = rss()
result["events_per_s"]["on"] = best(2000)
recorded = 5 * 3 * 64 * 2000
result["host_bytes_per_event"] = (rss() - before) / recorded
history(True)
result["events_per_s"]["frames"] = best(500)
history(True)
result["events_per_s"]["frames_30_deep"] = deep(30, 500)
for name, frames in (("plain", False), ("frames", True)):
    history(frames)
    allocate(500)
    recorder = allocsim_record.Recorder.__new__(allocsim_record.Recorder)
    recorder.__dict__.update(
        torch=torch, name=os.path.join(tempfile.gettempdir(), "bench_" + name), frames=frames, max_entries=10**7, compress=False, notes=[], fractions={},
        allocated_at_start={}, error=None, iteration=0,
    )
    gc.collect()
    before = rss()
    began = time.perf_counter()
    recorder._dump()
    seconds = time.perf_counter() - began
    with open(recorder.name + ".json") as f:
        entries = json.load(f)["trace_entries"]
    size = os.path.getsize(recorder.name + ".pickle")
    result["dump_" + name] = {"entries": entries, "seconds": seconds, "bytes_per_event": size / entries}
print(json.dumps(result, indent=1))
