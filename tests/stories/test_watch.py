"""`preflight watch`: a launch that hangs or dies leaves evidence, a healthy one leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.hangs.ras_mesh import Job, RasMesh
from tests.stories.conftest import clean_environment
from tests.stories.watched import LONGEST_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAIN = """\
import pathlib, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 500
    def __getitem__(self, number):
        time.sleep(0.02 * (number > 200))
        while number == 200 and dist.get_rank() == 1 and not pathlib.Path("go-on").exists():
            time.sleep(0.5)
        return torch.full((64,), float(number))

dist.init_process_group("gloo")
for images in DataLoader(Images()):
    dist.all_reduce(images)
dist.destroy_process_group()
"""
STUCK_AT = "train.py:11 in Images.__getitem__"

RANKS = """\
import os, subprocess, sys, time
WORK = '''
import os, sys, time
until = time.monotonic() + 3.5
while time.monotonic() < until:
    open("/dev/null", "wb").write(b"x" * 5000)
    time.sleep(0.01)
'''
if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen([sys.executable, "-c", WORK], env={**os.environ, "RANK": str(rank)})
        for rank in range(2)
    ]
    sys.exit(sum(rank.wait() for rank in ranks))
"""


def _words(*own: str, launch: list[str]) -> list[str]:
    return [sys.executable, "-m", "preflight", "watch", *own, "--", *launch]


def _watch(folder: Path, *own: str, launch: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _words(*own, launch=launch), cwd=folder, env=clean_environment(),
        capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip


def _left(folder: Path) -> list[Path]:
    return sorted(folder.glob("watch-*"))


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@contextmanager
def _hanging(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A torchrun of two ranks that goes on, and ends well, once there is a file `go-on`."""
    (folder / "train.py").write_text(TRAIN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with (
        (folder / "output").open("w") as done,
        subprocess.Popen(
            _words("--stalled-after=2", launch=[*launch, "train.py"]),
            cwd=folder,
            env=clean_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=done,
            text=True,
        ) as started,
    ):
        try:
            yield started
        finally:
            (folder / "go-on").touch()
            started.wait(LONGEST_S)


def _named(folder: Path) -> list[Any]:
    """Answers that name a culprit; on a busy machine it may look before all ranks are up."""
    done = [_json(path) for path in sorted(folder.glob("diagnosis-*.json"))]
    return [one for one in done if one["culprits"]]


@pytest.mark.busy
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    """The rank and its line while it hangs, in one folder; then it goes on, and ends with 0."""
    with _hanging(tmp_path) as started:
        until(lambda: any(tmp_path.glob("watch-*/watch.json")))
        (folder,) = _left(tmp_path)
        until(lambda: bool(_named(folder) and _json(folder / "watch.json")["stalls"]))
        (tmp_path / "go-on").touch()
        assert started.wait(LONGEST_S) == 0
    found = _named(folder)[0]
    assert (found["category"], found["culprits"]) == ("odd_rank", ["rank 1"])
    assert found["line"].endswith(STUCK_AT)
    kept = {path.name for path in folder.iterdir()}
    assert {"diagnosis-1.txt", "state-1.json", "samples.tsv", "watch.json"} <= kept
    assert not {path.name for path in folder.iterdir() if path.is_dir()}
    record = _json(folder / "watch.json")
    assert (record["exit"], record["stalled"]) == (0, False)
    assert record["set"]["NCCL_DEBUG"]["value"] == "WARN"
    done = (tmp_path / "output").read_text()
    assert "preflight: half or more of the ranks here did almost nothing for 2 s\n" in done
    assert "rank 1" in done
    assert "preflight: the ranks are at work again\n" in done


IDLE = """\
import os, subprocess, sys
wait = [sys.executable, "-c", "input()"]
every = [subprocess.Popen(wait, stdin=subprocess.PIPE, env={**os.environ, "RANK": str(rank),
         "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"})
         for rank in range(2)]
input()
"""
"""Two ranks that do nothing until their launcher ends."""


@pytest.mark.busy
@pytest.mark.parametrize(
    ("version", "options", "asks"),
    [
        ("2.27.3", ("--ras=always",), True),
        ("2.27.3", (), False),  # it may crash
        ("2.30.7", ("--ras=never",), False),
        ("2.30.7", (), True),
    ],
)
def test_ras_is_asked_as_the_option_says(
    tmp_path: Path, version: str, options: tuple[str, ...], *, asks: bool
) -> None:
    """`watch` has the option of `diagnose`: by default no NCCL is asked that may crash."""
    words = _words("--stalled-after=2", *options, launch=[sys.executable, "-c", IDLE])
    with RasMesh(Job([], [], version)) as mesh:
        env = clean_environment() | {"NCCL_RAS_ADDR": mesh.address}
        with subprocess.Popen(
            words, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as started:
            try:
                until(lambda: any(tmp_path.glob("watch-*/state-1.json")))
            finally:
                started.communicate("\n", LONGEST_S)
        assert bool(mesh.questions) == asks


def test_a_healthy_launch(tmp_path: Path) -> None:
    """Not a word, its output as it is, and no folder."""
    done = _watch(tmp_path, "--stalled-after=2", launch=[sys.executable, "-c", RANKS])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = _watch(tmp_path, launch=["sh", "-c", "cat; echo out; echo err >&2"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert not _left(tmp_path)


@pytest.mark.parametrize("launch", ["true", "no-such-launcher", "/"])
def test_a_launch_that_leaves_no_evidence_leaves_no_folder(tmp_path: Path, launch: str) -> None:
    """Of --folder, what the watch made goes away; what was there before stays."""
    (tmp_path / "there").mkdir()
    for folder in ("new", "new/below/it", "there", "there/new"):
        _watch(tmp_path, f"--folder={folder}", launch=[launch])
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


DIES = "echo 'RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).'"


def test_a_launch_that_dies_is_explained(tmp_path: Path) -> None:
    """From the file that its output goes to, as in a batch job: only what it wrote itself."""
    log = tmp_path / "slurm-1.out"
    log.write_text("CUDA out of memory, said an earlier step\n")
    with log.open("a") as out:
        done = subprocess.run(
            _words(launch=["sh", "-c", f"{DIES}; exit 3", "--db-word", "hunter2", "train.py"]),
            cwd=tmp_path, text=True, check=False, env=clean_environment(), stdout=out,
            stderr=subprocess.PIPE, timeout=LONGEST_S,
        )  # fmt: skip
    (folder,) = _left(tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith(f"preflight: the launch ended with exit code 3; see {folder}\n")
    assert "preflight: port_in_use" in done.stderr
    assert "memory" not in (folder / "output.log").read_text()
    assert _json(folder / "explanation.json")["category"] == "port_in_use"
    record = _json(folder / "watch.json")
    assert (record["exit"], record["stalled"]) == (3, False)
    assert record["command"] == ["sh", "train.py"]


def test_a_copy_of_the_output(tmp_path: Path) -> None:
    """With --tee the output is unchanged and the end explained; without, --tee is advised."""
    launch = ["sh", "-c", f"{DIES}; echo err >&2; exit 3"]
    done = _watch(tmp_path, launch=launch)
    assert done.returncode == 3
    assert "rerun with --tee to explain it" in done.stderr
    (first,) = _left(tmp_path)
    done = _watch(tmp_path, "--tee", launch=launch)
    assert (done.returncode, done.stdout) == (3, DIES[6:-1] + "\n")
    assert done.stderr.startswith("err\n")
    assert "preflight: port_in_use" in done.stderr
    lines = [line for line in done.stderr.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80, lines
    (folder,) = set(_left(tmp_path)) - {first}
    assert (folder / "stdout.log").read_text() == done.stdout
    assert {path.stat().st_mode & 0o777 for path in folder.glob("std*.log")} == {0o640}


@pytest.mark.parametrize("own", [("--folder=file/below",), ("--folder=file/below", "--tee")])
def test_no_place_for_evidence(tmp_path: Path, own: tuple[str, ...]) -> None:
    """The launch goes on as without a watch; the error is reported once."""
    (tmp_path / "file").touch()
    done = _watch(tmp_path, *own, launch=["sh", "-c", "echo ${NCCL_DEBUG-unset}; exit 5"])
    assert (done.returncode, done.stdout) == (5, "unset\n")
    assert done.stderr == (
        "preflight: cannot write evidence to file/below (Not a directory): the launch goes on "
        "without it; give another place with --folder=DIR\n"
    )


def test_the_place_is_taken_away(tmp_path: Path) -> None:
    """A folder that vanishes while the launch runs costs a line, and no exit code."""
    remove = (
        "until rm -r watch-* 2>/dev/null; do sleep 0.1; done; exit 6"  # it may be writing there
    )
    done = _watch(tmp_path, launch=["sh", "-c", remove])
    assert done.returncode == 6
    assert done.stderr.startswith("preflight: a part of the watch failed (FileNotFoundError")
    assert done.stderr.count("\n") == 1


WRITES = """\
import os
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "gpu001").replace("%p", "41")
with open(path, "w") as log:
    for number in range(200_000):
        log.write(f"{number:06d} gpu001:41:42 [0] NCCL INFO a line as long as such lines are\\n")
"""


def test_debug_files_keep_to_their_size(tmp_path: Path) -> None:
    """Their first and last lines, and one between that says how much is missing."""
    done = _watch(tmp_path, "--debug=nccl", "--debug-mib=4", launch=[sys.executable, "-c", WRITES])
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = _left(tmp_path)
    log = folder / "nccl" / "gpu001.41.log"
    text = log.read_text()
    assert len(text) <= 4 << 20
    assert text.startswith("000000 ")
    assert text.splitlines()[-1].startswith("199999 ")
    assert "bytes were given back here]" in text


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["watch"], 4, "no launch is given: put it after --, as in -- torchrun train.py"),
        (["watch", "--debug=nvls", "--", "true"], 4, "--debug=nvls is unknown; type --debug="),
        (
            ["watch", "--stalled-after=x", "--", "true"],
            4,
            "--stalled-after=x: give a number, 2 to 1000000",
        ),
        (["watch", "--stalled-after=nan", "--", "true"], 4, "give a number, 2 to 1000000"),
        (["watch", "--stalled-after=99999999", "--", "true"], 4, "give a number, 2 to 1000000"),
        (["watch", "--inventory=none.toml", "--", "true"], 4, "none.toml"),
        (
            ["watch", "torchrun", "train.py"],
            4,
            "put the launch after --, as in: preflight watch -- torchrun train.py",
        ),
        (["watch", "--", "no-such-launcher"], 127, "No such file or directory; check its name"),
        (["watch", "--", "/"], 126, "Permission denied; check its name"),
    ],
)
def test_wrong_words(tmp_path: Path, words: list[str], code: int, error: str) -> None:
    """Of ours: exit 4, a line that says what to type. Of the launch: as a shell has it."""
    done = subprocess.run(
        [sys.executable, "-m", "preflight", *words], cwd=tmp_path, env=clean_environment(),
        capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr
    assert not _left(tmp_path)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    """A launch started without them runs, and its words go into no file of ours."""
    line = f'exec "$0" -m preflight watch -- sh -c "ls -l /proc/self/fd > seen; exit 6" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], cwd=tmp_path, env=clean_environment(),
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    assert "watch-" not in (tmp_path / "seen").read_text()
