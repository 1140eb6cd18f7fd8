"""The life of a measuring process: its CUDA starts late, it hangs, it takes seconds to exit."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import children
import pytest
import start
from burn import crew
from sweep import clocks, counters, cuda, member, pair, plan, process_groups, supervisor, transports

from preflight.fabric.agent_events import PairAccount, decode_event
from tests.lazy_torch import torch
from tests.unit.fabric.ends import GO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Say = Callable[..., None]
    Part = Callable[[plan.Rail, int, Say, transports.NcclLog | None], bool]

TURNS = [{"round": at, "a": "h1", "b": "h2", "rank": 0, "partner": 1} for at in range(3)]

UNHANDLED = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled "
    "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
    "error. \nLast error:\nCall to ibv_modify_qp failed with 110 Connection timed out, on dev "
    "mlx5_3:1, curr state INIT, next state RTR"
)
"""As ncclGetErrorWithVersion and getNcclErrorDetailStr make it (NCCLUtils.cpp, torch 2.9)."""


def rail(**changes: Any) -> plan.Rail:
    """Rail 0 of h1 in three rounds with h2, on NCCL."""
    order = {**GO, "backend": "nccl", "turns": TURNS, "init_s": 30.0, **changes}
    return plan.Rail(plan.read(order), 0, "127.0.0.1", ("127.0.0.1", 1))


def run_part(part: Part, monkeypatch: pytest.MonkeyPatch, whose: plan.Rail) -> list[dict[str, Any]]:
    """What a rail tells its agent whose measuring processes do such a part."""
    monkeypatch.setattr(member, "take_part", part)
    monkeypatch.setattr(children, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(clocks, "excuse", lambda *_: "")  # this machine may be loaded
    (reading, writing), (orders, ordering) = os.pipe(), os.pipe()
    try:
        supervisor.supervise(whose, writing, orders)
        reader, events = start.Reader(reading), [{"event": ""}]
        while events[-1]["event"] != "rail_done":
            events.append(reader.next(0.0) or {})
        return events[1:]
    finally:
        for descriptor in (reading, writing, orders, ordering):
            os.close(descriptor)


def seen(event: dict[str, Any]) -> PairAccount:
    """That event, as the controller reads it."""
    import json

    read = decode_event(json.dumps(event).encode())
    assert isinstance(read, PairAccount)
    return read


def measured(whose: plan.Rail, at: int, say: Say) -> None:
    """Give the account of one round."""
    turn = whose.go.turns[at]
    assert turn is not None
    say(account=plan.account(whose, turn, "error"), round=at)


def test_a_process_that_takes_long_to_exit_is_through_when_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rail is done while the driver still gives back what the process had; nothing is twice."""
    waiting, go_on = os.pipe()

    def part(whose: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        for at in range(first, 3):
            measured(whose, at, say)
        leave = os._exit

        def slowly(status: int) -> None:
            os.close(go_on)
            os.read(waiting, 1)  # the driver is at work until the test lets it go
            leave(status)

        monkeypatch.setattr(os, "_exit", slowly)
        return True

    monkeypatch.setattr(children, "close_all_but", lambda _: None)
    try:
        events = run_part(part, monkeypatch, rail())
    finally:
        os.close(go_on)
        os.close(waiting)
    assert [event["event"] for event in events] == ["pair", "pair", "pair", "rail_done"]
    assert [event["round"] for event in events[:3]] == [0, 1, 2]


def test_a_process_that_dies_after_its_last_account_is_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has reported all: it is neither asked again nor in trouble."""

    def part(whose: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        for at in range(first, 3):
            measured(whose, at, say)
        os._exit(3)

    events = run_part(part, monkeypatch, rail())
    assert [event["event"] for event in events] == ["pair", "pair", "pair", "rail_done"]


def test_after_a_failed_pair_a_new_process_goes_on_and_no_failure_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each round ends with a broken communicator: three processes, one account each."""

    def part(whose: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        (tmp_path / str(os.getpid())).touch()
        measured(whose, first, say)
        return False

    events = run_part(part, monkeypatch, rail())
    assert [event.get("round") for event in events] == [0, 1, 2, None]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_a_process_that_was_killed_in_an_operation_gives_nccls_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log outlives it: the last warning of that pair, with the device, and none of before."""
    completion = (
        "NET/IB: Got completion from peer 10.100.200.101<35001> with status=IBV_WC_RETRY_EXC_ERR"
        "(12) opcode=IBV_WC_SEND(0) vendor_err=129 (Send) localGid fe80::bace:f6ff:fe3a:1d02 "
        "remoteGidsfe80::bace:f6ff:fe3a:22c6 hca mlx5_3"
    )

    def part(whose: plan.Rail, first: int, say: Say, log: transports.NcclLog | None) -> bool:
        assert log is not None
        if not first:
            os.write(
                log._file, b"gpu041:4711:4711 [3] misc/old.cc:1 NCCL WARN of an earlier pair\n"
            )
            measured(whose, 0, say)
        else:
            line = f"gpu041:4711:4800 [3] p2p.cc:688 (ncclIbTest) NCCL WARN {completion}\n"
            os.write(log._file, line.encode())
        say(round=max(first, 1), phase="pair", within_s=0.01)
        time.sleep(600)
        return True

    _, second, third, _ = run_part(part, monkeypatch, rail())
    assert second["error"] == "its measuring process stood still for 0 s and was killed"
    result = seen(third)
    assert result.state == "hung"
    assert result.error.startswith(
        "its measuring process stood still for 0 s and was killed; NCCL: "
    )
    assert "status=IBV_WC_RETRY_EXC_ERR(12)" in result.error
    assert result.error.endswith("hca mlx5_3")


def test_cuda_that_does_not_start_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It hangs in the driver: one try, no pair is named, and no rank waits for this one."""
    monkeypatch.setattr(member, "step_out", lambda _: (tmp_path / "out").touch())

    def part(_rail: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        say(round=first, phase="init", within_s=0.01)
        time.sleep(600)
        return True

    trouble, done = run_part(part, monkeypatch, rail())
    assert trouble == {"event": "trouble", "error": "CUDA did not initialise within 0 s"}
    assert done == {"event": "rail_done"}
    assert (tmp_path / "out").exists()


def test_cuda_that_refuses_is_reported_with_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two tries, then the node is reported in trouble."""
    monkeypatch.setattr(member, "step_out", lambda _: (tmp_path / "out").touch())

    def part(_rail: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        (tmp_path / f"try{os.getpid()}").touch()
        say(round=first, phase="init", within_s=30.0)
        raise cuda.NoCuda("CUDA did not initialise: CUDA error: system not yet initialized")

    trouble, _ = run_part(part, monkeypatch, rail())
    assert trouble["error"] == ("CUDA did not initialise: CUDA error: system not yet initialized")
    assert len(list(tmp_path.glob("try*"))) == 2
    assert (tmp_path / "out").exists()


def test_a_killed_process_that_stays_is_reported_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In whatever state it is: the next process would wait for its GPU, and be called hung."""
    go_on = threading.Event()
    monkeypatch.setattr(children, "wait_for_exit", lambda *_: None)
    monkeypatch.setattr(children, "EXIT_S", 0.0)
    monkeypatch.setattr(supervisor, "_REAP_S", 0.0)
    monkeypatch.setattr(supervisor, "_reap", lambda *_: go_on.wait())

    def part(_rail: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        say(round=first, phase="pair", within_s=30.0)
        raise RuntimeError("out of memory")

    lost, trouble, _ = run_part(part, monkeypatch, rail())
    go_on.set()
    os.wait()
    assert (lost["round"], lost["state"]) == (0, "hung")
    assert trouble["error"] == "its killed measuring process is still there after 0 s"


def test_a_gpu_that_another_process_has_to_itself_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every pair says who holds it; no trouble, and no rank waits for this one."""
    monkeypatch.setattr(member, "step_out", lambda _: (tmp_path / "out").touch())

    def part(_rail: plan.Rail, first: int, say: Say, _log: transports.NcclLog | None) -> bool:
        say(round=first, phase="init", within_s=30.0)
        raise cuda.NoCuda("exclusive process: pid 4711 (python) holds GPU 0", held=True)

    *pairs, done = run_part(part, monkeypatch, rail())
    assert [(one["round"], seen(one).state) for one in pairs] == [
        (at, "not_run") for at in range(3)
    ]
    assert {one["error"] for one in pairs} == {"exclusive process: pid 4711 (python) holds GPU 0"}
    assert done == {"event": "rail_done"}
    assert (tmp_path / "out").exists()


class Driver:
    """torch.cuda of a GPU that is busy for the first few tries: cudaErrorDevicesUnavailable."""

    def __init__(self, busy: int) -> None:
        self._busy = busy
        self.cuda = self
        self.tries = 0

    def set_device(self, _index: int) -> None:
        """Make the context, as cudaSetDevice does since CUDA 12."""
        self.tries += 1
        if self.tries <= self._busy:
            raise RuntimeError(
                "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors "
                "might be asynchronously reported at some other API call"
            )

    def synchronize(self, _index: int) -> None:
        """Nothing is under way."""

    def zeros(self, *_: Any, **__: Any) -> None:
        """A tensor."""

    def device(self, *_: Any) -> None:
        """A device."""


def nvml(monkeypatch: pytest.MonkeyPatch, alone: object, pids: list[int]) -> None:
    """NVML's word: whether a GPU is in exclusive-process mode (None: no word), and who is on it."""
    gpus = SimpleNamespace(sole_holders=lambda _index: (alone, pids))
    monkeypatch.setattr(counters, "Gpus", lambda: gpus)


def test_a_gpu_that_the_process_before_still_holds_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exclusive-process mode: the one before exits, and its context is to be had."""
    monkeypatch.setattr(cuda, "_AGAIN_S", 0.0)
    driver = Driver(busy=3)
    cuda.initialise(driver, 0)
    assert driver.tries == 4


@pytest.mark.parametrize(
    ("alone", "pids", "held", "words"),
    [
        (True, [1], True, r"^exclusive process: pid 1 \(.+\) holds GPU 2$"),
        (True, [], True, "^exclusive process: another process holds GPU 2$"),
        (None, [], True, "^GPU 2 is busy or unavailable; NVML does not report whether a process"),
        (False, [], False, r"^CUDA did not initialise: .*device\(s\) is/are busy or unavailable$"),
    ],
)
def test_the_process_that_holds_a_gpu_is_reported_where_its_mode_allows_one(
    monkeypatch: pytest.MonkeyPatch, alone: object, pids: list[int], held: object, words: str
) -> None:
    """In any other mode a GPU that is unavailable is broken; an unknown mode proves nothing."""
    nvml(monkeypatch, alone, pids)
    with pytest.raises(cuda.NoCuda, match=words) as refused:
        cuda.initialise(Driver(busy=9), 2, patience_s=-1.0)
    assert refused.value.held is held


class Nccl:
    """ProcessGroupNCCL: reads its settings when it is made, and waits in the store for its id."""

    class Options:
        """Its time-out is that of the watchdog, for every operation."""

        _timeout = timedelta(minutes=10)

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self.environment = dict(os.environ)
        self.timeout = options._timeout
        self.aborted = 0
        del store, rank, size

    def __del__(self) -> None:
        """Joins the heartbeat monitor."""
        raise AssertionError("the destructor may sleep for TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")

    def allreduce(self, _tensors: list[Any], options: Any) -> Any:
        """Enqueue it."""
        self.operation_timeout = options.timeout
        return SimpleNamespace(wait=lambda: None)

    def abort(self) -> None:
        """Give everything back."""
        self.aborted += 1


def fake_torch(kind: type[Nccl]) -> Any:
    """The job's torch, with that NCCL and a device that is none."""
    dist = SimpleNamespace(
        ProcessGroupNCCL=kind,
        AllreduceOptions=torch.distributed.AllreduceOptions,
        ReduceOp=torch.distributed.ReduceOp,
        PrefixStore=lambda _prefix, store: store,
    )
    return SimpleNamespace(
        distributed=dist,
        int32=torch.int32,
        device=lambda *_: torch.device("cpu"),
        cuda=SimpleNamespace(set_device=lambda _: None, synchronize=lambda: None),
        zeros=torch.zeros,
    )


@pytest.mark.slow
def test_torchs_watchdog_is_far_above_ours_whatever_the_job_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No dump signal in the store that all share, no recorder, no abort by the monitor."""
    kept: list[Nccl] = []
    monkeypatch.setattr(process_groups, "_undestroyed", kept)
    for name in process_groups.NCCL_ENVIRONMENT:
        monkeypatch.setenv(name, "1")
    group = process_groups.connect(fake_torch(Nccl), None, 0, rail(op_s=10.0))
    (raw,) = kept
    assert raw.timeout == raw.operation_timeout >= timedelta(minutes=10)
    off = (
        "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DESYNC_DEBUG",
    )  # fmt: skip
    assert {raw.environment[name] for name in off} == {"0"}
    group.close()
    assert raw.aborted == 1
    del Nccl.__del__


def test_an_error_of_nccl_keeps_its_reason() -> None:
    """The first line, without a place in torch's source, and the last error with the device."""
    text = plan.short(RuntimeError(UNHANDLED))
    assert text.startswith("unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL")
    assert (
        "; NCCL: Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3" in text
    )
    assert len(text) <= plan.WHOLE_LIMIT
    assert plan.because(text, "Call to ibv_modify_qp failed with 110 Connection timed out") == text
    assert pair.state_of(UNHANDLED) == "error"
    assert pair.state_of("Timed out waiting 3000ms for recv operation to complete") == "hung"


def test_a_log_without_warnings_has_no_reason() -> None:
    """Only what NCCL warns of is one."""
    log = transports.NcclLog()
    os.write(log._file, b"gpu041:4711:4711 [3] NCCL INFO Using network IB\n")
    assert log.reason() == ""
    log.close()


@pytest.mark.parametrize(
    ("error", "how", "message"),
    [
        (cuda.NoCuda("exclusive process: pid 1 holds GPU 0", held=True), "held", "exclusive pr"),
        (cuda.NoCuda("CUDA did not initialise: no device"), "error", "CUDA did not initialise: n"),
        (RuntimeError(UNHANDLED), "error", "RuntimeError: unhandled system error"),
    ],
)
def test_a_held_device_of_the_burn_in_is_distinguished_from_a_failed_one(
    error: Exception, how: str, message: str
) -> None:
    """Its process says so as its last words."""

    def serve(_order: dict[str, Any]) -> list[dict[str, Any]]:
        raise error

    one = crew.Worker("preflight-held", serve)
    one.order({})
    answer = one.answer(time.monotonic() + 60, 60)
    assert (answer.failure, answer.error.startswith(message)) == (how, True)
