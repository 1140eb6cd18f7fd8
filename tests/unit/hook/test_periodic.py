"""Facts of the last health check fill what a prolog had no time for, and never more than that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.hook.hook_values import HookConfig
from preflight.hook.judging import NAME, complete_facts, save_facts
from tests.unit.facts.builders import facts, gpus, software

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Facts


def _at(time_s: float, **more: object) -> Facts:
    return replace(facts(gpus=gpus()), time_s=time_s, boot_s=1000.0, **more)


def _patched(folder: Path, now: Facts, earlier: Facts, **config: object) -> tuple[Facts, object]:
    folder.chmod(0o750)
    save_facts(folder, earlier)
    return complete_facts(now, HookConfig(state_dir=folder, **config))  # type: ignore[arg-type]


def test_what_there_was_no_time_for_is_taken(tmp_path: Path) -> None:
    """The software of half an hour ago stands in for what is not known now, with its age."""
    earlier = _at(5000, software=software())
    now, age_s = _patched(tmp_path, _at(6800, software=None), earlier)
    assert (now.software, age_s) == (earlier.software, 1800)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o640


def test_what_is_known_now_stays(tmp_path: Path) -> None:
    """Nothing of now is replaced, and no age is given where nothing was taken."""
    now = _at(6800, software=software())
    assert _patched(tmp_path, now, _at(5000, software=software(nccl="2.1.0"))) == (now, None)


def test_what_changes_with_a_job_is_never_taken(tmp_path: Path) -> None:
    """GPUs, processes, the kernel log and NICs of then say nothing about now."""
    blank = dict.fromkeys(("gpus", "processes", "kernel_log", "nics", "machine", "network"))
    now = _at(6800, software=software(), **blank)
    assert _patched(tmp_path, now, _at(5000))[0] == now


def test_a_matrix_from_before_a_repair_is_never_taken(tmp_path: Path) -> None:
    """GPUs sit where they sat; that nvidia-smi joined two otherwise there than back is mended."""
    now = _at(6800, software=software())
    assert _patched(tmp_path, now, _at(5000, topo_text="GPU0 by NV18, back by NV17")) == (now, None)


@pytest.mark.parametrize(
    "earlier",
    [
        _at(3000, software=software()),
        _at(7000, software=software()),
        replace(_at(5000, software=software()), boot_s=2000.0),
        replace(_at(5000, software=software()), host="another"),
        replace(_at(5000, software=software()), wire=99),
    ],
    ids=["too old", "of tomorrow", "before a reboot", "of another node", "of another preflight"],
)
def test_what_may_not_hold_any_more_is_left(tmp_path: Path, earlier: Facts) -> None:
    """Older than an hour, of another boot, node or version: then it stays unknown."""
    now = _at(6800, software=None)
    assert _patched(tmp_path, now, earlier) == (now, None)


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 100, b"[" * 10_000, b'{"wire": "x"}'])
def test_a_damaged_file_is_no_file(tmp_path: Path, content: bytes) -> None:
    """A file cut off by a full disk is passed over; the prolog goes by what it sees."""
    now = _at(6800)
    (tmp_path / NAME).write_bytes(content)
    assert complete_facts(now, HookConfig(state_dir=tmp_path))[0] == now


@pytest.mark.skipif(os.geteuid() != 0, reason="what root trusts needs root")
def test_a_strangers_facts_are_no_facts(tmp_path: Path) -> None:
    """Whoever may write the file could drain the node, or hide what is wrong with it."""
    now = _at(6800, software=None)
    save_facts(tmp_path, _at(5000, software=software()))
    os.chown(tmp_path / NAME, 65534, 65534)
    assert complete_facts(now, HookConfig(state_dir=tmp_path))[0] == now
