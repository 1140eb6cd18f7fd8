"""A node that is this machine with an emulated driver, judged by the scheduler's hook.

What other programs on this machine could change is left out by the hook's own configuration.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from preflight.commands import HOOK_PROGRAM
from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.hook.judging import FILES
from tests import warm
from tests.lab import kernel_log, sysfs
from tests.lab.nvml.build import build
from tests.lab.nvml.scenario import Scenario, h100

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NODE = "gpu001"
LONGEST_S = 120
"""Only so that a hang ends the test; nothing is asserted about time."""

OF_THE_NODE = ("gpu.", "ib.", "host.driver_hung", "host.hardware_errors", "host.kernel_log")
PREFLIGHT = str(Path(sys.executable).with_name("preflight"))


@dataclass(frozen=True)
class Answer:
    """What the scheduler saw: exit code and standard output, and what would be in the log."""

    code: int
    out: str
    log: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """What --json printed."""
        said: dict[str, Any] = json.loads(self.out)
        return said

    def unfit(self) -> dict[str, bool]:
        """Every check that condemned something, and whether it may drain."""
        found = self.document["judged"]["findings"]
        return {one["check"]: one["drains"] for one in found if one["outcome"] != "warn"}

    def unknown(self) -> dict[str, bool]:
        """Every check that could not be judged, and whether for want of time."""
        return {one["check"]: one["out_of_time"] for one in self.document["judged"]["unknown"]}


@dataclass(frozen=True)
class Hooked:
    """A node of eight H100 and eight NICs, expected as such; healthy until told otherwise."""

    folder: Path
    library: Path

    @property
    def state(self) -> Path:
        """Where the hook writes."""
        return self.folder / "state"

    @property
    def config(self) -> Path:
        """The hook's configuration."""
        return self.folder / "hook.toml"

    @property
    def scenario(self) -> Path:
        """What the emulated driver tells."""
        return self.folder / "scenario"

    def become(self, scenario: Scenario) -> None:
        """Take these GPUs and NICs from now on."""
        self.scenario.write_text(scenario.text())
        sysfs.write(self.folder / "sys", scenario)

    def log(self, *lines: str, ago_s: float = 60) -> None:
        """Let its kernel have said this."""
        kernel_log.say(self.folder / "kmsg", *lines, ago_s=ago_s)

    def configure(self, text: str = "", *, after: str = "", skip: tuple[str, ...] = ()) -> None:
        """Write the configuration anew, with further keys before its own and tables after."""
        out = [f'"{check}"' for check in (*_elsewhere(), *skip)]
        self.config.write_text(
            f'{text}\ninventory = "{self.folder}/fleet.toml"\nsysfs = "{self.folder}/sys"\n'
            f'kernel_log = "{self.folder}/kmsg"\nstate_dir = "{self.state}"\nlog = "stderr"\n'
            f"skip = [{', '.join(out)}]\n{after}"
        )

    def run(self, *words: str, env: Mapping[str, str] | None = None, **more: Any) -> Answer:
        """Start the hook as slurmd would, with `words` behind `preflight`, and wait for its end."""
        if "within" not in more and not any(one.startswith(("LD_", "PYTHON")) for one in env or ()):
            done = warm.run(
                "preflight", self._words(words), cwd=more.get("cwd", self.folder),
                env={**self._variables(), **(env or {})}, timeout=LONGEST_S, isolated=True,
            )  # fmt: skip
            return Answer(done.returncode, done.stdout, tuple(done.stderr.splitlines()))
        with self.begun(*words, env=env, **more) as ended:
            return ended()

    def _variables(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "PREFLIGHT_NVML_SCENARIO": str(self.scenario),
            "SLURMD_NODENAME": NODE,
        }

    def _words(self, words: tuple[str, ...]) -> list[str]:
        return [words[0], f"--config={self.config}", *words[1:]]

    @contextmanager
    def begun(
        self, *words: str, env: Mapping[str, str] | None = None, **more: Any
    ) -> Iterator[Callable[[], Answer]]:
        """The same while it still runs, in a Python of its own; what is yielded waits for its end.

        /proc then shows its variables, by which a test finds it and what it has started.
        """
        argv = [*more.get("within", ()), PREFLIGHT, *self._words(words)]
        if "LD_PRELOAD" in (env or {}):  # root's hook takes over none, so begin behind that
            argv = [sys.executable, "-I", "-B", "-c", HOOK_PROGRAM, *argv[1:]]
        process = subprocess.Popen(
            argv, env={**self._variables(), **(env or {})}, cwd=more.get("cwd", self.folder),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

        def ended() -> Answer:
            out, log = process.communicate(timeout=LONGEST_S)
            return Answer(process.returncode, out, tuple(log.splitlines()))

        with process:
            try:
                yield ended
            finally:
                if process.poll() is None:
                    process.kill()

    def prolog(self, *words: str, gpus: str | None = None, **env: str) -> Answer:
        """Let a job start: on these GPUs, or on all."""
        given = {"SLURM_JOB_ID": "4711"} | ({} if gpus is None else {"SLURM_JOB_GPUS": gpus})
        return self.run("prolog", *words, env={**given, **env})

    def later(self, seconds: float = 60) -> None:
        """Let so much time have passed since the looks that the hook remembers."""
        for name in FILES.values():
            with suppress(FileNotFoundError, NotADirectoryError):
                moment = json.loads((self.state / name).read_text())
                moment["up_s"] -= seconds
                (self.state / name).write_text(json.dumps(moment))

    def last(self) -> dict[str, Any]:
        """Read what the hook left in its state folder."""
        said: dict[str, Any] = json.loads((self.state / "last.json").read_text())
        return said


def _elsewhere() -> list[str]:
    shipped = Registry(load_folder(shipped_folder()))
    ids = [registered.check.id for registered in shipped if registered.check.stage == "facts"]
    return [check_id for check_id in ids if not check_id.startswith(OF_THE_NODE)]


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled NVML, once."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the NVML emulator")
    return build(tmp_path_factory.mktemp("hooked")).parent


@pytest.fixture
def hooked(tmp_path: Path, emulator: Path) -> Hooked:
    """A healthy node."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o755)
    node = Hooked(folder, emulator)
    node.become(h100(NODE))
    kernel_log.write(folder / "kmsg")
    (folder / "fleet.toml").write_text(f'[group.train]\nnodes = "{NODE},gpu002"\ngpus = 8\n')
    node.configure()
    return node


def stranger(path: Path) -> None:
    """Let another user own it, where this one is root."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
