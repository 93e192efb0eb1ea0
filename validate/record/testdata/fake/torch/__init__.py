"""Just enough of torch's interface to run the recorder without a GPU."""

import types

__version__ = "0.0.0+fake"
version = types.SimpleNamespace(cuda="0.0", hip=None)


class device:
    def __init__(self, name):
        self.index = int(name.split(":")[1]) if ":" in name else None


class record_function:
    log = []

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.log.append("enter " + self.name)

    def __exit__(self, *_):
        self.log.append("exit " + self.name)


autograd = types.SimpleNamespace(profiler=types.SimpleNamespace(record_function=record_function))


class OutOfMemoryError(RuntimeError):
    pass


class _Memory(types.SimpleNamespace):
    pass


_state = types.SimpleNamespace(
    initialized=False, queued=[], history=None, observers=[], trace=[], backend="native", reserved=0, no_options=False
)


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=0, **more):
    if _state.no_options and more:
        raise TypeError("unexpected keyword argument")
    _state.history = enabled and dict(enabled=enabled, context=context, stacks=stacks, max_entries=max_entries, **more)


def _snapshot():
    return {
        "segments": [],
        "device_traces": [list(_state.trace), []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "external_annotations": [],
    }


memory = _Memory(
    empty_cache=lambda: None,
    set_per_process_memory_fraction=lambda fraction, device=None: None,
    reset_peak_memory_stats=lambda device=None: None,
    reset_accumulated_memory_stats=lambda device=None: None,
    _record_memory_history=_record_memory_history,
    _snapshot=_snapshot,
)
for _name in ("empty_cache", "set_per_process_memory_fraction", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
    getattr(memory, _name).__name__ = _name


def init():
    if not _state.initialized:
        _state.initialized = True
        for f in _state.queued:
            f()


def _lazy_call(f):
    _state.queued.append(f)


cuda = types.SimpleNamespace(
    memory=memory,
    OutOfMemoryError=OutOfMemoryError,
    empty_cache=memory.empty_cache,
    set_per_process_memory_fraction=memory.set_per_process_memory_fraction,
    reset_peak_memory_stats=memory.reset_peak_memory_stats,
    reset_accumulated_memory_stats=memory.reset_accumulated_memory_stats,
    init=init,
    is_initialized=lambda: _state.initialized,
    _lazy_call=_lazy_call,
    current_device=lambda: 0,
    device_count=lambda: 2,
    get_allocator_backend=lambda: _state.backend,
    memory_stats=lambda device=None: {"reserved_bytes.all.current": _state.reserved, "num_ooms": len(_state.trace) and 1, "ratio": 0.5},
    get_device_properties=lambda i: types.SimpleNamespace(name="Fake GPU", total_memory=1 << 30),
    mem_get_info=lambda i=0: (1 << 29, 1 << 30),
)
_C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=_state.observers.append)


# For tests: what a program would do.


def allocate(n):
    init()
    _state.trace.append({"action": "alloc", "size": n, "addr": 1, "stream": 0})


def run_out_of_memory(n):
    init()
    _state.trace.append({"action": "oom", "size": n, "device_free": 7, "stream": 0})
    for f in _state.observers:
        f(0, n, 1 << 30, 7)
    raise OutOfMemoryError("CUDA out of memory")
