"""No text makes more than linear work, whatever is repeated in it: in `explain` and in `read`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import ValidationError, convert, to_builtins
from msgspec.json import encode
from msgspec.structs import replace

import preflight
from preflight.captured.archive import Part, pack
from preflight.commands.cli import main
from preflight.commands.read import captured, judge_captured
from preflight.facts.model import Facts, Gpu, Nic, bare_facts
from preflight.facts.node_network import Interface, Network
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain
from tests.patterns.growth import WAYS, logs, pasted, steepness, work
from tests.unit.captured.test_archive import manifest
from tests.unit.hang.logs import status, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[[str, int], str]

EVERY_WAY = int(os.environ.get("PREFLIGHT_CASES", "0")) > 0
"""`make bench-full` repeats each text in all ways, the inner loop every fifth in one of them."""

_CHARS = 1500
"""Of the shortest of three texts."""
_STEEP = 1.13
"""Where a twentieth of the work for some 50 lines grows by the square."""

_MANY = (30, 60, 120)
_STEEP_OF_MANY = 1.07
"""Where a twentieth of the work for 60 of them grows by the square."""


def _slow(name: str, long: Way, text: str, run: Callable[[str], object]) -> str:
    """What was counted; "" where it is linear.

    Some work begins only after a number of lines. So a steep one is counted again in longer texts,
    where what grows by the square is steeper still.
    """
    times = _CHARS // len(text) + 1
    run(long(text, 4 * times))  # reads tables, fills caches
    for first in (1, 4):
        lengths = (first * times, 2 * first * times, 4 * first * times)
        counts = [work(lambda so=so: run(long(text, so))) for so in lengths]  # type: ignore[misc]
        if steepness(counts) <= _STEEP:
            return ""
    return f"{name} {long.__name__}: {counts}"


def _ways(at: int) -> tuple[Way, ...]:
    return WAYS if EVERY_WAY else (WAYS[at % len(WAYS)],) * (at % 5 == 0)


def _explain(text: str, folder: Path) -> None:
    (folder / "a.log").write_text(text)
    explain(Scanner(shipped()).read([folder / "a.log"]))


def _read(text: str) -> None:
    if (found := captured(text)) is not None:
        judge_captured({"pasted": found})


def test_logs_are_explained_in_linear_work(tmp_path: Path) -> None:
    """Each symptom's own example, again and again, with the same numbers or with others."""
    texts = list(logs())
    cases = [(*one, way) for at, one in enumerate(texts) for way in _ways(at)]
    assert len(texts) > 100
    slow = [
        said
        for name, text, way in cases
        if (said := _slow(name, way, text, lambda text: _explain(text, tmp_path)))
    ]
    assert not slow, "\n".join(slow)


def test_pasted_texts_are_read_in_linear_work() -> None:
    """Each text of another tool that a test holds, again and again, line by line or as a whole."""
    texts = [one for one in pasted() if captured(one[1]) is not None]
    cases = [(*one, way) for at, one in enumerate(texts) for way in _ways(at)]
    assert len(texts) > 40
    slow = [said for name, text, way in cases if (said := _slow(name, way, text, _read))]
    assert not slow, "\n".join(slow)


_KERNEL = "Linux version 6.1\n"
_XID = "[{0:5}.0] NVRM: Xid (PCI:{0:04x}:5d:00): {1}, pid=1, name=a, said\n"
_PORT = (
    "CA 'mlx5_{0}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n"
    "\tPort 1:\n\t\tState: {1}\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n"
    "\t\tLink layer: InfiniBand\n"
)
_FAILED = (
    "Root Cause (first observed failure):\n[0]:\n  rank      : {0} (local_rank: 1)\n"
    "  exitcode  : 1 (pid: 9)\n"
)
_DIED = "[rank{0}]: traceback : Signal 9 (SIGKILL) received by PID {0}\n"
_LINK = (
    "[rank{0}]: NET/IB : Got completion from peer 10.0.{1}.{2}<4242> with error 12, opcode 0, "
    "len 0, vendor err 129 (Recv)\n"
)
_HOSTILE_LOGS: dict[str, Callable[[range], str]] = {
    "summaries, then deaths of nobody": lambda n: (
        "".join(map(_FAILED.format, n))
        + "\n" * 30
        + "".join(_DIED.format(at).partition(": ")[2] for at in n)
        + "the last words\n" * 30  # so that the estimate is alike for each number
    ),
    "links, then deaths": lambda n: (
        "".join(_LINK.format(at, at // 256, at % 256) for at in n) + "".join(map(_DIED.format, n))
    ),
    "time-outs of all": lambda n: (
        "".join(timed_out(at, 9) for at in n) + "".join(status(at, 8) for at in n)
    ),
}
_HOSTILE: dict[str, Callable[[range], str]] = {
    "each line another GPU": lambda n: _KERNEL + "".join(_XID.format(at, 79) for at in n),
    "each line another Xid": lambda n: (
        _KERNEL
        + "".join(
            f"[{at:5}.0] NVRM: Xid (PCI:0000:5d:00): {1000 + at}, pid=1, name=a, said\n" for at in n
        )
    ),
    "an echo of each GPU": lambda n: (
        _KERNEL + "".join(_XID.format(at, code) for code in (74, 154, 43, 79) for at in n)
    ),
    "the driver loaded again": lambda n: (
        _KERNEL
        + "".join(
            _XID.format(at, 79) + f"[{at:5}.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
            for at in n
        )
        + "".join(f"[{at:5}.2] NVRM: GPU {at:04x}:5d:00.0: RmInitAdapter failed!\n" for at in n)
    ),
    "crashes of one GPU": lambda n: (
        _KERNEL
        + "".join(
            f"[{at * 90:7}.0] NVRM: Xid (PCI:0000:5d:00): 13, pid={at}, name=a, "
            f"Graphics Exception on (GPC {at}, TPC {at}, SM 0)\n"
            for at in n
        )
    ),
    "a switch without its GPUs": lambda n: (
        _KERNEL
        + "".join(
            f"[{at:5}.0] nvidia-nvswitch{at}: SXid (PCI:0000:{at:02x}:00.0): 20034, Fatal, Link 1\n"
            for at in n
        )
    ),
    "NICs that start again": lambda n: (
        _KERNEL
        + "".join(
            f"[{at:5}.0] mlx5_core {at:04x}:1a:00.0: {said}\n"
            for said in ("health compromised", "firmware version: 28.1", "Port: 1 Link DOWN")
            for at in n
        )
    ),
    "recoveries that fail": lambda n: (
        _KERNEL
        + "".join(
            f"[1.0] nvidia {at:04x}:1a:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), a\n"
            for at in n
        )
        + "".join(
            f"[1.1] nvidia {at:04x}:1a:00.0: AER: can't recover (no error_detected callback)\n"
            for at in n
        )
    ),
    "GPUs of one reading": lambda n: "temperature.gpu\n" + "41\n" * len(n),
    "devices of one kind": lambda n: "".join(_PORT.format(at, "Active") for at in n),
    "GPUs with links": lambda n: "".join(
        f"GPU {at % 1000}: NVIDIA H100 (UUID: GPU-{at})\n\t Link 0: 26.562 GB/s\n" for at in n
    ),
    "settings and launches": lambda n: (
        "".join(f"export NCCL_A{at}=1\n" for at in n) + "torchrun --nnodes=2 a.py\n" * (3 * len(n))
    ),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_what_is_joined_with_what_makes_linear_work(name: str) -> None:
    """Texts in which many things may each be about any other."""
    _linear(_HOSTILE[name], _read)


@pytest.mark.parametrize("name", _HOSTILE_LOGS)
def test_what_is_joined_with_what_in_a_log_makes_linear_work(name: str, tmp_path: Path) -> None:
    """Logs in which each line may tell of any other."""
    _linear(_HOSTILE_LOGS[name], lambda text: _explain(text, tmp_path))


def _linear(make: Callable[[range], str], run: Callable[[str], object]) -> None:
    counts = _counts(lambda many: run(make(range(many))))
    assert steepness(counts) < _STEEP_OF_MANY, counts


def _counts(run: Callable[[int], object]) -> list[int]:
    run(_MANY[-1])  # reads tables, fills caches
    return [work(lambda so=so: run(so)) for so in _MANY]  # type: ignore[misc]


@pytest.mark.parametrize("squares", [0, 1])
def test_a_twentieth_that_grows_by_the_square_is_found(squares: int) -> None:
    """Of the work for 60 things, beside what is linear in them; without it nothing is found."""
    text = f"for _ in range(57 * many + {squares} * many**2 // 20):\n    pass\n"
    code = compile(text, Path(preflight.__file__).with_name("planted.py"), "exec")

    def planted(many: int) -> None:
        exec(code, {"many": many})  # noqa: S102  ours

    assert (steepness(_counts(planted)) >= _STEEP_OF_MANY) == bool(squares)


def test_a_matrix_of_more_gpus_than_a_node_has_is_refused() -> None:
    """It names each with each other, and each pair with all: a node has 16, the driver takes 32."""
    names = [f"GPU{at}" for at in range(100)]
    rows = (
        "\t".join(
            [a, *("X" if a == b else "NV2" if (a, b) == ("GPU0", "GPU1") else "NV4" for b in names)]
        )
        for a in names
    )
    found = captured(
        "\t" + "\t".join(names) + "\tCPU Affinity\n" + "\t0-7\n".join(rows) + "\t0-7\n"
    )
    assert found is not None
    assert found.damaged.startswith("its 100 devices are more than one node has; pass the whole")
    assert not found.facts.gpus


@pytest.mark.parametrize(
    "many",
    [
        {"gpus": tuple(Gpu(index=at, uuid="", name="", bus_id="") for at in range(65))},
        {"nics": tuple(Nic(name=f"mlx5_{at}") for at in range(1025))},
        {"network": Network(interfaces=tuple(Interface(f"e{at}") for at in range(8193)))},
    ],
    ids=lambda many: next(iter(many)),
)
def test_more_devices_than_a_node_has_are_no_answer(many: dict[str, Any]) -> None:
    """What each device is held against all others for is bounded: the whole answer is refused."""
    with pytest.raises(ValidationError, match="length"):
        convert(to_builtins(replace(bare_facts(), **many)), Facts)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_parts_of_an_archive_make_linear_work(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Parts of which none came, and nodes with facts: each is judged, and listed by name."""

    def run(many: int) -> None:
        for error in ("it did not answer", ""):
            names = [f"nodes/h{at}/facts.json" for at in range(many)]
            files = {} if error else dict.fromkeys(names, encode(bare_facts()))
            parts = manifest(*(Part(name=name, error=error) for name in names))
            (tmp_path / "a.tar.gz").write_bytes(pack(parts, files))
            assert main(["read", *words, str(tmp_path / "a.tar.gz")]) == 3

    counts = _counts(run)
    assert steepness(counts) < _STEEP_OF_MANY, counts
