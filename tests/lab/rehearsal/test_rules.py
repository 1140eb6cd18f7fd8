"""The fake keeps the rules of CUDA, torch and NCCL: each test names the rule."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.lab.nvml.scenario import h100
from tests.lab.rehearsal.scenario import Fault, Machine, described, environment, put, with_mode

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER = """
import json, os, signal, sys, time, threading
from datetime import timedelta
import torch
import torch.distributed as dist

def group(prefix="a", timeout_s=600, store_s=20):
    raw = dist.TCPStore("127.0.0.1", port, is_master=master, wait_for_workers=False,
                        timeout=timedelta(seconds=store_s))
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return raw, dist.ProcessGroupNCCL(dist.PrefixStore(prefix, raw), rank, 2, options)

def timed(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); work(); end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000

for line in sys.stdin:
    asked = json.loads(line)
    pids = []
    for rank, files in enumerate(asked["files"]):
        pid = os.fork()
        if not pid:
            signal.alarm(90)  # what hangs longer ends, and fails its test
            for number, path in enumerate(files, 1):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
            os.environ.update(asked["env"])
            port, master = asked["port"], rank == 0
            try:
                exec(asked["script"])
                sys.stdout.flush()
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        pids.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(ended), flush=True)
"""


class Ended(NamedTuple):
    """One rank of a script: its exit status, and what it wrote."""

    status: int
    out: str
    err: str


class Here:
    """Our machine as one host of the rehearsal: scripts run in processes of its Python."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = environment(folder / "cuda")
        self.has()
        # Loading torch costs seconds: it is loaded once, and every rank is forked.
        self._server = subprocess.Popen(
            [self._environment / "bin/python3", "-W", "ignore", "-c", _SERVER],
            env={"PATH": os.environ["PATH"], "NCCL_SOCKET_IFNAME": "=lo"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def has(self, *faults: Fault, **changes: object) -> None:
        """Say what machine it is, from now on."""
        machine = Machine(**{"gpus": 2, "init_s": 0.0, **changes})  # type: ignore[arg-type]
        document = described(machine, h100("here"))
        document["gpus"] = document["gpus"][: machine.gpus]
        document["faults"] = [asdict(fault) for fault in faults]
        put(self._environment, os.uname().nodename, document)

    def run(self, script: str, ranks: int = 1, **env: str) -> list[Ended]:
        """Run a script as so many ranks at once; rank 0 hosts their store."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        files = [
            [self._folder / f"{next(_number)}.{name}" for name in ("out", "err")]
            for _ in range(ranks)
        ]
        paths = [[str(path) for path in pair] for pair in files]
        asked = {"script": script, "files": paths, "port": port, "env": env}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        statuses = json.loads(self._server.stdout.readline())
        return [
            Ended(status, out.read_text().strip(), err.read_text())
            for status, (out, err) in zip(statuses, files, strict=True)
        ]

    def says(self, script: str, ranks: int = 1, /, **env: str) -> list[str]:
        """What each rank printed; all end well."""
        ended = self.run(script, ranks, **env)
        assert [one.status for one in ended] == [0] * ranks, [one.err for one in ended]
        return [one.out for one in ended]

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


_number = itertools.count()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """One process with torch for all tests."""
    one = Here(tmp_path_factory.mktemp("rehearsal"))
    yield one
    one.close()


@pytest.fixture
def here(machine: Here) -> Here:
    """A machine with two healthy GPUs."""
    machine.has()
    return machine


def test_an_event_on_an_idle_stream_is_stamped_at_once(here: Here) -> None:
    """Short kernels take the host's time when the stream runs dry, and the device's when not."""
    here.has(enqueue_us=45.0)
    (said,) = here.says("""
x = torch.zeros(2, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
def dry():
    return timed(lambda: x.add_(1))
def busy():
    torch.cuda._sleep(1980 * 1000)
    return timed(lambda: x.add_(1))
print(dry() > 40, busy() < 5)
""")
    assert said == "True True"


def test_each_end_counts_its_own_wait_and_the_wire_is_the_shorter(here: Here) -> None:
    """A kernel of a collective starts at its own end and spins until the other has come."""
    said = here.says("""
raw, pg = group()
x = torch.ones(2, dtype=torch.int32, device=f"cuda:{rank}")
torch.cuda.set_device(rank)
pg.allreduce([x]).wait(); torch.cuda.synchronize()
if rank:
    torch.cuda._sleep(1980 * 5000)
took = timed(lambda: pg.allreduce([x]).wait())
print(took > 4000 if rank == 0 else took < 40, x.tolist())
""", 2, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")  # fmt: skip
    assert said == ["True [4, 4]"] * 2


def test_sums_are_real_in_every_type(here: Here) -> None:
    """int32 wraps around, bf16 rounds; of a long vector the first elements stand for all."""
    said = here.says("""
raw, pg = group()
torch.cuda.set_device(rank)
for kind, value in ((torch.int32, 2**31 - 1), (torch.bfloat16, 1.5), (torch.float32, 0.25)):
    x = torch.empty(16 << 20, dtype=kind, device="cuda").fill_(value)
    pg.allreduce([x]).wait()
    print(x.numel(), x[0].item(), x[-1].item(), end=";")
small = dist.AllreduceOptions(); small.reduceOp = dist.ReduceOp.MIN
y = torch.tensor([rank, 5 - rank], device="cuda"); pg.allreduce([y], small).wait()
print(y.tolist())
""", 2)  # fmt: skip
    one = "16777216 -2 -2;16777216 3.0 3.0;16777216 0.5 0.5;[0, 4]"
    assert said == [one, one]


def test_a_fork_after_cuda_came_up_is_of_no_use(here: Here) -> None:
    """torch/cuda/__init__.py: Cannot re-initialize CUDA in forked subprocess."""
    (said,) = here.says("""
torch.zeros(1, device="cuda")
if not os.fork():
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        print(str(error)[:25], flush=True)
    os._exit(0)
os.wait()
""")
    assert said == "Cannot re-initialize CUDA"


def test_visible_devices_are_named_by_index_or_uuid_up_to_the_first_wrong_one(here: Here) -> None:
    """CUDA C++ Programming Guide, CUDA Environment Variables."""
    uuids = [gpu.uuid for gpu in h100("here").gpus]
    script = (
        "print(torch.cuda.device_count(), end=' ')\nprint(torch.cuda.get_device_properties(0).uuid)"
    )
    for spec, count, first in (
        ("1,0", "2", uuids[1]),
        (uuids[1], "1", uuids[1]),
        ("0,9,1", "1", uuids[0]),
    ):
        (said,) = here.says(script, CUDA_VISIBLE_DEVICES=spec)
        assert said.split() == [count, first.removeprefix("GPU-")]


def test_torch_before_2_8_has_no_pci_address(here: Here) -> None:
    """_CudaDeviceProperties has pci_bus_id since torch 2.8, uuid since 2.5."""
    here.has(torch="2.7.1")
    (said,) = here.says("""
known = torch.cuda.get_device_properties(0)
print(hasattr(known, "pci_bus_id"), hasattr(known, "uuid"))
""")
    assert said == "False True"


def test_memory_ends(here: Here) -> None:
    """What does not fit raises torch.cuda.OutOfMemoryError; what was freed is free."""
    here.has(free_mib=300)
    (said,) = here.says("""
x = torch.empty(50 << 20, dtype=torch.int32, device="cuda")
try:
    y = torch.empty(50 << 20, dtype=torch.int32, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(str(error)[:55])
del x
y = torch.empty(50 << 20, dtype=torch.int32, device="cuda")
""")
    assert said == "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0"


def test_an_exclusive_gpu_is_held_until_its_process_is_gone(here: Here) -> None:
    """CudaErrorDevicesUnavailable for the second process, and none once the first has ended."""
    here.has(exclusive=True)
    (said,) = here.says("""
def second():
    up, upping = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.zeros(1, device="cuda"); os.write(upping, b"came up")
        except RuntimeError as error:
            os.write(upping, str(error).encode())
        time.sleep(60)
    return child, "busy or unavailable" in os.read(up, 999).decode()
first, busy = second(); other, refused = second()
for child in (first, other):
    os.kill(child, 9); os.waitpid(child, 0)
third, again = second()
os.kill(third, 9); os.waitpid(third, 0)
print(busy, refused, again)
""")
    assert said == "False True False"


def test_nvml_tells_the_compute_mode_that_cuda_keeps_to() -> None:
    """3 is NVML_COMPUTEMODE_EXCLUSIVE_PROCESS (nvml.h)."""
    for exclusive, mode in ((True, 3), (False, 0)):
        told = with_mode(h100("h1"), Machine(exclusive=exclusive))
        assert all(("compute_mode", mode) in gpu.counters for gpu in told.gpus)


def test_the_unique_id_is_awaited_for_the_stores_time_out(here: Here) -> None:
    """broadcastUniqueNCCLID: the store's own time-out, whatever the options' one is."""
    (said,) = here.says("""
raw, _ = group()
rank, master = 1, False
raw, pg = group("b", timeout_s=600, store_s=1)
try:
    pg.allreduce([torch.ones(1, device="cuda")])
except dist.DistBackendError as error:
    print(str(error)[:78])
""")
    assert said == "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c"


_HANGS = """
raw, pg = group(timeout_s=1)
torch.cuda.set_device(rank)
x = torch.ones(2, dtype=torch.int32, device="cuda")
pg.allreduce([x]).wait()
print("enqueued", flush=True)
def leave():
    try:
        print(raw.check(["exception_dump"]), flush=True)
    finally:
        os._exit(0)
threading.Timer(8 - 2 * rank, leave).start()  # rank 0 hosts the store: it stays longest
torch.cuda.synchronize()
"""


def test_a_watchdog_ends_the_process_and_signals_in_the_raw_store(here: Here) -> None:
    """Since torch 2.8 always: the signal, a wait of four dumps, then SIGABRT out of the thread."""
    here.has(Fault("hang", slot=1, where="inside"))
    ended = here.run(_HANGS, 2, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="0")
    assert {one.status for one in ended} <= {-signal.SIGABRT, 0}
    assert any(one.status == -signal.SIGABRT for one in ended)
    assert any("Watchdog caught collective operation timeout" in one.err for one in ended)


def test_without_teardown_only_the_signal_is_left(here: Here) -> None:
    """TORCH_NCCL_ASYNC_ERROR_HANDLING=0 kills nobody; since torch 2.8 the key is always set."""
    here.has(Fault("hang", slot=1, where="inside"))
    quiet = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    }
    assert here.says(_HANGS, 2, **quiet) == ["enqueued\nTrue"] * 2
    here.has(Fault("hang", slot=1, where="inside"), torch="2.6.0")
    assert here.says(_HANGS, 2, **quiet) == ["enqueued\nFalse"] * 2


_BREAKS = """
raw, pg = group()
torch.cuda.set_device(rank)
x = torch.ones(2, dtype=torch.int32, device="cuda")
pg.allreduce([x]).wait()
threading.Timer(6 - 2 * rank, os._exit, (0,)).start()  # rank 0 hosts the store: it stays longest
torch.cuda.synchronize()
"""


def test_a_broken_connection_is_an_error_that_only_the_watchdog_sees(
    here: Here, tmp_path: Path
) -> None:
    """The process ends with NCCL's last error (checkForNCCLErrors); without teardown nothing ends.

    Both ends of a connection get a completion with an error, and kernels spin for ever.
    """
    here.has(Fault("network error", slot=1, where="inside"))
    log = str(tmp_path / "nccl.%p")
    quiet = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0", "NCCL_DEBUG": "INFO"}
    ended = here.run(_BREAKS, 2, **quiet, NCCL_DEBUG_FILE=log)
    assert [one.status for one in ended] == [-signal.SIGABRT] * 2
    for one in ended:
        assert "NCCL error: remote process exited or there was a network error" in one.err
        assert "Last error:\nNET/IB: Got completion from peer " in one.err
    assert Path(log).read_text().count("NCCL WARN NET/IB: Got completion from peer ") == 2
    off = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert here.says(_BREAKS, 2, **quiet, **off) == ["", ""]


def test_a_connection_that_fails_at_one_end_fails_at_both(here: Here) -> None:
    """The end says why; the other one that its partner closed the bootstrap socket."""
    here.has(Fault("connect error", slot=1, where="inside", last_error="no room in /dev/shm"))
    said = here.says("""
raw, pg = group()
torch.cuda.set_device(rank)
try:
    pg.allreduce([torch.ones(64, dtype=torch.int32, device="cuda")]).wait()
except RuntimeError as error:
    print(" ".join(str(error).split()), flush=True)
os._exit(0)
""", 2)  # fmt: skip
    left, own = sorted(said, key=lambda words: "unhandled system error" in words)
    assert own.endswith("Last error: no room in /dev/shm")
    assert "remote process exited or there was a network error" in left
    assert "socketProgress: Connection closed by remote peer" in left


def test_a_signal_of_another_process_ends_the_first_group_of_this_one(here: Here) -> None:
    """The monitor of the first group polls the raw store; then it dumps, sleeps and ends us."""
    script = """
raw, pg = group()
raw.set("exception_dump", b"0000")
time.sleep(6)
print("still there", flush=True)
os._exit(0)
"""
    poisoned = here.run(script, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="1")
    assert poisoned[0].status == -signal.SIGABRT
    quiet = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1"}
    assert here.says(script, **quiet) == ["still there"]


def test_a_wrong_sum_is_wrong_at_one_end(here: Here) -> None:
    """A planted wrong sum changes a bit of what one rank receives."""
    here.has(Fault("wrong sum", slot=1, rate=1.0, where="inside"))
    said = here.says("""
raw, pg = group()
torch.cuda.set_device(rank)
x = torch.ones(64, dtype=torch.int32, device="cuda")
pg.allreduce([x]).wait()
print(int((x != 2).sum().item()))
""", 2)  # fmt: skip
    assert sorted(said) == ["0", "1"]


def test_a_process_takes_its_time_to_exit(here: Here) -> None:
    """With a CUDA context the driver takes a process down slowly, also one that was killed."""
    here.has(exit_s=1.5)
    (said,) = here.says("""
def ends(uses_gpu, killed=False):
    said, saying = os.pipe()
    child = os.fork()
    if not child:
        if uses_gpu:
            torch.zeros(1, device="cuda")
        os.write(saying, b".")
        if killed:
            time.sleep(60)
        os._exit(0)
    os.read(said, 1)
    began = time.time()
    if killed:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return time.time() - began
at_once = ends(False)
print(ends(True) - at_once > 1, ends(True, killed=True) - at_once > 1)
""")
    assert said == "True True"


def test_of_a_large_matrix_the_corner_exists_and_its_shape_is_whole(here: Here) -> None:
    """Products, slices and flattened matrices agree with each other; a product costs its shape."""
    (said,) = here.says("""
def ones(*shape):
    return torch.ones(*shape, device="cuda")
one, other = ones(8192 * 256).view(8192, 256), ones(256, 8192)
product = torch.mm(one, other)
cost = timed(lambda: torch.mm(one, other, out=product))
rows = torch.cat([product[at : at + 1024] @ ones(8192) for at in range(0, 8192, 1024)])
print(tuple(product.shape), rows.shape[0], bool((rows == one @ (other @ ones(8192))).all().item()))
print(round(cost / (2 * 8192 * 256 * 8192 / 700e6), 1))
flat = product.to(torch.bfloat16).view(torch.int16).view(-1)
place = torch.arange(5, 5 + flat.numel(), device="cuda")
print(flat.numel(), flat[1 << 20 : 2 << 20].numel(), int((flat.to(torch.int64) * place).sum()) > 0)
again = product.clone()
again[2, 3] = 7
print(int((again != product).view(-1).nonzero()[0].item()) == 2 * 8192 + 3)
""")
    assert said.splitlines() == [
        "(8192, 8192) 8192 True",
        "1.0",
        "67108864 1048576 True",
        "True",
    ]


def test_a_copy_between_host_and_gpu_costs_its_whole_length(here: Here) -> None:
    """A pinned buffer is whole on the host; what exists on the GPU is copied."""
    (said,) = here.says("""
host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True).fill_(2)
own = torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
there = timed(lambda: own.copy_(host, non_blocking=True))
own.add_(1)
back = timed(lambda: host.copy_(own, non_blocking=True))
print(round(there / 1342, 1), round(back / 1342, 1), int(host[0]), host.is_cuda)
""")
    assert said == "1.0 1.0 3 False"


def test_a_planted_wrong_product_is_wrong_in_one_element(here: Here) -> None:
    """On that GPU only, and not each time where a rate says so."""
    here.has(Fault("wrong product", slot=1, rate=1.0))
    (said,) = here.says("""
for index in range(2):
    x = torch.ones(64, 64, device=f"cuda:{index}")
    print(int((x @ x != 64).sum().item()), end=" ")
""")
    assert said == "0 1"
