"""A child's answer that came in time counts, however long we read the others."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from probe import guard, host, kernel_log, main, network, nvml, processes, rdma, software

from .node import NONCE

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = ["x" * 1000] * 1000
"""An answer of a megabyte: a pipe holds 64 KiB."""


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "clock", guard.Clock())
    yield
    assert not guard._open_children


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def while_they_work(pids: list[int]) -> None:
    """In a child: till they are done, or for so long that none of them had to wait for us."""
    ends = time.monotonic() + 4
    while time.monotonic() < ends and not all(map(gone, pids)):
        time.sleep(0.01)


def test_an_answer_of_any_length_waits_for_no_other() -> None:
    """Its deadline passes while another child is listened to; a program's output is the same."""
    asked = guard.spawn(lambda: LONG)
    printed = guard.spawn_program(
        ["/bin/sh", "-c", "head -c 300000 /dev/zero"], {"PATH": "/bin:/usr/bin"}
    )
    other = guard.spawn(while_they_work, [asked.pid, printed.pid])
    assert other.listen()
    assert other.dismiss(kill=False)
    assert guard.answer_of("a section", asked, 0.0, pytest.fail) == LONG
    assert (printed.listen(0.0), len(printed.output)) == (True, 300_000)
    assert printed.dismiss(kill=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("dmesg", "[  &.000001] Memory failure: 0x&"),
        (
            "journal",
            '{"MESSAGE":"Memory failure: 0x&","SYSLOG_FACILITY":"0","__MONOTONIC_TIMESTAMP":"&"}',
        ),
    ],
)
def test_a_long_log_of_programs_is_read_whenever_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch, source: str, line: str
) -> None:
    """Where there is no device: what journalctl and dmesg print is nearly always long."""
    script = f"seq 1000 9999 | sed 's/.*/{line}/'"
    monkeypatch.setattr(kernel_log, "_PROGRAMS", {source: ("sh", "-c", script)})
    monkeypatch.setattr(kernel_log, "LOG", "/nowhere")
    asked = kernel_log.Readers({"kmsg": "/nowhere"})
    ((_, reader),) = asked._children
    other = guard.spawn(while_they_work, [reader.pid])
    assert other.listen()
    assert other.dismiss(kill=False)
    problems: list[str] = []
    log = asked.finish(0.0, problems)
    assert problems == []
    assert log is not None
    assert (log["source"], log["seen"]) == (source, 9000)


def test_no_more_is_read_of_a_child_than_it_may_say() -> None:
    """Nor while another one is listened to: it would take our memory."""
    endless = guard.spawn_program(["/bin/cat", "/dev/zero"], {}, most=100_000)
    other = guard.spawn(time.sleep, 0.3)
    assert other.listen()
    assert other.dismiss(kill=False)
    assert endless.listen(0.0)
    assert 100_000 < len(endless.output) <= 100_000 + 65536
    assert endless.dismiss(kill=True)


def test_one_that_writes_on_delays_no_other_beyond_the_deadline() -> None:
    """Another child's words are no answer of the one that is waited for."""
    talker = guard.spawn_program(["/bin/sh", "-c", "while :; do echo; done"], {})
    mute = guard.spawn(time.sleep, 30)
    began = guard.clock.now()
    assert not mute.listen(began + 0.3)
    assert mute.dismiss(kill=True)
    assert talker.dismiss(kill=True)


@pytest.mark.slow
def test_every_section_is_reported_whose_deadline_passed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processes are surveyed for longer than the others may take; these were done long before."""
    long = {"source": "kmsg", "seen": 1, "words": LONG}
    pids: list[int] = []
    spawn = guard.spawn

    def noted(work: Any, *given: object, **how: Any) -> guard.Child:
        child = spawn(work, *given, **how)
        pids.append(child.pid)
        return child

    def surveyed(*_: object) -> None:
        asked = spawn(while_they_work, list(pids))
        asked.listen()
        asked.dismiss(kill=False)
        guard.clock.skip(-60)

    for module, name in (
        (rdma, "read"), (rdma, "survey"), (software, "read"), (network, "read"),
        (kernel_log, "_read_device"), (software, "read_nccl_conf"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_, **__: dict(long))
    monkeypatch.setattr(host, "read", lambda *_: {"machine": long, "problems": []})
    monkeypatch.setattr(guard, "spawn", noted)
    monkeypatch.setattr(gc, "disable", lambda: None)  # the node's process ends; this one goes on
    monkeypatch.setattr(processes, "read", surveyed)
    none = {"state": "absent", "error": ""}
    absent: dict[str, Any] = {"driver": none, "gpus": None, "gpu_pairs": None, "problems": []}
    monkeypatch.setattr(nvml, "survey", lambda *_: dict(absent))
    (tmp_path / "kmsg").touch()
    request = {"nonce": NONCE, "deadline_s": 300, "driver_deadline_s": 5, "name": "n1"}
    documents: list[dict[str, Any]] = []
    main.run(
        {**request, "sysfs": str(tmp_path), "kmsg": str(tmp_path / "kmsg")},
        lambda _: None,
        documents.append,
    )
    (facts,) = documents
    assert not [line for line in facts["problems"] if "no answer in time" in line]
    sections = ("nics", "kernel_log", "software", "network", "gpudirect", "nccl_conf", "machine")
    assert [name for name in sections if facts[name]["words"] != LONG] == []
