"""Turns runs of the stories into frozen runs, without anything of the machine they were made on.

    PREFLIGHT_FREEZE_RUNS=/tmp/kept python -m pytest tests/stories/test_fleet.py
    python -m tests.frozen.store /tmp/kept/test_a_missing_gpu-1f0c healthy-but-one-gpu

The first command copies every run that a story makes, the second stores one of the copies here.
"""

from __future__ import annotations

import getpass
import gzip
import json
import os
import platform
import re
import shutil
import socket
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.frozen.golden import FOLDER, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.stories.recorded import Recorded

RUNS = FOLDER / "runs"
KEPT = os.environ.get("PREFLIGHT_FREEZE_RUNS")

SOON = "2099-01-01"
"""Stands in an inventory for a day in a month: a waiver may run for a year at most."""

_LARGEST = 64 << 10
_KERNEL = "6.8.0-45-generic"


def keep(one: Recorded, environ: Mapping[str, str] | None) -> None:
    """Copy a story's finished run; does nothing unless PREFLIGHT_FREEZE_RUNS names a folder."""
    if KEPT is None:
        return
    source = one.measured.parent
    kept = Path(KEPT) / f"{one.name.partition('[')[0]}-{uuid.uuid4().hex[:8]}"
    shutil.copytree(source, kept, symlinks=True)
    for word in one.arguments:  # files beside the run's folder, such as an environment's
        for path in Path(word.partition("=")[2]).parent.glob("*.env"):
            shutil.copy(path, kept)
    about = {
        "story": one.name,
        "arguments": list(one.arguments),
        "environ": sorted(environ or {}),
        "source": str(source),
    }
    (kept / "about.json").write_text(json.dumps(about, indent=1))


def store(kept: Path, name: str) -> None:
    """Write `runs/NAME/run.json` and `measured.json.gz` from a kept run."""
    about = json.loads((kept / "about.json").read_text())
    source = Path(about["source"])
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)

    def argument(word: str) -> str:
        word = re.sub(rf"{re.escape(str(source.parent))}/(?=[^/]*\.env$)", "{run}/", word)
        return word.replace(str(source), "{run}")

    files = {
        f"{path.relative_to(kept)}/": ""
        for path in kept.rglob("*")
        if path.is_dir() and not any(path.iterdir())
    } | {
        str(path.relative_to(kept)): _soon(neutral(path.read_text(errors="replace"), source))
        for path in sorted(kept.rglob("*"))
        if path.is_file()
        and path.name not in ("about.json", "measured.json")
        and path.stat().st_size <= _LARGEST
    }
    run = {
        "story": about["story"],
        "arguments": [argument(word) for word in about["arguments"]],
        "files": files,
    }
    text = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
    (folder / "run.json").write_text(text)
    measured = neutral((kept / "measured.json").read_text(), source)
    (folder / "measured.json.gz").write_bytes(gzip.compress(measured.encode(), 9, mtime=0))


def neutral(text: str, source: Path) -> str:
    """Replace paths and names of this machine by those of a machine that could be anybody's."""
    # pytest's folder of one test, and of one worker; the lab's folder; this checkout; its Python.
    tests = source.parents[1]
    tests = tests.parent if tests.name.startswith("popen-") else tests
    text = re.sub(rf"{re.escape(str(tests))}/(popen-\w+/)?[^/\"' ]+", "/srv/run", text)
    text = re.sub(r"/tmp/preflight-lab-\w+", "/srv/lab", text)
    text = text.replace(sys.prefix, "/opt/job").replace(str(ROOT), "/opt/preflight")
    text = text.replace(str(Path(sys.executable).resolve()), "/opt/job/bin/python3")
    text = re.sub(r"/[^\s\"]*/\.pyenv/[^\s\"]*/bin/", "/opt/job/bin/", text)
    # The command of whatever starts all others here.
    text = re.sub(r'"parent_command":"/(?!opt|srv)[^"]*"', '"parent_command":"/sbin/init"', text)
    text = text.replace(platform.release(), _KERNEL)
    host = re.escape(socket.gethostname())
    text = re.sub(rf'"{host}(\\?)"', r'"head1\1"', text)
    text = re.sub(rf"\b{host}-(\d+)\b", r"head1-\1", text)  # as torchrun's agents name nodes
    if (user := getpass.getuser()) != "root":
        text = text.replace(f'"{user}"', '"user"')
    return text


def _soon(inventory: str) -> str:
    """Write a waiver's last day as one that the test replaces by a day to come."""
    today = datetime.now(UTC).date().isoformat()

    def later(match: re.Match[str]) -> str:
        return f"until = {SOON}" if match[1] > today else match[0]

    return re.sub(r"(?m)^until = (20\d\d-\d\d-\d\d)$", later, inventory)


if __name__ == "__main__":
    store(Path(sys.argv[1]), sys.argv[2])
