"""One lab host: its own network, processes, name, file system view, GPUs and sshd."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import kernel_log, nvidia_smi, sshd, sysfs
from tests.lab.inside import Inside, until
from tests.lab.net import ip
from tests.lab.nvml.scenario import Scenario, h100

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
_DRIVER = {"/etc/ld.so.cache": "ld.so.cache", "/usr/local/sbin": "sbin"}
"""What makes the driver be there: the loader finds the library, PATH finds nvidia-smi."""


@dataclass
class Host:
    """A host of a lab; `address` is what the controller and the other hosts connect to."""

    name: str
    address: str
    lab: Path
    """The lab's folder; `folder` in it is this host's own."""
    bridge: str
    cable: str
    """The outer end of its network cable: an interface beside the bridge, in the root namespace."""
    scenario: Scenario = field(init=False)
    pid: int = field(default=0, init=False)
    """Its process 1, as the outside sees it; 0 when the host is down."""
    _init: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)
    _spawned: list[Inside] = field(default_factory=list, init=False, repr=False)

    @property
    def folder(self) -> Path:
        """Where its files lie: keys, plan, /sys tree, logs."""
        return self.lab / self.name

    def prepare(self) -> None:
        """Write its files; nothing runs yet."""
        for name in ("kernel", "disk", "sys", "home"):
            (self.folder / name).mkdir(parents=True)
        # Orphans are told by what they were handed to: a host's process 1 is named init.
        (self.folder / "init").symlink_to(Path(sys.executable).resolve())
        sshd.prepare(self)
        (self.folder / "hostname").write_text(f"{self.name}\n")
        self.set_scenario(h100(self.name))
        kernel_log.write(self.folder / "kmsg")

    # -- up and down

    def begin(self) -> None:
        """Create its namespaces and cable; `finish` brings it up (in two steps, for many)."""
        unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child"]
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self._plan()))
        with (self.folder / "init.log").open("a") as log:
            self._init = subprocess.Popen(
                [*unshare, self.folder / "init", "-I", Path(__file__).with_name("init.py"), plan],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PATH": PATH},
            )

    def finish(self) -> None:
        """Plug the cable in and wait until ssh answers."""
        init = self._running()
        assert init.stdin is not None
        assert init.stdout is not None
        self.pid = int(init.stdout.readline() or self._died())
        ip(*f"link add {self.cable} type veth peer name eth0 netns {self.pid}".split())
        ip(*f"link set {self.cable} master {self.bridge} up".split())
        init.stdin.write("go\n")
        init.stdin.flush()
        if init.stdout.readline() != "up\n":
            self._died()
        # What this machine learned while the host was down must not outlast it.
        ip("neighbour", "flush", "to", self.address, "dev", self.bridge)
        until(lambda: sshd.answers(self), f"sshd of {self.name}")

    def stop(self) -> None:
        """Take it down as a power failure would; its address answers nothing from now on."""
        if self._init is None:
            return
        assert self._init.stdin is not None
        self._init.stdin.close()
        try:
            self._init.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._init.kill()
            self._init.wait()
        if self._init.stdout is not None:
            self._init.stdout.close()
        # The card dies with its namespace, but only when the kernel gets round to it.
        ip("link", "delete", self.cable, check=False)
        (self.folder / "sshd.pid").unlink(missing_ok=True)
        self._init, self.pid = None, 0
        self._spawned.clear()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Take the host down for a while."""
        self.stop()
        try:
            yield
        finally:
            self.begin()
            self.finish()

    def heal(self) -> None:
        """Make it healthy again: up, nothing left running that was spawned, healthy GPUs, log."""
        kernel_log.write(self.folder / "kmsg")
        for process in self._spawned:
            process.kill()
        self._spawned.clear()
        if self.scenario != h100(self.name):
            self.set_scenario(h100(self.name))
        if self._init is None or self._init.poll() is not None:
            self.stop()
            self.begin()
            self.finish()

    # -- running things on it

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """The same command, inside this host (for your own subprocess call)."""
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--", *map(str, argv)]

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside as root, with a clean environment, and return what it said."""
        return subprocess.run(
            self.command(argv),
            env={"PATH": PATH, "HOME": str(self.folder / "home"), "LANG": "C.UTF-8", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_s,
        )

    def spawn(self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Inside:
        """Start a process inside and leave it: its starter exits, so its parent is process 1."""
        log = self.folder / f"spawned-{len(list(self.folder.glob('spawned-*')))}.log"
        leave = 'log=$1; shift; setsid "$@" </dev/null >"$log" 2>&1 & echo $!'
        answer = self.run(["sh", "-c", leave, "sh", str(log), *argv], env=env)
        process = Inside(self, int(answer.stdout), log)
        self._spawned.append(process)
        return process

    # -- what it is made of

    def set_scenario(self, scenario: Scenario) -> None:
        """Change its hardware: NVML, nvidia-smi and /sys tell the new story from now on."""
        self.scenario = scenario
        stories = self.lab / "nvml" / "scenarios"
        _replace(stories / self.name, scenario.text())
        _replace(stories / f"{self.name}.topo", nvidia_smi.topo_text(scenario))
        _replace(stories / f"{self.name}.list", nvidia_smi.list_text(scenario))
        sysfs.write(self.folder / "sys", scenario)

    def kernel_says(self, *lines: str, ago_s: float = 1.0) -> None:
        """Write lines into its kernel log, as said so many seconds ago."""
        kernel_log.say(self.folder / "kmsg", *lines, ago_s=ago_s)

    @contextmanager
    def without_driver(self) -> Iterator[None]:
        """Neither libnvidia-ml nor nvidia-smi is installed here, as on a CPU node."""
        self.run(["umount", *_DRIVER])
        try:
            yield
        finally:
            for target, source in _DRIVER.items():
                self.run(["mount", "--bind", self.lab / source, target])

    @contextmanager
    def changed_key(self) -> Iterator[None]:
        """Its sshd shows another host key, as after a reinstallation (or a man in the middle)."""
        with sshd.changed_key(self):
            yield

    def _plan(self) -> dict[str, object]:
        shared = {
            "/etc/hosts": self.lab / "hosts",
            **{target: self.lab / source for target, source in _DRIVER.items()},
            "/etc/hostname": self.folder / "hostname",
            "/etc/passwd": self.folder / "passwd",
            "/dev/kmsg": self.folder / "kmsg",
        }
        return {
            "name": self.name,
            "address": f"{self.address}/24",
            "path": PATH,
            "kernel": str(self.folder / "kernel"),
            "sysfs": str(self.folder / "sys"),
            "from_kernel": sysfs.FROM_KERNEL,
            "disk": str(self.folder / "disk"),
            "gpus": len(self.scenario.gpus),
            "binds": [(str(source), target) for target, source in shared.items()],
            "sshd": sshd.argv(self, PATH),
        }

    def _running(self) -> subprocess.Popen[str]:
        if self._init is None:
            raise RuntimeError(f"{self.name} is down: call begin() first")
        return self._init

    def _died(self) -> str:
        log = (self.folder / "init.log").read_text()
        raise RuntimeError(f"{self.name} did not come up: {log.strip().splitlines()[-1:]}")


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
