"""A group that is never destroyed leaves its ranks to end in any order: NCCL warns, or hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.job import entry, init_calls
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    inits = init_calls(script)
    if not inits or not entry(script):
        return
    if any("destroy" in call.last or "cleanup" in call.last for call in script.calls):
        return
    yield Found(
        inits[0].line,
        "nothing destroys the process group that is made here",
        "a rank that ends first takes the store with it while others still work: errors or a hang "
        "at the very end",
        "torch.distributed.destroy_process_group() at the end of main",
    )


RULE = Rule("no-destroy", Severity.HINT, _find)
