"""Processes that spoil a launch, as earlier jobs and bad drivers leave them on a host."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.lab.host import Host
    from tests.lab.inside import Inside

RUN_ID = "lab-7f3a"

_TRAIN = """
import argparse, contextlib, os, socket, time
options = argparse.ArgumentParser()
options.add_argument("--config"), options.add_argument("--listen", type=int)
options, _ = options.parse_known_args()
with contextlib.ExitStack() as held:
    if os.path.exists(device := f"/dev/nvidia{os.environ['LOCAL_RANK']}"):
        held.enter_context(open(device, "rb"))
    if options.listen:
        held.enter_context(socket.create_server(("0.0.0.0", options.listen)))
    print("training", flush=True)
    time.sleep(1e6)
"""

_LONG_ZOMBIE = """
import subprocess, time
child = subprocess.Popen(["true"])
print(child.pid, flush=True)
time.sleep(1e6)
"""

_SHORT_ZOMBIES = """
import subprocess, time
while True:
    child = subprocess.Popen(["true"])
    print(child.pid, flush=True)
    time.sleep(0.5)
    child.wait()
"""

# posix_spawn waits for its child in D state until that has exec'ed, and the child waits at a FIFO.
_D_STATE = """
import os, sys
os.mkfifo(sys.argv[1])
print("waiting", flush=True)
wait = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[wait])
"""


def rank_environ(host: Host, port: int, rank: int = 0, local_rank: int = 0) -> dict[str, str]:
    """What torchrun sets for a rank of a job of two hosts with 8 GPUs each."""
    words: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": 16,
        "LOCAL_WORLD_SIZE": 8,
    }
    words |= {"GROUP_RANK": rank // 8, "MASTER_ADDR": host.address, "MASTER_PORT": port}
    return {
        **{name: str(value) for name, value in words.items()},
        "TORCHELASTIC_RUN_ID": RUN_ID,
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


@contextmanager
def stale_rank(
    host: Host,
    *,
    port: int = 29500,
    listens: bool = True,
    gpu: int = 0,
    gpu_mib: int = 41_234,
    arguments: tuple[str, ...] = ("--config", "llama.yaml"),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Inside]:
    """A rank whose torchrun is gone: an orphan that holds the master port and GPU memory."""
    folder = _script(host, "train.py", _TRAIN).parent
    listening = ["--listen", str(port)] if listens else []
    env = {**rank_environ(host, port, local_rank=gpu), **(environ or {})}
    # As a person would have started it: no path of this machine in its command.
    python = folder / "python3"
    if not python.exists():
        python.symlink_to(Path(sys.executable).resolve())
    start: list[str | Path] = [
        "bash",
        "-c",
        'cd "$1"; PATH="$1:$PATH"; shift; exec "$@"',
        "bash",
        folder,
    ]
    words = ["python3", "-u", "train.py", *arguments, *listening]
    rank = host.spawn([*start, *words], env=env)
    rank.wait_for_word()
    before = host.scenario
    if gpu_mib:
        host.set_scenario(before.process(gpu, rank.pid, gpu_mib))
    try:
        yield rank
    finally:
        rank.kill()
        host.set_scenario(before)


@contextmanager
def zombie(host: Host, *, lasting: bool = True) -> Iterator[Inside]:
    """A living parent with a zombie child: one for good, or a fresh one every half second."""
    code = _LONG_ZOMBIE if lasting else _SHORT_ZOMBIES
    parent = host.spawn([sys.executable, "-u", _script(host, "supervisor.py", code)])
    parent.wait_for_word()
    try:
        yield parent
    finally:
        parent.kill()


@contextmanager
def d_state(host: Host) -> Iterator[Inside]:
    """A process in D state ("disk sleep"); SIGKILL does end this one, unlike a frozen disk's."""
    fifo = host.folder / "fifo"
    fifo.unlink(missing_ok=True)
    process = host.spawn([sys.executable, _script(host, "saver.py", _D_STATE), fifo])
    process.wait_for("D")
    try:
        yield process
    finally:
        process.kill()
        os.close(os.open(fifo, os.O_RDWR))  # lets the child go on, if it still waits


@contextmanager
def frozen_disk(host: Host) -> Iterator[Path]:
    """A file whose writers stay in D state and ignore even SIGKILL until this context ends.

    `host.set_scenario(host.scenario.blocking(path))` makes a driver that hangs so.
    """
    image, disk = host.folder / "disk.img", host.folder / "disk"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=True)
    host.run(["sh", "-c", _LOOPS])
    host.run(["mount", "-o", "loop", image, disk])
    host.run(["fsfreeze", "--freeze", disk])
    try:
        yield disk / "driver"
    finally:
        host.run(["fsfreeze", "--unfreeze", disk], check=False)
        until(lambda: _unmounted(host, disk), "the thawed disk's last user to leave")
        image.unlink()


# The host's own /dev lacks them until a disk was frozen there, and `mount -o loop` needs them.
_LOOPS = (
    "test -e /dev/loop-control || { mknod /dev/loop-control c 10 237; "
    "for i in 0 1 2 3 4 5 6 7; do mknod /dev/loop$i b 7 $i; done; }"
)


def _unmounted(host: Host, disk: Path) -> bool:
    return host.run(["umount", disk], check=False).returncode == 0


def _script(host: Host, name: str, code: str) -> Path:
    path = host.folder / name
    path.write_text(code)
    return path
