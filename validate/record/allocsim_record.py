#!/usr/bin/env python3
"""Record what a PyTorch program asks of its CUDA allocator, for allocsim.

Needs nothing but PyTorch 2.1 or newer. Either run the program under it,

    python allocsim_record.py -o NAME train.py --its --own --arguments

or start it in the program, before the model is made:

    import allocsim_record
    recorder = allocsim_record.start("NAME")
    for batch in data:
        ...
        recorder.step()            # optional: marks the end of an iteration

At the first out-of-memory error and again at the end it writes

    NAME.pickle   the snapshot of torch.cuda.memory, with the whole history
    NAME.json     what the snapshot cannot say: configuration, memory fraction,
                  empty_cache calls, iterations, the allocator's statistics

A process of a distributed job adds its rank: NAME.rank3.pickle. Then

    allocsim inspect NAME.pickle
    allocsim tune NAME.pickle

start() does not initialise CUDA: recording begins when the program does, so
that PYTORCH_CUDA_ALLOC_CONF may still be set and processes still be forked. A
failure of the recorder is reported on standard error and never stops the
program.

Options (of start, and as --flags):
    frames       also record the Python stack of every allocation. Says where
                 memory was allocated; makes recording slower and the file larger.
    steps        stop after this many calls of step() and write the files then.
    max_entries  events to keep. When there are more, the oldest are lost and a
                 replay is no longer exact; the files say so.
    compress     write NAME.pickle.gz.
"""

import atexit
import gzip
import json
import os
import pickle
import signal
import sys
import time

VERSION = 1
MAX_ENTRIES = 4_000_000

_recorder = None


def start(name="allocsim", frames=False, steps=None, max_entries=MAX_ENTRIES, compress=False):
    """Start recording and return the Recorder; a second call returns the first's."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(name, frames, steps, max_entries, compress)
    return _recorder


def step():
    """Mark the end of an iteration; does nothing when nothing is recorded."""
    if _recorder is not None:
        _recorder.step()


class Recorder:
    def __init__(self, name, frames, steps, max_entries, compress):
        import torch

        self.torch = torch
        rank = os.environ.get("RANK") if int(os.environ.get("WORLD_SIZE") or 1) > 1 else None
        self.name = name if rank is None else "%s.rank%s" % (name, rank)
        self.frames = frames
        self.steps = steps
        self.max_entries = max(1, int(max_entries))
        self.compress = compress
        self.notes = []
        self.fractions = {}  # device index -> last fraction set
        self.allocated_at_start = {}  # device index -> bytes, where not 0
        self.error = None
        self.recording = False
        self.finished = False
        self.oom_written = False
        self.iteration = 0
        self.mark = None
        self.pid = os.getpid()
        self._wrap()
        if torch.cuda.is_initialized():
            self._begin()
        else:
            torch.cuda._lazy_call(self._begin)
        atexit.register(self.stop)
        try:
            # Batch systems end a job with SIGTERM. Turn it into an ordinary
            # exit, which writes the files.
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        except ValueError:
            pass  # not in the main thread

    # What the program marks.

    def step(self):
        """Mark the end of an iteration."""
        if self.finished:
            return
        self.note("step", n=self.iteration)
        self._close_mark()
        self.iteration += 1
        if self.steps is not None and self.iteration >= self.steps:
            self.stop()
        elif self.recording:
            self._open_mark()

    def note(self, kind, **fields):
        """Add a note with the present time, in µs since the epoch."""
        entry = {"kind": kind, "t": time.time_ns() // 1000}
        entry.update(fields)
        self.notes.append(entry)

    def stop(self):
        """Write the files and stop recording."""
        if self.finished or os.getpid() != self.pid:
            return
        self.finished = True
        self._close_mark()
        if not self.recording:
            self._say("CUDA was never used; nothing recorded" if self.error is None else self.error)
            return
        self.dump()
        self.recording = False
        try:
            self.torch.cuda.memory._record_memory_history(enabled=None)
        except Exception as e:
            self._say("could not stop recording: %s" % e)

    def dump(self):
        """Write the files as things stand and go on recording."""
        try:
            self._dump()
        except Exception as e:
            self._say("could not write %s: %s: %s" % (self.name, type(e).__name__, e))

    # The rest is internal.

    def _say(self, text):
        try:
            print("allocsim_record: " + text, file=sys.stderr)
        except Exception:
            pass

    def _begin(self):
        torch = self.torch
        try:
            if torch.cuda.get_allocator_backend() != "native":
                raise RuntimeError("only backend:native can be recorded")
            for i in range(torch.cuda.device_count()):
                held = self._stats(i).get("reserved_bytes.all.current", 0)
                if held:
                    self.allocated_at_start[i] = held
            options = dict(
                enabled="all",
                context="alloc" if self.frames else None,
                stacks="python",
                max_entries=self.max_entries,
            )
            record = torch.cuda.memory._record_memory_history
            # Newer releases have more options. The first that works is taken.
            for more in (
                {"clear_history": True, "global_record_annotations": True},
                {"global_record_annotations": True},
                {},
            ):
                try:
                    record(**options, **more)
                    break
                except TypeError:
                    if not more:
                        raise
            torch._C._cuda_attach_out_of_memory_observer(self._oom)
            self.recording = True
            self._open_mark()
            if self.allocated_at_start:
                self._say("memory was reserved before recording started; start it before the model is made")
        except Exception as e:
            self.error = "could not start: %s: %s" % (type(e).__name__, e)
            self._say(self.error)

    def _open_mark(self):
        # The name that torch.profiler gives its steps.
        try:
            self.mark = self.torch.autograd.profiler.record_function("ProfilerStep#%d" % self.iteration)
            self.mark.__enter__()
        except Exception:
            self.mark = None

    def _close_mark(self):
        if self.mark is not None:
            try:
                self.mark.__exit__(None, None, None)
            except Exception:
                pass
            self.mark = None

    def _oom(self, device, allocated, total, free):
        self.note("oom", size=allocated, device=device, device_free=free)
        if not self.oom_written and not self.finished and os.getpid() == self.pid:
            self.oom_written = True
            self.dump()

    def _wrap(self):
        torch = self.torch
        memory = torch.cuda.memory

        def around(function, before):
            def wrapper(*args, **kwargs):
                try:
                    before(*args, **kwargs)
                except Exception:
                    pass
                return function(*args, **kwargs)

            wrapper.__name__ = function.__name__
            wrapper.__doc__ = function.__doc__
            wrapper.__wrapped__ = function
            return wrapper

        def index(device=None):
            if device is None:
                return torch.cuda.current_device()
            if isinstance(device, int):
                return device
            i = torch.device(device).index
            return torch.cuda.current_device() if i is None else i

        def on_empty_cache(*_):
            if torch.cuda.is_initialized():
                self.note("empty_cache")

        def on_fraction(fraction, device=None):
            torch.cuda.init()
            self.fractions[index(device)] = float(fraction)
            self.note("fraction", value=float(fraction), device=index(device))

        def on_reset(kind):
            return lambda device=None: self.note(kind, device=index(device))

        for name, before in (
            ("empty_cache", on_empty_cache),
            ("set_per_process_memory_fraction", on_fraction),
            ("reset_peak_memory_stats", on_reset("reset_peak")),
            ("reset_accumulated_memory_stats", on_reset("reset_accumulated")),
        ):
            wrapper = around(getattr(memory, name), before)
            setattr(memory, name, wrapper)
            setattr(torch.cuda, name, wrapper)
        # torch.accelerator has its own way to the allocator (PyTorch 2.9).
        accelerator = getattr(torch, "accelerator", None)
        for module in (accelerator, getattr(accelerator, "memory", None)):
            if hasattr(module, "empty_cache"):
                module.empty_cache = around(module.empty_cache, on_empty_cache)

    def _stats(self, device):
        stats = self.torch.cuda.memory_stats(device)
        return {k: v for k, v in stats.items() if isinstance(v, int)}

    def _device(self, i):
        properties = self.torch.cuda.get_device_properties(i)
        return {
            "index": i,
            "device": properties.name,
            "device_total": properties.total_memory,
            "fraction": self.fractions.get(i, 0.0),
            "stats": self._stats(i),
        }

    def _dump(self):
        torch = self.torch
        snapshot = torch.cuda.memory._snapshot()
        used = [i for i, t in enumerate(snapshot["device_traces"]) if t]
        used = used or [torch.cuda.current_device()]
        devices = [self._device(i) for i in used]
        main = max(devices, key=lambda d: len(snapshot["device_traces"][d["index"]]))
        settings = snapshot.get("allocator_settings", {})
        conf = settings.get("PYTORCH_CUDA_ALLOC_CONF")
        if conf is None:
            names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
            conf = next((os.environ[n] for n in names if n in os.environ), "")
        entries = len(snapshot["device_traces"][main["index"]])
        sidecar = {
            "conf": conf,
            "fraction": main["fraction"],
            "torch": torch.__version__,
            "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
            "device": main["device"],
            "device_index": main["index"],
            "device_total": main["device_total"],
            "mem_get_info": list(torch.cuda.mem_get_info(main["index"])),
            "settings": settings,
            "error": self.error,
            "notes": self.notes,
            "stats": main["stats"],
            "trace_entries": entries,
            "recorder": {
                "version": VERSION,
                "frames": self.frames,
                "max_entries": self.max_entries,
                "complete": entries < self.max_entries and not self.allocated_at_start,
                "reserved_at_start": sum(self.allocated_at_start.values()),
                "iterations": self.iteration,
            },
        }
        if len(devices) > 1:
            sidecar["devices"] = devices
        path = self.name + ".pickle" + (".gz" if self.compress else "")
        with open(path + ".tmp", "wb") as raw:
            # Protocol 4: every reader of snapshots knows it.
            if self.compress:
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as f:
                    pickle.dump(snapshot, f, protocol=4)
            else:
                pickle.dump(snapshot, raw, protocol=4)
        with open(self.name + ".json.tmp", "w", encoding="utf-8") as f:
            json.dump(sidecar, f, indent=1)
        os.replace(path + ".tmp", path)
        os.replace(self.name + ".json.tmp", self.name + ".json")
        lost = " (the beginning is lost: raise max_entries)" if entries >= self.max_entries else ""
        self._say("wrote %s and %s.json: %d events%s" % (path, self.name, entries, lost))


def main():
    import argparse
    import runpy

    parser = argparse.ArgumentParser(
        prog="allocsim_record.py",
        description="Run a PyTorch program and record what it asks of the CUDA allocator.",
    )
    parser.add_argument("-o", "--out", default="allocsim", metavar="NAME", help="write NAME.pickle and NAME.json")
    parser.add_argument("--frames", action="store_true", help="record Python stacks too (slower, larger)")
    parser.add_argument("--steps", type=int, metavar="N", help="stop after N calls of allocsim_record.step()")
    parser.add_argument("--max-entries", type=int, default=MAX_ENTRIES, metavar="N", help="events to keep (default %(default)s)")
    parser.add_argument("--compress", action="store_true", help="write NAME.pickle.gz")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    args = parser.parse_args()

    # The program must find this module, not a second copy of it.
    sys.modules["allocsim_record"] = sys.modules["__main__"]
    start(args.out, args.frames, args.steps, args.max_entries, args.compress)
    sys.argv = [args.program] + args.arguments
    if args.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(args.program))
        runpy.run_path(args.program, run_name="__main__")


if __name__ == "__main__":
    main()
