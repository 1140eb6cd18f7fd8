"""The small parts of a watch: torch's names, pipes, its window, other nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from preflight.hang.watch import evidence, examine
from preflight.hang.watch.evidence import ask_for_dumps, make_folder, makes_pipes, outdated, tidy
from preflight.hang.watch.wrapper import Options, stalled_after_s

if TYPE_CHECKING:
    from preflight.hang.diagnose.job_state import JobState

OLD_SIZE, OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
HEADER = "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f'{{"TORCH_FR_BUFFER_SIZE", "{OLD_SIZE}"}}, 2000); enable_dynamic_filename_',
         {OLD_SIZE, OLD_FILE}),
        (f'{{"TORCH_FR_BUFFER_SIZE", "{OLD_SIZE}"}}, 2000);', {OLD_SIZE}),
        (f'{{"TORCH_FR_BUFFER_SIZE", "{OLD_SIZE}"}}, 0);', set()),
        (f'getCvarInt({{"{OLD_SIZE}"}}, 0);', set()),
        (None, set()),
    ],
)  # fmt: skip
def test_older_names_that_torch_warns_of(
    tmp_path: Path, header: str | None, found: set[str]
) -> None:
    """By the headers of the launcher's own torch, found through its first line."""
    torch = tmp_path / "lib" / "python3.12" / "site-packages" / "torch"
    (tmp_path / "bin").mkdir()
    (torch / HEADER).parent.mkdir(parents=True)
    if header is not None:
        (torch / HEADER).write_text(header)
    python, launcher = tmp_path / "bin" / "python3", tmp_path / "bin" / "torchrun"
    python.symlink_to("/bin/true")
    launcher.write_text(f"#!{python}\nimport torch\n")
    launcher.chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    assert outdated("torchrun", environ) == found
    assert outdated("python3", environ) == found
    assert outdated("/bin/true", environ) == outdated("nowhere", environ) == frozenset()


def test_only_who_listens_is_asked(tmp_path: Path) -> None:
    """A rank that has gone, a file in the place of a pipe and a link hold nobody up."""
    folder = make_folder(tmp_path)
    assert makes_pipes(folder)
    pipes = folder / "recorder"
    for name in ("rank_0.pipe", "rank_1.pipe"):
        os.mkfifo(pipes / name)
    (pipes / "rank_2.pipe").symlink_to(pipes / "rank_0.pipe")
    listens = os.open(pipes / "rank_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask_for_dumps(folder) == 1
        assert os.read(listens, 10) == b"1\n"
    finally:
        os.close(listens)
    tidy(folder)
    assert list(folder.iterdir()) == []


def test_two_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    """Started within a second, in one place."""
    assert len({make_folder(tmp_path) for _ in range(3)}) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play somebody else")
def test_root_keeps_no_evidence_where_a_stranger_could_lead_it(tmp_path: Path) -> None:
    """Torch and NCCL write by the folder's name, and we cut files off and remove them."""
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(PermissionError, match=f"{tmp_path} belongs to"):
        make_folder(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "heartbeat", "seconds"),
    [(None, None, 300), (None, "480", 240), (None, "3600", 300), (None, "0", 300),
     (None, "soon", 300), (None, "9" * 5000, 300), (900.0, "480", 900)],
)  # fmt: skip
def test_before_the_job_is_ended(typed: float | None, heartbeat: str, seconds: float) -> None:
    """What was typed; else the usual, or half of what would end the job before."""
    environ = {} if heartbeat is None else {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": heartbeat}
    options = Options(("true",), Path(), stalled_after_s=typed, environ=environ)
    assert stalled_after_s(options) == seconds


def test_the_job_on_other_nodes_is_the_one_beneath_us() -> None:
    """Of several jobs on these nodes, by a process of ours."""
    ranks = [SimpleNamespace(pid=pid, job=job) for pid, job in ((7, "theirs"), (8, "ours"))]
    here = SimpleNamespace(look=SimpleNamespace(host="gpu001", ranks=ranks))
    state = cast("JobState", SimpleNamespace(nodes=(SimpleNamespace(look=None), here)))
    node = examine.own_node(state, "gpu001")
    assert node is cast("Any", here)
    assert node is not None
    assert examine.own_node(state, "gpu002") is None
    assert examine.job_of(node, {8, 9}) == "ours"
    assert examine.job_of(node, {1}) == ""


def test_nodes_that_are_none_are_refused_at_the_start(tmp_path: Path) -> None:
    """Not when the job hangs, after days."""
    assert "inventory" in examine.nodes_problem("", str(tmp_path / "none.toml"), {})
    assert examine.nodes_problem("gpu[001-002]", "", {}) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_keeps_no_half_of_a_file(tmp_path: Path) -> None:
    """What does not fit leaves neither a part of itself nor takes away what was there."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], check=False
    ).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        evidence.write(tmp_path / "watch.json", "before")
        with pytest.raises(OSError, match="No space left"):
            evidence.write(tmp_path / "watch.json", "x" * 100_000)
        assert [one.name for one in tmp_path.iterdir()] == ["watch.json"]
        assert (tmp_path / "watch.json").read_text() == "before"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
