"""Starts relays as srun does, one per node, but all of them here: no Slurm is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.transport.slurm import Launcher

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
    """Give standard input to one task per node, and end when all of them have ended."""
    import subprocess
    import time

    at = sys.argv.index("--")
    nodes, argv = sys.argv[1:at], sys.argv[at + 1 :]
    fails = {word.removeprefix("fails=") for word in nodes if word.startswith("fails=")}
    absent = {word.removeprefix("absent=") for word in nodes if word.startswith("absent=")}
    tasks = []
    for name in nodes:
        if "=" not in name and name not in fails | absent:
            env = {**os.environ, "SLURMD_NODENAME": name, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
            tasks.append(subprocess.Popen(argv, stdin=subprocess.PIPE, env=env))
    while data := os.read(0, 1 << 16):
        for task in tasks:
            if task.stdin is not None:
                task.stdin.write(data)
                task.stdin.flush()
        if broken := fails & set(nodes):
            time.sleep(0.2)
            for name in broken:
                line = f"srun: error: Task launch for StepId=1.0 failed on node {name}: Refused\n"
                os.write(2, line.encode())
            for task in tasks:
                task.kill()
            break
    for task in tasks:
        task.wait()


if __name__ == "__main__":
    main()
