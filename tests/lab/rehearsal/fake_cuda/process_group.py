"""torch.distributed.ProcessGroupNCCL over simulated GPUs, with the threads of the real one.

Source of the rules: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.6, 2.8 and 2.13.
What differs by version is asked of `machine.torch_version`. Time-outs here are real time, as the
watchdog's are: a work's time begins when the host enqueues it.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import cuda, log, machine
from .clock import outside, real_s, real_sleep
from .communicator import Communicator
from .stream import Collective, Event, Mark

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S = 0.1
_POLL_S = 1.0
_SIGNAL = "exception_dump"
_NO_IMEX = (
    "MNNVL (cliqueSize 2) is available but not working on this system. Check the IMEX "
    "configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
)
"""src/mnnvl.cc of NCCL 2.28."""

_SETUP_US = (60_000.0, 25_000.0)  # the first communicator of a process, and each later one
_TORCH_2_8 = (2, 8)

_made = 0
_should_dump = threading.Event()


class Options:
    """ProcessGroupNCCL.Options."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:  # noqa: FBT001, FBT002
        self.is_high_priority_stream = is_high_priority_stream
        self.backend = "nccl"
        self.split_from: Any = None
        self.split_color = 0
        self.config: Any = None
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = timedelta(minutes=10)


class _Work:
    """One operation: `wait` makes the stream wait, and never the host."""

    def __init__(self, timeout_s: float, end: Event) -> None:
        self.timeout_s = timeout_s
        self.end = end
        self.began_s = real_s()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream waits for the end, and the host does not."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Whether its end is known and has come."""
        clock = cuda.clock_of_process()
        return self.end.at_us is not None and (clock is None or self.end.at_us <= clock.now_us)


class ProcessGroupNCCL:
    """A group of ranks, each with one GPU."""

    Options = Options

    def __init__(self, store: Any, rank: int, size: int, options: Any = None) -> None:
        global _made  # the real one counts in a static variable, too
        if not machine.visible_gpus():
            raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        self.uid, _made = _made, _made + 1
        self.options = options or Options()
        self._store, self._rank, self._size = store, rank, size
        self._global_store = _without_prefix(store)
        self._communicator: Communicator | None = None
        self._works: list[_Work] = []
        self._works_lock = threading.Lock()
        self._enqueued = 0
        self._stopped = threading.Event()
        self._aborted = False
        self._threads: list[threading.Thread] = []
        if os.environ.get("TORCH_NCCL_BLOCKING_WAIT") != "1":
            self._start(self._watchdog)
            self._start(self._monitor)

    def rank(self) -> int:
        """Ours."""
        return self._rank

    def size(self) -> int:
        """Of the group."""
        return self._size

    def eager_connect_single_device(self, device: Any) -> None:
        """Make the communicator now, as init_process_group(device_id=...) does."""
        self._connect(cuda.gpu(device))

    def allreduce(self, tensors: Any, options: Any = None) -> _Work:
        """Enqueue one all-reduce; the first one of a group connects it."""
        tensors = tensors if isinstance(tensors, list) else [tensors]
        if len(tensors) != 1:
            raise ValueError("Expecting one tensor only but got multiple")
        tensor = tensors[0]
        if not getattr(tensor, "is_cuda", False):
            raise RuntimeError("No backend type associated with device type cpu")
        if self._aborted:
            raise _error(f"NCCL communicator was aborted on rank {self._rank}.")
        self._connect(tensor.gpu)
        assert self._communicator is not None
        stream = tensor.gpu.stream
        pending = stream.pending
        if pending is not None and pending.tensor is not tensor:
            stream.resolve()
        clock = cuda.spend("enqueue")
        smallest = options is not None and options.reduceOp == _torch.distributed.ReduceOp.MIN
        operator = "min" if smallest else "sum"
        stream.enqueue(Collective(clock.now_us, self._communicator, tensor, operator))
        end = Event(timed=False)
        end.stream = stream
        stream.enqueue(Mark(clock.now_us, end))
        timeout = getattr(options, "timeout", None) or self.options._timeout
        seconds = timeout.total_seconds()
        seconds = seconds if seconds > 0 else self.options._timeout.total_seconds()
        work = _Work(seconds, end)
        with self._works_lock:
            self._works.append(work)
            self._enqueued += 1
        return work

    def abort(self) -> None:
        """ncclCommAbort: kernels end, the others are not told; no thread is joined."""
        self._aborted = True
        if self._communicator is not None:
            self._communicator.close()
        self._stopped.set()

    def shutdown(self) -> None:
        """Finalizing waits for what is enqueued, for ever if it hangs; then all is joined."""
        if machine.torch_version() < (2, 7):
            self.abort()
            return
        if self._communicator is not None and not self._aborted:
            self._communicator.gpu.stream.resolve()
            self._communicator.close()
        self._aborted = True
        self._stopped.set()
        self._threads[0].join()

    def __del__(self) -> None:
        """Abort, stop, and join both threads, however long they sleep."""
        if not self._stopped.is_set():
            self.abort()
        for thread in self._threads:
            thread.join()

    def _connect(self, gpu: cuda.Gpu) -> None:
        """Make the communicator: rank 0 tells its id through the group's store, with its prefix."""
        if self._communicator is not None:
            return
        clock = cuda.spend("enqueue")
        log.environment()
        communicator = Communicator(_torch, self._rank, self._size, gpu)
        key = "0"
        clock.leave()
        if self._rank == 0:
            unique_id = communicator.listen()
            self._store.set(key, unique_id)
        else:
            try:
                unique_id = self._store.get(key).decode("ascii")
            except RuntimeError as error:
                raise _error(
                    f"[{self._rank}] is setting up NCCL communicator and retrieving ncclUniqueId "
                    f"from [0] via c10d key-value store by key '{key}', but store->get('{key}') "
                    f"got error: {error}. This may indicate a possible application crash on rank 0 "
                    "or a network set up issue."
                ) from error
        communicator.connect(unique_id, _SETUP_US[self.uid > 0])
        if text := communicator.refused():
            communicator.close()
            raise _error(text)
        if communicator.mnnvl and not machine.known()["fabric"]["imex"]:
            communicator.close()
            raise _error(log.connect_failed({"last_error": _NO_IMEX}))
        log.connected(communicator)
        self._communicator = communicator

    # -- threads

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watchdog(self) -> None:
        """Look at unfinished works each 100 ms; one that failed ends the process, in steps.

        It is too old, or its communicator has an error (ncclCommGetAsyncError).
        """
        while not self._stopped.is_set():
            real_sleep(_TICK_S)
            with self._works_lock:
                self._works = [one for one in self._works if one.end.at_us is None]
                error = self._communicator.error if self._communicator is not None else ""
                late = next((one for one in self._works if error or _is_late(one)), None)
            if late is None:
                continue
            handling = int(os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"))
            new = machine.torch_version() >= _TORCH_2_8
            dumps = _flag("TORCH_NCCL_DUMP_ON_TIMEOUT", default=new)
            if new or dumps:
                _should_dump.set()
                self._global_store.set(_SIGNAL, struct.pack("<i", self._rank))
            wait_ms = int(os.environ.get("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "15000"))
            if new:
                real_sleep(4 * wait_ms / 1000.0)
            if handling in (1, 2) and self._communicator is not None:
                self._communicator.close()
            with self._works_lock:
                self._works = [one for one in self._works if one is not late]
            if handling in (1, 3):
                _die(
                    error
                    or f"[Rank {self._rank}] Watchdog caught collective operation timeout: "
                    f"WorkNCCL(OpType=ALLREDUCE, Timeout(ms)={late.timeout_s * 1000:.0f}) ran for "
                    f"{(real_s() - late.began_s) * 1000:.0f} milliseconds before timing out."
                )

    def _monitor(self) -> None:
        """The heartbeat monitor: that of the first group asks the raw store for dump signals."""
        if self.uid or not _flag(
            "TORCH_NCCL_DUMP_ON_TIMEOUT", default=machine.torch_version() >= _TORCH_2_8
        ):
            return  # it wakes each 480 s only to look at a heartbeat that never stops here
        while not _should_dump.is_set():
            if self._stopped.wait(_POLL_S):
                return
            if _is_set(self._global_store, _SIGNAL):
                break
        heartbeat_s = float(os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480"))
        ends = real_s() + heartbeat_s
        patient = machine.torch_version() >= (2, 13)
        while real_s() < ends:
            real_sleep(min(1.0, heartbeat_s))
            if patient and self._stopped.is_set():
                return
        if _flag("TORCH_NCCL_ENABLE_MONITORING", default=True) and not self._stopped.is_set():
            _die(
                "Terminating the process after attempting to dump debug info, due to collective "
                "timeout or exception."
            )


def _is_late(work: _Work) -> bool:
    return work.end.at_us is None and real_s() - work.began_s >= work.timeout_s


def _is_set(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False


def _flag(name: str, *, default: bool) -> bool:
    return os.environ.get(name, "1" if default else "0").lower() in ("1", "y", "yes", "t", "true")


def _die(text: str) -> None:
    sys.stderr.write("terminate called after throwing an instance of 'c10::DistBackendError'")
    sys.stderr.write(f"\n{text}\n")
    sys.stderr.flush()
    os.abort()


def _error(text: str) -> Exception:
    error: Exception = _torch.distributed.DistBackendError(text)
    return error


def _without_prefix(store: Any) -> Any:
    """The store below all prefixes, where the real one puts its signals."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


_torch: Any = None


def install(torch: Any) -> None:
    """Put NCCL into torch.distributed."""
    global _torch  # noqa: PLW0603  # there is one torch in a process
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    _torch = torch
    distributed_c10d._NCCL_AVAILABLE = True  # torch's own switch
    dist.ProcessGroupNCCL = ProcessGroupNCCL
    distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
    for store in (dist.TCPStore, dist.PrefixStore):
        for name in ("wait", "get", "set", "add", "check"):
            setattr(store, name, outside(getattr(store, name)))
