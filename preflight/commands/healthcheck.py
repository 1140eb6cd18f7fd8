"""`preflight healthcheck`: this node with all its GPUs, from time to time, for Slurm or cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from preflight.commands.hook_program import PROGRAM
from preflight.isolated import start

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(words: Sequence[str]) -> NoReturn:
    """Become an isolated Python that judges and acts; `words` begin with the verb."""
    start(words, program=PROGRAM)
