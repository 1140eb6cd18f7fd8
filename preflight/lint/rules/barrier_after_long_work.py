"""Rank 0 works alone while the others wait in a barrier: longer than the time-out, and all die."""

from __future__ import annotations

import re
from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from preflight.lint.job import init_calls, timeout_words
from preflight.lint.model import Found, Rule, Severity, Who, once
from preflight.lint.operations import operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script

    _Before = tuple[int, bool, Call]
    """A line, whether every rank is needed there, and the call in it."""

_LONG: Final = re.compile(
    r"(?:^|_)(?:download|preprocess|(?:evaluate|evaluation|validate|run_eval|eval_model|inference|"
    r"generate|tokeni[sz]e_(?:data|dataset|files|corpus)|prepare_(?:data|dataset|datasets)|"
    r"build_(?:dataset|index|cache)|load_dataset|snapshot_download|test_model|benchmark)$)"
)
_WAITS: Final = frozenset(("barrier", "monitored_barrier"))


def _find(script: Script) -> Iterator[Found]:
    inits = init_calls(script)
    if not inits or any(call.keyword("timeout") is not None or call.open_ended for call in inits):
        return
    for barrier in script.calls:
        one = operation(script, barrier)
        if one is None or one.label not in _WAITS or barrier.keyword("timeout") is not None:
            continue
        work = None if barrier.place.guard else _alone_before(script, barrier)
        if work is not None:
            yield Found(
                barrier.line,
                f"every rank waits in this barrier while rank 0 alone does {work.last}() "
                f"(line {work.line}), and init_process_group (line {inits[0].line}) sets no "
                "timeout",
                f"if {work.last}() takes longer than {timeout_words(script)}, the other ranks "
                "are ended in the barrier",
                "init_process_group(timeout=timedelta(hours=2)), or do the work before the job",
            )


def _alone_before(script: Script, barrier: Call) -> Call | None:
    """The last long work of rank 0 before the barrier, with no other barrier between."""
    place = barrier.place
    own: list[_Before] = []
    for depth in range(len(place.loops) + 1):
        there = _before(script).get((place.function, place.loops[:depth]), [])
        at = bisect_left(there, barrier.line, key=itemgetter(0))
        own += there[max(at - 1, 0) : at]
    last = max(own, key=itemgetter(0, 1), default=None)
    return None if last is None or last[1] else last[2]


@once
def _before(script: Script) -> dict[tuple[str, tuple[int, ...]], list[_Before]]:
    """By function and loops: every operation of all ranks, and all long work of rank 0."""
    found: dict[tuple[str, tuple[int, ...]], list[_Before]] = {}
    for call in script.calls:
        every = operation(script, call) is not None
        if every or _is_long(call):
            there = found.setdefault((call.place.function, call.place.loops), [])
            there.append((call.line, every, call))
    for there in found.values():
        there.sort(key=itemgetter(0, 1))
    return found


def _is_long(call: Call) -> bool:
    guard = call.place.guard
    alone = guard is not None and guard.who is Who.FIRST and not guard.left
    return alone and _LONG.search(call.last) is not None


RULE = Rule("barrier-after-long-work", Severity.WARNING, _find)
