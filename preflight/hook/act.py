"""Carries out a decision: asks Slurm for the node's state, drains or resumes it, records the drain.

The breaker limits drains by tokens in a folder that all nodes share (exact), or by counting drains
at the controller (racy, so the drains are counted again after this node's own).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from math import floor
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from preflight.core.files import (
    open_folder,
    read_regular,
    reason_of,
    refuse_untrusted,
    remove,
    write_atomically,
)
from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.hook.decision import DecisionInput, cause_of, decide, has_own_drain, is_own_reason
from preflight.hook.hook_values import Decision, DrainRecord, Tokens, now
from preflight.hook.slurm import NodeReason, Slurm, SlurmError, run_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from preflight.hook.hook_values import Assessment, BreakerConfig, Call, HookConfig


FOLDER_S: Final = 2.0
"""How long a shared file system may take to answer."""


def quota(config: BreakerConfig, sizes: Mapping[str, int], job: str, node: Sequence[str]) -> int:
    """How many drains are allowed: the greater of a number and a share of the partition.

    `job`: the job's partition; without one, the smallest of `node`, the node's partitions, counts.
    """
    counts = [sizes[name] for name in ((job,) if job in sizes else node) if name in sizes]
    share = floor(config.most_share * min(counts)) if counts else 0
    return max(config.most_nodes, share)


def ask_folder(folder: Path, node: str, limit: int, window_s: float, until_s: float) -> Tokens:
    """Take the next token in a shared folder, if fewer than `limit` nodes hold one.

    A process of its own does it: the file system may hang.
    """
    words = [sys.executable, "-IB", "-m", "preflight.hook.tokens", str(folder), node]
    until_s = min(time.monotonic() + FOLDER_S, until_s)
    # Only what this Python may need to start.
    libraries = os.environ.get("LD_LIBRARY_PATH")
    environ = {"LD_LIBRARY_PATH": libraries} if libraries else {}
    try:
        answer = run_program([*words, str(limit), str(window_s)], environ, until_s)
    except OSError as error:
        return Tokens(granted=False, trouble=f"cannot start {sys.executable}: {error.strerror}")
    if answer is None:
        return Tokens(granted=False, trouble=f"{folder} did not answer in time")
    try:
        return msgspec.json.decode(answer.stdout, type=Tokens)
    except ValueError:
        error_text = answer.stderr or answer.stdout[:80] or "no output"
        return Tokens(granted=False, trouble=f"{folder}: {error_text}")


class SlurmBreaker:
    """Counts the nodes that preflight drained within the window."""

    def __init__(self, slurm: Slurm, window_s: float) -> None:
        self._slurm = slurm
        self._window_s = window_s

    def ask(self, node: str, limit: int) -> Tokens:
        """Count the other nodes; several nodes that ask at once may all be granted a drain.

        Where the controller gives no time, each drain by preflight counts, however old: it is safer
        to count too many than too few.
        """
        now_s = self._slurm.now_s()
        try:
            others = {row.node for row in self._recent(self._slurm.reasons(node), now_s)} - {node}
        except SlurmError as error:
            return Tokens(granted=False, trouble=str(error))
        granted = len(others) < limit
        if now_s is None and not granted:
            reason = f"scontrol show config shows no time, so {len(others)} drains of any age count"
            return Tokens(granted=False, trouble=f"{reason}, and {limit} are allowed")
        return Tokens(granted=granted, used=len(others) + granted, most=limit)

    def still_allowed(self, node: str, limit: int) -> bool:
        """Count again after the drain: of nodes that raced, those past the limit resume themselves.

        All drains of the same second count as earlier, so that no two nodes each take the other for
        the later one. Where the controller does not answer, the drain stays. The time of this
        node's drain, which was just set, serves as the current time.
        """
        try:
            drains = [row for row in self._slurm.reasons(node) if is_own_reason(row.reason)]
        except SlurmError:
            return True
        own_s = next((row.time_s for row in drains if row.node == node), None)
        if own_s is None:
            return True
        recent = self._recent(drains, own_s)
        return sum(row.time_s is None or row.time_s <= own_s for row in recent) <= limit

    def _recent(self, rows: Iterable[NodeReason], now_s: float | None) -> Iterable[NodeReason]:
        """Yield the drains by preflight that are within the window or of unknown age."""
        for row in rows:
            age_s = 0.0 if row.time_s is None or now_s is None else now_s - row.time_s
            if age_s < self._window_s and is_own_reason(row.reason):
                yield row


NAME: Final = "drained.json"
_LARGEST = 64 << 10


def read_record(folder: Path) -> DrainRecord | None:
    """Read this node's recorded drain; None without one, or if others than root may write it."""
    path = folder / NAME
    try:
        if os.geteuid() == 0 and who_may_change(path):
            return None
        return msgspec.json.decode(read_regular(path, _LARGEST), type=DrainRecord)
    except (OSError, ValueError, RecursionError):
        return None


def write_record(folder: Path, record: DrainRecord) -> str:
    """Record a drain before Slurm is asked for it; return what went wrong, "" if nothing did."""
    try:
        refuse_untrusted(folder)
        write_atomically(folder / NAME, msgspec.json.encode(record))
    except (OSError, UsageError) as error:
        reason = reason_of(error)
        return f"cannot write {folder / NAME} ({reason}), so preflight will not resume the node"
    return ""


def remove_record(folder: Path) -> None:
    """Remove the record: the drain was undone or replaced."""
    with suppress(OSError, UsageError):
        refuse_untrusted(folder)
        remove(folder / NAME)


_LOCK: Final = "lock"
_RETRY_S: Final = 0.02
_BUSY: Final = "another hook of this node is deciding, and did not finish in time"


@contextmanager
def _lock_node(folder: Path, until_s: float) -> Iterator[bool]:
    """Lock out the node's other hooks; False if one holds the lock for half of the time left.

    Otherwise `drained.json` could hold one hook's reason and Slurm another's. True also where no
    file can be locked: then either no drain is stored, or only a disk is full.
    """
    with ExitStack() as stack:
        try:
            refuse_untrusted(folder)
            inside = stack.enter_context(open_folder(folder, make=True))
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=inside)
            stack.callback(os.close, lock)
            is_free = _try_lock(lock, (time.monotonic() + until_s) / 2)
        except (OSError, UsageError):
            is_free = True
        yield is_free


def _try_lock(lock: int, until_s: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_RETRY_S)
        else:
            return True


_LOG_S = 0.2
"""Time reserved to log what was done: a hook that is cut off logs nothing."""


def act(call: Call, assessment: Assessment, config: HookConfig, until_s: float) -> Decision:
    """Decide and carry it out, all by `until_s` (monotonic clock); return what was done.

    A ready node sends Slurm no request; any other changes its state once (twice where nodes raced).
    """
    with ExitStack() as locks:
        return _Runner(config, until_s, locks).run(DecisionInput(call=call, assessment=assessment))


class _Runner:
    def __init__(self, config: HookConfig, until_s: float, locks: ExitStack) -> None:
        self._config = config
        self._until_s = until_s - _LOG_S
        self._slurm = Slurm(config.slurm_bin, self._until_s)
        self._locks = locks
        self._limit = 0

    def run(self, inputs: DecisionInput) -> Decision:
        """Find out what the decision still needs until it is made; then carry it out."""
        inputs = self._with_record(inputs)
        while True:
            step = decide(inputs, self._config)
            if step == "state":
                lock = _lock_node(self._config.state_dir, self._until_s)
                is_free = self._locks.enter_context(lock)
                busy = replace(inputs, state_trouble=_BUSY)
                inputs = self._with_state(inputs) if is_free else busy
            elif step == "token":
                inputs = replace(inputs, tokens=self._token(inputs))
            elif step.action == "drain":
                return self._drain(step, inputs)
            elif step.action == "undrain" and (error := self._resume(inputs)):
                log = f"not resumed {inputs.assessment.node}: {error}"
                return Decision("withheld", log=log)
            else:
                return step

    def _with_record(self, inputs: DecisionInput) -> DecisionInput:
        record = read_record(self._config.state_dir)
        age_s = record.at.age_s() if record is not None else 0.0
        stood_s = now().up_s if age_s is None else age_s  # rebooted since
        return replace(inputs, record=record, record_age_s=stood_s)

    def _with_state(self, inputs: DecisionInput) -> DecisionInput:
        """Ask for the node's state; forget a drain that an operator undid or edited.

        First read the stored drain again: another hook of this node may have changed it meanwhile.
        """
        inputs = self._with_record(inputs)
        try:
            state = self._slurm.node(inputs.assessment.node)
        except SlurmError as error:
            return replace(inputs, state_trouble=str(error))
        if inputs.record is not None and not has_own_drain(state, inputs.record):
            remove_record(self._config.state_dir)
            inputs = replace(inputs, record=None)
        return replace(inputs, state=state)

    def _token(self, inputs: DecisionInput) -> Tokens:
        config = self._config.breaker
        if config is None:
            return Tokens(granted=False, trouble="none is configured")
        try:
            sizes = self._slurm.sizes() if config.most_share else {}
        except SlurmError:
            sizes = {}  # the number alone counts then, which is the smaller
        partitions = inputs.state.partitions if inputs.state is not None else ()
        self._limit = quota(config, sizes, inputs.call.partition, partitions)
        node = inputs.assessment.node
        if config.directory is not None:
            folder, window_s = config.directory, config.window_s
            return ask_folder(folder, node, self._limit, window_s, self._until_s)
        return SlurmBreaker(self._slurm, config.window_s).ask(node, self._limit)

    def _drain(self, step: Decision, inputs: DecisionInput) -> Decision:
        """Drain by scontrol; where that fails, the prolog's own failure drains the node."""
        node, cause = inputs.assessment.node, cause_of(inputs)
        if cause is None:
            return step
        record = DrainRecord(
            check=cause.check, reason=cause.reason, time_s=time.time(), at=now(),
            heals=cause.heals,
        )  # fmt: skip
        unsaved = write_record(self._config.state_dir, record)
        try:
            self._slurm.drain(node, step.reason)
        except SlurmError as error:
            if inputs.call.occasion == "prolog":
                return replace(step, log=f"{step.log}; only by the prolog's failure: {error}")
            log = f"not drained {node}: {error}; found {cause.reason}"
            return Decision("withheld", log=log)
        config = self._config.breaker if inputs.tokens is not None else None
        # Tokens of a folder are exact.
        if config and not config.directory:
            breaker = SlurmBreaker(self._slurm, config.window_s)
            if not breaker.still_allowed(node, self._limit):
                return self._undo_drain(inputs, cause.reason)
        return replace(step, log=f"{step.log}; {unsaved}") if unsaved else step

    def _undo_drain(self, inputs: DecisionInput, reason: str) -> Decision:
        node = inputs.assessment.node
        log = f"many nodes were drained at once, {self._limit} are allowed; found {reason}"
        if error := self._resume(inputs):
            return Decision("drain", 1, reason, f"drain {node}: {log}; {error}")
        return Decision("withheld", log=f"drained and resumed {node}: {log}")

    def _resume(self, inputs: DecisionInput) -> str:
        """Resume the node and forget its drain; return why that failed, "" if it did not."""
        try:
            self._slurm.undrain(inputs.assessment.node)
        except SlurmError as error:
            return str(error)
        remove_record(self._config.state_dir)
        return ""
