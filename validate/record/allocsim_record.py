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

No GPU yet? This runs the program on tensors without memory (PyTorch 2.4 or newer), for a card that is
only named, and writes NAME.dryrun and NAME.json; allocsim reads them the same:

    python allocsim_record.py --dry-run --gpu "H100 80GB" -o NAME train.py

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
import importlib
import json
import os
import pickle
import signal
import sys
import time
import types
import warnings
import weakref

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


# ---------------------------------------------------------------------------
# Dry run: the same program on tensors without memory.
#
# A "phantom" is a tensor of PyTorch's meta device (shape, strides and a storage
# without bytes) that carries CUDA's dispatch keys: autocast and autograd treat
# it as they treat a CUDA tensor, while the autograd engine, which would ask the
# driver for streams, sees a device that has none. Python is told that the
# device is cuda:0. CPU tensors stay real, except for large uninitialised ones
# (weights), which are phantoms that do not count. A dispatch mode below
# autograd sees each ATen operation; storages that an operation brings are
# allocations, and the end of a storage's life is a free.

DRY_FORMAT = 1

# Name, compute capability, SMs, bytes that the driver reports, other names.
# The figures are those of planner/gpus/catalogue.csv.
GPUS = """
Tesla P40|6.1|30|24032378880|
Tesla P100-PCIE-16GB|6.0|56|17071734784|P100
Tesla V100-SXM2-16GB|7.0|80|16928342016|V100 16GB
Tesla V100-PCIE-16GB|7.0|80|16936927232|
Tesla V100-SXM2-32GB|7.0|80|34072428544|V100 32GB
Tesla V100-PCIE-32GB|7.0|80|34089730048|
Tesla V100S-PCIE-32GB|7.0|80|34079768576|
TITAN V|7.0|80|12653035520|
Tesla T4|7.5|40|15642329088|
RTX 2080 Ti|7.5|68|11347623936|
TITAN RTX|7.5|72|25388122112|
Quadro RTX 5000|7.5|48|15634726912|
Quadro RTX 8000|7.5|72|50753634304|
RTX 3060 12GB|8.6|28|12490440704|RTX 3060
RTX 3060 Ti|8.6|38|8222670848|
RTX 3070|8.6|46|8232435712|
RTX 3080 10GB|8.6|68|10354753536|RTX 3080
RTX 3080 12GB|8.6|70|12705595392|
RTX 3080 Ti|8.6|80|12489195520|
RTX 3090|8.6|82|25296044032|
RTX 3090 Ti|8.6|84|25281167360|
A10|8.6|72|23609475072|
A30|8.0|56|25337790464|
A40|8.6|84|47608692736|
RTX A4000|8.6|48|16761094144|
RTX A5000|8.6|64|25283526656|
RTX A6000|8.6|84|51041271808|
A100-PCIE-40GB|8.0|108|42405855232|
A100-SXM4-40GB|8.0|108|42405855232|A100 40GB
A100-PCIE-80GB|8.0|108|85097971712|
A100-SXM4-80GB|8.0|108|85093777408|A100 80GB;A100
A800-PCIE-80GB|8.0|108|84988133376|
A800-SXM4-80GB|8.0|108|85094825984|A800
L4|8.9|58|23654563840|
L20|8.9|92|47677177856|
L40|8.9|142|47676129280|
L40S|8.9|142|47675604992|
RTX 4000 Ada|8.9|48|20980891648|
RTX 4000 SFF Ada|8.9|48|21029191680|
RTX 5000 Ada|8.9|100|33790623744|
RTX 6000 Ada|8.9|142|50865307648|
RTX 4060 Ti 8GB|8.9|34|8185184256|
RTX 4060 Ti 16GB|8.9|34|16722821120|
RTX 4070|8.9|46|12442402816|
RTX 4070 Ti SUPER|8.9|66|16715218944|
RTX 4080|8.9|76|16718168064|
RTX 4080 SUPER|8.9|80|16718495744|
RTX 4090|8.9|128|25250627584|
RTX 4090 D|8.9|114|25282215936|
RTX 5060 Ti 16GB|12.0|36|16610492416|RTX 5060 Ti
RTX 5070 Ti|12.0|70|16575889408|
RTX 5080|12.0|84|16609378304|
RTX 5090|12.0|170|33668857856|
RTX PRO 6000 Blackwell (Server)|12.0|188|101975851008|
RTX PRO 6000 Blackwell (Workstation/Max-Q)|12.0|188|101970870272|
H100 PCIe 80GB|9.0|114|84943044608|
H100 SXM5 80GB|9.0|132|85028896768|H100 80GB;H100;H100 SXM
H100 NVL 94GB|9.0|132|99960750080|
H800 80GB|9.0|132|84943110144|H800
H20 96GB|9.0|78|102010650624|H20
H20-3e 141GB|9.0|78|150109880320|H20-3e
H200 141GB|9.0|132|150109880320|H200
GH200 96GB|9.0|132|101468602368|GH200;GH200 480GB
B200 180GB|10.0|148|191503007744|B200
"""

# What PyTorch calls a card, where it is not "NVIDIA " and the name above.
TORCH_NAMES = {
    "H200 141GB": "NVIDIA H200",
    "H100 SXM5 80GB": "NVIDIA H100 80GB HBM3",
    "H100 PCIe 80GB": "NVIDIA H100 PCIe",
    "H100 NVL 94GB": "NVIDIA H100 NVL",
    "B200 180GB": "NVIDIA B200",
    "H20 96GB": "NVIDIA H20",
    "H800 80GB": "NVIDIA H800",
    "Tesla T4": "Tesla T4",
    "A100-PCIE-80GB": "NVIDIA A100 80GB PCIe",
}

ASSUME = {
    "bool": "auto",  # bool(tensor) of data that nobody has: false, true; auto: false, but generation goes on
    "int": "1",  # tensor.item() of an integer
    "float": "1.0",  # tensor.item() of a floating-point number
    "nonzero": "auto",  # share of a mask's elements that are set; auto: 0.5, or 1 where boxes are only tidied
    "nms": "0.5",  # share of boxes that survive non-maximum suppression
    "overflow": "0",  # steps that GradScaler skips at the start
}

INSTALL_HINT = (
    "a dry run needs PyTorch 2.4 or newer, any build, no GPU:\n"
    "    python -m pip install --upgrade torch"
)


def find_gpu(name):
    """The row of GPUS that name means: (name, major, minor, sms, bytes)."""

    def words(text):
        text = "".join(c if c.isalnum() else " " for c in text.lower())
        drop = ("nvidia", "geforce", "tesla", "quadro", "gpu", "graphics")
        return [w for w in text.split() if w not in drop]

    rows = []
    for line in GPUS.strip().splitlines():
        row = line.split("|")
        rows.append((row[0], row[1], int(row[2]), int(row[3]), [row[0]] + [a for a in row[4].split(";") if a]))
    wanted = "".join(words(name))
    hits = [r for r in rows if any("".join(words(n)) == wanted for n in r[4] + [TORCH_NAMES.get(r[0], r[0])])]
    if not hits:
        hits = [r for r in rows if set(words(name)) <= set(words(r[0]))]
    if len(hits) != 1:
        near = ", ".join(r[0] for r in hits) or ", ".join(r[0] for r in rows)
        raise SystemExit("allocsim_record: --gpu %r is %s: %s" % (name, "one of" if hits else "not known; known are", near))
    r = hits[0]
    major, minor = r[1].split(".")
    return r[0], int(major), int(minor), r[2], r[3]


class DryRunEnd(BaseException):
    """Raised in the program when enough optimizer steps have been seen."""


class DryRun:
    """One dry run: writes NAME.dryrun and NAME.json."""

    def __init__(self, name, gpu="H200", steps=3, seconds=None, world_size=1, assume=(), frames=False):
        try:
            import torch
        except ImportError as e:
            raise SystemExit("allocsim_record: cannot import torch (%s); %s" % (e, INSTALL_HINT))
        version = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
        if version < (2, 4):
            raise SystemExit("allocsim_record: this is PyTorch %s; %s" % (torch.__version__, INSTALL_HINT))
        self.torch = torch
        self.version = version
        self.card = find_gpu(gpu)
        self.name = name
        self.limit_steps = steps
        self.limit_seconds = seconds
        self.world_size = world_size
        self.frames = frames
        self.assume = dict(ASSUME)
        for text in assume:
            key, _, value = text.partition("=")
            if key not in self.assume or not value:
                raise SystemExit(
                    "allocsim_record: --assume %s: say KEY=VALUE, KEY one of %s" % (text, ", ".join(sorted(self.assume)))
                )
            try:
                ("auto", "false", "true").index(value.lower()) if key == "bool" else value == "auto" or float(value)
            except ValueError:
                raise SystemExit("allocsim_record: --assume %s: a number (bool: true, false or auto) is wanted" % text)
            self.assume[key] = value.lower()
        self.pid = os.getpid()
        self.started = time.time()
        self.finished = False
        self.storages = {}  # StorageImpl address -> _Storage
        self.next_storage = 0
        self.next_tensor = 0
        self.ops = self.allocs = 0
        self.live = self.peak = 0
        self.frees = []
        self.assumptions = {}
        self.notes = []
        self.optimizer_steps = {}
        self.iteration = 0
        self.error = ""
        self.skips = int(float(self.assume["overflow"]))
        self.streams = {}
        self.current_stream = 0
        self.fraction = 0.0
        self.frame_ids = {}
        self.stack_ids = {}
        self.cast_cache = {}
        self.pools = 0
        self.counter = 0
        self.in_kernel = False
        self.true_meta = 0
        self.path = name + ".dryrun"
        self.raw = open(self.path + ".tmp", "wb")
        self.out = gzip.GzipFile(fileobj=self.raw, mode="wb", compresslevel=5, mtime=0)
        self.buffer = []

    # Output.

    def write(self, line):
        self.buffer.append(line)
        if len(self.buffer) > 4096:
            self.flush()

    def flush(self):
        self.out.write(("\n".join(self.buffer) + "\n").encode())
        self.buffer = []

    def event(self, kind, **fields):
        if not self.finished:
            self.drain()
            self.write(_compact(dict({"ev": kind}, **fields)))

    def drain(self):
        if self.frees:
            frees, self.frees = self.frees, []
            self.write('{"f":%s}' % _compact(frees))

    def header(self, program):
        torch = self.torch
        self.write(
            _compact(
                {
                    "allocsim_dryrun": DRY_FORMAT,
                    "torch": torch.__version__,
                    "python": sys.version.split()[0],
                    "cuda": self.cuda_version,
                    "cudnn": self.cudnn_version,
                    "program": program,
                    "gpu": self.gpu,
                    "conf": self.conf(),
                    "env": {
                        k: os.environ[k]
                        for k in sorted(os.environ)
                        if k.startswith(("CUBLAS", "CUDNN", "TORCH_CUDNN", "TORCH_BLAS", "NVIDIA_TF32", "TORCH_ALLOW_TF32"))
                    },
                    "steps": self.limit_steps,
                    "world_size": self.world_size,
                    "frames": self.frames,
                }
            )
        )

    def conf(self):
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        return next((os.environ[n] for n in names if n in os.environ), "")

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def say(self, text):
        print("allocsim_record: " + text, file=sys.stderr)

    def assumed(self, kind, value, text):
        """Count one use of an assumption at the program's line."""
        if self.finished:
            return
        file, line, function = self.where()
        key = (kind, str(value), file, line)
        entry = self.assumptions.get(key)
        if entry is None:
            entry = self.assumptions[key] = {
                "kind": kind,
                "value": str(value),
                "file": file,
                "line": line,
                "function": function,
                "count": 0,
                "text": text,
            }
        entry["count"] += 1

    def where(self):
        """File, line and function of the innermost frame outside PyTorch."""
        frame = sys._getframe(1)
        last = None
        while frame is not None:
            file = frame.f_code.co_filename
            if file != _THIS and not file.startswith(self.torch_dir) and "importlib" not in file and not file.startswith("<"):
                return file, frame.f_lineno, frame.f_code.co_name
            last = last or (file, frame.f_lineno, frame.f_code.co_name)
            frame = frame.f_back
        return last or ("", 0, "")

    def stack(self):
        frame = sys._getframe(1)
        found = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename != _THIS:
                key = (code, frame.f_lineno)
                i = self.frame_ids.get(key)
                if i is None:
                    i = self.frame_ids[key] = len(self.frame_ids) + 1
                    self.write(_compact({"F": i, "file": code.co_filename, "line": frame.f_lineno, "fn": code.co_name}))
                found.append(i)
            frame = frame.f_back
        found = tuple(found)
        k = self.stack_ids.get(found)
        if k is None:
            k = self.stack_ids[found] = len(self.stack_ids) + 1
            self.write(_compact({"K": k, "fr": list(found)}))
        return k

    # Storages.

    def storage(self, tensor):
        """The record of a phantom's storage, made at first sight."""
        if tensor.layout is not self.torch.strided:
            return _NO_STORAGE
        return self.storage_of(tensor.untyped_storage(), tensor._kind)

    def storage_of(self, st, kind):
        key = st._cdata
        rec = self.storages.get(key)
        if rec is None:
            rec = self.storages[key] = _Storage()
            rec.known = True
            rec.kind = kind
            rec.size = st.nbytes()
            rec.desc = {}
            if rec.kind == "cuda" and rec.size > 0:
                self.next_storage += 1
                rec.id = self.next_storage
                rec.born = True
                self.allocs += 1
                self.grow(rec.size)
            else:
                rec.id = 0 if rec.kind != "cuda" else -1

            def dead(_, key=key, rec=rec):
                self.storages.pop(key, None)
                if rec.id > 0 and rec.size > 0:
                    self.live -= _rounded(rec.size)
                    if not self.finished:
                        self.frees.append(rec.id)

            rec.ref = weakref.ref(st, dead)
        return rec

    def grow(self, size):
        self.live += _rounded(size)
        if self.live > self.peak:
            self.peak = self.live

    def resized(self, tensor_or_storage):
        """Note that a storage changed its size in place."""
        st = tensor_or_storage
        if isinstance(st, self.torch.Tensor):
            st = st.untyped_storage()
        rec = self.storages.get(st._cdata)
        if rec is None or rec.kind != "cuda":
            return
        size = st.nbytes()
        if size == rec.size:
            return
        self.live -= _rounded(rec.size)
        self.grow(size)
        rec.size = size
        if rec.id <= 0:
            self.next_storage += 1
            rec.id = self.next_storage
            rec.desc = {}
            self.drain()
            self.write('{"resize":%d,"to":%d}' % (rec.id, size))
            return
        if not self.finished:
            self.drain()
            self.write('{"resize":%d,"to":%d}' % (rec.id, size))

    def describe(self, t, rec=None):
        """The descriptor id of a tensor, written at first use."""
        if t.layout is self.torch.sparse_coo and isinstance(t, self.Phantom):
            # It has no storage of its own.
            parts = [self.describe(x) for x in self.parts(t)]
            self.next_tensor += 1
            self.write(_compact({"T": self.next_tensor, "s": -1, "d": self.dtype_name(t.dtype), "z": list(t.shape),
                                 "layout": "sparse_coo", "indices": "%%%d" % parts[0], "values": "%%%d" % parts[1]}))
            return self.next_tensor
        if isinstance(t, self.Phantom):
            rec = rec or self.storage(t)
            sid = rec.id if rec.kind == "cuda" else 0
            cache = rec.desc if sid else self.cpu_desc
        else:
            sid, cache = 0, self.cpu_desc
        layout = t.layout
        if layout is not self.torch.strided:
            key = (str(layout), t.dtype, tuple(t.shape))
            st = None
        else:
            st = t.stride()
            key = (t.dtype, tuple(t.shape), st, t.storage_offset())
        i = cache.get(key)
        if i is None:
            self.next_tensor += 1
            i = cache[key] = self.next_tensor
            d = {"T": i, "s": sid, "d": self.dtype_name(t.dtype), "z": list(t.shape)}
            if st is None:
                d["layout"] = str(layout).replace("torch.", "")
            elif not t.is_contiguous() or t.storage_offset():
                d["st"] = list(st)
                d["o"] = t.storage_offset()
            self.write(_compact(d))
            if sid == 0 and len(cache) > 10000:
                cache.clear()
        return i

    def dtype_name(self, dtype):
        name = _DTYPES.get(str(dtype))
        return name or str(dtype).replace("torch.", "")

    def argument(self, value):
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return "%%%d" % self.describe(value)
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if value == value and abs(value) != float("inf") else str(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if isinstance(value, torch.dtype):
            return self.dtype_name(value)
        if isinstance(value, torch.device):
            return "cuda" if value.type == "meta" else value.type
        return str(value).replace("torch.", "")

    def emit(self, func, args, kwargs, result, new):
        """Write one operation."""
        if self.finished:
            return
        self.ops += 1
        names = _schema_names(func)
        a = {}
        for i, value in enumerate(args):
            a[names[i] if i < len(names) else str(i)] = self.argument(value)
        for key, value in kwargs.items():
            a[key] = self.argument(value)
        line = {"op": _op_name(func)}
        if self.torch._C._current_graph_task_id() != -1:
            line["th"] = 1
        line["a"] = a
        r = result if isinstance(result, (tuple, list)) else (result,)
        line["r"] = [self.argument(x) if isinstance(x, (self.torch.Tensor, list, tuple)) else None for x in r]
        if new:
            line["new"] = [[rec.id, rec.size] for rec in new]
        if self.current_stream:
            line["st"] = self.current_stream
        if self.frames:
            line["k"] = self.stack()
        self.write(_compact(line))
        self.drain()
        if self.limit_seconds and self.ops % 256 == 0 and time.time() - self.started > self.limit_seconds:
            self.end("stopped after %g seconds (--seconds)" % self.limit_seconds)

    def end(self, why=""):
        if why:
            self.note(why)
        self.finish()
        raise DryRunEnd()

    def finish(self):
        """Write the trailer and the sidecar. What dies later is not recorded."""
        if self.finished or os.getpid() != self.pid:
            return
        self.drain()
        self.finished = True
        torch = self.torch
        steps = max(self.optimizer_steps.values(), default=0)
        assumptions = list(self.assumptions.values())
        end = {
            "complete": not self.error,
            "error": self.error,
            "optimizer_steps": steps,
            "ops": self.ops,
            "allocs": self.allocs,
            "peak": self.peak,
            "seconds": round(time.time() - self.started, 1),
            "assumptions": assumptions,
            "notes": self.notes,
        }
        self.write(_compact({"end": end}))
        self.flush()
        self.out.close()
        self.raw.close()
        sidecar = {
            "conf": self.conf(),
            "fraction": self.fraction,
            "torch": torch.__version__,
            "cuda": self.cuda_version,
            "device": self.gpu["name"],
            "device_index": 0,
            "device_total": self.gpu["total_memory"],
            "mem_get_info": [self.gpu["total_memory"] - self.context, self.gpu["total_memory"]],
            "settings": {},
            "error": self.error or None,
            "notes": [],
            "recorder": {
                "version": VERSION,
                "dry_run": True,
                "frames": self.frames,
                "complete": not self.error,
                "iterations": self.iteration,
                "assumptions": assumptions,
                "notes": self.notes,
            },
        }
        with open(self.name + ".json.tmp", "w", encoding="utf-8") as f:
            json.dump(sidecar, f, indent=1)
        os.replace(self.path + ".tmp", self.path)
        os.replace(self.name + ".json.tmp", self.name + ".json")
        self.say(
            "wrote %s and %s.json: %d operations, %d allocations, %d optimizer steps, at most %.2f GiB in tensors"
            % (self.path, self.name, self.ops, self.allocs, steps, self.peak / 2**30)
        )
        for a in assumptions:
            self.say("assumed %s=%s, %d times, at %s:%d (%s)" % (a["kind"], a["value"], a["count"], a["file"], a["line"], a["text"]))
        for n in self.notes:
            self.say(n)

    # Steps.

    def stepped(self, optimizer, *_):
        key = id(optimizer)
        self.optimizer_steps[key] = self.optimizer_steps.get(key, 0) + 1
        if next(iter(self.optimizer_steps)) == key:
            self.event("step", n=self.iteration)
            self.iteration += 1
        n = self.limit_steps
        if n and not self.finished:
            counts = self.optimizer_steps.values()
            if min(counts) >= n or max(counts) >= 4 * n:
                self.end()

    # The phantom tensor.

    def make_classes(self):
        torch = self.torch
        run = self
        from torch.utils._python_dispatch import TorchDispatchMode

        cuda0, cpu, meta = torch.device("cuda", 0), torch.device("cpu"), torch.device("meta")
        make_subclass = torch.Tensor._make_subclass
        disable = torch._C._DisableTorchDispatch

        plain_setitem, plain_tensor = torch.Tensor.__setitem__, torch.tensor

        class Phantom(torch.Tensor):
            """A tensor without memory, on the planned GPU ("cuda") or the host ("cpu")."""

            @staticmethod
            def __new__(cls, elem, kind="cuda"):
                guard = disable()
                try:
                    t = make_subclass(
                        cls, elem, False, dispatch_device=False, device_for_backend_keys=cuda0 if kind == "cuda" else cpu
                    )
                finally:
                    del guard
                t._kind = kind
                t._v = None
                return t

            __torch_function__ = torch._C._disabled_torch_function_impl

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                return run.dispatch(func, args, kwargs or {})

            @property
            def device(self):
                if run.in_kernel:
                    return meta
                return cuda0 if self._kind == "cuda" else cpu

            @property
            def is_cuda(self):
                return self._kind == "cuda" and not run.in_kernel

            @property
            def is_cpu(self):
                return self._kind == "cpu" and not run.in_kernel

            @property
            def is_meta(self):
                return run.in_kernel

            def get_device(self):
                return 0 if self._kind == "cuda" else -1

            def type(self, dtype=None, non_blocking=False, **kwargs):
                if dtype is None:
                    name = _TYPE_NAMES.get(str(self.dtype), "FloatTensor")
                    return "torch.%s%s" % ("cuda." if self._kind == "cuda" else "", name)
                if isinstance(dtype, str) or isinstance(dtype, type):
                    text = dtype if isinstance(dtype, str) else dtype.__module__ + "." + dtype.__name__
                    t = self.to("cuda" if ".cuda." in text else "cpu")
                    for name, tensor_type in _TYPE_NAMES.items():
                        if text.endswith("." + tensor_type):
                            return t.to(getattr(torch, name[6:]))
                    raise RuntimeError("invalid type: %r" % text)
                return self.to(dtype)

            def data_ptr(self):
                # Libraries tell tensors that share memory by this number.
                if self.layout is not torch.strided:
                    return 0
                return self.untyped_storage()._cdata + self.storage_offset() * self.element_size()

            def __repr__(self, *_, **__):
                return "tensor(..., device='%s', size=%s, dtype=%s)" % (self.device, tuple(self.shape), self.dtype)

            def __format__(self, spec):
                return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

            def __deepcopy__(self, memo):
                if id(self) in memo:
                    return memo[id(self)]
                with torch.no_grad():
                    new = self.detach().clone()
                new.requires_grad_(self.requires_grad)
                new.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_v", "_kind")})
                if self.grad is not None:
                    new.grad = self.grad.__deepcopy__(memo)
                memo[id(self)] = new
                return new

            def __reduce_ex__(self, protocol):
                raise RuntimeError("a dry run's tensor has no data to pickle or to send to another process")

            def __setitem__(self, key, value):
                # On a GPU a number stays on the host until it is written.
                if isinstance(value, (bool, int, float)) and self._kind == "cuda" and not run.in_kernel:
                    guard = disable()
                    try:
                        value = plain_tensor(value, dtype=self.dtype)
                    finally:
                        del guard
                return plain_setitem(self, key, value)

            def pin_memory(self, *_):
                return self

            def is_pinned(self, *_):
                return False

            def is_shared(self):
                return False

            def share_memory_(self):
                return self

            def record_stream(self, stream):
                rec = run.storage(self)
                if rec.id > 0 and not run.finished:
                    run.drain()
                    run.write('{"rs":%d,"st":%d}' % (rec.id, getattr(stream, "number", 0)))

            def __cuda_array_interface__(self):
                raise run.refuse("other libraries cannot read a dry run's tensors (__cuda_array_interface__)")

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return run.dispatch(func, args, kwargs or {})

        self.Phantom, self.mode_class = Phantom, Mode
        self.mode = Mode()
        self.cuda0, self.cpu, self.meta = cuda0, cpu, meta
        self.cpu_desc = {}
        from torch._subclasses.fake_tensor import FakeTensor

        self.fake_tensor = FakeTensor
        self.foreign_types = {torch.Tensor: False, torch.nn.Parameter: False, Phantom: False}
        self.func_facts = {}
        self.handlers = self.make_handlers()

    def refuse(self, text, flag=""):
        file, line, _ = self.where()
        return NotImplementedError("%s\n  at %s:%d%s" % (text, file, line, "\n  " + flag if flag else ""))

    # Dispatch.

    def facts(self, func):
        """What the schema says: (composite, mutable argument names, random)."""
        f = self.func_facts.get(func)
        if f is None:
            torch = self.torch
            name = func._schema.name
            if func._overloadname and func._overloadname != "default":
                name += "." + func._overloadname
            # CUDA has its own kernel for these few composites.
            own = ("aten::_fused_rms_norm", "aten::mish_backward", "aten::silu_backward")
            composite = name not in own and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
            write = [
                (i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
            ]
            random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
            base = func._schema.name.split("::")[-1]
            heavy = base.startswith(_HEAVY) or func.namespace != "aten"
            f = self.func_facts[func] = (composite, write, random, heavy)
        return f

    def foreign(self, cls):
        known = self.foreign_types.get(cls)
        if known is None:
            td = getattr(cls, "__torch_dispatch__", None)
            known = td is not self.torch._C._disabled_torch_dispatch_impl
            self.foreign_types[cls] = known
        return known

    # No nested function here may call itself: the cycle between such a
    # function and the variable that names it would keep tensors alive.

    def collect(self, values, phantoms, reals):
        """Sort the tensors among values; says when a tensor is of another kind."""
        for v in values:
            if isinstance(v, self.torch.Tensor):
                if type(v) is self.Phantom:
                    phantoms.append(v)
                elif isinstance(v, self.fake_tensor):
                    return "fake"
                elif self.foreign(type(v)):
                    return "foreign"
                else:
                    reals.append(v)
            elif isinstance(v, (list, tuple)):
                if v and not isinstance(v[0], (int, float, str)):
                    other = self.collect(v, phantoms, reals)
                    if other:
                        return other
        return None

    def dispatch(self, func, args, kwargs):
        torch = self.torch
        if self.in_kernel or torch._C._meta_in_tls_dispatch_include() or os.getpid() != self.pid:
            return func(*args, **kwargs)
        if self.frees and not self.finished:
            self.drain()
        phantoms, reals = [], []
        Phantom = self.Phantom
        other = self.collect(args, phantoms, reals) or (self.collect(kwargs.values(), phantoms, reals) if kwargs else None)
        if other:
            # Fake tensors compute shapes for PyTorch itself; other subclasses
            # come back here with the tensors inside them.
            return func(*args, **kwargs) if other == "fake" else NotImplemented
        composite, write, random, heavy = self.facts(func)
        if composite:
            over = self.composites.get(func)
            with self.mode:
                if over is not None and (phantoms or func in self.conversions):
                    return over(*args, **kwargs)
                r = func.decompose(*args, **kwargs)
                if r is not NotImplemented:
                    return r
        device = kwargs.get("device")
        target = None
        if device is not None:
            kind = device.type
            if kind == "cuda":
                target = "cuda"
            elif kind == "meta":
                target = "meta" if self.true_meta else "same"
            else:
                target = "cpu"
        if not phantoms:
            if target == "same":
                # From PyTorch's own C++ with a phantom's options, unless all
                # inputs are true meta tensors.
                target = "meta" if any(t.is_meta for t in reals) else "cuda"
            if target == "cuda":
                return self.create(func, args, kwargs, reals, random)
            if target is None or target == "cpu":
                if func in self.empties and self.large_weight(args, kwargs):
                    r = self.kernel(func, args, dict(kwargs, device=self.meta))
                    return Phantom(r, "cpu")
            return func(*args, **kwargs)
        kind = "cpu"
        for p in phantoms:
            if p._kind == "cuda":
                kind = "cuda"
                break
        source = kind
        if target == "cuda":
            kind = "cuda"
        handler = self.handlers.get(func) or self.late_handlers.get(func._schema.name)
        if handler is not None:
            r = handler(func, args, kwargs, kind)
            if r is not _PASS:
                return r
        if target == "cpu" and source == "cuda":
            return self.to_host(func, args, kwargs, phantoms)
        return self.execute(func, args, kwargs, kind, phantoms, reals)

    def execute(self, func, args, kwargs, kind, phantoms, reals=(), value=True):
        """Run an operation's shape function and write the operation."""
        composite, write, random, heavy = self.facts(func)
        v = _PASS
        if value and not heavy:
            v = self.known_result(func, args, kwargs, phantoms, reals, random)
        if v is _PASS:
            for i, name in write:
                w = args[i] if i < len(args) else kwargs.get(name)
                for t in w if isinstance(w, (list, tuple)) else (w,):
                    if type(t) is self.Phantom:
                        self.storage(t).known = False
        try:
            raw = self.kernel(func, args, kwargs)
        except (NotImplementedError, RuntimeError, TypeError) as e:
            raw = self.fallback(func, args, kwargs, e, v)
        r = self.wrap(raw, kind, v)
        for i, name in write:
            w = args[i] if i < len(args) else kwargs.get(name)
            if type(w) is self.Phantom and w.layout is self.torch.strided:
                rec = self.storages.get(w.untyped_storage()._cdata)
                if rec is not None and rec.kind == "cuda" and rec.size != w.untyped_storage().nbytes():
                    self.resized(w)
        if kind == "cuda":
            self.record(func, args, kwargs, r)
        return r

    def record(self, func, args, kwargs, r):
        new = []
        self.see(r, new)
        if new and func._schema.name in ("aten::new_zeros", "aten::zeros", "aten::zeros_like"):
            self.last_zeros = new[0]
        self.emit(func, args, kwargs, r, new)

    def see(self, x, new):
        """Add the storages that x brings to new."""
        if type(x) is self.Phantom:
            if x.layout is self.torch.sparse_coo:
                for part in self.parts(x):
                    self.see(part, new)
                return
            rec = self.storage(x)
            if rec.born:
                rec.born = False
                new.append(rec)
        elif isinstance(x, (tuple, list)):
            for y in x:
                self.see(y, new)

    def parts(self, sparse):
        """Indices and values of a sparse tensor."""
        torch = self.torch
        out = []
        guard = torch._C._DisableTorchDispatch()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            for t in (sparse._indices(), sparse._values()):
                out.append(t if type(t) is self.Phantom else self.Phantom(t, sparse._kind))
        finally:
            torch._C._set_meta_in_tls_dispatch_include(False)
            del guard
        return out

    def stand_in(self, v, keep):
        """v with its host tensors replaced by tensors without memory."""
        torch = self.torch
        if isinstance(v, torch.Tensor):
            if type(v) is self.Phantom or v.is_meta or v.layout is not torch.strided:
                return v
            m = torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=self.meta)
            keep.append((m, v))
            return m
        if isinstance(v, (list, tuple)):
            return type(v)([self.stand_in(x, keep) for x in v]) if type(v) in (list, tuple) else v
        if isinstance(v, torch.device):
            return self.meta
        return v

    def shapes(self, func, args, kwargs):
        """What func returns, as tensors without memory."""
        try:
            return self.kernel(func, args, kwargs)
        except NotImplementedError as e:
            return self.fallback(func, args, kwargs, e, _PASS)

    def kernel(self, func, args, kwargs):
        """Run func's shape function on phantoms and stand-ins of real tensors."""
        torch = self.torch
        keep = []
        self.in_kernel = True
        guard = torch._C._DisableTorchDispatch()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            args = self.stand_in(args, keep)
            kwargs = {k: self.stand_in(v, keep) for k, v in kwargs.items() if k != "pin_memory"}
            r = func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(False)
            del guard
            self.in_kernel = False
        for m, v in keep:
            # An operation that wrote into a real tensor returns that tensor.
            if r is m:
                return v
        return r

    def fallback(self, func, args, kwargs, error, value):
        """An operation whose shape function does not exist or wants data."""
        torch = self.torch
        if value is not _PASS and value is not None:
            # All inputs are known, so the shape of the result is.
            return self.shaped(value)
        if self.facts(func)[1] and any(t.layout is not torch.strided for t in _tensors(args, torch)):
            # A sparse tensor is added to a dense one in place.
            return args[0]
        import torch._decomp as decomp

        # Shape functions that are not registered for the meta device, then
        # what the operation is made of.
        ways = [getattr(decomp, "meta_table", {}).get(func), decomp.decomposition_table.get(func)]
        if torch._C._dispatch_has_kernel_for_dispatch_key(_op_name(func), "CompositeImplicitAutograd"):
            ways.append(func.decompose)
        for way in ways if isinstance(error, NotImplementedError) else ():
            if way is None:
                continue
            self.in_kernel = True
            guard = torch._C._DisableTorchDispatch()
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                return way(*args, **kwargs)
            except (NotImplementedError, RuntimeError):
                pass
            finally:
                torch._C._set_meta_in_tls_dispatch_include(False)
                del guard
                self.in_kernel = False
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            text = "the dry run does not know the shape of %s's result" % _op_name(func)
            if func.namespace not in ("aten", "prims"):
                text += ": register a shape function for it (torch.library.register_fake)"
            raise self.refuse(text) from error
        raise error

    def shaped(self, v):
        if isinstance(v, self.torch.Tensor):
            return self.blank(tuple(v.shape), v.dtype)
        return type(v)([self.shaped(x) for x in v]) if isinstance(v, (tuple, list)) else v

    def blank(self, shape, dtype, stride=None):
        """A tensor without memory; not yet a phantom."""
        torch = self.torch
        guard = torch._C._DisableTorchDispatch()
        try:
            if stride is None:
                return torch.empty(shape, dtype=dtype, device=self.meta)
            return torch.empty_strided(shape, stride, dtype=dtype, device=self.meta)
        finally:
            del guard

    def wrap(self, raw, kind, value=None):
        torch = self.torch
        Phantom = self.Phantom
        if value is _PASS:
            value = None
        if isinstance(raw, torch.Tensor):
            if isinstance(raw, Phantom):
                return raw
            if raw.device.type == "cpu" and raw.layout is torch.strided and not raw.is_meta:
                return raw
            p = Phantom(raw, kind)
            if value is not None and isinstance(value, torch.Tensor) and value.shape == p.shape:
                p._v = value
            return p
        if isinstance(raw, (list, tuple)):
            many = isinstance(value, (list, tuple)) and len(value) == len(raw)
            out = [self.wrap(x, kind, value[i] if many else None) for i, x in enumerate(raw)]
            return out if isinstance(raw, list) else tuple(out)
        return raw

    # Values. Small tensors whose content the program determines (masks,
    # positions, lengths, labels) are computed for real, so that conditions on
    # them come out as they would.

    def value(self, t):
        v = getattr(t, "_v", None)
        if v is None or not self.storage(t).known:
            return None
        return v

    def small(self, numel, dtype):
        return numel <= (1 << 22 if dtype.is_floating_point or dtype.is_complex else 1 << 22)

    def real(self, v):
        """v with phantoms replaced by their values."""
        if isinstance(v, self.torch.Tensor):
            return v._v if type(v) is self.Phantom else v
        if type(v) in (list, tuple):
            return type(v)([self.real(x) for x in v])
        if isinstance(v, self.torch.device):
            return self.cpu
        return v

    def known_result(self, func, args, kwargs, phantoms, reals, random):
        torch = self.torch
        for p in phantoms:
            v = getattr(p, "_v", None)
            if v is None or p.layout is not torch.strided or not self.storage(p).known:
                return _PASS
            if random and v.numel() > 4096:
                return _PASS
        for t in reals:
            if t.is_meta or not self.small(t.numel(), t.dtype):
                return _PASS

        guard = torch._C._DisableTorchDispatch()
        try:
            r = func(*self.real(args), **{k: self.real(v) for k, v in kwargs.items() if k != "pin_memory"})
        except Exception:
            return _PASS
        finally:
            del guard
        t = r
        if isinstance(t, torch.Tensor) and not self.small(t.numel(), t.dtype) and 0 not in t.stride():
            return _PASS
        return r

    def create(self, func, args, kwargs, reals, random):
        """A new tensor on the planned GPU: a factory or a copy from the host."""
        torch = self.torch
        name = func._schema.name
        if name in ("aten::_to_copy", "aten::copy", "aten::clone") and any(t.is_meta for t in reals):
            raise NotImplementedError("Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty()")
        raw = self.kernel(func, args, dict(kwargs, device=self.meta))
        v = None
        if isinstance(raw, torch.Tensor) and raw.layout is torch.strided:
            n = raw.numel()
            if self.small(n, raw.dtype) and not (random and n > 4096):
                guard = torch._C._DisableTorchDispatch()
                try:
                    kw = {k: x for k, x in kwargs.items() if k not in ("pin_memory", "non_blocking")}
                    if name.startswith("aten::empty") or name.startswith("aten::new_empty"):
                        v = torch.zeros(raw.shape, dtype=raw.dtype)
                    else:
                        v = func(*args, **dict(kw, device=self.cpu))
                        if reals and v.untyped_storage()._cdata == reals[0].untyped_storage()._cdata:
                            v = v.clone()
                except Exception:
                    v = None
                finally:
                    del guard
        r = self.wrap(raw, "cuda", v)
        self.record(func, args, kwargs, r)
        return r

    def large_weight(self, args, kwargs):
        """Whether this is an uninitialised weight too large to keep for real."""
        torch = self.torch
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if not dtype.is_floating_point:
            return False
        size = args[0]
        n = dtype.itemsize if hasattr(dtype, "itemsize") else 4
        for s in size:
            n *= s
        if n < 1 << 18:
            return False
        frame = sys._getframe(2)
        for _ in range(16):
            if frame is None:
                return False
            if isinstance(frame.f_locals.get("self"), torch.nn.Module):
                return True
            frame = frame.f_back
        return False

    def assumed_tensor(self, shape, dtype):
        """Host data that stand for unknown data of the GPU."""
        torch = self.torch
        guard = torch._C._DisableTorchDispatch()
        try:
            return torch.full(tuple(shape), self.scalar(dtype), dtype=dtype)
        finally:
            del guard

    def scalar(self, dtype):
        if dtype is self.torch.bool:
            return self.truth()
        if dtype.is_floating_point:
            return float(self.assume["float"])
        if dtype.is_complex:
            return complex(float(self.assume["float"]))
        return int(float(self.assume["int"]))

    def truth(self):
        """The answer to a condition on data that nobody has."""
        answer = self.assume["bool"]
        if answer == "auto":
            frame = sys._getframe(1)
            for _ in range(12):
                if frame is None:
                    break
                if frame.f_code.co_name in _GO_ON:
                    return True
                frame = frame.f_back
            return False
        return answer == "true"

    def kind_of(self, dtype):
        return "bool" if dtype is self.torch.bool else "float" if dtype.is_floating_point or dtype.is_complex else "int"

    def to_host(self, func, args, kwargs, phantoms):
        """A copy from the GPU to the host, or a host tensor like a GPU one."""
        torch = self.torch
        raw = self.kernel(func, args, dict(kwargs, device=self.meta))
        name = func._schema.name
        if name in ("aten::_to_copy",):
            v = self.value(phantoms[0])
            if v is not None:
                guard = torch._C._DisableTorchDispatch()
                try:
                    r = v.to(raw.dtype, copy=True)
                finally:
                    del guard
            elif raw.numel() * raw.element_size() > 1 << 22:
                r = self.Phantom(raw, "cpu")
            else:
                self.assumed(
                    self.kind_of(raw.dtype), self.scalar(raw.dtype), "the program copies data to the host that only a real run has"
                )
                r = self.assumed_tensor(raw.shape, raw.dtype)
            self.record(func, args, kwargs, r)
            return r
        guard = torch._C._DisableTorchDispatch()
        try:
            return torch.full(raw.shape, 1 if "ones" in name else 0, dtype=raw.dtype)
        finally:
            del guard

    # Operations that need more than a shape function.

    def make_handlers(self):
        torch = self.torch
        aten = torch.ops.aten
        self.in_place = {}
        self.coordinates = {}
        self.last_zeros = None
        table = {
            aten._local_scalar_dense.default: self.h_item,
            aten.equal.default: self.h_equal,
            aten.nonzero.default: self.h_nonzero,
            aten.masked_select.default: self.h_masked_select,
            aten.index.Tensor: self.h_index,
            aten.index_put_.default: self.h_index,
            aten.index_put.default: self.h_index,
            aten._index_put_impl_.default: self.h_index,
            aten._unique2.default: self.h_unique,
            aten.unique_dim.default: self.h_unique,
            aten.unique_consecutive.default: self.h_unique,
            aten.repeat_interleave.Tensor: self.h_repeat_interleave,
            aten.bincount.default: self.h_bincount,
            aten.topk.default: self.h_indices,
            aten.argmax.default: self.h_indices,
            aten.argmin.default: self.h_indices,
            aten.multinomial.default: self.h_indices,
            aten.sort.default: self.h_indices,
            aten.sort.stable: self.h_indices,
            aten.max.dim: self.h_indices,
            aten.min.dim: self.h_indices,
            aten.eq.Tensor: self.h_compare,
            aten.ne.Tensor: self.h_compare,
            aten.eq.Scalar: self.h_compare,
            aten.ne.Scalar: self.h_compare,
            aten.isnan.default: self.h_compare,
            aten.isinf.default: self.h_compare,
            aten.bitwise_and.Tensor: self.h_logic,
            aten.bitwise_or.Tensor: self.h_logic,
            aten.logical_and.default: self.h_logic,
            aten.logical_or.default: self.h_logic,
            aten.add.Tensor: self.h_accumulate,
            aten.convolution.default: self.h_convolution,
            aten.convolution_backward.default: self.h_convolution_backward,
            aten._scaled_dot_product_efficient_attention.default: self.h_efficient,
            aten._scaled_dot_product_flash_attention.default: self.h_flash,
            aten._amp_foreach_non_finite_check_and_unscale_.default: self.h_unscale,
            aten.copy_.default: self.h_copy,
            aten.clone.default: self.h_sparse_clone,
            aten._coalesce.default: self.h_coalesce,
            aten.sparse_mask.default: self.h_sparse_mask,
            aten.is_pinned.default: lambda *_: False,
            aten._pin_memory.default: lambda f, a, k, kind: a[0],
        }
        for name, handler in (
            ("_unsafe_index.Tensor", self.h_index),
            ("_unsafe_index_put.default", self.h_index),
            ("_fused_rms_norm.default", self.h_rms_norm),
            ("_cudnn_rnn.default", self.h_cudnn_rnn),
            ("_cudnn_rnn_backward.default", self.h_cudnn_rnn_backward),
            ("_cudnn_rnn_flatten_weight.default", self.h_flatten),
            ("cudnn_batch_norm.default", self.h_cudnn_batch_norm),
            ("_sparse_coo_tensor_with_dims_and_tensors.default", self.h_make_sparse),
            ("_pack_padded_sequence.default", self.h_pack),
            ("_scaled_dot_product_cudnn_attention.default", self.h_cudnn_attention),
            ("native_layer_norm_backward.default", self.h_layer_norm_backward),
            ("_assert_async.default", lambda *_: None),
            ("_assert_async.msg", lambda *_: None),
            ("_assert_scalar.default", lambda *_: None),
        ):
            packet, _, overload = name.partition(".")
            try:
                table[getattr(getattr(aten, packet), overload)] = handler
            except AttributeError:
                pass
        # Out of place for subclasses, in place for CUDA tensors (see h_in_place).
        for name in ("index_add.default", "index_put.default", "scatter_add.default", "scatter.src", "scatter.value",
                     "masked_scatter.default", "index_copy.default", "index_fill.int_Scalar", "masked_fill.Scalar"):  # fmt: skip
            packet, _, overload = name.partition(".")
            try:
                op = getattr(getattr(aten, packet), overload)
                self.in_place[op] = getattr(getattr(aten, packet + "_"), overload)
                table.setdefault(op, self.h_in_place)
            except AttributeError:
                pass
        # Of libraries that are not loaded yet, by name.
        self.late_handlers = {
            "torchvision::nms": self.h_nms,
            "aten::_grouped_mm": self.h_grouped_mm,
            "aten::_ctc_loss": self.h_ctc,
            "aten::_ctc_loss_backward": self.h_ctc_backward,
        }
        self.empties = {aten.empty.memory_format}
        return table

    def record_plain(self, func, args, kwargs, kind, result):
        """Wrap and write an operation whose result is made by hand."""
        r = self.wrap(result, kind)
        if kind == "cuda":
            self.record(func, args, kwargs, r)
        return r

    def h_item(self, func, args, kwargs, kind):
        t = args[0]
        v = self.value(t)
        if v is not None and v.numel() == 1:
            r = v.item()
        else:
            r = self.scalar(t.dtype)
            self.assumed(self.kind_of(t.dtype), r, "the program reads a number that only a real run has")
        if t._kind == "cuda":
            self.record(func, args, kwargs, None)
        return r

    def h_equal(self, func, args, kwargs, kind):
        a, b = args[:2]
        va = self.value(a) if type(a) is self.Phantom else a
        vb = self.value(b) if type(b) is self.Phantom else b
        if va is not None and vb is not None:
            guard = self.torch._C._DisableTorchDispatch()
            try:
                return bool(va.shape == vb.shape and (va == vb).all())
            finally:
                del guard
        r = self.truth()
        self.assumed("bool", r, "torch.equal of data that only a real run has")
        return r

    def share(self, n, key="nonzero"):
        share = self.assume[key]
        if share == "auto":
            share = 0.5
            frame = sys._getframe(1)
            for _ in range(6):
                if frame is None:
                    break
                if frame.f_code.co_name in _KEEPS_ALL:
                    share = 1.0
                    break
                frame = frame.f_back
        self.last_share = share
        return max(0, min(n, int(n * float(share) + 0.5)))

    def h_nonzero(self, func, args, kwargs, kind):
        torch = self.torch
        t = args[0]
        v = self.value(t)
        if v is not None:
            guard = torch._C._DisableTorchDispatch()
            try:
                r = v.nonzero()
            finally:
                del guard
        else:
            n = self.share(t.numel())
            self.assumed("nonzero", self.last_share, "how many elements of a mask are set (share of all)")
            r = self.spread(t.shape, n)
        # The kernel writes one coordinate after the other: columns.
        stride = (1, max(r.shape[0], 1))
        p = self.Phantom(self.blank(tuple(r.shape), torch.int64, stride), kind)
        p._v = r
        if kind == "cuda":
            self.record(func, args, kwargs, p)
        return p

    def spread(self, shape, n):
        """Coordinates of n elements spread evenly over a tensor: [n, dims]."""
        torch = self.torch
        guard = torch._C._DisableTorchDispatch()
        try:
            numel = 1
            for s in shape:
                numel *= s
            flat = torch.arange(n, dtype=torch.int64)
            if n:
                flat = flat * numel // n
            cols = []
            for s in reversed(shape):
                cols.append(flat % max(s, 1))
                flat = flat // max(s, 1)
            return torch.stack(cols[::-1], 1) if cols else torch.zeros(n, 0, dtype=torch.int64)
        finally:
            del guard

    def h_masked_select(self, func, args, kwargs, kind):
        # CUDA runs index(self, mask).
        a, m = args[:2]
        with self.mode:
            a, m = self.torch.broadcast_tensors(a, m)
            return self.torch.ops.aten.index.Tensor(a, [m])

    def h_in_place(self, func, args, kwargs, kind):
        """Backward formulas write into fresh zeros: in place, but not where a
        subclass is involved, hence never here."""
        a = args[0]
        if self.torch._C._current_graph_task_id() == -1 or type(a) is not self.Phantom or self.storage(a) is not self.last_zeros:
            return _PASS
        self.last_zeros = None
        with self.mode:
            self.in_place[func](*args, **kwargs)
        return a

    def h_index(self, func, args, kwargs, kind):
        """Masks among the indices become coordinates first, as on the GPU."""
        torch = self.torch
        if func in self.in_place:
            r = self.h_in_place(func, args, kwargs, kind)
            if r is not _PASS:
                return r
        indices = args[1]
        if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return _PASS
        out = []
        for i in indices:
            if i is not None and i.dtype in (torch.bool, torch.uint8):
                if type(i) is not self.Phantom:
                    i = self.create(torch.ops.aten._to_copy.default, (i,), {"device": self.cuda0}, [i], False)
                with self.mode:
                    nz = torch.ops.aten.nonzero.default(i)
                    for d in range(i.dim()):
                        out.append(torch.ops.aten.select.int(nz, 1, d))
            else:
                out.append(i)
        with self.mode:
            return func(args[0], out, *args[2:], **kwargs)

    def h_unique(self, func, args, kwargs, kind):
        torch = self.torch
        t = args[0]
        v = self.value(t)
        if v is not None and self.small(v.numel(), v.dtype):
            guard = torch._C._DisableTorchDispatch()
            try:
                r = func(v, *args[1:], **kwargs)
            finally:
                del guard
        else:
            n = max(1, self.share(t.numel())) if t.numel() else 0
            self.assumed("nonzero", self.last_share, "how many distinct elements there are (share of all)")
            inverse = t.shape if func is not torch.ops.aten.unique_dim.default else (t.numel(),)
            guard = torch._C._DisableTorchDispatch()
            try:
                r = (
                    torch.empty(n, dtype=t.dtype, device=self.meta),
                    torch.empty(inverse, dtype=torch.int64, device=self.meta),
                    torch.empty(n, dtype=torch.int64, device=self.meta),
                )
            finally:
                del guard
        out = []
        for x in r:
            p = self.Phantom(self.blank(tuple(x.shape), x.dtype), kind)
            p._v = None if x.is_meta else x
            out.append(p)
        if kind == "cuda":
            self.record(func, args, kwargs, tuple(out))
        return tuple(out)

    def h_repeat_interleave(self, func, args, kwargs, kind):
        torch = self.torch
        n = kwargs.get("output_size")
        v = self.value(args[0])
        if n is None and v is not None:
            n = int(v.sum())
        if n is None:
            n = args[0].numel() * int(float(self.assume["int"]))
            self.assumed("int", self.assume["int"], "how often each element is repeated")
        p = self.Phantom(self.blank((n,), args[0].dtype), kind)
        if v is not None:
            guard = torch._C._DisableTorchDispatch()
            try:
                p._v = torch.repeat_interleave(v)
            finally:
                del guard
        if kind == "cuda":
            self.record(func, args, kwargs, p)
        return p

    def h_bincount(self, func, args, kwargs, kind):
        torch = self.torch
        v = self.value(args[0])
        minlength = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        if v is not None:
            n = max(int(v.max()) + 1 if v.numel() else 0, minlength)
        else:
            n = max(minlength, 1)
            self.assumed("int", n - 1, "the largest value that torch.bincount counts")
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        dtype = torch.int64 if weights is None else weights.dtype if weights.dtype.is_floating_point else torch.float64
        p = self.Phantom(self.blank((n,), dtype), kind)
        if v is not None and weights is None:
            guard = torch._C._DisableTorchDispatch()
            try:
                p._v = torch.bincount(v, minlength=minlength)
            finally:
                del guard
        if kind == "cuda":
            self.record(func, args, kwargs, p)
        return p

    def h_indices(self, func, args, kwargs, kind):
        """Indices that depend on unknown data are assumed to be spread evenly."""
        torch = self.torch
        t = args[0]
        if self.value(t) is not None:
            return _PASS
        r = self.execute(func, args, kwargs, kind, [t], value=False)
        out = r[1] if isinstance(r, (tuple, list)) else r
        name = func._schema.name.split("::")[1]
        if not self.small(out.numel(), out.dtype) or out.dim() == 0 and name in ("argmax", "argmin") and t.dim() != 1:
            return r
        dim = kwargs.get("dim", None)
        if dim is None:
            at = {"topk": 2, "argmax": 1, "argmin": 1, "max": 1, "min": 1, "sort": 1}.get(name)
            if func is torch.ops.aten.sort.stable:
                at = 2
            dim = args[at] if at is not None and len(args) > at else -1
        n = t.numel() if dim is None else t.shape[dim] if t.dim() else 1
        if n == 0 or out.numel() == 0:
            return r
        guard = torch._C._DisableTorchDispatch()
        try:
            if name == "sort":
                shape = [1] * t.dim()
                shape[dim] = n
                v = torch.arange(n).reshape(shape).expand(t.shape)
            else:
                first = out.numel()
                flat = torch.arange(first, dtype=torch.int64)
                if name in ("topk", "multinomial"):
                    # k neighbours in each row, each row a step further: every
                    # index is used equally often.
                    k = out.shape[dim] if out.dim() else 1
                    moved = list(out.shape)
                    moved[dim], moved[-1] = moved[-1], moved[dim]
                    v = flat.reshape(moved if moved else [1])
                    row = v // max(k, 1)
                    v = (row * k + v % max(k, 1)) % n
                    v = v.transpose(dim, -1) if out.dim() > 1 else v
                    if n >= 1000:
                        v = n // 4 + v % (n // 2)
                else:
                    v = (flat + self.counter).reshape(out.shape)
                    self.counter += 1
                    # Neither the first nor the last entries of a vocabulary,
                    # where the special tokens are.
                    v = n // 4 + v % max(n // 2, 1) if n >= 16 else v % n
                v = v.contiguous()
        finally:
            del guard
        if v.shape == out.shape:
            self.storage(out).known = True
            out._v = v
        return r

    def h_compare(self, func, args, kwargs, kind):
        """Unknown data are assumed to be finite numbers."""
        torch = self.torch
        t = args[0]
        if type(t) is not self.Phantom or self.value(t) is not None or t.is_sparse:
            return _PASS
        name = func._schema.name
        if name in ("aten::isnan", "aten::isinf"):
            answer = False
        elif func in (torch.ops.aten.eq.Scalar, torch.ops.aten.ne.Scalar):
            if not isinstance(args[1], float) or abs(args[1]) != float("inf"):
                return _PASS
            answer = name == "aten::ne"
        elif args[1] is t:
            answer = name == "aten::eq"
        else:
            return _PASS
        r = self.execute(func, args, kwargs, kind, [t], value=False)
        guard = torch._C._DisableTorchDispatch()
        try:
            r._v = torch.full((), answer).expand(r.shape)
        finally:
            del guard
        return r

    def h_pack(self, func, args, kwargs, kind):
        torch = self.torch
        x, lengths, batch_first = args
        lengths = [int(n) for n in lengths]
        guard = torch._C._DisableTorchDispatch()
        try:
            sizes = torch.tensor([sum(1 for n in lengths if n > t) for t in range(max(lengths))], dtype=torch.int64)
        finally:
            del guard
        data = self.blank((sum(lengths),) + tuple(x.shape[2:]), x.dtype)
        return self.record_plain(func, args, kwargs, kind, (data, sizes))

    def h_nms(self, func, args, kwargs, kind):
        torch = self.torch
        boxes = args[0]
        v = [self.value(x) if type(x) is self.Phantom else x for x in args[:2]]
        n = boxes.shape[0]
        guard = torch._C._DisableTorchDispatch()
        try:
            if v[0] is not None and v[1] is not None:
                keep = func(v[0], v[1], *args[2:])
            else:
                keep = torch.arange(self.share(n, "nms"), dtype=torch.int64)
        finally:
            del guard
        if v[0] is None or v[1] is None:
            self.assumed("nms", self.assume["nms"], "how many boxes non-maximum suppression keeps (share of all)")
        p = self.Phantom(self.blank(tuple(keep.shape), torch.int64), kind)
        p._v = keep
        if kind == "cuda":
            self.record(func, args, kwargs, p)
        return p

    def h_ctc(self, func, args, kwargs, kind):
        x, targets, _, lengths = args[:4]
        if targets.dim() == 2:
            longest = targets.shape[1]
        else:
            v = lengths if isinstance(lengths, (list, tuple)) else self.value(lengths) if type(lengths) is self.Phantom else lengths
            longest = max(int(n) for n in v) if v is not None and len(v) else 1
        r = (self.blank((x.shape[1],), x.dtype), self.blank((x.shape[1], x.shape[0], 2 * longest + 1), x.dtype))
        return self.record_plain(func, args, kwargs, kind, r)

    def h_ctc_backward(self, func, args, kwargs, kind):
        x = args[1]
        return self.record_plain(func, args, kwargs, kind, self.blank(tuple(x.shape), x.dtype))

    def h_grouped_mm(self, func, args, kwargs, kind):
        a, b = args[:2]
        offs = args[2] if len(args) > 2 else kwargs.get("offs")
        m, n = a.shape[-2], b.shape[-1]
        if a.dim() == 2 and b.dim() == 2:
            shape = (offs.shape[0], m, n)
        elif a.dim() == 3 and b.dim() == 3:
            shape = (a.shape[0], m, n)
        else:
            shape = (m, n)
        dtype = (args[4] if len(args) > 4 else kwargs.get("out_dtype")) or a.dtype
        # Rows begin at multiples of 16 bytes.
        per = max(16 // dtype.itemsize, 1)
        row = -(-n // per) * per
        stride = (m * row, row, 1) if len(shape) == 3 else (row, 1)
        return self.record_plain(func, args, kwargs, kind, self.blank(shape, dtype, stride))

    def h_logic(self, func, args, kwargs, kind):
        """False and anything is False, True or anything is True."""
        torch = self.torch
        a, b = args[:2]
        if not (type(a) is self.Phantom and type(b) is self.Phantom and a.dtype is torch.bool and b.dtype is torch.bool):
            return _PASS
        va, vb = self.value(a), self.value(b)
        v = va if va is not None else vb
        if v is None or (va is not None and vb is not None):
            return _PASS
        wanted = "_or" in func._schema.name
        guard = torch._C._DisableTorchDispatch()
        try:
            absorbs = bool((v == wanted).all())
        finally:
            del guard
        if not absorbs:
            return _PASS
        r = self.execute(func, args, kwargs, kind, [a, b], value=False)
        guard = torch._C._DisableTorchDispatch()
        try:
            r._v = torch.full((), wanted).expand(r.shape)
        finally:
            del guard
        return r

    def h_unscale(self, func, args, kwargs, kind):
        grads, found = args[0], args[1]
        for g in grads:
            self.storage(g).known = False
        r = self.record_plain(func, args, kwargs, kind, None)
        skip = self.skips > 0
        rec = self.storage(found)
        rec.known = True
        guard = self.torch._C._DisableTorchDispatch()
        try:
            found._v = self.torch.full(found.shape, 1.0 if skip else 0.0)
        finally:
            del guard
        if not getattr(self, "unscaled", False):
            self.assumed("overflow", self.assume["overflow"], "steps that GradScaler skips because gradients overflow")
        self.unscaled = True
        return r

    def h_copy(self, func, args, kwargs, kind):
        dst, src = args[:2]
        if type(dst) is self.Phantom:
            return _PASS
        # Device to host, in place.
        v = self.value(src)
        guard = self.torch._C._DisableTorchDispatch()
        try:
            if v is not None:
                dst.copy_(v)
            else:
                dst.fill_(self.scalar(dst.dtype))
        finally:
            del guard
        if v is None:
            self.assumed(self.kind_of(dst.dtype), self.scalar(dst.dtype), "the program copies data to the host that only a real run has")
        self.record(func, args, kwargs, dst)
        return dst

    def h_accumulate(self, func, args, kwargs, kind):
        """The engine adds two gradients. It does so in place when it holds the
        only reference to the first, except for subclasses and under modes,
        hence never here; so its test is repeated."""
        torch = self.torch
        if torch._C._current_graph_task_id() == -1 or kwargs or len(args) != 2 or torch.is_grad_enabled():
            return _PASS
        a, b = args
        if type(a) is not self.Phantom or type(b) is not self.Phantom or a.layout is not torch.strided or b.layout is not torch.strided:
            return _PASS
        if a.shape != b.shape or a.dtype != b.dtype:
            return _PASS
        if a._use_count() != self.sole_use or torch._C._storage_Use_Count(a.untyped_storage()._cdata) != self.sole_storage:
            return _PASS
        if not _dense(a):
            return _PASS
        with self.mode:
            return torch.ops.aten.add_.Tensor(a, b)

    def sparse(self, like, indices, values):
        """A sparse tensor of like's size; not yet a phantom."""
        torch = self.torch
        guard = torch._C._DisableTorchDispatch()
        torch._C._set_meta_in_tls_dispatch_include(True)
        self.in_kernel = True
        try:
            return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
                like.sparse_dim(), like.dense_dim(), list(like.shape), indices, values,
                dtype=values.dtype, layout=torch.sparse_coo, device=self.meta,
            )  # fmt: skip
        finally:
            self.in_kernel = False
            torch._C._set_meta_in_tls_dispatch_include(False)
            del guard

    def h_sparse_clone(self, func, args, kwargs, kind):
        """The engine keeps a sparse gradient as it is; it clones one that
        somebody else holds, as a phantom's parts always are."""
        t = args[0]
        if t.layout is not self.torch.sparse_coo or self.torch._C._current_graph_task_id() == -1:
            return _PASS
        return self.wrap(self.sparse(t, *self.parts(t)), kind)

    def h_coalesce(self, func, args, kwargs, kind):
        torch = self.torch
        indices, values = self.parts(args[0])
        known = self.coordinates.get(indices.untyped_storage()._cdata)
        n = indices.shape[1]
        guard = torch._C._DisableTorchDispatch()
        try:
            if known is not None and known.numel() == indices.numel():
                n = torch.unique(known.reshape(indices.shape), dim=1).shape[1]
            else:
                self.assumed("nonzero", 1.0, "how many of a sparse tensor's indices are distinct (share of all)")
        finally:
            del guard
        blank = self.Phantom(self.blank((indices.shape[0], n), torch.int64), kind)
        new = self.Phantom(self.blank((n,) + tuple(values.shape[1:]), values.dtype), kind)
        r = self.wrap(self.sparse(args[0], blank, new), kind)
        guard = torch._C._DisableTorchDispatch()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            r._coalesced_(True)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(False)
            del guard
        if kind == "cuda":
            self.record(func, args, kwargs, r)
        return r

    def h_sparse_mask(self, func, args, kwargs, kind):
        indices, values = self.parts(args[1])
        new = self.Phantom(self.blank(tuple(values.shape), args[0].dtype), kind)
        return self.record_plain(func, args, kwargs, kind, self.sparse(args[1], indices, new))

    def h_make_sparse(self, func, args, kwargs, kind):
        """Remember the values of a sparse tensor's indices: coalescing counts them."""
        indices = kwargs.get("indices", args[3] if len(args) > 3 else None)
        if type(indices) is self.Phantom:
            v = self.value(indices)
            if v is not None:
                self.coordinates[indices.untyped_storage()._cdata] = v
        return _PASS

    def memory_format(self, x, w):
        torch = self.torch
        if x.dim() == 4:
            f = torch.channels_last
        elif x.dim() == 5:
            f = torch.channels_last_3d
        else:
            return torch.contiguous_format
        for t in (x, w):
            if t is not None and t.is_contiguous(memory_format=f) and not t.is_contiguous():
                return f
        return torch.contiguous_format

    def h_convolution(self, func, args, kwargs, kind):
        if kind != "cuda":
            return _PASS
        r = self.kernel(func, args, kwargs)
        f = self.memory_format(args[0], args[1])
        if f is not self.torch.contiguous_format:
            r = self.like(r, f)
        return self.record_plain(func, args, kwargs, kind, r)

    def like(self, t, f):
        torch = self.torch
        guard = torch._C._DisableTorchDispatch()
        try:
            return torch.empty(t.shape, dtype=t.dtype, device=self.meta, memory_format=f)
        finally:
            del guard

    def h_convolution_backward(self, func, args, kwargs, kind):
        if kind != "cuda":
            return _PASS
        grad, x, w = args[:3]
        mask = args[10] if len(args) > 10 else kwargs["output_mask"]
        f = self.memory_format(x, w)
        bias = args[3]
        r = (
            self.like(x, f) if mask[0] else None,
            self.like(w, f) if mask[1] else None,
            self.blank(tuple(bias) if bias else (w.shape[0],), grad.dtype) if mask[2] else None,
        )
        return self.record_plain(func, args, kwargs, kind, r)

    def h_flash(self, func, args, kwargs, kind):
        """Releases before 2.5 have no shape function for it here."""
        torch = self.torch
        try:
            r = self.kernel(func, args, kwargs)
        except NotImplementedError:
            q, k = args[:2]
            guard = torch._C._DisableTorchDispatch()
            try:
                out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device=self.meta).transpose(1, 2)
                seed = torch.zeros((), dtype=torch.int64)
                r = (
                    out, torch.empty(q.shape[:3], device=self.meta), None, None, q.shape[2], k.shape[2], seed, seed.clone(),
                    torch.empty(0, dtype=q.dtype, device=self.meta),
                )  # fmt: skip
            finally:
                del guard
        return self.record_plain(func, args, kwargs, kind, r)

    def h_efficient(self, func, args, kwargs, kind):
        torch = self.torch
        q, v, lse = args[0], args[2], args[4]
        try:
            r = list(self.kernel(func, args, kwargs))
        except NotImplementedError:
            guard = torch._C._DisableTorchDispatch()
            try:
                out = torch.empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3], dtype=q.dtype, device=self.meta).transpose(1, 2)
                rows = -(-q.shape[2] // 32) * 32 if lse else 0
                r = [out, torch.empty(q.shape[0], q.shape[1], rows, device=self.meta), None, None]
            finally:
                del guard
        guard = torch._C._DisableTorchDispatch()
        try:
            # The seed stays on the host.
            r[2] = torch.zeros((), dtype=torch.int64)
            r[3] = torch.zeros((), dtype=torch.int64)
        finally:
            del guard
        return self.record_plain(func, args, kwargs, kind, tuple(r))

    def h_cudnn_attention(self, func, args, kwargs, kind):
        r = list(self.shapes(func, args, kwargs))
        if not args[4]:
            r[1] = None
        return self.record_plain(func, args, kwargs, kind, tuple(r))

    def h_layer_norm_backward(self, func, args, kwargs, kind):
        r = list(self.shapes(func, args, kwargs))
        if r[0] is not None and not r[0].is_contiguous():
            r[0] = self.blank(tuple(r[0].shape), r[0].dtype)
        return self.record_plain(func, args, kwargs, kind, tuple(r))

    def h_rms_norm(self, func, args, kwargs, kind):
        torch = self.torch
        x, shape = args[:2]
        stat = tuple(x.shape[: x.dim() - len(shape)]) + (1,) * len(shape)
        dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        return self.record_plain(func, args, kwargs, kind, (self.blank(tuple(x.shape), x.dtype), self.blank(stat, dtype)))

    def h_cudnn_batch_norm(self, func, args, kwargs, kind):
        torch = self.torch
        x, w, training = args[0], args[1], args[5]
        f = self.memory_format(x, None)
        n = w.shape[0] if training else 0
        reserve = 0
        r = (
            self.like(x, f),
            self.blank((n,), torch.float32),
            self.blank((n,), torch.float32),
            self.blank((reserve,), torch.uint8),
        )
        return self.record_plain(func, args, kwargs, kind, r)

    def h_flatten(self, func, args, kwargs, kind):
        torch = self.torch
        weights = args[0]
        n = sum(w.numel() for w in weights)
        buf = self.Phantom(self.blank((n,), weights[0].dtype), kind)
        if kind == "cuda":
            self.record(func, args, kwargs, buf)
        at = 0
        with torch.no_grad():
            for w in weights:
                view = torch.as_strided(buf, w.shape, w.stride(), at)
                at += w.numel()
                _set_data(w, view)
                w._v = None
        return buf

    def h_cudnn_rnn(self, func, args, kwargs, kind):
        torch = self.torch
        (x, weights, _, buf, hx, cx, mode, hidden, proj, layers, batch_first, dropout, train, both, sizes) = args[:15]
        directions = 2 if both else 1
        out = proj or hidden
        if sizes:
            shape = (x.shape[0], out * directions)
            batch = sizes[0]
            rows = x.shape[0]
        else:
            t, b = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
            batch, rows = b, t * b
            shape = (b, t, out * directions) if batch_first else (t, b, out * directions)
        # What cuDNN keeps for backward, read off 400 shapes on an H200.
        reserve = 0
        if train:
            reserve = rows * hidden * directions * x.element_size() * (layers * {2: 5, 3: 6}.get(mode, 1) + layers - 1)
            if dropout and layers > 1:
                reserve += (layers - 1) * rows * hidden * directions * directions // 8 + 256
        if buf is None:
            buf = self.Phantom(self.blank((sum(w.numel() for w in weights),), x.dtype), kind)
        output = self.blank(shape, x.dtype)
        if batch_first and not sizes:
            output = self.blank((shape[1], shape[0], shape[2]), x.dtype)
            guard = torch._C._DisableTorchDispatch()
            try:
                output = output.transpose(0, 1)
            finally:
                del guard
        r = (
            output,
            self.blank((layers * directions, batch, out), x.dtype),
            self.blank((layers * directions, batch, hidden) if cx is not None else (0,), x.dtype),
            self.blank((reserve,), torch.uint8),
            buf,
        )
        return self.record_plain(func, args, kwargs, kind, r)

    def h_cudnn_rnn_backward(self, func, args, kwargs, kind):
        torch = self.torch
        x, weights, _, buf, hx, cx = args[:6]
        mask = args[-1]
        flat = self.Phantom(self.blank(tuple(buf.shape), buf.dtype), kind)
        grads, at = [], 0
        for w in weights:
            guard = torch._C._DisableTorchDispatch()
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                g = torch.as_strided(flat, w.shape, w.stride(), at)
            finally:
                torch._C._set_meta_in_tls_dispatch_include(False)
                del guard
            grads.append(self.Phantom(g, kind))
            at += w.numel()
        r = (
            self.wrap(self.blank(tuple(x.shape), x.dtype), kind),
            self.wrap(self.blank(tuple(hx.shape), hx.dtype), kind),
            self.wrap(self.blank(tuple(cx.shape), cx.dtype), kind) if cx is not None else None,
            grads if mask[3] else [],
        )
        self.record(func, args, kwargs, r)
        return r

    # Composite operations in which the CUDA build decides by is_cuda, which a
    # phantom is not in C++.

    def install_kernels(self):
        torch = self.torch
        aten = torch.ops.aten
        self.composites = {}
        self.library = torch.library.Library("aten", "IMPL")
        dk = torch._C.DispatchKey

        def composite(name, make):
            packet, _, overload = name.partition(".")
            try:
                op = getattr(getattr(aten, packet), overload or "default")
            except AttributeError:
                return
            plain = lambda *a, **k: op._op_dk(dk.CompositeImplicitAutograd, *a, **k)
            f = make(op, plain)
            self.composites[op] = f
            return op, f

        def register(found, *keys):
            if found is None:
                return
            op, f = found
            name = op._schema.name.split("::")[1]
            if op._overloadname and op._overloadname != "default":
                name += "." + op._overloadname
            for key in keys:
                self.library.impl(name, f, key)

        def to(op, plain):
            def f(self_, *args, **kwargs):
                args = list(args)
                for i, a in enumerate(args):
                    if isinstance(a, torch.device):
                        args[i] = self.destination(self_, a)
                d = kwargs.get("device")
                if isinstance(d, torch.device):
                    kwargs["device"] = self.destination(self_, d)
                return plain(self_, *args, **kwargs)

            return f

        def to_other(op, plain):
            device = aten.to.device

            def f(self_, other, non_blocking=False, copy=False, *, memory_format=None):
                return self.composites[device](
                    self_, other.device, other.dtype, non_blocking, copy, memory_format=memory_format
                )

            return f

        for name in ("to.device", "to.dtype_layout"):
            register(composite(name, to), "AutogradCUDA", "AutogradCPU", "AutogradMeta")
        register(composite("to.other", to_other), "AutogradCUDA", "AutogradCPU", "AutogradMeta")
        self.conversions = set(self.composites)

        def dropout(op, plain):
            def f(input, p, train):
                if train and 0 < p < 1 and input.numel() > 0:
                    return torch.native_dropout(input, p, train)[0]
                return plain(input, p, train)

            return f

        register(composite("dropout", dropout), "AutogradCUDA")

        def linear(op, plain):
            def f(input, weight, bias=None):
                if bias is not None and input.dim() > 2 and not input.is_contiguous():
                    # C++ adds the bias in place, but not to a subclass.
                    return torch.matmul(input, weight.t()).add_(bias)
                return plain(input, weight, bias)

            return f

        register(composite("linear", linear), "AutogradCUDA")

        def softmax(kernel):
            def make(op, plain):
                def f(self_, dim, dtype=None):
                    if self_.dtype is torch.float16 and dtype is torch.float32:
                        return kernel(self_, dim, True)
                    return plain(self_, dim, dtype)

                return f

            return make

        register(composite("softmax.int", softmax(aten._softmax.default)), "AutogradCUDA")
        register(composite("log_softmax.int", softmax(aten._log_softmax.default)), "AutogradCUDA")

        def batch_norm(op, plain):
            def f(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled):
                if (
                    torch.backends.cudnn.enabled
                    and input.dtype is not torch.bfloat16
                    and weight is not None
                    and bias is not None
                    and weight.dtype is not torch.bfloat16
                    and (input.dtype is not torch.float16 or weight.dtype is torch.float32)
                    and ((mean is not None and var is not None) or (mean is None and var is None and training))
                    and input.dim() >= 3
                    and input.shape[0] <= (880801 if training else 65535)
                    and eps >= 1e-5
                ):
                    x = input.contiguous(memory_format=self.memory_format(input, None))
                    return torch.cudnn_batch_norm(
                        x, weight.contiguous(), bias.contiguous(), mean, var, training, momentum, eps
                    )[0]
                return plain(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled)

            return f

        register(composite("batch_norm", batch_norm), "AutogradCUDA")

        def rnn(mode, lstm):
            def make(op, plain):
                packed = op._overloadname == "data"

                def f(*args, **kwargs):
                    x = args[0]
                    if packed:
                        data, sizes, hx, params, biases, layers, p, train, both = args[:9]
                        batch_first = False
                        sizes = [int(s) for s in sizes]
                        x = data
                    else:
                        x, hx, params, biases, layers, p, train, both, batch_first = args[:9]
                        sizes = []
                    h, c = (hx[0], hx[1]) if lstm else (hx, None)
                    if x.dtype is torch.bfloat16 and self.gpu["major"] < 8:
                        return plain(*args, **kwargs)
                    hidden = params[1].shape[0] // {2: 4, 3: 3}.get(mode, 1)
                    proj = h.shape[2] if lstm and h.shape[2] != hidden else 0
                    out, hy, cy, _, _ = torch._cudnn_rnn(
                        x, list(params), 4 if biases else 2, self.flat_buffer(params), h, c, mode, hidden,
                        proj, layers, batch_first, p, train, both, sizes, self.dropout_state(p, train),
                    )  # fmt: skip
                    return (out, hy, cy) if lstm else (out, hy)

                return f

            return make

        for name, mode, lstm in (
            ("lstm", 2, True),
            ("gru", 3, False),
            ("rnn_tanh", 1, False),
            ("rnn_relu", 0, False),
        ):
            for overload in ("input", "data"):
                register(composite(name + "." + overload, rnn(mode, lstm)), "AutogradCUDA")

        def lstm_cell(op, plain):
            def f(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
                igates = torch.matmul(input, w_ih.t())
                hgates = torch.matmul(hx[0], w_hh.t())
                r = aten._thnn_fused_lstm_cell.default(igates, hgates, hx[1], b_ih, b_hh)
                return r[0], r[1]

            return f

        def gru_cell(op, plain):
            def f(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
                igates = torch.matmul(input, w_ih.t())
                hgates = torch.matmul(hx, w_hh.t())
                return aten._thnn_fused_gru_cell.default(igates, hgates, hx, b_ih, b_hh)[0]

            return f

        register(composite("lstm_cell", lstm_cell), "AutogradCUDA")
        register(composite("gru_cell", gru_cell), "AutogradCUDA")

        def weight_norm(op, plain):
            def f(v, g, dim=0):
                if dim == 0 or dim == v.dim() - 1:
                    return aten._weight_norm_interface.default(v.contiguous(), g.contiguous(), dim)[0]
                return plain(v, g, dim)

            return f

        register(composite("_weight_norm", weight_norm), "AutogradCUDA")

        # Before 2.9 the operation of this name was not CUDA's.
        if hasattr(aten, "_fused_rms_norm") and "normalized_shape" in _schema_names(aten._fused_rms_norm.default):

            def rms_norm(op, plain):
                def f(input, normalized_shape, weight=None, eps=None):
                    f_ = self.memory_format(input, None)
                    if (
                        f_ is not torch.contiguous_format
                        or input.is_complex()
                        or (weight is not None and weight.dtype != input.dtype)
                    ):
                        return plain(input, normalized_shape, weight, eps)
                    op2 = aten._fused_rms_norm.default
                    # Its composite kernel must not win: go to autograd's.
                    return op2._op_dk(dk.AutogradCUDA, input, normalized_shape, weight, eps)[0]

                return f

            register(composite("rms_norm", rms_norm), "AutogradCUDA")

        register(composite("scaled_dot_product_attention", lambda op, plain: self.attention), "AutogradCUDA")
        self.composites[aten.scaled_dot_product_attention.default] = self.attention
        self.install_autocast()

    def destination(self, tensor, device):
        """The device that C++ must see for `tensor.to(device)`."""
        phantom = type(tensor) is self.Phantom
        if device.type == "cuda":
            if phantom and tensor._kind == "cuda" or not phantom and tensor.device.type == "cuda":
                return self.meta
            return self.cuda0
        if device.type == "cpu" and phantom and tensor._kind == "cpu":
            return self.meta
        return device

    def flat_buffer(self, params):
        """The one buffer that all weights are views of, if they are."""
        first = params[0].untyped_storage()._cdata
        if not isinstance(params[0], self.Phantom) or any(w.untyped_storage()._cdata != first for w in params):
            return None
        n = sum(w.numel() for w in params)
        with self.torch.no_grad():
            return self.torch.as_strided(params[0].detach(), (n,), (1,), 0)

    def dropout_state(self, p, train):
        if not train or p == 0:
            return None
        if getattr(self, "rnn_state", None) is None:
            # cudnnDropoutGetStatesSize of Hopper's count of threads.
            self.rnn_state = self.torch.empty(self.gpu["sms"] * 2048 * 24, dtype=self.torch.uint8, device=self.cuda0)
        return self.rnn_state

    # Attention: which kernel, as sdp_utils.cpp decides for the planned card.

    def attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        torch = self.torch
        aten = torch.ops.aten
        choice = self.attention_kernel(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
        lse = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        if choice in ("efficient", "cudnn", "math") and attn_mask is not None and attn_mask.dtype is torch.bool and choice != "math":
            attn_mask = torch.where(
                attn_mask, 0.0, torch.full((), float("-inf"), dtype=q.dtype, device=self.cuda0)
            )
        if choice == "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                q, k, v, attn_mask, lse, dropout_p, is_causal, False, scale=scale
            )[0]
        if choice == "flash":
            d = q.shape[-1]
            if d % 8:
                if scale is None:
                    scale = d**-0.5
                pad = 8 - d % 8
                q, k, v = (torch.nn.functional.pad(t, (0, pad)) for t in (q, k, v))
            out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
            return out[..., :d] if d % 8 else out
        if choice == "efficient":
            if attn_mask is not None:
                n = attn_mask.shape[-1]
                if any(s % 8 for s in attn_mask.stride()[:-1]) or attn_mask.stride(-1) != 1:
                    attn_mask = torch.nn.functional.pad(attn_mask, (0, 8 - n % 8))[..., :n]
                attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
            return aten._scaled_dot_product_efficient_attention(
                q, k, v, attn_mask, lse, dropout_p, is_causal, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0] if self.version >= (2, 5) else torch.ops.aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale
        )[0]

    def attention_kernel(self, q, k, v, mask, p, causal, gqa):
        torch = self.torch
        cuda = torch.backends.cuda
        half = q.dtype in (torch.float16, torch.bfloat16)
        major, minor = self.gpu["major"], self.gpu["minor"]
        b, h, s, d = q.shape if q.dim() == 4 else (0, 0, 0, 0)
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not (q.dtype == k.dtype == v.dtype):
            return "math"
        if min(q.numel(), k.numel(), v.numel()) == 0:
            return "math"
        dv = v.shape[-1]
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        same_heads = q.shape[1] == k.shape[1] == v.shape[1]
        same_batch = q.shape[0] == k.shape[0] == v.shape[0]
        last = all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (q, k, v, mask) if t is not None)
        mask_grad = mask is not None and mask.requires_grad

        def cudnn():
            enabled = getattr(cuda, "cudnn_sdp_enabled", lambda: False)()
            if not enabled or not half or major < 8 or self.version < (2, 5):
                return False
            limit = 256 if major == 9 and not grad else 128
            if d % 8 or dv % 8 or d > limit or dv > limit:
                return False
            if k.shape[2] == 1 or (s == 1 and p):
                return False
            if not same_batch or mask_grad or not last:
                return False
            if not same_heads and not gqa:
                return False
            if torch.are_deterministic_algorithms_enabled() and grad:
                return False
            return True

        def flash():
            if not cuda.flash_sdp_enabled() or not half or mask is not None or major < 8:
                return False
            if d != dv or d > 256 or not same_batch or not last:
                return False
            if grad and d > 192 and p and (major, minor) in ((8, 6), (8, 9), (12, 0)):
                return False
            if not same_heads and not gqa:
                return False
            if causal and s != k.shape[2] and self.version < (2, 2):
                return False
            return True

        def efficient():
            if not cuda.mem_efficient_sdp_enabled() or not same_heads or not same_batch or not last:
                return False
            if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
                return False
            if q.dtype is torch.bfloat16 and major < 8:
                return False
            align = 8 if half else 4
            if major < 8 and q.dtype is torch.float32:
                align = 1 if not half else 8
            if d % align or dv % align:
                return False
            if mask is not None and mask.dtype not in (torch.bool, q.dtype):
                return False
            return True

        tests = {"flash": flash, "efficient": efficient, "cudnn": cudnn}
        order = ["flash", "efficient", "cudnn"]
        if self.version >= (2, 5) and major in (9, 10) and minor == 0 and self.prefers_cudnn():
            order = ["cudnn", "flash", "efficient"]
        elif hasattr(torch._C, "_get_sdp_priority_order"):
            names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
            order = [names[i] for i in torch._C._get_sdp_priority_order() if i in names]
        for name in order:
            if name == "math":
                if cuda.math_sdp_enabled():
                    # Math comes before what follows it in the list.
                    return "math"
            elif tests[name]():
                return name
        return "math"

    def prefers_cudnn(self):
        # From 2.11 on (cuDNN 9.15); TORCH_CUDNN_SDPA_PREFERRED says otherwise.
        env = os.environ.get("TORCH_CUDNN_SDPA_PREFERRED")
        if env is not None:
            return env not in ("0", "OFF", "")
        return self.version >= (2, 11) or self.version == (2, 5) and self.torch.__version__.startswith("2.5.0")

    # Autocast. The C++ kernels ask is_cuda of each argument, so the casts of
    # CUDA's lists are made here.

    def install_autocast(self):
        torch = self.torch
        C = torch._C
        names = C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
        key = C.DispatchKeySet(C.DispatchKey.AutocastCUDA)
        exclude = C._ExcludeDispatchKeyGuard
        Phantom = self.Phantom

        def eligible(t):
            return type(t) is Phantom and t._kind == "cuda" and t.dtype.is_floating_point and t.dtype is not torch.float64

        def lower_type():
            try:
                return torch.get_autocast_dtype("cuda")
            except AttributeError:
                return torch.get_autocast_gpu_dtype()

        def cast(v, to, lower):
            if isinstance(v, torch.Tensor):
                if not eligible(v) or v.dtype is to:
                    return v
                cached = (
                    lower
                    and v.dtype is torch.float32
                    and v.requires_grad
                    and v.is_leaf
                    and not v._is_view()
                    and torch.is_autocast_cache_enabled()
                )
                if cached:
                    hit = self.cast_cache.get(id(v))
                    if hit is not None and hit[0]() is v:
                        return hit[1]
                r = v.to(to)
                if cached:
                    self.cast_cache[id(v)] = (weakref.ref(v), r)
                return r
            if isinstance(v, (list, tuple)) and v and any(isinstance(x, torch.Tensor) for x in v):
                return type(v)(cast(x, to, lower) for x in v)
            return v

        def cast_all(args, kwargs, to, lower):
            # C++ evaluates arguments from the last to the first.
            kw = {k: cast(kwargs[k], to, lower) for k in reversed(list(kwargs))}
            done = [cast(a, to, lower) for a in reversed(args)]
            return done[::-1], kw

        def lower(op):
            def f(*args, **kwargs):
                with exclude(key):
                    args, kwargs = cast_all(args, kwargs, lower_type(), True)
                    return op(*args, **kwargs)

            return f

        def fp32(op):
            def f(*args, **kwargs):
                with exclude(key):
                    args, kwargs = cast_all(args, kwargs, torch.float32, False)
                    return op(*args, **kwargs)

            return f

        def set_dtype(op):
            names_ = _schema_names(op)
            at = names_.index("dtype")

            def f(*args, **kwargs):
                with exclude(key):
                    given = args[at] if len(args) > at else kwargs.get("dtype")
                    if given is None and eligible(args[0]):
                        if len(args) > at:
                            args = args[:at] + (torch.float32,) + args[at + 1 :]
                        else:
                            kwargs["dtype"] = torch.float32
                    return op(*args, **kwargs)

            return f

        def norm(op):
            def f(self_, *args, **kwargs):
                with exclude(key):
                    if eligible(self_) and "dtype" not in kwargs:
                        if op._overloadname == "Scalar":
                            p = args[0] if args else 2
                            return torch.ops.aten.norm.ScalarOpt_dtype(self_, p, dtype=torch.float32)
                        if op._overloadname == "ScalarOpt_dim":
                            return torch.ops.aten.norm.ScalarOpt_dim_dtype(self_, *args, dtype=torch.float32, **kwargs)
                    return op(self_, *args, **kwargs)

            return f

        def promote(op):
            def f(*args, **kwargs):
                with exclude(key):
                    types = {t.dtype for t in _tensors(list(args) + list(kwargs.values()), torch) if eligible(t)}
                    to = torch.float32 if torch.float32 in types else lower_type()
                    args, kwargs = cast_all(args, kwargs, to, False)
                    return op(*args, **kwargs)

            return f

        class flatten(torch.autograd.Function):
            @staticmethod
            def forward(ctx, to, *weights):
                ctx.types = [w.dtype for w in weights]
                buf = torch.empty(sum(w.numel() for w in weights), dtype=to, device=self.cuda0)
                views, at = [], 0
                for w in weights:
                    piece = buf[at : at + w.numel()].view(w.shape)
                    piece.copy_(w)
                    views.append(piece)
                    at += w.numel()
                ctx.mark_non_differentiable(buf)
                ctx.set_materialize_grads(False)
                return (buf, *views)

            @staticmethod
            def backward(ctx, _, *grads):
                out = [g if g is None else g.to(t) for g, t in zip(grads[::-1], ctx.types[::-1])]
                return (None, *out[::-1])

        def cudnn_rnn(op):
            def f(x, weights, stride0, buf, hx, cx, *rest):
                with exclude(key):
                    to = lower_type()
                    if eligible(weights[0]) and weights[0].dtype is not to:
                        # One buffer in the lower precision; the weights are
                        # views of it.
                        buf, *weights = flatten.apply(to, *weights)
                    hx, cx = cast(hx, to, False), cast(cx, to, False)
                    return op(cast(x, to, False), list(weights), stride0, buf.detach() if buf is not None else None, hx, cx, *rest)

            return f

        for name in names:
            short = name[len("aten::") :]
            packet, _, overload = short.partition(".")
            try:
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            except AttributeError:
                continue
            if short in _KEEP_AUTOCAST:
                continue
            if packet == "_cudnn_rnn":
                make = cudnn_rnn
            elif packet in _LOWER:
                make = lower
            elif packet == "norm":
                make = norm
            elif packet in _PROMOTE:
                make = promote
            elif "dtype" in _schema_names(op):
                make = set_dtype
            else:
                make = fp32
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self.library.impl(short, make(op), "AutocastCUDA")
                except Exception as e:
                    self.note("autocast of %s: %s" % (short, e))
        self.casts = (exclude, key, cast, eligible)
        clear = torch.clear_autocast_cache

        def clear_autocast_cache():
            self.cast_cache.clear()
            return clear()

        torch.clear_autocast_cache = clear_autocast_cache

    def install_torchvision(self):
        """torchvision's own autocast kernels: float32 inside, the type of the
        first argument outside."""
        torch = self.torch
        exclude, key, cast, eligible = self.casts
        library = self.vision_library = torch.library.Library("torchvision", "IMPL")

        def make(op, back):
            def f(*args):
                with exclude(key):
                    r = op(*[cast(a, torch.float32, False) for a in args])
                    return r.to(args[0].dtype) if back and isinstance(r, torch.Tensor) else r

            return f

        for name in ("nms", "roi_align", "deform_conv2d", "roi_pool", "ps_roi_align", "ps_roi_pool"):
            try:
                op = getattr(torch.ops.torchvision, name).default
                if torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::" + name, "AutocastCUDA"):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        library.impl(name, make(op, name in ("roi_align", "deform_conv2d")), "AutocastCUDA")
            except (AttributeError, RuntimeError):
                pass

    def watch_imports(self):
        """Call install_torchvision once torchvision's operations are loaded."""
        run = self

        class Watch:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "torchvision._meta_registrations" and not run.finished:
                    sys.meta_path.remove(Watch)
                    run.install_torchvision()
                return None

        sys.meta_path.insert(0, Watch)

    # What the program sees of CUDA.

    def patch(self):
        torch = self.torch
        cuda = torch.cuda
        run = self
        name, major, minor, sms, total = self.card
        shown = TORCH_NAMES.get(name) or ("NVIDIA GeForce " + name if name.startswith("RTX") and name[4:5].isdigit() else "NVIDIA " + name)
        l2 = {(9, 0): 60, (8, 0): 40, (10, 0): 126, (8, 9): 72, (12, 0): 96}.get((major, minor), 6) << 20
        optin = {(9, 0): 227, (8, 0): 163, (10, 0): 227, (7, 0): 96, (7, 5): 64}.get((major, minor), 99) << 10
        threads = 2048 if (major, minor) in ((6, 0), (6, 1), (7, 0), (8, 0), (9, 0), (10, 0)) else 1024 if major == 7 else 1536
        self.gpu = {
            "name": shown,
            "major": major,
            "minor": minor,
            "total_memory": total,
            "sms": sms,
            "max_threads_per_sm": threads,
            "l2": l2,
            "shared_per_block_optin": optin,
        }
        self.context = 600 << 20
        cudnn_version = None
        try:
            cudnn_version = torch.backends.cudnn.version()
        except Exception:
            pass
        self.cudnn_version = cudnn_version or 91900
        self.cuda_version = torch.version.cuda or "13.0"
        torch.version.cuda = self.cuda_version

        class Properties:
            pass

        p = Properties()
        p.name, p.major, p.minor, p.total_memory = shown, major, minor, total
        p.multi_processor_count, p.warp_size, p.max_threads_per_multi_processor = sms, 32, threads
        p.max_threads_per_block, p.regs_per_multiprocessor = 1024, 65536
        p.L2_cache_size, p.is_integrated, p.is_multi_gpu_board = l2, 0, 0
        p.shared_memory_per_block, p.shared_memory_per_block_optin = 49152, optin
        p.shared_memory_per_multiprocessor, p.gcnArchName = optin + 1024, ""
        p.uuid, p.pci_bus_id, p.pci_device_id, p.pci_domain_id = "00000000-0000-0000-0000-000000000000", 0, 0, 0

        def put(module, **functions):
            for key, f in functions.items():
                if hasattr(module, key):
                    setattr(module, key, f)

        def allocated(*_, **__):
            return run.live

        def peak(*_, **__):
            return run.peak

        def reset_peak(*_, **__):
            run.peak = run.live
            run.event("reset_peak")

        def stats(*_, **__):
            d = {}
            for key, now, top in (
                ("allocated_bytes", run.live, run.peak),
                ("active_bytes", run.live, run.peak),
                ("reserved_bytes", run.live, run.peak),
                ("requested_bytes", run.live, run.peak),
            ):
                for pool in ("all", "small_pool", "large_pool"):
                    d["%s.%s.current" % (key, pool)] = now
                    d["%s.%s.peak" % (key, pool)] = top
                    d["%s.%s.allocated" % (key, pool)] = top
                    d["%s.%s.freed" % (key, pool)] = top - now
            d.update({"num_alloc_retries": 0, "num_ooms": 0, "max_split_size": -1, "num_sync_all_streams": 0})
            return d

        def empty_cache(*_):
            run.event("empty_cache")

        def fraction(value, device=None):
            run.fraction = float(value)
            run.event("fraction", value=float(value))

        def free(*_):
            return max(total - run.context - run.live, 0), total

        def sync(*_):
            run.event("sync")

        def nothing(*_, **__):
            return None

        seed_state = torch.zeros(16, dtype=torch.uint8)
        put(
            cuda,
            is_available=lambda: True,
            _is_compiled=lambda: True,
            is_initialized=lambda: True,
            _lazy_init=nothing,
            init=nothing,
            _lazy_call=lambda f, **_: f(),
            current_device=lambda: 0,
            device_count=lambda: 1,
            set_device=nothing,
            get_device_name=lambda *_: shown,
            get_device_capability=lambda *_: (major, minor),
            get_device_properties=lambda *_: p,
            get_arch_list=lambda: ["sm_%d%d" % (major, minor)],
            get_gencode_flags=lambda: "",
            is_bf16_supported=lambda *_, **__: major >= 8 or _bf16_emulated(_, __),
            is_tf32_supported=lambda: major >= 8,
            synchronize=sync,
            ipc_collect=nothing,
            empty_cache=empty_cache,
            memory_allocated=allocated,
            max_memory_allocated=peak,
            memory_reserved=allocated,
            max_memory_reserved=peak,
            memory_cached=allocated,
            max_memory_cached=peak,
            memory_stats=stats,
            memory_stats_as_nested_dict=lambda *_: {},
            memory_summary=lambda *_, **__: "dry run: %d bytes in tensors, at most %d" % (run.live, run.peak),
            memory_snapshot=lambda *_, **__: [],
            reset_peak_memory_stats=reset_peak,
            reset_max_memory_allocated=reset_peak,
            reset_max_memory_cached=reset_peak,
            reset_accumulated_memory_stats=nothing,
            mem_get_info=free,
            set_per_process_memory_fraction=fraction,
            get_per_process_memory_fraction=lambda *_: run.fraction or 1.0,
            can_device_access_peer=lambda *_: False,
            utilization=lambda *_: 0,
            temperature=lambda *_: 40,
            power_draw=lambda *_: 0,
            clock_rate=lambda *_: 0,
            is_current_stream_capturing=lambda: False,
            get_rng_state=lambda *_: seed_state.clone(),
            set_rng_state=nothing,
            get_rng_state_all=lambda: [seed_state.clone()],
            set_rng_state_all=nothing,
            manual_seed=nothing,
            manual_seed_all=nothing,
            seed=nothing,
            seed_all=nothing,
            initial_seed=lambda: 0,
            get_allocator_backend=lambda: "native",
            cudart=lambda: types.SimpleNamespace(cudaMemGetInfo=free, cudaHostRegister=lambda *_: 0, cudaProfilerStart=nothing, cudaProfilerStop=nothing),
            _is_in_bad_fork=lambda: False,
            _exchange_device=lambda *_: 0,
            _maybe_exchange_device=lambda *_: 0,
        )
        for key in ("memory", "random"):
            module = getattr(cuda, key)
            for f in list(vars(module)):
                if not f.startswith("__") and f in vars(cuda) and callable(vars(cuda)[f]) and callable(getattr(module, f)):
                    setattr(module, f, vars(cuda)[f])
        put(
            cuda.memory,
            _record_memory_history=nothing,
            _snapshot=lambda *_: {"segments": [], "device_traces": []},
            _dump_snapshot=nothing,
            caching_allocator_alloc=self.refusal("caching_allocator_alloc"),
            caching_allocator_delete=nothing,
            _set_allocator_settings=nothing,
        )
        cuda._initialized = True
        cuda.default_generators = (torch.Generator(),)
        for key, f in list(vars(cuda.nvtx).items()):
            if key in ("range_push", "range_pop", "mark", "range_start", "range_end"):
                setattr(cuda.nvtx, key, lambda *_, **__: 0)
        self.patch_streams()
        put(torch.backends.cuda, is_built=lambda: True)
        cudnn = torch.backends.cudnn
        cudnn_module = sys.modules["torch.backends.cudnn"]
        for m in {id(x): x for x in (cudnn, cudnn_module)}.values():
            try:
                m.is_available = lambda: True
                m.version = lambda: run.cudnn_version
                m.is_acceptable = lambda t: getattr(t, "_kind", "") == "cuda" and torch.backends.cudnn.enabled and t.dtype in (
                    torch.bfloat16,
                    torch.float16,
                    torch.float32,
                    torch.float64,
                )
            except Exception:
                pass
        if hasattr(torch._C, "_use_cudnn_rnn_flatten_weight") or hasattr(torch, "_use_cudnn_rnn_flatten_weight"):
            torch._use_cudnn_rnn_flatten_weight = lambda: True
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            put(
                accelerator,
                is_available=lambda: True,
                device_count=lambda: 1,
                current_accelerator=lambda *_, **__: torch.device("cuda"),
                current_device_index=lambda: 0,
                current_device_idx=lambda: 0,
                set_device_index=nothing,
                set_device_idx=nothing,
                synchronize=sync,
                empty_cache=empty_cache,
                memory_allocated=allocated,
                max_memory_allocated=peak,
                memory_reserved=allocated,
                max_memory_reserved=peak,
                memory_stats=stats,
                reset_peak_memory_stats=reset_peak,
                get_memory_info=free,
                current_stream=cuda.current_stream,
                set_stream=cuda.set_stream,
            )
        if hasattr(torch._C, "_get_accelerator"):
            torch._C._get_accelerator = lambda *_: torch.device("cuda")
        import torch.cuda.amp.common as common

        common.amp_definitely_not_available = lambda: False
        try:
            import torch.amp.autocast_mode as am

            if hasattr(am, "amp_definitely_not_available"):
                am.amp_definitely_not_available = lambda: False
            import torch.amp.grad_scaler as gs

            if hasattr(gs, "amp_definitely_not_available"):
                gs.amp_definitely_not_available = lambda: False
        except ImportError:
            pass
        # Optimizers.
        import torch.optim.optimizer as optimizer
        import torch.utils._foreach_utils as foreach

        for module in (optimizer, foreach):
            types_ = getattr(module, "_foreach_supported_types", None)
            if types_ is not None and self.Phantom not in types_:
                types_.append(self.Phantom)
        group = foreach._group_tensors_by_device_and_dtype

        def group_tensors(lists, with_indices=False):
            return {
                ((self.cuda0, dt) if dev is not None and dev.type == "meta" else (dev, dt)): v
                for (dev, dt), v in group(lists, with_indices).items()
            }

        self.replace_everywhere("_group_tensors_by_device_and_dtype", group, group_tensors)
        optimizer.register_optimizer_step_post_hook(self.stepped)
        # Modules and tensors.
        torch.nn.Module._apply = self.module_apply(torch.nn.Module._apply)
        data = torch.Tensor.data
        torch.Tensor.data = property(data.__get__, lambda t, v: self.set_data(data, t, v))
        torch.Tensor.pin_memory = lambda t, *_: t
        torch.Tensor.is_pinned = lambda t, *_: False
        self.patch_backward()
        self.patch_storages()
        self.patch_compile()
        self.patch_factories()
        self.patch_threads()
        self.patch_ranks()
        self.watch_imports()
        torch.backends.mha.set_fastpath_enabled(False) if hasattr(torch.backends, "mha") else None
        def save_nothing(obj, f, *args, **kwargs):
            run.note("torch.save wrote nothing: a dry run has no data")

        torch.save = save_nothing

    def refusal(self, what):
        def f(*_, **__):
            raise self.refuse("%s cannot be dry-run: it takes memory that no tensor shows" % what)

        return f

    def replace_everywhere(self, name, old, new):
        for module in list(sys.modules.values()):
            try:
                if getattr(module, name, None) is old:
                    setattr(module, name, new)
            except Exception:
                pass

    def patch_backward(self):
        torch = self.torch
        run = self
        engine = torch.autograd.backward

        def backward(*args, **kwargs):
            run.event("backward_begin")
            try:
                return engine(*args, **kwargs)
            finally:
                run.event("backward_end")

        backward.__doc__ = engine.__doc__
        torch.autograd.backward = backward
        generator = torch.Generator

        class Generator(generator):
            """torch.Generator that may name the planned GPU."""

            def __new__(cls, device="cpu"):
                device = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
                g = generator.__new__(cls, "cpu")
                g.shown = self.cuda0 if device.type == "cuda" else device
                return g

            def __init__(self, *_, **__):
                pass

            @property
            def device(self):
                return self.shown

        torch.Generator = Generator

    def patch_storages(self):
        torch = self.torch
        run = self
        plain = torch.UntypedStorage.resize_

        def resize_(st, size):
            r = plain(st, size)
            run.resized(st)
            return r

        torch.UntypedStorage.resize_ = resize_

    def patch_compile(self):
        torch = self.torch
        run = self

        def eager(model=None, *args, **kwargs):
            run.note(
                "torch.compile ran eager: compiled code keeps fewer temporaries alive and saves fewer activations,"
                " so the real peak is usually lower"
            )
            if model is None:
                return lambda f: f
            return model

        torch.compile = eager
        torch.nn.Module.compile = lambda self_, *a, **k: eager(self_) and None
        graph = getattr(torch.cuda, "CUDAGraph", None)
        if graph is not None:

            class CUDAGraph:
                def __new__(cls, *_, **__):
                    raise run.refuse("CUDA graphs cannot be dry-run: they keep memory that no tensor shows; turn them off")

            torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = CUDAGraph
            torch.cuda.make_graphed_callables = lambda *_, **__: CUDAGraph()
            torch.cuda.graph = torch.cuda.graphs.graph = type("graph", (CUDAGraph,), {})

    def patch_factories(self):
        """Tell device="meta" of the program from the meta device of phantoms."""
        torch = self.torch
        run = self

        def is_meta(device):
            if device is None:
                return False
            return device == "meta" or getattr(device, "type", "") == "meta"

        def wrapped(f):
            def factory(*args, **kwargs):
                device = kwargs.get("device")
                if device is not None and is_meta(device):
                    run.true_meta += 1
                    try:
                        return f(*args, **kwargs)
                    finally:
                        run.true_meta -= 1
                return f(*args, **kwargs)

            factory.__name__ = getattr(f, "__name__", "factory")
            factory.__wrapped__ = f
            factory.__doc__ = f.__doc__
            return factory

        def from_data(f):
            def factory(data, *args, **kwargs):
                device = kwargs.get("device")
                if device is not None:
                    d = torch.device(device) if not isinstance(device, int) else run.cuda0
                    if d.type == "cuda":
                        kwargs["device"] = "cpu"
                        grad = kwargs.pop("requires_grad", False)
                        if isinstance(data, torch.Tensor):
                            t = data.detach() if f is torch_tensor else data
                            dtype = kwargs.get("dtype")
                            t = t.to(run.cuda0, dtype or t.dtype)
                            return t.clone().requires_grad_(grad) if t is data else t.requires_grad_(grad) if grad else t
                        t = f(run.on_host(data), *args, **kwargs).to(run.cuda0)
                        return t.requires_grad_(grad) if grad else t
                return f(data, *args, **kwargs)

            factory.__name__ = f.__name__
            factory.__doc__ = f.__doc__
            factory.__wrapped__ = f
            return factory

        torch_tensor = torch.tensor
        names = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "empty_strided", "linspace", "eye", "empty_permuted",
                 "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")  # fmt: skip
        import torch.utils._device as td

        constructors = td._device_constructors()
        for n in names:
            f = getattr(torch, n, None)
            if f is not None:
                w = wrapped(f)
                setattr(torch, n, w)
        for n in ("tensor", "as_tensor", "asarray"):
            f = getattr(torch, n, None)
            if f is not None:
                setattr(torch, n, from_data(f))
        device_context = td.DeviceContext
        call = device_context.__torch_function__

        def torch_function(ctx, func, types_, args=(), kwargs=None):
            kwargs = kwargs or {}
            if is_meta(ctx.device) and func in constructors and kwargs.get("device") is None:
                run.true_meta += 1
                try:
                    return call(ctx, func, types_, args, kwargs)
                finally:
                    run.true_meta -= 1
            if (
                ctx.device is not None
                and ctx.device.type == "cuda"
                and func is torch_tensor
                and kwargs.get("device") is None
            ):
                return torch.tensor(*args, **dict(kwargs, device=run.cuda0))
            return call(ctx, func, types_, args, kwargs)

        device_context.__torch_function__ = torch_function

    def on_host(self, data):
        """Python data in which phantoms may stand for numbers."""
        if isinstance(data, self.torch.Tensor):
            return data.item() if type(data) is self.Phantom else data
        if isinstance(data, (list, tuple)) and any(isinstance(x, (list, tuple, self.torch.Tensor)) for x in data):
            return [self.on_host(x) for x in data]
        return data

    def patch_threads(self):
        import threading

        run = self
        plain = threading.Thread.run

        def go(thread):
            if os.getpid() != run.pid or run.finished:
                return plain(thread)
            with run.mode_class():
                return plain(thread)

        threading.Thread.run = go

    def set_data(self, plain, t, v):
        Phantom = self.Phantom
        if type(v) is Phantom:
            if type(t) is Phantom:
                plain.__set__(t, v)
                t._kind, t._v = v._kind, v._v
                return
            with self.torch.no_grad():
                self.become(t, v.detach())
            return
        if type(t) is Phantom and isinstance(v, self.torch.Tensor):
            # A host tensor takes the place of a phantom.
            with self.torch.no_grad():
                self.become(t, v.detach())
            return
        plain.__set__(t, v)

    def become(self, t, q):
        """Give the tensor object t the content of q; every reference to t stays
        valid, an optimizer's for one."""
        torch = self.torch
        Parameter = torch.nn.Parameter
        if isinstance(t, Parameter) and not isinstance(q, Parameter):
            q = Parameter(q, t.requires_grad)
        elif t.requires_grad and not q.requires_grad:
            q.requires_grad_(True)
        grad = t.grad if t.is_leaf else None
        extra = {k: v for k, v in t.__dict__.items() if k not in ("_kind", "_v", "_is_param")}
        if isinstance(q, self.Phantom) or isinstance(t, self.Phantom):
            a, b = t.__class__, q.__class__
            t.__class__, q.__class__ = b, a
            da, db = dict(t.__dict__), dict(q.__dict__)
            t.__dict__.clear()
            q.__dict__.clear()
            t.__dict__.update(db)
            q.__dict__.update(da)
        t.__dict__.update(extra)
        torch._C._swap_tensor_impl(t, q)
        if grad is not None:
            t.grad = None
        return t

    def module_apply(self, plain):
        torch = self.torch
        run = self
        Phantom = self.Phantom

        def _apply(module, fn, recurse=True):
            if recurse:
                for child in module.children():
                    child._apply(fn)
            for key, p in module._parameters.items():
                if p is None:
                    continue
                if run.foreign(type(p)):
                    run.apply_foreign(module, key, p, fn)
                    continue
                with torch.no_grad():
                    q = fn(p)
                grad = p.grad
                if q is not p:
                    if type(p) is Phantom and type(q) is Phantom:
                        p.data = q
                    elif type(q) is Phantom or type(p) is Phantom:
                        try:
                            run.become(p, q)
                        except RuntimeError:
                            module._parameters[key] = torch.nn.Parameter(q, p.requires_grad)
                    elif q.is_meta != p.is_meta:
                        module._parameters[key] = torch.nn.Parameter(q, p.requires_grad)
                    else:
                        p.data = q
                del q
                if grad is not None:
                    with torch.no_grad():
                        g = fn(grad)
                    module._parameters[key].grad = g
                del grad
            for key, b in module._buffers.items():
                if b is not None:
                    module._buffers[key] = fn(b)
            return module

        return _apply

    def apply_foreign(self, module, key, p, fn):
        torch = self.torch
        with torch.no_grad():
            q = fn(p)
        if q is not p:
            module._parameters[key] = torch.nn.Parameter(q, p.requires_grad)

    # Streams and events.

    def patch_streams(self):
        torch = self.torch
        cuda = torch.cuda
        run = self
        counter = [0]

        class Stream:
            """A stream of the planned GPU: a number."""

            def __new__(cls, device=None, priority=0, **kwargs):
                s = object.__new__(cls)
                counter[0] += 1
                s.number = kwargs.get("number", counter[0])
                s.device = run.cuda0
                s.device_index, s.device_type = 0, 1
                s.priority = priority
                return s

            def __init__(self, *_, **__):
                pass

            stream_id = property(lambda s: s.number)
            cuda_stream = property(lambda s: s.number)

            def wait_stream(self, other):
                run.event("wait_stream", st=self.number, on=getattr(other, "number", 0))

            def wait_event(self, event):
                run.event("event_wait", e=event.number, st=self.number)

            def record_event(self, event=None):
                event = event or Event()
                event.record(self)
                return event

            def synchronize(self):
                run.event("sync", st=self.number)

            def query(self):
                return True

            def is_capturing(self):
                return False

            def __eq__(self, other):
                return isinstance(other, Stream) and other.number == self.number

            def __hash__(self):
                return self.number

            def __enter__(self):
                self._before = run.current_stream
                run.current_stream = self.number
                return self

            def __exit__(self, *_):
                run.current_stream = self._before

            @staticmethod
            def priority_range():
                return (0, -5)

        class Event:
            """An event of the planned GPU: a number."""

            def __new__(cls, *_, **__):
                e = object.__new__(cls)
                counter[0] += 1
                e.number = counter[0]
                e.device = run.cuda0
                e.event_id = e.cuda_event = e.number
                return e

            def __init__(self, *_, **__):
                pass

            def record(self, stream=None):
                run.event("event_record", e=self.number, st=getattr(stream, "number", run.current_stream))

            def wait(self, stream=None):
                run.event("event_wait", e=self.number, st=getattr(stream, "number", run.current_stream))

            def query(self):
                return True

            def elapsed_time(self, other):
                return 1.0

            def synchronize(self):
                run.event("sync")

        streams = {0: Stream(number=0)}

        def current_stream(*_):
            n = run.current_stream
            if n not in streams:
                streams[n] = Stream(number=n)
            return streams[n]

        class StreamContext:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                self.before = run.current_stream
                if self.stream is not None:
                    run.current_stream = getattr(self.stream, "number", 0)

            def __exit__(self, *_):
                run.current_stream = self.before

        def set_stream(stream):
            if stream is not None:
                run.current_stream = getattr(stream, "number", 0)

        class Device:
            def __init__(self, *_):
                self.idx, self.prev_idx = 0, 0

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return False

        cuda.Stream, cuda.Event, cuda.ExternalStream = Stream, Event, Stream
        cuda.streams.Stream, cuda.streams.Event = Stream, Event
        cuda.current_stream = current_stream
        cuda.default_stream = lambda *_: streams[0]
        cuda.set_stream = set_stream
        cuda.stream = StreamContext
        cuda.StreamContext = StreamContext
        cuda.device = Device
        cuda.device_of = Device
        cuda._DeviceGuard = Device
        torch.Tensor.record_stream = lambda t, s: None
        if hasattr(torch, "Stream") and hasattr(torch, "accelerator"):
            torch.Stream, torch.Event = Stream, Event

        class MemPool:
            def __init__(self, *_, **__):
                run.pools += 1
                self.number = run.pools
                self.id = (0, self.number)
                self.allocator = None

            def use_count(self):
                return 1

            def snapshot(self, *_):
                return []

            def __del__(self):
                try:
                    run.event("pool_delete", pool=self.number)
                except Exception:
                    pass

        class UsePool:
            def __init__(self, pool, device=None):
                self.pool = pool

            def __enter__(self):
                run.event("pool_begin", pool=self.pool.number)

            def __exit__(self, *_):
                run.event("pool_end", pool=self.pool.number)

        if hasattr(cuda, "MemPool"):
            cuda.MemPool = cuda.memory.MemPool = MemPool
            cuda.use_mem_pool = cuda.memory.use_mem_pool = UsePool

    # Start and end.

    def calibrate(self):
        """What the engine's test for accumulating in place sees from here."""
        torch = self.torch
        self.sole_use, self.sole_storage = -1, -1
        seen = []
        plain = self.handlers[torch.ops.aten.add.Tensor]

        def look(func, args, kwargs, kind):
            a = args[0]
            if torch._C._current_graph_task_id() != -1 and type(a) is self.Phantom:
                seen.append((a._use_count(), torch._C._storage_Use_Count(a.untyped_storage()._cdata)))
            return _PASS

        self.handlers[torch.ops.aten.add.Tensor] = look
        finished, self.finished = self.finished, True
        try:
            x = torch.empty(4, 4, device=self.cuda0).requires_grad_()
            h = x * 2
            (h.sigmoid() + h.tanh()).sum().backward()
        except AttributeError:
            self.note("this PyTorch cannot tell how often a gradient is held: gradients are summed out of place")
        finally:
            self.finished = finished
            self.handlers[torch.ops.aten.add.Tensor] = plain
        if seen:
            self.sole_use, self.sole_storage = seen[0]

    def start(self, program):
        torch = self.torch
        self.torch_dir = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
        import torch.nn
        import torch.optim

        # What looks at torch's functions on import must do so before they change.
        for module in ("torch._meta_registrations", "torch._dynamo", "torch._inductor.test_operators", "torch.utils.checkpoint"):
            try:
                importlib.import_module(module)
            except Exception:
                pass
        self.make_classes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.patch()
            self.install_kernels()
        self.finished = True
        with self.mode:
            self.calibrate()
        for rec in self.storages.values():
            rec.id = rec.size = 0
        self.storages.clear()
        self.next_storage = self.next_tensor = self.allocs = self.ops = self.live = self.peak = 0
        self.frees, self.buffer = [], []
        self.cpu_desc.clear()
        self.finished = False
        self.header(program)
        if self.world_size > 1:
            self.fake_ranks()

    def patch_ranks(self):
        """Checks between ranks that compare numbers nobody sent."""
        for name in ("torch.distributed.utils", "torch.nn.parallel.distributed"):
            try:
                module = importlib.import_module(name)
                module._verify_param_shape_across_processes = lambda *_, **__: True
            except Exception:
                pass

        # Tensors that wrap others (DTensor) are on the device of what they wrap;
        # the engine must not ask the driver about it.
        torch = self.torch
        plain_wrapper = torch.Tensor._make_wrapper_subclass

        def make_wrapper_subclass(cls, *args, **kwargs):
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "cuda":
                kwargs["device"] = self.meta
            return plain_wrapper(cls, *args, **kwargs)

        torch.Tensor._make_wrapper_subclass = staticmethod(make_wrapper_subclass)
        for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
            try:
                dtensor = importlib.import_module(name).DTensor
            except Exception:
                continue
            dtensor.device = property(lambda t: t._local_tensor.device)
            dtensor.is_cuda = property(lambda t: t._local_tensor.is_cuda)
            dtensor.is_meta = property(lambda t: t._local_tensor.is_meta)
            break
        # DDP asks its process group for the reduced bucket; a group that talks
        # to nobody has none.
        try:
            import torch.distributed as dist

            ddp = torch.nn.parallel.DistributedDataParallel
        except (ImportError, AttributeError):
            return
        forward = ddp.forward

        def reduced(state, bucket):
            done = torch.futures.Future()
            done.set_result(bucket.buffer().div_(state))
            return done

        def first(module, *args, **kwargs):
            if not getattr(module, "_comm_hooks", None) and dist.get_backend(module.process_group) == "fake":
                module.register_comm_hook(dist.get_world_size(module.process_group), reduced)
            return forward(module, *args, **kwargs)

        ddp.forward = first

    def fake_ranks(self):
        run = self
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(self.world_size))
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(min(8, self.world_size)))
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        plain = dist.init_process_group

        def init(backend=None, *args, **kwargs):
            for key in ("init_method", "store", "device_id", "timeout"):
                kwargs.pop(key, None)
            kwargs["rank"], kwargs["world_size"] = 0, run.world_size
            plain(backend="fake", store=FakeStore(), **{k: v for k, v in kwargs.items() if k in ("rank", "world_size", "group_name")})

        dist.init_process_group = init
        dist.distributed_c10d.init_process_group = init
        self.note("ranks: this is rank 0 of %d; the others are not run and send nothing" % self.world_size)


class _Storage:
    __slots__ = ("id", "size", "kind", "known", "desc", "ref", "born")

    def __init__(self):
        self.id, self.size, self.kind, self.known = -1, 0, "cuda", True
        self.desc = {}
        self.born = False


_NO_STORAGE = _Storage()


_THIS = __file__
_DTYPES = {
    "torch.float64": "f64", "torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16",
    "torch.int64": "i64", "torch.int32": "i32", "torch.int16": "i16", "torch.int8": "i8", "torch.uint8": "u8",
    "torch.bool": "bool", "torch.complex64": "c64", "torch.complex128": "c128",
    "torch.float8_e4m3fn": "f8_e4m3", "torch.float8_e5m2": "f8_e5m2",
}  # fmt: skip


def _compact(value):
    return json.dumps(value, separators=(",", ":"), default=str)


def _rounded(size):
    return -(-size // 512) * 512


_schema_cache = {}


def _schema_names(func):
    names = _schema_cache.get(func)
    if names is None:
        names = _schema_cache[func] = [a.name for a in func._schema.arguments]
    return names


def _op_name(func):
    overload = func._overloadname
    name = func._schema.name
    return name if overload == "default" else name + "." + overload


_PASS = object()
# Functions that ask "is there more to do?": generation runs to its length.
_GO_ON = ("_beam_search", "_beam_search_has_unfinished_sequences")
# Functions that drop degenerate boxes: an untrained model makes none.
_KEEPS_ALL = ("remove_small_boxes", "filter_proposals")
_HEAVY = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled", "native_layer_norm", "native_batch_norm", "cudnn", "_cudnn",
    "native_group_norm", "_fused", "_foreach", "native_dropout", "_thnn", "linalg", "_fft", "upsample", "max_pool", "avg_pool",
    "_adaptive", "_softmax", "_log_softmax", "gelu", "silu", "_efficient", "_flash",
)  # fmt: skip
_TYPE_NAMES = {
    "torch.float32": "FloatTensor", "torch.float64": "DoubleTensor", "torch.float16": "HalfTensor",
    "torch.bfloat16": "BFloat16Tensor", "torch.int64": "LongTensor", "torch.int32": "IntTensor", "torch.int16": "ShortTensor",
    "torch.int8": "CharTensor", "torch.uint8": "ByteTensor", "torch.bool": "BoolTensor",
}  # fmt: skip


_KEEP_AUTOCAST = {"binary_cross_entropy"}
_LOWER = {
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr", "matmul", "einsum",
    "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
}  # fmt: skip
_PROMOTE = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add",
}  # fmt: skip


def _tensors(values, torch):
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _tensors(v, torch)


def _bf16_emulated(args, kwargs):
    return kwargs.get("including_emulation", args[0] if args else True)


def _dense(t):
    """Non-overlapping and dense, as the engine asks."""
    dims = sorted((s, n) for s, n in zip(t.stride(), t.shape) if n != 1)
    want = 1
    for s, n in dims:
        if s != want:
            return False
        want *= n
    return True


def _set_data(t, v):
    t.data = v


def dry_run(args):
    """Run args.program under a dry run; returns the exit status."""
    os.environ["PYTORCH_JIT"] = "0"
    run = DryRun(
        args.out, args.gpu, 3 if args.steps is None else args.steps, args.seconds, args.world_size, args.assume or (), args.frames
    )
    sys.argv = [args.program] + args.arguments
    run.start(sys.argv)
    status = 0
    try:
        with run.mode:
            run_program(args)
    except DryRunEnd:
        pass
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException as e:
        import traceback

        status = 1
        frames = traceback.extract_tb(e.__traceback__)
        own = [f for f in frames if f.filename != _THIS and "runpy" not in f.filename and not f.filename.startswith("<")]
        lines = [f for f in own if not f.filename.startswith(run.torch_dir)]
        at = lines[-1] if lines else own[-1] if own else None
        place = " at %s:%d" % (at.filename, at.lineno) if at else ""
        run.error = "%s: %s%s" % (type(e).__name__, str(e).strip(), place)
        if os.environ.get("ALLOCSIM_TRACEBACK"):
            traceback.print_exc()
    run.finish()
    if run.error:
        run.say("the program stopped: " + run.error)
        run.say("what was recorded until then is in %s; ALLOCSIM_TRACEBACK=1 shows where it was" % run.path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status) if status == 0 else sys.exit(status)


def main():
    import argparse

    parser = argparse.ArgumentParser(
        prog="allocsim_record.py",
        description="Run a PyTorch program and record what it asks of the CUDA allocator.",
    )
    parser.add_argument("-o", "--out", default="allocsim", metavar="NAME", help="write NAME.pickle and NAME.json")
    parser.add_argument("--frames", action="store_true", help="record Python stacks too (slower, larger)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="stop after N calls of allocsim_record.step(); dry run: optimizer steps (3; 0 = all)"
    )
    parser.add_argument("--max-entries", type=int, default=MAX_ENTRIES, metavar="N", help="events to keep (default %(default)s)")
    parser.add_argument("--compress", action="store_true", help="write NAME.pickle.gz")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: run on tensors without memory, write NAME.dryrun and NAME.json")
    parser.add_argument("--gpu", default="H200", metavar="NAME", help="dry run: the card to plan for (default %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="N", help="dry run: stop after N seconds")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="dry run: be rank 0 of N")
    parser.add_argument(
        "--assume",
        action="append",
        metavar="KEY=VALUE",
        help="dry run: what to take for data that nobody has: " + ", ".join("%s=%s" % kv for kv in ASSUME.items()),
    )
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    args = parser.parse_args()

    # The program must find this module, not a second copy of it.
    sys.modules["allocsim_record"] = sys.modules["__main__"]
    if args.dry_run:
        dry_run(args)
        return
    start(args.out, args.frames, args.steps, args.max_entries, args.compress)
    sys.argv = [args.program] + args.arguments
    run_program(args)


def run_program(args):
    import runpy

    if args.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(args.program))
        runpy.run_path(args.program, run_name="__main__")


if __name__ == "__main__":
    main()
