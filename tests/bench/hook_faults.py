"""Faults of preflight's own, planted at random beside a healthy node: none of them may drain it.

The hook is run from a copy of preflight that may be damaged, by the script that an operator drops
into prolog.d, enforcing, with a Slurm that keeps one node in files. What counts is what is told to
that Slurm, and the script's exit code, by which Slurm drains too.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.commands import HOOK_PROGRAM
from tests.lab import kernel_log
from tests.lab.clock import Clock
from tests.lab.nvml.scenario import h100
from tests.stories.hooked import NODE, Hooked
from tests.unit.hook.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_ROOT: Final = Path(__file__).parents[2]
_COMMAND: Final = "/opt/preflight/bin/preflight"
_CONFIG: Final = "/etc/preflight/hook.toml"
LONGEST_S: Final = 90
_LONGEST_LOG: Final = 1 << 20
BUDGET_S: Final = 5
ENFORCING: Final = 'enforce = true\nbudget_s = {budget}\nslurm_bin = "{slurm}"'
BREAKER: Final = '\n[breaker]\ndirectory = "{tokens}"\n'
_HEAD: Final = "from __future__ import annotations\n"


def _behind_head(text: str, line: str) -> str:
    """Put a line where it is run, as the first."""
    head, found, rest = text.partition(_HEAD)
    return f"{head}{found}{line}\n{rest}" if found else f"{line}\n{text}"


_GARBAGE: Final = {
    "random bytes": "os.write(1, os.urandom(20000)); os._exit(0)",
    "nothing": "os._exit(0)",
    "an exit like a sick node's": "os._exit(1)",
    "a crash": "os.kill(os.getpid(), 11)",
    "an exception": "raise RuntimeError('bent')",
    "no time": "time.sleep(99)",
    "another run's": "facts['nonce'] = 'f' * 32",
    "another version's": "facts['wire'] = 99",
    "other types": "facts['gpus'] = {'0': 'all fine'}",
    "unknown fields": "facts['mood'] = 'good'",
    "a number too large": "facts['boot_s'] = 1e300",
    "half a line": "print('@preflight', facts['nonce'], '{', end='', flush=True); os._exit(0)",
    "an endless line": "[os.write(1, b'x' * 65536) for _ in range(2000)]",
    "an endless nesting": "facts['extra'] = eval('[' * 90 + ']' * 90)",
}
_DAMAGES: Final[dict[str, Callable[[str, int], str]]] = {
    "cut off": lambda text, at: text[: at % max(1, len(text))] + "\n(",
    "empty": lambda _text, _at: "",
    "an import error": lambda text, _at: _behind_head(text, "raise ImportError('half')"),
    "an exit": lambda text, _at: _behind_head(text, "import os; os._exit(1)"),
    "a raised exit": lambda text, _at: _behind_head(text, "raise SystemExit(1)"),
    "standing still": lambda text, _at: _behind_head(text, "import time; time.sleep(99)"),
    "binary": lambda text, at: text[: at % max(1, len(text))] + "\0\1\2" + text[at % 97 :],
}


@dataclass
class Attempt:
    """One start of the hook: how it is started may be part of the fault."""

    env: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()
    """(resource, limit) as `resource.setrlimit` takes them."""
    closed: tuple[int, ...] = ()
    """Standard descriptors that are not there."""
    within: tuple[str, ...] = ()
    """A command that starts the script."""
    beside: list[Seen] = field(default_factory=list)
    """What came of other hooks that ran on this node meanwhile."""
    occasion: str = "prolog"
    meanwhile: Callable[[int], None] | None = None
    """What happens while it runs; gets the pid of the script."""


@dataclass(frozen=True)
class Seen:
    """What came of it, as the scheduler sees it."""

    exit: int
    drained: bool
    log: tuple[str, ...]
    seconds: float

    @property
    def kept_away(self) -> bool:
        """The job was, or the node was taken out: on a healthy node that is a false drain."""
        return self.exit != 0 or self.drained


class Rig:
    """A healthy node of its own in a folder, and a copy of preflight that may be damaged."""

    def __init__(self, folder: Path, library: Path, budget_s: int = BUDGET_S) -> None:
        """`library`: the folder of the compiled NVML emulator."""
        self.budget_s = budget_s
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.node = Hooked(folder / "node", library)
        self.node.folder.mkdir(mode=0o755)
        self.node.become(h100(NODE))
        self.slurm = FakeSlurm(folder / "slurm")
        self._tokens = folder / "tokens"
        self.tree = folder / "tree"
        for name in ("preflight", "checks"):
            shutil.copytree(_ROOT / name, self.tree / name)
        self.clock = Clock(folder)
        self._scripts = self._installed(folder)

    def _installed(self, folder: Path) -> dict[str, Path]:
        """Write the command of the copy, and the two scripts that start it."""
        program = f"import sys; sys.path.insert(0, {str(self.tree)!r}){HOOK_PROGRAM}"
        words = shlex.join([sys.executable, "-I", "-B", "-c", program])
        command, config = folder / "preflight", self.node.config
        # The scripts drop what the loader and the stand-ins would read of a job.
        own = {
            "LD_LIBRARY_PATH": self.node.library,
            "PREFLIGHT_NVML_SCENARIO": self.node.scenario,
            **self.clock.environ,
        }
        settings = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in own.items())
        command.write_text(f'#!/bin/sh\n{settings} exec {words} "$@"\n')
        command.chmod(0o755)
        scripts = {}
        for occasion, name in (("prolog", "prolog.d/50-preflight"), ("healthcheck", "healthcheck")):
            script = (_ROOT / "contrib" / "slurm" / name).read_text()
            for old, new in ((_COMMAND, f"{command}"), (_CONFIG, f"{config}")):
                if old not in script:
                    raise RuntimeError(f"{name} has no {old} any more")
                script = script.replace(old, new)
            if occasion == "prolog" and self.budget_s > BUDGET_S:
                script = script.replace("\nLIMIT_S=", f"\nLIMIT_S={self.budget_s + 5} #", 1)
            scripts[occasion] = folder / f"slurm-{occasion}"
            scripts[occasion].write_text(script)
            scripts[occasion].chmod(0o755)
        return scripts

    def heal(self) -> None:
        """Make everything healthy again, but for damaged modules."""
        folder = self.node.folder
        well = h100(NODE)
        if self.node.scenario.read_text() != well.text():  # its sysfs is of some hundred files
            self.node.become(well)
        with suppress(FileNotFoundError):
            (folder / "kmsg").unlink()
        kernel_log.write(folder / "kmsg")
        for place in (self.node.config, folder / "fleet.toml"):
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        (folder / "fleet.toml").write_text(f'[group.train]\nnodes = "{NODE},gpu002"\ngpus = 8\n')
        self.node.configure(
            ENFORCING.format(slurm=self.slurm.folder, budget=self.budget_s),
            after=BREAKER.format(tokens=self._tokens),
        )
        for place in (self.node.state, self._tokens):
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
        self._tokens.mkdir(mode=0o750)
        (self._tokens / "shared").touch()
        self.clock.set(0)
        self.slurm.set("IDLE")
        self.slurm.write("calls")

    def start(self, attempt: Attempt | None = None) -> Seen:
        """Let a job start on this node, or its health check run, once."""
        attempt = attempt or Attempt()
        own = {"SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "4711", **attempt.env}
        for name in attempt.without:
            own.pop(name, None)

        def prepare() -> None:
            for number, most in attempt.limits:
                resource.setrlimit(number, (most, most))
            for descriptor in attempt.closed:
                os.close(descriptor)

        began = time.monotonic()
        log, end = (
            os.pipe()
        )  # as slurmd gives it: to a file, a limit of 0 would end even the loader
        with open(log, "rb", buffering=0) as file:  # noqa: PTH123  a descriptor, not a path
            with open(end, "wb") as out:  # noqa: PTH123
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _LONGEST_LOG)
                process = subprocess.Popen(
                    [*attempt.within, self._scripts[attempt.occasion]],
                    env=own, cwd=self.node.folder,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=prepare,  # noqa: PLW1509  no thread runs yet
                )  # fmt: skip
            if attempt.meanwhile is not None:
                attempt.meanwhile(process.pid)
            code = process.wait(LONGEST_S)
            took_s = time.monotonic() - began
            os.set_blocking(log, False)  # a process that is left may hold the other end
            told = (file.read(_LONGEST_LOG) or b"").decode("utf-8", "replace").splitlines()
        drained = "DRAIN" in self.slurm.seen[0]
        for other in attempt.beside:
            code, told = code or other.exit, [*told, *other.log]
        # Slurm only logs the exit code of a health check.
        counts = attempt.occasion == "prolog" or any(other.exit for other in attempt.beside)
        return Seen(code * counts, drained, tuple(told), took_s)

    def modules(self) -> list[Path]:
        """Every module of the copy that a prolog could load."""
        rooms = ("hook", "facts", "fleet", "payload/probe", "transport", "stages", "report")
        ours = [path for room in rooms for path in (self.tree / "preflight" / room).glob("*.py")]
        return sorted(
            [*ours, *(self.tree / "preflight").glob("*.py"), *self.tree.glob("checks/*.py")]
        )


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and how it is planted."""

    kind: str
    plant: Callable[[Rig, random.Random], tuple[str, Attempt, Callable[[], None]]]
    """Returns which one it is, how to start, and what takes it out again."""


def _nothing() -> None:
    return None


def _module(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    path = dice.choice(rig.modules())
    name, damage = dice.choice(sorted(_DAMAGES.items()))
    whole = path.read_text()
    path.write_text(damage(whole, dice.randrange(1 << 20)))
    return f"{path.relative_to(rig.tree)}: {name}", Attempt(), lambda: _restore(path, whole)


def _restore(path: Path, whole: str) -> None:
    path.write_text(whole)


def _garbage(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    name, line = dice.choice(sorted(_GARBAGE.items()))
    path = rig.tree / "preflight" / "payload" / "probe" / "main.py"
    whole = path.read_text()
    damaged = whole.replace("    emit(facts)\n", f"    {line}\n    emit(facts)\n")
    if damaged == whole:
        raise RuntimeError("the probe answers in another place than it did")
    path.write_text(damaged)
    return name, Attempt(), lambda: _restore(path, whole)


def _config(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    path = dice.choice([rig.node.config, rig.node.folder / "fleet.toml"])
    how = dice.choice(["cut off", "binary", "a folder", "a pipe", "gone", "a stranger's", "typo"])
    content = path.read_bytes()
    if how in ("a folder", "a pipe", "gone"):
        path.unlink()
        if how != "gone":
            path.mkdir() if how == "a folder" else os.mkfifo(path)
    elif how == "a stranger's":
        os.chown(path, 65534, 65534) if os.geteuid() == 0 else path.unlink()
    elif how == "typo":
        path.write_bytes(b"enfroce = true\n" + content)
    elif how == "binary":
        at = dice.randrange(len(content))
        path.write_bytes(content[:at] + dice.randbytes(20) + b"\0" + content[at:])
    else:
        path.write_bytes(content[: dice.randrange(len(content))])
    return f"{path.name}: {how}", Attempt(), _nothing


def _disk(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    """A state folder that takes nothing, while there is something to write: silence."""
    how = dice.choice(["full", "a file", "read-only", "a stranger's"])
    rig.node.become(replace(h100(NODE), init=dice.choice(["hangs", ""])))
    attempt = Attempt()
    if how == "full":
        attempt.limits = ((resource.RLIMIT_FSIZE, dice.choice([0, 100])),)
    elif how == "a file":
        rig.node.state.write_text("in its place")
    else:
        rig.node.state.mkdir(mode=0o777 if how == "read-only" else 0o750)
        if how == "read-only":
            rig.node.state.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(rig.node.state, 65534, 65534)
    return how, attempt, _nothing


def _time(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    """A driver, or a budget, that leaves no time."""
    init = dice.choice(["hangs", f"slow_ms {dice.choice([500, 2000, 9000])}", ""])
    slow = dice.choice([0, 50, 400])
    rig.node.become(replace(h100(NODE), init=init, slow_call_ms=slow))
    budget = dice.choice(["budget_s = 2", "budget_s = 3", "budget_s = 5"])
    text = rig.node.config.read_text().replace(f"budget_s = {rig.budget_s}", budget)
    rig.node.config.write_text(text)
    return f"driver {init or 'fine'}, {slow} ms a call, {budget}", Attempt(), _nothing


def _earlier(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    """What an earlier run left is damaged, or not ours."""
    rig.node.state.mkdir(mode=0o750)
    names = ("facts.json", "drained.json", "last.json")
    for name in names:
        path = rig.node.state / name
        path.write_bytes(dice.choice([dice.randbytes(500), b"{", b"[" * 50_000, b"null", b""]))
        if dice.random() < 0.3 and os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    return "damaged files of earlier", Attempt(), _nothing


def _surroundings(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
    del rig
    mib = 1 << 20
    choices = {
        # With fewer, the shell that runs the script cannot even begin.
        "few descriptors": Attempt(limits=((resource.RLIMIT_NOFILE, dice.choice([12, 14, 20])),)),
        "little memory": Attempt(limits=((resource.RLIMIT_AS, dice.choice([25, 40, 60]) * mib),)),
        "little processor time": Attempt(limits=((resource.RLIMIT_CPU, 1),)),
        "no name": Attempt(without=("SLURMD_NODENAME",)),
        "an odd name": Attempt(
            env={"SLURMD_NODENAME": dice.choice(["", "@all", "n[1-9]", "\x1b"])}
        ),
        "odd GPUs": Attempt(env={"SLURM_JOB_GPUS": dice.choice(["99", "a,b", "MIG-1", "-1", ","])}),
        "no standard output": Attempt(closed=(1,)),
        "no standard descriptors": Attempt(closed=(0, 1, 2)),
        "an odd locale": Attempt(env={"LC_ALL": "tr_TR.ISO-8859-9", "LANGUAGE": "zz"}),
        "nothing to find programs by": Attempt(env={"PATH": "/nowhere"}),
    }
    name = dice.choice(sorted(choices))
    return name, choices[name], _nothing


FAULTS: Final = (
    Fault("module", _module),
    Fault("garbage", _garbage),
    Fault("config", _config),
    Fault("disk", _disk),
    Fault("time", _time),
    Fault("earlier", _earlier),
    Fault("surroundings", _surroundings),
)


def sicken(rig: Rig) -> None:
    """Give the node a fault of its own: the rig must see this one drained, or it sees nothing."""
    rig.node.become(h100(NODE).counted(3, "ecc_uncorrected", 4))


HUNG: Final = "driver hangs"
_LINES: Final = (
    "NVRM: Xid (PCI:{slot}): 79, pid=4711, name={comm}, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:{slot}): 95, pid=4711, name={comm}, Uncontained ECC error.",
    "NVRM: Xid (PCI:{slot}): 64, pid='<unknown>', name=<unknown>, Row Remapper: failed",
    "mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 9: be00000000800400",
    "EDAC MC0: 1 UE memory read error on DIMM0 (channel:0 slot:0 page:0x7740c0 offset:0x0)",
    "Memory failure: 0x7740c0: Sending SIGBUS to {comm}:4711 due to hardware memory corruption",
)


def any_sickness(rig: Rig, dice: random.Random) -> str:
    """Give the node one of many faults of its hardware, each of which is to drain it."""
    well, gpu = h100(NODE), dice.randrange(8)
    machines = {
        "ECC errors": well.counted(gpu, "ecc_uncorrected", dice.randrange(1, 999)),
        "a lost GPU": well.gpu_lost(gpu),
        "a missing GPU": well.without_gpu(gpu),
        "a remap that failed": well.counted(gpu, "remap_failed", 1),
        "NVLink down": well.link_down(gpu, dice.randrange(18)),
        "a driver that refuses": well.init_error(dice.choice([9, 999])),
        HUNG: well.hanging(),
    }
    what = dice.choice([*sorted(machines), *_LINES])
    if what in machines:
        rig.node.become(machines[what])
        return what
    comm = dice.choice(["python3", "Nonfatal", "a, X Nonfatal", "already poisoned", "Fixed"])
    slot = well.gpus[gpu].bus_id[4:-2].lower()
    for each in range(8):  # an older driver: newer ones themselves say what is to be done
        for word in ("recovery_action", "reset_status", "drain_status"):
            well = well.refused(each, word)
    rig.node.become(well)
    rig.node.log(what.format(slot=slot, comm=comm), ago_s=dice.choice([1, 60]))
    return what.format(slot=slot, comm=comm)
