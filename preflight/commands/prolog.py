"""`preflight prolog`: this node and the GPUs of the job that is about to start, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from preflight.commands.healthcheck import PROGRAM
from preflight.commands.run import start

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(words: Sequence[str]) -> NoReturn:
    """Become an isolated Python that judges and acts; `words` begin with the verb."""
    start(words, program=PROGRAM)
