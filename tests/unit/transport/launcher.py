"""Starts relays as srun does, one per node, but all of them here: no Slurm is needed."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.transport.slurm_allocation import Launcher

if TYPE_CHECKING:
    from collections.abc import Sequence


class StandIn(Launcher):
    """What srun does, as far as relays can tell. `words`: options of this file's own program."""

    def __init__(self, *words: str, states: str = "") -> None:
        super().__init__(os.environ)
        self._words = words
        self._states = states
        self.started: list[list[str]] = []
        """The nodes of each step."""

    def command(self, nodes: Sequence[str]) -> list[str]:
        """Run this file as a program instead of srun."""
        self.started.append(list(nodes))
        return [sys.executable, str(Path(__file__)), *self._words, *nodes, "--"]

    def states(self, nodes: Sequence[str]) -> str:
        """Say what the test wants sinfo to say."""
        del nodes
        return self._states

    @property
    def ports(self) -> None:
        """Any port will do."""


def main() -> None:
    """Give standard input to one task per node, and end when all of them have ended.

    As with srun, no task gets input while one is absent.
    """
    at = sys.argv.index("--")
    words, argv = [word for word in sys.argv[1:at] if "=" in word], sys.argv[at + 1 :]
    nodes = [name for name in sys.argv[1:at] if "=" not in name]
    fails, exits, absent = (_named(words, what, nodes) for what in ("fails", "exits", "absent"))
    tasks = [_task(name, argv) for name in nodes if name not in fails + exits + absent]
    inputs = [task.stdin for task in tasks if task.stdin is not None]
    data = b""
    while not data.endswith(b"}\n"):
        data += os.read(0, 1 << 16)
    _pass_on(words, data)
    for name in exits:
        _write(2, f"srun: error: {name}: task 0: Exited with exit code 2\n")
    for pipe in inputs if not absent else ():
        pipe.write(data)
        pipe.flush()
    if fails:
        time.sleep(0.2)
        for name in fails:
            _write(2, f"srun: error: Task launch for StepId=1.0 failed on node {name}: Refused\n")
        for task in tasks:
            task.kill()
    while any(task.poll() is None for task in tasks) and not _input_ended():
        time.sleep(0.05)
    for pipe in inputs:
        pipe.close()
    for task in tasks:
        task.wait()


def _input_ended() -> bool:
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 1 << 16)


def _task(name: str, argv: list[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "SLURMD_NODENAME": name, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    return subprocess.Popen(argv, stdin=subprocess.PIPE, env=env)


def _named(words: list[str], what: str, nodes: list[str]) -> list[str]:
    """Return the nodes of the step that an option names."""
    return [name for name in nodes if f"{what}={name}" in words]


def _pass_on(words: list[str], request: bytes) -> None:
    """Write what a task wrote: `stdout=` and `stderr=` have it, `flood=` how many names it has."""
    found = re.search(rb'"nonce":"(\w+)"', request)
    nonce = found[1].decode() if found else ""
    for word in words:
        stream, _, text = word.partition("=")
        if stream in ("stdout", "stderr"):
            _write(1 if stream == "stdout" else 2, text.replace("NONCE", nonce) + "\n")
        for number in range(int(text) if stream == "flood" else 0):
            name = f"{number}{'x' * 3900}"
            _write(1, f"@preflight here {name}\n")
            _write(1, f'@preflight {nonce} {{"node":"{name}","trouble":""}}\n')
            _write(2, f"srun: error: {name}: task 0: Exited with exit code 1\n")


def _write(descriptor: int, text: str) -> None:
    with os.fdopen(os.dup(descriptor), "w") as stream:
        stream.write(text)


if __name__ == "__main__":
    main()
