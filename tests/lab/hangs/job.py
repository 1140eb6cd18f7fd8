"""Eight ranks under four real torchruns, one on each lab host, which hang and go on when told to.

`with HangingJob(cluster) as job: job.tell("dataloader", 5); job.standing()`: one launch serves many
situations, because importing torch a dozen times is most of what one costs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.lab.inside import Inside

SCRIPT = Path(__file__).with_name("train.py")
HOSTS, PER_HOST, PORT = 4, 2, 29600
"""Not the port of the lab's jobs: the kernel keeps connections of an ended job for a minute."""
_TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
_START_S, _GO_ON_S = 180, 90
"""Only so that a job that does not start or go on ends the test."""
_STILL_S = 0.6
_SAMPLE = bytes(256)
_FABRIC = f"( sport != :{PORT} and dport != :{PORT} and sport != :22 and dport != :22 )"
"""Connections of the job's groups: neither its store's nor anybody's login."""
_OURS = "HANGING_JOB"
_END = f"""
for environ in /proc/[0-9]*/environ; do
    if tr '\\0' '\\n' <"$environ" 2>/dev/null | grep -qx "{_OURS}=$1"; then
        pid=${{environ#/proc/}}
        kill -KILL "${{pid%/environ}}" 2>/dev/null
    fi
done
true
"""


def host_name(rank: int) -> str:
    """The lab's name of the host that a rank runs on."""
    return f"h{rank // PER_HOST + 1}"


class HangingJob:
    """Ranks 0 and 1 on h1, 2 and 3 on h2, and so on."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.hosts = list(lab.hosts.values())[:HOSTS]
        self.ranks = range(PER_HOST * len(self.hosts))
        self.folder = Path(tempfile.mkdtemp(prefix="hanging-", dir=lab.folder))
        self.recorder = self.folder / "recorder"
        """Where ranks that stand still write what torch's flight recorder holds, once it exists."""
        self.agents: list[Inside] = []
        self._attempt = 0

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.agents = [self._launch(number) for number in range(len(self.hosts))]
            self.progressing(_START_S)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End every process of the job, by its own number on its host."""
        for host in self.hosts:
            host.run(["sh", "-c", _END, "sh", self.folder.name], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- who is where

    def host(self, rank: int) -> Host:
        """The host that a rank runs on."""
        return self.hosts[rank // PER_HOST]

    def agent(self, rank: int) -> Inside:
        """The torchrun that started a rank."""
        return self.agents[rank // PER_HOST]

    def left(self, rank: int) -> None:
        """Wait until the torchrun that started a rank has ended, which takes its time."""
        agent = self.agent(rank)
        until(lambda: not agent.state, f"the torchrun of rank {rank} to leave", _GO_ON_S)

    def pid(self, rank: int) -> int:
        """Its process on its host."""
        return int((self.folder / f"rank{rank}.pid").read_text())

    def signal(self, rank: int, name: str) -> None:
        """Send one rank a signal ("STOP", "KILL"); no error if it is gone."""
        self.host(rank).run(["sh", "-c", f"kill -{name} {self.pid(rank)}"], check=False)

    # -- astray and back

    def tell(self, word: str, *ranks: int) -> None:
        """Send ranks astray ("" brings them back), and wait until each says that it is there."""
        self.order(word, *ranks)
        if word:
            self.arrived(*ranks)

    def order(self, word: str, *ranks: int) -> None:
        """Tell ranks where to go, and do not wait."""
        for rank in ranks:
            (self.folder / f"rank{rank}.there").unlink(missing_ok=True)
            _write(self.folder / f"rank{rank}.told", word)

    def arrived(self, *ranks: int) -> None:
        """Wait until each of them is where it was told to go."""
        places = [self.folder / f"rank{rank}.there" for rank in ranks]
        until(lambda: all(one.exists() for one in places), f"ranks {ranks} to be there", _GO_ON_S)

    def standing(self, ranks: Collection[int] | None = None) -> None:
        """Wait until no rank makes a step any more."""
        before, since = self.steps(ranks), time.monotonic()
        ends = since + _GO_ON_S
        while time.monotonic() - since < _STILL_S:
            if (now := self.steps(ranks)) != before:
                before, since = now, time.monotonic()
            if time.monotonic() > ends:
                raise TimeoutError(f"the job does not hang, it goes on: {before}")
            time.sleep(0.1)

    def progressing(self, patience_s: float = _GO_ON_S) -> None:
        """Wait until every rank has made two more steps."""
        before = self.steps()

        def moved() -> bool:
            return all(now not in (-1, old) for now, old in zip(self.steps(), before, strict=True))

        until(moved, f"the job to go on from {before}; see {self.folder}", patience_s)

    def steps(self, ranks: Collection[int] | None = None) -> list[int]:
        """How far each rank is; -1 before its first step."""
        files = [self.folder / f"rank{rank}.step" for rank in ranks or self.ranks]
        return [int((file.read_text() if file.exists() else "") or -1) for file in files]

    def break_connections(self) -> None:
        """Abort what connects the ranks: each fails, and joins anew under the next attempt."""
        for host in self.hosts:
            host.run(["ss", "-K", "-t", _FABRIC], check=False)
        self.next_attempt()  # not before: connections of the new one would be aborted too

    def recorded(self) -> None:
        """Wait until every rank has written what its flight recorder holds."""
        files = [self.recorder / f"rank{rank}" for rank in self.ranks]
        until(
            lambda: all(one.exists() for one in files), "flight recorders to be written", _GO_ON_S
        )

    def serve(self) -> None:
        """Let the storage answer whoever waits for it."""
        with (self.folder / "slow").open("wb") as pipe:
            pipe.write(_SAMPLE)

    def next_attempt(self) -> None:
        """Whoever fails from now on joins under another number."""
        self._attempt += 1
        _write(self.folder / "attempt", str(self._attempt))

    # -- how it starts

    def _prepare(self) -> None:
        (self.folder / "saved").mkdir()
        (self.folder / "shard").write_bytes(_SAMPLE)
        os.mkfifo(self.folder / "slow")
        (self.folder / "disk").symlink_to(self.hosts[0].folder / "disk")
        for rank in self.ranks:
            (self.folder / f"rank{rank}.told").touch()
        self.next_attempt()

    def _launch(self, number: int) -> Inside:
        options = [
            f"--nnodes={len(self.hosts)}",
            f"--nproc-per-node={PER_HOST}",
            f"--node-rank={number}",
            f"--master-addr={self.hosts[0].address}",
            f"--master-port={PORT}",
        ]
        env = {
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_FR_DUMP_TEMP_FILE": str(self.recorder / "rank"),
            _OURS: self.folder.name,
        }
        command: list[str | Path] = [_TORCHRUN, *options, SCRIPT, self.folder]
        return self.hosts[number].spawn(command, env=env)


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
