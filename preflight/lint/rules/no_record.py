"""Without @record torchrun says which rank died and not of what: the traceback is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.job import entry, init_calls, spawns
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    inits = init_calls(script)
    if not inits or not entry(script) or spawns(script):
        return
    decorated = (one for function in script.functions.values() for one in function.decorators)
    named = (call.name for call in script.calls)
    if any(name.rpartition(".")[2] == "record" for name in (*decorated, *named)):
        return
    yield Found(
        inits[0].line,
        "no function of this script has torchrun's @record",
        "when a rank raises, torchrun's report has `error_file: <N/A>` and no traceback",
        "from torch.distributed.elastic.multiprocessing.errors import record; @record above main",
    )


RULE = Rule("no-record", Severity.HINT, _find)
