"""How many nodes the hook may drain in a while: many at once are a mistake, ours or the site's.

Asked in a folder that all nodes share (exact), or by counting drains at the controller (a race,
which is looked at once more after the own drain).
"""

from __future__ import annotations

import os
import sys
import time
from math import floor
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from preflight.hook.bounded import answer_of
from preflight.hook.model import Tokens
from preflight.hook.reason import parse
from preflight.hook.slurm import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from preflight.hook.model import BreakerConfig
    from preflight.hook.slurm import Slurm
    from preflight.hook.slurm_words import Noted

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
