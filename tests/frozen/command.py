"""Runs the `preflight` command: in this process, which is fast, or as the program."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests import warm

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = str(Path(sys.executable).with_name("preflight"))
LONGEST_S = 300
"""Only so that a hang ends the test."""

_KEPT = (
    "HOME", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONPATH",
    "PYTHONUNBUFFERED",
)  # fmt: skip
"""Of this machine's variables; others make it look like a job, or are remarked upon for root.

Without those of Python a run would not be warm, but start a Python of its own.
"""
_FIXED = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": "80", "LINES": "24", "LANG": "C.UTF-8",
    "TZ": "UTC", "NO_COLOR": "1",
    "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:pytest11.testinfra",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """The exit code and both streams of a command."""

    exit: int
    out: str
    err: str

    def text(self, line: str) -> str:
        """Write it as a terminal would show it, under the line that was typed."""
        err = "".join(f"stderr: {one}\n" for one in self.err.splitlines())
        return f"$ {line}\n{self.out}{err}exit {self.exit}\n\n"


def environment() -> dict[str, str]:
    """Give variables that are everywhere the same, as far as Python starts with them."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | _FIXED


def within(folder: Path, *words: str) -> Told:
    """Run `preflight WORDS` in this process, from a folder."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        patch.dict(os.environ, environment(), clear=True),
        patch.object(sys, "argv", ["preflight", *words]),
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = _main()(list(words))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Told(code, _content(out), _content(err))


def program(folder: Path, *words: str) -> Told:
    """Run a program from a folder."""
    done = subprocess.run(
        words, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    streams = (one.decode("utf-8", "surrogateescape") for one in (done.stdout, done.stderr))
    return Told(done.returncode, *streams)


def module(folder: Path, name: str, *words: str) -> Told:
    """Run `python -m NAME` from a folder."""
    done = warm.run(name, words, cwd=folder, env=environment(), timeout=LONGEST_S)
    return Told(done.returncode, done.stdout, done.stderr)


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode("utf-8", "surrogateescape")


@cache
def _main() -> Callable[[list[str]], int]:
    """Find the command as pip's own starter does: by its entry point."""
    (found,) = entry_points(group="console_scripts", name="preflight")
    main: Callable[[list[str]], int] = found.load()
    return main
