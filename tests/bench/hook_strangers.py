"""What users, machines and administrators do beside a healthy node: none of it may drain the node.

Names of processes and files in the kernel's log, pauses and frozen containers of some or all
processes, limits, environments, wrong clocks, time namespaces and other hooks of the node, up to
three of them at once, around a prolog or a health check.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.hook_faults import Attempt, Fault, Rig
from tests.lab import kernel_log
from tests.lab.freezer import V1, V2, group
from tests.unit.payload.users_lines import FORGED, OF_A_PROCESS, PATHS, VERSIONS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Plant = Callable[[Rig, random.Random, Attempt], str]

_YEAR_S: Final = 365 * 86_400
_CODE: Final = (
    "/dev/null",
    "() { exit 1; }",
    "/tmp",
    ".",
    "",
    "1",
    "x" * 5000,
    "\x1b[31m",
    "$(false)",
)
_VARIABLES: Final = (
    *(
        "OPENSSL_CONF",
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "PATH",
        "IFS",
        "ENV",
        "BASH_ENV",
    ),
    *("BASH_FUNC_exit%%", "BASH_FUNC_cd%%", "BASH_FUNC_timeout%%", "SHELLOPTS", "BASHOPTS", "PS4"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONMALLOC", "PYTEST_ADDOPTS", "TMPDIR"),
    *("LC_ALL", "LANG", "TZ", "HOME", "SLURM_JOB_PARTITION", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "POSIXLY_CORRECT", "MALLOC_PERTURB_", "GCONV_PATH"),
)


def _kernel(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """Processes of users were killed, hung or crashed, and were named on purpose."""
    del attempt
    said = []
    for _ in range(dice.choice([1, 5, 200])):
        text = dice.choice(OF_A_PROCESS)
        comm = dice.choice([dice.choice(FORGED), _text(dice, 15)])
        path = dice.choice([dice.choice(PATHS), _text(dice, 60)])
        version = dice.choice(VERSIONS)
        said.append(_escaped(text.format(comm=comm, path=path, version=version)))
    kernel_log.say(rig.node.folder / "kmsg", *said, ago_s=dice.choice([0, 1, 60]))
    return f"{len(said)} lines such as {said[0]!a:.70}"


def _text(dice: random.Random, most: int) -> str:
    length = dice.randrange(1, most + 1)
    return "".join(
        chr(dice.choice([dice.randrange(1, 127), dice.randrange(1, 0xD7FF)])) for _ in range(length)
    )


def _escaped(text: str) -> str:
    """As /dev/kmsg shows what is not plain ASCII (devkmsg_read)."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}"
        for byte in text.encode("utf-8", "replace")
    )


def _pause(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """A machine that is migrated, a frozen cgroup, a stopped process: for 0.5 to 12 s."""
    del rig
    after_s, for_s = dice.uniform(0, 1.5), dice.choice([0.5, 3, 6, 12])
    who = dice.choice(["all", "all", "the newest", "the oldest", "each for itself"])
    seed = dice.randrange(1 << 30)

    def stop(pid: int) -> None:
        time.sleep(after_s)
        tree = _tree(pid)
        if not tree:
            return
        those = {"all": tree, "the newest": tree[-1:], "the oldest": tree[:1]}.get(who)
        if those is None:
            those = [each for n, each in enumerate(tree) if (seed >> n) & 1]
        _signal(those, signal.SIGSTOP)
        time.sleep(for_s)
        _signal(those, signal.SIGCONT)

    _also(attempt, stop)
    return f"{who} paused after {after_s:.2f} s for {for_s:g} s"


def _freeze(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """A paused container: all of the hook's processes, some of them, or only the newest."""
    del rig
    after_s, for_s = dice.uniform(0, 1.5), dice.choice([0.5, 3, 6, 12])
    found = [freezer for freezer in (V1, V2) if freezer.is_here]
    freezer, who = dice.choice(found), dice.choice(["all", "the newest", "some"])
    seed, name = dice.randrange(1 << 30), f"{dice.randrange(1 << 30)}"

    def stop(pid: int) -> None:
        time.sleep(after_s)
        tree = _tree(pid)
        some = [each for n, each in enumerate(tree) if (seed >> n % 30) & 1]
        with group(freezer, name) as stop_in_it:
            stop_in_it({"all": tree, "the newest": tree[-1:]}.get(who, some))
            time.sleep(for_s)

    _also(attempt, stop)
    return f"{who} in {freezer.file} after {after_s:.2f} s for {for_s:g} s"


def _time_namespace(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """A restored container, whose clocks are ahead or behind: now, or at the look before."""
    up_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    ahead_s = [dice.choice([-up_s + 1, -30, 31, 3601, _YEAR_S, 100 * _YEAR_S]) for _ in range(2)]
    commands = [
        ("/usr/bin/unshare", "--time", f"--boottime={one}", f"--monotonic={one}", "--fork",
         "--kill-child")
        for one in ahead_s
    ]  # fmt: skip
    attempt.within = commands[0]
    if before := dice.choice([True, False]):
        rig.start(Attempt(occasion="healthcheck", within=commands[1]))
    return f"clocks ahead by {ahead_s[0]} s" + f", and by {ahead_s[1]} s before" * before


def _side_by_side(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """One or two more hooks of the node, which begin meanwhile."""
    starts = [
        (dice.uniform(0, 3), dice.choice(["prolog", "healthcheck"]))
        for _ in range(dice.choice([1, 1, 2]))
    ]

    def begin(_pid: int, after_s: float, occasion: str) -> None:
        time.sleep(after_s)
        attempt.beside.append(rig.start(Attempt(occasion=occasion)))

    for after_s, occasion in starts:
        _also(attempt, partial(begin, after_s=after_s, occasion=occasion))
    return f"beside {' and '.join(f'a {what} after {s:.1f} s' for s, what in starts)}"


def _tree(pid: int) -> list[int]:
    """The process and all below it, the oldest first."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[1-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(") ")[2].split()
            below.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop(0)
        found.append(one)
        todo += sorted(below.get(one, []))
    return found


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _also(attempt: Attempt, act: Callable[[int], None]) -> None:
    """Do it beside what else happens meanwhile."""
    before = attempt.meanwhile

    def both(pid: int) -> None:
        thread = threading.Thread(target=act, args=(pid,))
        thread.start()
        if before is not None:
            before(pid)
        thread.join()

    attempt.meanwhile = both


def _limits(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    del rig
    mib = 1 << 20
    choices = {
        "open files": (resource.RLIMIT_NOFILE, [8, 12, 16, 24, 40]),
        "address space": (resource.RLIMIT_AS, [20 * mib, 50 * mib, 90 * mib, 200 * mib]),
        "processor time": (resource.RLIMIT_CPU, [1, 2]),
        "file size": (resource.RLIMIT_FSIZE, [0, 1, 1000, 20_000]),
        "stack": (resource.RLIMIT_STACK, [256 << 10, 1 * mib]),
        "data": (resource.RLIMIT_DATA, [8 * mib, 30 * mib, 80 * mib]),
        "locked memory": (resource.RLIMIT_MEMLOCK, [0]),
        "signals": (resource.RLIMIT_SIGPENDING, [0]),
        "core": (resource.RLIMIT_CORE, [0]),
    }
    name = dice.choice(sorted(choices))
    number, values = choices[name]
    most = dice.choice(values)
    attempt.limits = (*attempt.limits, (number, most))
    return f"{name} limited to {most}"


def _environment(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    del rig
    names = dice.sample(_VARIABLES, dice.randrange(1, 8))
    attempt.env |= {name: dice.choice(_CODE) for name in names}
    return f"set {' '.join(names)}"


def _clock(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """A clock that is wrong, that was wrong at the last health check, or that jumps now."""
    first = dice.choice([0, 3600, -3600, 86_400, -86_400, _YEAR_S, -5 * _YEAR_S, 12 * _YEAR_S])
    then = dice.choice([0, first, 120, -120, -first])
    rig.clock.set(first)
    how = dice.choice(["before", "meanwhile"])
    if how == "before":
        rig.start(Attempt(occasion="healthcheck"))
        rig.clock.set(then)
    else:
        after_s = dice.uniform(0, 2)

        def jump(pid: int) -> None:
            del pid
            time.sleep(after_s)
            rig.clock.set(then)

        _also(attempt, jump)
    return f"clock ahead by {first} s, then {then} s ({how})"


_KINDS: Final[tuple[Plant, ...]] = (
    *(_kernel, _pause, _limits, _environment, _clock, _side_by_side),
    *((_freeze,) if V1.is_here or V2.is_here else ()),
    *((_time_namespace,) if os.geteuid() == 0 else ()),
)


def _stranger(first: Plant) -> Fault:
    def plant(rig: Rig, dice: random.Random) -> tuple[str, Attempt, Callable[[], None]]:
        attempt = Attempt(occasion=dice.choice(["prolog", "healthcheck"]))
        others = [kind for kind in _KINDS if kind is not first]
        kinds = [first, *dice.sample(others, dice.choice([0, 0, 1, 2]))]
        said = [kind(rig, dice, attempt) for kind in kinds]
        return f"{attempt.occasion}: {'; '.join(said)}", attempt, lambda: None

    return Fault(first.__name__.strip("_"), plant)


def beside(rig: Rig, dice: random.Random, attempt: Attempt) -> str:
    """What users may name and set, which must hide nothing: no pause, limit or clock."""
    return f"{_kernel(rig, dice, attempt)}; {_environment(rig, dice, attempt)}"


STRANGERS: Final = tuple(map(_stranger, _KINDS))
