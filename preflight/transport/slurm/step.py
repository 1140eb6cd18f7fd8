"""One srun that runs a relay on each node: started, listened to, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.transport.bundle import BOOT, bundle
from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError
from preflight.transport.slurm import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LONGEST_S = 7 * 86400
"""A relay leaves with its controller; this is the end of one that nothing else ends."""

LEAVE_S = 3.0
"""For srun to see its tasks end, and after it was asked to end itself."""

LINE = 4096
_HERE = "@preflight here "
_BOOT = (
    "import os;os.write(1,('"
    + _HERE
    + "'+os.environ.get('SLURMD_NODENAME','')+chr(10)).encode());"
    + BOOT
)
"""Says that the task runs before it reads: srun feeds nobody until all nodes are connected."""

KEPT = 200


class _Trouble(Struct, frozen=True):
    node: str
    trouble: str


class Step:
    """A running srun. `refused` has a reason for each node that will not come, by name."""

    def __init__(
        self,
        command: Sequence[str],
        python: str,
        request: Mapping[str, object],
        environ: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.refused: dict[str, ReachError] = {}
        self.started: set[str] = set()
        """Nodes whose task runs, though it may wait for its input."""
        self.breaking = False
        """srun could not start a node: it is about to end the others too."""
        self.ended = threading.Event()
        """srun is gone, and all that it said has been read."""
        self._no_python: ReachError | None = None
        self._lines: list[str] = []
        self._changed = changed
        self._python = python
        self._mark = f"@preflight {request['nonce']} ".encode()
        packed = bundle("relay")
        argv = [*command, python, "-I", "-c", _BOOT, str(len(packed)), "relay"]
        self._process = subprocess.Popen(
            argv,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # The secret travels here, not in argv or environment, which others on the node could read.
        opening = packed + msgspec.json.encode(request) + b"\n"
        readers = [
            self._thread(self._read, self._process.stdout, self._heard),
            self._thread(self._read, self._process.stderr, self._complained),
        ]
        self._thread(self._tell, opening)
        self._thread(self._await, readers)

    @property
    def reason(self) -> ReachError | None:
        """Why srun gave up, if it did, where it blames no node."""
        if not self.ended.is_set():
            return None
        said = words.complaint(self._lines) or legible("".join(self._lines[-1:])) or "nothing"
        return ReachError(
            "route",
            f"Slurm's launcher gave up; it said: {said}",
            "try it by hand in the same allocation: srun --overlap --ntasks-per-node=1 hostname",
        )

    def close(self) -> None:
        """Let srun end by itself, since the relays have left; then make it. Never raises."""
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if not self.ended.wait(LEAVE_S):
            self._signal(signal.SIGTERM)
        if not self.ended.wait(LEAVE_S):
            self.kill()

    def kill(self) -> None:
        """End srun at once. Never raises."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    @staticmethod
    def _thread(target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        return thread

    def _tell(self, opening: bytes) -> None:
        stdin = self._process.stdin
        with suppress(OSError, ValueError):  # srun's own words tell why it does not listen
            if stdin is not None:
                stdin.write(opening)
                stdin.flush()

    def _await(self, readers: Sequence[threading.Thread]) -> None:
        self._process.wait()
        for reader in readers:
            reader.join(LEAVE_S)
        self.ended.set()
        self._changed()

    @staticmethod
    def _read(pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
        with suppress(OSError, ValueError):
            while line := pipe.readline(LINE):
                take(line.rstrip(b"\n"))

    def _heard(self, line: bytes) -> None:
        """Take what a task says that has started, or that cannot call us back."""
        if line.startswith(_HERE.encode()):
            self.started.add(line[len(_HERE) :].decode("utf-8", "replace"))
        if not line.startswith(self._mark):
            return
        with suppress(msgspec.DecodeError):
            said = msgspec.json.decode(line[len(self._mark) :], type=_Trouble)
            self.refused[said.node] = _no_way_back(said.trouble)
            self._changed()

    def _complained(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if len(self._lines) < KEPT:
            self._lines.append(text)
        self._no_python = self._no_python or words.missing_python(text, self._python)
        # Once srun ends the step for one node, the others' ends are its doing.
        for name, reason in ({} if self.breaking else words.exited(text)).items():
            self.refused.setdefault(name, self._no_python or reason)
        not_started = words.not_started(text)
        self.refused |= not_started
        self.breaking = self.breaking or bool(not_started)
        self._changed()


def _no_way_back(trouble: str) -> ReachError:
    return ReachError(
        "route",
        f"Slurm started our step, but the node cannot call back: {legible(trouble, 150)}",
        "let the nodes connect to this host (its firewall; SrunPortRange in slurm.conf names the "
        "ports that preflight then uses too), or run from inside the batch script",
    )
