"""torch.cuda and tensors "on" simulated GPUs, for a torch that was built without CUDA.

A tensor's data lie in the host's memory and are computed when the call is made; when they would be
ready on a GPU is simulated. Of a long vector only the first elements exist (`kept_elements`), of a
large matrix as many rows and columns as a square of so many elements has: it says its full shape,
and costs its full shape. What exists is always the upper left corner, so slices, products, sums and
comparisons of parts fit each other. A matrix as a vector (`view(-1)`) is that corner in a row;
`nonzero` alone gives the places that they would have in the whole one.
"""

from __future__ import annotations

import math
import os
import random
import types
from typing import TYPE_CHECKING, Any

from . import driver, machine
from .clock import HostClock, real_sleep
from .stream import Event, Mark, Stream, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
"""torch 2.13 torch/cuda/__init__.py, _lazy_init."""

_BUSY = (
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect."
)
"""cudaErrorDevicesUnavailable (46), with torch 2.13 c10/cuda/CUDAException.cpp around it."""

_SYNCHRONOUS = frozenset(
    ("item", "tolist", "__bool__", "__int__", "__float__", "equal", "nonzero", "cpu", "numpy")
)
_FREE = frozenset(
    (
        "__get__", "__set__", "numel", "element_size", "dim", "size", "stride", "data_ptr", "view",
        "reshape", "detach", "is_contiguous", "untyped_storage", "expand", "squeeze", "unsqueeze",
    )
)  # fmt: skip
_PRODUCTS = frozenset(("mm", "matmul", "__matmul__"))
_FACTORIES = frozenset(("empty", "zeros", "ones", "randn", "rand", "full", "tensor", "arange"))
_LARGE = 1 << 22  # elements
_LEAST_US = 2.0  # a kernel that does nothing


class Gpu:
    """One visible GPU of this process."""

    def __init__(self, index: int, spec: dict[str, Any], clock: HostClock) -> None:
        self.index = index
        self.spec = spec
        self.slot = int(spec["slot"])
        self.stream = Stream(clock)
        self.lock: int | None = None
        self.allocated = 0
        self._faults: dict[str, list[dict[str, Any]]] = {}

    def fault(self, kind: str) -> dict[str, Any] | None:
        """The first fault of that kind that is planted on this GPU, if its moment has come."""
        if kind not in self._faults:
            self._faults[kind] = faults(kind, self.slot)
        return next((one for one in self._faults[kind] if _its_time(one)), None)


class _Process:
    """What CUDA is in this process: nothing until it is initialised."""

    def __init__(self) -> None:
        self.here = os.getpid()
        self.pid = 0
        self.poisoned = 0
        self.clock: HostClock | None = None
        self.gpus: list[Gpu] = []
        self.current = 0
        self.costs_us: dict[str, float] = {}
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Know that this is another process."""
        self.here = os.getpid()


_process = _Process()
_elements_of: dict[int, int] = {}
"""How many elements exist of a vector of that length."""

_torch: Any = None


def faults(kind: str, slot: int | None = None) -> list[dict[str, Any]]:
    """The host's planted faults of a kind: those of one GPU, and those of all."""
    return [
        one
        for one in machine.known()["faults"]
        if one["kind"] == kind and (slot is None or one.get("slot") in (None, slot))
    ]


def _its_time(fault: dict[str, Any]) -> bool:
    return not fault.get("once") or machine.first_time(f"{fault['kind'].replace(' ', '-')}.once")


def clock_of_process() -> HostClock | None:
    """The simulated clock, once CUDA is initialised here."""
    return _process.clock if _process.pid == _process.here else None


def initialise() -> _Process:
    """Bring CUDA up in this process, which takes real time; RuntimeError where it cannot be."""
    here = _process.here
    if _process.pid == here:
        return _process
    if _process.pid or _process.poisoned not in (0, here):
        raise RuntimeError(_FORKED)
    costs = machine.known()["process"]
    visible = machine.visible_gpus()
    if not visible:
        raise RuntimeError("No CUDA GPUs are available")
    if costs.get("init_error"):
        raise RuntimeError(str(costs["init_error"]))
    if costs["exit_s"]:
        driver.hold_at_exit(float(costs["exit_s"]))
    real_sleep(float(costs["init_s"]))
    _process.pid, _process.clock = here, HostClock()
    _process.costs_us = {
        kind: float(machine.known()["host"][f"{kind}_us"])
        for kind in ("enqueue", "event", "synchronise")
    }
    _process.gpus = [Gpu(index, spec, _process.clock) for index, spec in enumerate(visible)]
    return _process


def gpu(device: Any = None) -> Gpu:
    """The GPU of a torch device, an index or None (the current one), with a context on it."""
    process = initialise()
    index = device if isinstance(device, int) else getattr(device, "index", None)
    index = process.current if index is None else index
    if not 0 <= index < len(process.gpus):
        raise RuntimeError("CUDA error: invalid device ordinal")
    found = process.gpus[index]
    if found.lock is None and machine.known()["process"]["exclusive"]:
        found.lock = machine.take(found.spec)
        if found.lock is None:
            raise RuntimeError(_BUSY)
    return found


def spend(kind: str) -> HostClock:
    """Pass the host's time for one call of that kind ("enqueue", "event", "synchronise")."""
    process = _process if _process.pid == _process.here else initialise()
    assert process.clock is not None
    process.clock.spend(process.costs_us[kind])
    return process.clock


def settle(one: Gpu) -> None:
    """Have the data of collectives that are under way: what comes next needs them."""
    if one.stream.pending is not None:
        one.stream.resolve()


def launch(one: Gpu, takes_us: float, *, copies: bool = False) -> None:
    """Enqueue a kernel, or a copy over a link, whatever the clock of the GPU."""
    clock = spend("enqueue")
    if one.fault("spinning kernel"):
        one.stream.spins = True
    slow = None if copies else one.fault("slow gpu")
    takes_us *= 1.0 / slow["factor"] if slow else 1.0
    one.stream.enqueue(Work(clock.now_us, takes_us))


def synchronise(one: Gpu) -> None:
    """Wait until the GPU has done everything."""
    clock = spend("synchronise")
    one.stream.resolve()
    clock.wait_until(one.stream.end_us)


def install(torch: Any) -> None:
    """Put the GPUs into this torch."""
    global _torch  # noqa: PLW0603  # there is one torch in a process
    _torch = torch
    cuda = torch.cuda
    cuda.Event = _event_class()
    cuda.synchronize = lambda device=None: synchronise(gpu(device))
    cuda.set_device = _set_device
    cuda.current_device = lambda: initialise().current
    cuda.device_count = lambda: len(machine.visible_gpus())
    cuda.is_available = _is_available
    cuda.get_device_properties = lambda device=None: _properties(gpu(device))
    cuda.get_device_name = lambda device=None: gpu(device).spec["name"]
    cuda.mem_get_info = lambda device=None: _memory(gpu(device))
    cuda.empty_cache = lambda: None
    cuda.can_device_access_peer = lambda a, b: a != b and machine.known()["fabric"]["p2p"] != "none"
    cuda._sleep = _sleep  # torch's own name
    cuda._lazy_init = initialise
    cuda.init = initialise
    cuda.nccl.version = lambda: tuple(int(part) for part in machine.known()["nccl"].split("."))
    torch.version.cuda = machine.known()["cuda"]
    torch.__version__ = f"{machine.known()['torch']}+cu{machine.known()['cuda'].replace('.', '')}"
    _mode(torch).__enter__()


def _set_device(device: Any) -> None:
    found = gpu(device)
    _process.current = found.index


def _is_available() -> bool:
    """Without the NVML-based check this is a call of the runtime, after which no fork may use it.

    Source: torch 2.13 torch/cuda/__init__.py is_available.
    """
    if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1" and not _process.pid:
        _process.poisoned = _process.poisoned or os.getpid()
    return bool(machine.visible_gpus())


def _properties(one: Gpu) -> Any:
    """What torch shows of a GPU: the PCI address since 2.8, the UUID since 2.5."""
    spec = one.spec
    domain, bus, device = (int(part, 16) for part in spec["bus_id"].partition(".")[0].split(":"))
    found: dict[str, Any] = {
        "name": spec["name"],
        "total_memory": int(spec["memory_mib"]) << 20,
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
    }
    if machine.torch_version() >= (2, 5):
        found["uuid"] = spec["uuid"].removeprefix("GPU-")
    if machine.torch_version() >= (2, 8):
        found.update(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)
    return types.SimpleNamespace(**found)


def _memory(one: Gpu) -> tuple[int, int]:
    total = int(one.spec["memory_mib"]) << 20
    return max(0, int(machine.known()["process"]["free_mib"] * (1 << 20)) - one.allocated), total


def _sleep(cycles: int) -> None:
    """A kernel that spins for so many cycles of the GPU's clock."""
    launch(gpu(), max(_LEAST_US, cycles / machine.known()["gpu"]["sm_mhz"]))


def _event_class() -> type:  # noqa: C901  # it stands in for a class of torch
    class CudaEvent:
        def __init__(
            self,
            enable_timing: bool = False,  # noqa: FBT001, FBT002  # torch's signature
            blocking: bool = False,  # noqa: FBT001, FBT002
            interprocess: bool = False,  # noqa: FBT001, FBT002
        ) -> None:
            del blocking, interprocess
            self._event = Event(timed=enable_timing)

        def record(self, stream: Any = None) -> None:
            del stream
            one, clock = gpu(), spend("event")
            self._event.at_us, self._event.stream = None, one.stream
            one.stream.enqueue(Mark(clock.now_us, self._event))

        def query(self) -> bool:
            if self._event.stream is None:
                return True
            clock = spend("event")
            if self._event.at_us is None and self._event.least_us > clock.now_us:
                return False  # nobody needs to be waited for to say so
            self._event.stream.resolve(self._event)
            return self._event.at_us is not None and self._event.at_us <= clock.now_us

        def synchronize(self) -> None:
            if self._event.stream is None:
                return
            clock = spend("synchronise")
            self._event.stream.resolve(self._event)
            clock.wait_until(self._event.at_us or 0.0)

        def elapsed_time(self, end: CudaEvent) -> float:
            """Milliseconds; as the driver, an error where one of them has not come yet."""
            times = []
            for one in (self._event, end._event):
                if not one.timed or one.stream is None:
                    raise ValueError("Both events must be recorded before calculating elapsed time")
                clock = one.stream.clock
                one.stream.resolve(one)
                if one.at_us is None or one.at_us > clock.now_us:
                    raise RuntimeError("CUDA error: device not ready")
                times.append(one.at_us)
            # The driver's resolution is about half a microsecond.
            return round((times[1] - times[0]) * 2.0) / 2000.0

    return CudaEvent


def _mode(torch: Any) -> Any:
    """Sends every call of torch that concerns a GPU to `_call`."""
    from torch.overrides import TorchFunctionMode

    tensor_class = _tensor_class(torch)

    class GpuMode(TorchFunctionMode):  # type: ignore[misc]  # torch is Any here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            return _call(tensor_class, func, args, kwargs or {})

    return GpuMode()


def _tensor_class(torch: Any) -> Any:
    class CudaTensor(torch.Tensor):  # type: ignore[misc]
        __torch_function__ = torch._C._disabled_torch_function_impl
        gpu: Gpu
        claims: tuple[int, ...]
        """The shape that it says it has."""
        row: tuple[int, int] | None = None
        """Of a matrix as a vector: how many columns exist, and how many it says it has."""

        @property
        def claimed(self) -> int:
            return math.prod(self.claims)

        @property
        def shape(self) -> Any:
            return torch.Size(self.claims)

        @property
        def device(self) -> Any:
            return torch.device("cuda", self.gpu.index)

        @property
        def is_cuda(self) -> bool:
            return True

        def numel(self) -> int:
            return self.claimed

        def get_device(self) -> int:
            return self.gpu.index

    return CudaTensor


def _call(  # noqa: C901, PLR0911, PLR0912  # a table of cases, most particular first
    tensor_class: Any, func: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run one function of torch on the host, and account for it on its GPU."""
    name = func.__name__
    if func is _torch.device:
        return func(*args, **kwargs)
    inputs = _tensors(tensor_class, (*args, *kwargs.values()))
    wanted = kwargs.get("device")
    wanted = wanted if wanted is not None else next((a for a in args if _is_device(a)), None)
    to_gpu = wanted is not None and _torch.device(wanted).type == "cuda"
    if not inputs and not to_gpu:
        if kwargs.get("pin_memory"):
            initialise()
            kwargs = {**kwargs, "pin_memory": False}
        if name in ("mm", "copy_") and args[0].numel() >= _LARGE:
            return _in_part(name, func, args, kwargs)
        return func(*args, **kwargs)
    target = gpu(_torch.device(wanted)) if to_gpu else inputs[0].gpu
    if name in ("view", "reshape") and isinstance(args[1], int):
        return _wrapped(tensor_class, *_reshaped(args[0], args[1:]), target, inputs)
    if name in _FREE:
        result = func(*args, **kwargs)
        return _wrapped(tensor_class, result, _claims(name, result, args), target, inputs)
    for one in {each.gpu.index: each.gpu for each in inputs}.values():
        settle(one)
    args = given = tuple(_torch.device("cpu") if _is_device(each) else each for each in args)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": "cpu"}
    claims = None
    if name in _FACTORIES:
        args, claims = _kept(name, args)
    elif len(args) > 1:
        args = _fitting(name, args)
    result = func(*args, **kwargs)
    if name in _PRODUCTS:
        _corrupt(result, target)
    _account(name, target, inputs)
    if name in _SYNCHRONOUS:
        synchronise(target)
    if name.endswith("_") and not name.endswith("__"):
        return given[0]
    to_host = wanted is not None and not to_gpu
    if to_host or name in ("cpu", "numpy"):
        return result
    if name == "nonzero" and inputs[0].row is not None:
        real, claimed = inputs[0].row
        result = result // real * claimed + result % real
    claims = claims or _claims(name, result, given)
    return _wrapped(tensor_class, result, claims, target, inputs)


def _in_part(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Large work of the CPU: two cores stand for the hundred that a GPU host has.

    Of a product a 64th is computed, of a copy a 16th, and it takes the time of that.
    """
    if name == "copy_":
        part = slice(args[0].numel() // 16)
        func(args[0].view(-1)[part], args[1].view(-1)[part])
        return args[0]
    corner = tuple(slice(length // 4) for length in args[0].shape)
    func(args[0][corner], args[1][corner], out=kwargs["out"][corner])
    return kwargs["out"]


def _kept(name: str, args: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Leave most elements out of what a call makes; and the shape that it asked for."""
    if name in ("tensor", "full") or not all(isinstance(each, int) for each in args):
        return args, None
    if name == "arange":
        start, end = args if len(args) > 1 else (0, args[0])
        return (start, start + _keep((end - start,))[0]), (end - start,)
    return _keep(args), args


def _keep(claims: tuple[int, ...]) -> tuple[int, ...]:
    """How much of a tensor of that shape exists."""
    kept = int(machine.known()["kept_elements"])
    if len(claims) == 1:
        return (_elements_of.setdefault(claims[0], min(claims[0], kept)),)
    return tuple(min(length, math.isqrt(kept)) for length in claims)


def exists(tensor: Any) -> tuple[int, ...]:
    """The shape of what exists."""
    return tuple(_torch.Tensor.size(tensor))


def _reshaped(tensor: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """A vector as a matrix, or a matrix as a vector, and the shape that it says it has."""
    known = -math.prod(shape) if -1 in shape else 1
    claims = tuple(tensor.claimed // known if length == -1 else length for length in shape)
    if exists(tensor) == tensor.claims:
        return _torch.Tensor.view(tensor, claims), claims
    flat = _torch.Tensor.view(tensor, -1)
    if len(claims) == 1:
        return flat, claims
    kept = _keep(claims)
    return flat[: math.prod(kept)].view(kept), claims


def _fitting(name: str, args: Any) -> Any:
    """Of two tensors that belong together the part that exists of both."""
    one, other = args[:2]
    if not isinstance(one, _torch.Tensor) or not isinstance(other, _torch.Tensor):
        return args
    first, second = exists(one), exists(other)
    if name in _PRODUCTS:
        inner = min(first[-1], second[0])
        one, other = one.narrow(-1, 0, inner), other.narrow(0, 0, inner)
    elif tuple(one.shape) == tuple(other.shape) and first != second:
        part = tuple(slice(min(pair)) for pair in zip(first, second, strict=True))
        one, other = (_torch.Tensor.__getitem__(each, part) for each in (one, other))
    return (one, other, *args[2:])


def _claims(name: str, result: Any, args: Any) -> tuple[int, ...] | None:
    """The shape that a result says it has; None for one that is as it is."""
    one = args[0] if args else None
    if isinstance(one, tuple | list) and name == "cat":
        return (sum(each.shape[0] for each in one), *one[0].shape[1:])
    if not isinstance(result, _torch.Tensor) or not isinstance(one, _torch.Tensor):
        return None
    claims, real = tuple(one.shape), exists(result)
    if name in _PRODUCTS:
        return (*claims[:-1], *args[1].shape[1:])
    if name == "__getitem__" and isinstance(args[1], slice):
        return (len(range(claims[0])[args[1]]), *claims[1:])
    if name == "view":  # as another type
        scale = result.element_size() / one.element_size()
        claims = (*claims[:-1], int(claims[-1] / scale))
        if len(claims) == 1:
            _elements_of.setdefault(claims[0], real[0])
        return claims
    alike = (each for each in args if isinstance(each, _torch.Tensor) and exists(each) == real)
    return next((tuple(each.shape) for each in alike), None)


def _corrupt(product: Any, one: Gpu) -> None:
    """Where it is planted, one element of a product comes out wrong."""
    fault = one.fault("wrong product")
    if fault and random.random() < fault["rate"]:  # noqa: S311  # a simulation
        product.view(-1)[-1:].add_(2)


def _account(name: str, target: Gpu, inputs: list[Any]) -> None:
    """Enqueue what the call costs its GPU, by bytes or by floating point operations."""
    rates = machine.known()["gpu"]
    across = False
    if name in _PRODUCTS and len(inputs) > 1:
        columns = math.prod(inputs[1].claims[1:])
        takes_us = 2.0 * inputs[0].claimed * columns / (rates["tflops"] * 1e6)
    else:
        size = max((each.claimed * each.element_size() for each in inputs), default=0)
        across = name == "copy_" and (
            len({each.gpu.index for each in inputs}) > 1 or len(inputs) == 1
        )
        rate = rates["memory_gbs"] / 2
        if across:
            rate = _p2p_gbs(inputs) if len(inputs) > 1 else rates["pcie_gbs"]
        takes_us = size / (rate * 1e3)
    launch(target, max(_LEAST_US, takes_us), copies=across)


def _p2p_gbs(ends: list[Any]) -> float:
    planted = [one.gpu.fault("slow p2p") for one in ends]
    factor = min((fault["factor"] for fault in planted if fault), default=1.0)
    return float(machine.known()["gpu"]["p2p_gbs"] * factor)


def _wrapped(
    tensor_class: Any,
    result: Any,
    claims: tuple[int, ...] | None,
    target: Gpu,
    inputs: list[Any],
) -> Any:
    """A result as a tensor of that GPU, which says that it has that shape."""
    if isinstance(result, tuple | list):
        return type(result)(_wrapped(tensor_class, each, None, target, inputs) for each in result)
    if isinstance(result, tensor_class):
        result.claims = claims or result.claims  # arange(n, out=...) has made it as long
        return result
    if not isinstance(result, _torch.Tensor):
        return result
    made = result.as_subclass(tensor_class)
    made.gpu, made.claims = target, exists(result) if claims is None else claims
    origin = inputs[0] if inputs else None
    if origin is None or result.untyped_storage().data_ptr() != origin.untyped_storage().data_ptr():
        _allocate(target, made)
    elif len(origin.claims) > 1 and len(made.claims) == 1:
        made.row = exists(origin)[-1], origin.claims[-1]
    return made


def _allocate(target: Gpu, made: Any) -> None:
    import weakref

    size = made.claimed * made.element_size()
    free = int(machine.known()["process"]["free_mib"]) << 20
    if target.allocated + size > free:
        raise _torch.cuda.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / (1 << 20):.2f} MiB. GPU {target.index} "
            f"has a total capacity of {int(target.spec['memory_mib']) / 1024:.2f} GiB of which "
            f"{(free - target.allocated) / (1 << 20):.2f} MiB is free."
        )
    if size > 1 << 20:
        target.allocated += size

        def release() -> None:
            target.allocated -= size

        weakref.finalize(made, release)


def _tensors(tensor_class: Any, values: Iterable[Any]) -> list[Any]:
    found = []
    for value in values:
        if isinstance(value, tensor_class):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(tensor_class, value)
    return found


def _is_device(value: Any) -> bool:
    return isinstance(value, _torch.device) or (
        isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu")
    )
