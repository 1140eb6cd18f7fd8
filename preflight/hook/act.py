"""Carries a decision out: asks what it needs to know, tells Slurm, and remembers what it told.

Asked in a folder that all nodes share (exact), or by counting drains at the controller (a race,
which is looked at once more after the own drain).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from math import floor
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from preflight.core.files import (
    open_folder,
    read_regular,
    refuse_others,
    remove,
    write_atomically,
)
from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.hook.decision import Known, cause_of, decide, is_mine, parse
from preflight.hook.model import Decision, Drained, Tokens, now
from preflight.hook.slurm import Slurm, SlurmError, answer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from preflight.hook.model import BreakerConfig, Call, HookConfig, Judged
    from preflight.hook.slurm import Noted


FOLDER_S: Final = 2.0
"""What a shared file system has to answer in."""


class Breaker(Protocol):
    """Grants one more drain, or does not."""

    def ask(self, node: str, most: int) -> Tokens:
        """Ask for a token for this node, of so many; never raises."""

    def stands(self, node: str, most: int) -> bool:
        """Whether the drain that was just set is within the number still."""


def breaker_of(config: BreakerConfig, slurm: Slurm, until_s: float) -> Breaker:
    """Choose by the configuration; the folder, which is exact, where both are given."""
    if config.directory is not None:
        return InFolder(config.directory, config.window_s, until_s)
    return BySlurm(slurm, config.window_s)


def allowed(config: BreakerConfig, sizes: Mapping[str, int], job: str, own: Sequence[str]) -> int:
    """The greater of a number and a share of the partition: the job's, else the node's smallest."""
    known = [sizes[name] for name in ((job,) if job in sizes else own) if name in sizes]
    share = floor(config.most_share * min(known)) if known else 0
    return max(config.most_nodes, share)


class InFolder:
    """Tokens in a shared folder, asked for by a process that may hang without us."""

    def __init__(self, folder: Path, window_s: float, until_s: float) -> None:
        self._folder = folder
        self._window_s = window_s
        self._until_s = until_s

    def ask(self, node: str, most: int) -> Tokens:
        """Take the next token, if so many nodes do not hold one yet."""
        words = [sys.executable, "-IB", "-m", "preflight.hook.tokens", str(self._folder), node]
        until_s = min(time.monotonic() + FOLDER_S, self._until_s)
        try:
            told = answer_of([*words, str(most), str(self._window_s)], _environ(), until_s)
        except OSError as error:
            return Tokens(granted=False, trouble=f"cannot start {sys.executable}: {error.strerror}")
        if told is None:
            return Tokens(granted=False, trouble=f"{self._folder} gave no answer in time")
        try:
            return msgspec.json.decode(told.out, type=Tokens)
        except ValueError:
            said = told.err or told.out[:80] or "no word"
            return Tokens(granted=False, trouble=f"{self._folder}: {said}")

    def stands(self, node: str, most: int) -> bool:
        """It does: tokens are exact."""
        del node, most
        return True


class BySlurm:
    """Counts the nodes that carry a reason of ours, set within the window."""

    def __init__(self, slurm: Slurm, window_s: float) -> None:
        self._slurm = slurm
        self._window_s = window_s

    def ask(self, node: str, most: int) -> Tokens:
        """Count the others; several nodes that ask at once may all be granted.

        Where the controller tells no time, each drain of ours counts, however old: rather too many
        than too few.
        """
        now_s = self._slurm.now_s()
        try:
            others = {one.node for one in self._young(self._slurm.noted(node), now_s)} - {node}
        except SlurmError as error:
            return Tokens(granted=False, trouble=str(error))
        granted = len(others) < most
        if now_s is None and not granted:
            why = f"scontrol show config told no time, so {len(others)} drains of any age count"
            return Tokens(granted=False, trouble=f"{why}, and {most} are allowed")
        return Tokens(granted=granted, used=len(others) + granted, most=most)

    def stands(self, node: str, most: int) -> bool:
        """Count again. Of those that raced, the latest find too many before them, and step back.

        All drains of the same second count as earlier, so that no two nodes each take the other for
        the later one. Where the controller does not tell, the drain is left as it is. What time it
        is says the own drain, which has just been set.
        """
        try:
            ours = [one for one in self._slurm.noted(node) if parse(one.reason) is not None]
        except SlurmError:
            return True
        mine = next((one.time_s for one in ours if one.node == node), None)
        if mine is None:
            return True
        counted = self._young(ours, mine)
        return sum(one.time_s is None or one.time_s <= mine for one in counted) <= most

    def _young(self, noted: Iterable[Noted], now_s: float | None) -> Iterable[Noted]:
        """Keep those with a reason of ours, set within the window or nobody knows when."""
        for one in noted:
            age_s = 0.0 if one.time_s is None or now_s is None else now_s - one.time_s
            if age_s < self._window_s and parse(one.reason) is not None:
                yield one


def _environ() -> dict[str, str]:
    """What this very Python may need to start; nothing else."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": libraries} if libraries else {}


NAME: Final = "drained.json"
_LARGEST = 64 << 10


def recall(folder: Path) -> Drained | None:
    """Read it back; None where there is none, or where another than root could have written it."""
    path = folder / NAME
    try:
        if os.geteuid() == 0 and who_may_change(path):
            return None
        return msgspec.json.decode(read_regular(path, _LARGEST), type=Drained)
    except (OSError, ValueError, RecursionError):
        return None


def remember(folder: Path, drained: Drained) -> str:
    """Write it down before Slurm is told; says what went wrong, "" if nothing did."""
    try:
        refuse_others(folder)
        write_atomically(folder / NAME, msgspec.json.encode(drained))
    except (OSError, UsageError) as error:
        why = getattr(error, "strerror", "") or str(error)
        return f"cannot write {folder / NAME} ({why}), so it will not be undone by itself"
    return ""


def forget(folder: Path) -> None:
    """Another drain, or none, took its place."""
    with suppress(OSError, UsageError):
        refuse_others(folder)
        remove(folder / NAME)


_LOCK: Final = "lock"
_TICK_S: Final = 0.02
_DECIDES: Final = "another hook of this node is deciding, and did not come to its end in time"


@contextmanager
def _alone(folder: Path, until_s: float) -> Iterator[bool]:
    """Hold what one hook of a node at a time holds; False where another does, half our time long.

    What is remembered and what Slurm is told would be of two hooks. True also where no file can be
    locked: then nothing is remembered, or only a disk is full.
    """
    with ExitStack() as held:
        try:
            refuse_others(folder)
            inside = held.enter_context(open_folder(folder, make=True))
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=inside)
            held.callback(os.close, lock)
            is_free = _locked(lock, (time.monotonic() + until_s) / 2)
        except (OSError, UsageError):
            is_free = True
        yield is_free


def _locked(lock: int, until_s: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_TICK_S)
        else:
            return True


_TELL_S = 0.2
"""Of the time, to say what was done: who is cut off in the middle says nothing."""


def act(call: Call, judged: Judged, config: HookConfig, until_s: float) -> Decision:
    """Decide and do it, all by `until_s` (monotonic clock); what comes back was done.

    Asks Slurm nothing on a healthy node, and tells it one thing at most (two where nodes raced).
    """
    with ExitStack() as held:
        return _Acting(config, until_s, held).decided(Known(call=call, judged=judged))


class _Acting:
    def __init__(self, config: HookConfig, until_s: float, held: ExitStack) -> None:
        self._config = config
        self._until_s = until_s - _TELL_S
        self._slurm = Slurm(config.slurm_bin, self._until_s)
        self._held = held
        self._most = 0

    def decided(self, known: Known) -> Decision:
        """Find out what is asked for, until it is decided; then do it."""
        known = self._with_memory(known)
        while True:
            step = decide(known, self._config)
            if step == "state":
                is_free = self._held.enter_context(_alone(self._config.state_dir, self._until_s))
                known = self._with_state(known) if is_free else replace(known, unread=_DECIDES)
            elif step == "token":
                known = replace(known, tokens=self._token(known))
            elif step.action == "drain":
                return self._drain(step, known)
            elif step.action == "undrain":
                return self._undrain(step, known)
            else:
                return step

    def _with_memory(self, known: Known) -> Known:
        mine = recall(self._config.state_dir)
        stood_s = mine.at.least_age_s() if mine is not None else 0.0
        return replace(known, drained=mine, stood_s=stood_s)

    def _with_state(self, known: Known) -> Known:
        """Ask for the node; forget a drain that somebody undid, or made his own.

        Another hook of this node may have drained it since we looked at what is remembered.
        """
        known = self._with_memory(known)
        try:
            state = self._slurm.node(known.judged.node)
        except SlurmError as error:
            return replace(known, unread=str(error))
        if known.drained is not None and not is_mine(state, known.drained):
            forget(self._config.state_dir)
            known = replace(known, drained=None)
        return replace(known, state=state)

    def _breaker(self) -> Breaker | None:
        config = self._config.breaker
        return None if config is None else breaker_of(config, self._slurm, self._until_s)

    def _token(self, known: Known) -> Tokens:
        config, breaker = self._config.breaker, self._breaker()
        if config is None or breaker is None:
            return Tokens(granted=False, trouble="none is configured")
        try:
            sizes = self._slurm.sizes() if config.most_share else {}
        except SlurmError:
            sizes = {}  # the number alone counts then, which is the smaller
        own = known.state.partitions if known.state is not None else ()
        self._most = allowed(config, sizes, known.call.partition, own)
        return breaker.ask(known.judged.node, self._most)

    def _drain(self, step: Decision, known: Known) -> Decision:
        """Tell Slurm; where it does not listen, the prolog's failure drains the node all the same.

        The token for that is taken.
        """
        node, cause = known.judged.node, cause_of(known)
        if cause is None:
            return step
        mine = Drained(
            check=cause.check,
            reason=cause.reason,
            time_s=time.time(),
            at=now(),
            heals=cause.heals,
        )
        unsaved = remember(self._config.state_dir, mine)
        try:
            self._slurm.drain(node, step.reason)
        except SlurmError as error:
            if known.call.occasion == "prolog":
                return replace(step, log=f"{step.log}; by the prolog's failure alone: {error}")
            said = f"not drained {node}: {error}; found {cause.reason}"
            return Decision(action="withheld", exit_code=0, log=said)
        breaker = self._breaker()
        if known.tokens is not None and breaker and not breaker.stands(node, self._most):
            return self._step_back(known, cause.reason)
        return replace(step, log=f"{step.log}; {unsaved}") if unsaved else step

    def _step_back(self, known: Known, reason: str) -> Decision:
        node = known.judged.node
        said = f"many nodes were drained at once, {self._most} are allowed; found {reason}"
        try:
            self._slurm.undrain(node)
        except SlurmError as error:
            return Decision(
                action="drain", exit_code=1, reason=reason, log=f"drain {node}: {said}; {error}"
            )
        forget(self._config.state_dir)
        return Decision(action="withheld", exit_code=0, log=f"drained and resumed {node}: {said}")

    def _undrain(self, step: Decision, known: Known) -> Decision:
        try:
            self._slurm.undrain(known.judged.node)
        except SlurmError as error:
            said = f"not resumed {known.judged.node}: {error}"
            return Decision(action="withheld", exit_code=0, log=said)
        forget(self._config.state_dir)
        return step
