"""A site's own sections: each alone in a child, so that none can harm our facts or another's."""

from __future__ import annotations

import contextlib
import json
import math

from . import guard
from .text import TEXT_LIMIT, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ANSWER_LIMIT = 60 << 10
"""Bytes of JSON that one section may answer: less than a pipe holds, so it waits for nobody."""

DEEPEST = 16
"""Levels of lists and objects in it: decoders give up at some depth, and with them our facts."""

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""

_WHOLE_NUMBERS = 2**63
"""Beyond it no decoder agrees with the next."""


class Exited(Exception):  # noqa: N818 (it is the whole message on the screen)
    """The section called sys.exit."""


class WrongError(Exception):
    """An answer that is no plain JSON; the text says why."""


def read(
    wanted: Sequence[dict[str, Any]], node: str, until: float, problems: list[str]
) -> dict[str, dict[str, Any]]:
    """Ask all sections at once, each for its own time, and return an `Extra` document by id."""
    if not wanted:
        return {}
    _adopt_orphans()
    began = guard.clock.now()
    asked = [(each, guard.spawn(_collect, each, node)) for each in wanted]
    answers = {}
    for each, child in asked:
        deadline_s = float(each["deadline_s"])
        answer = _answer(child, min(until, began + deadline_s), deadline_s)
        if answer["error"]:
            problems.append("{}: {}".format(each["id"], answer["error"]))
        answers[each["id"]] = {**answer, "seconds": round(guard.clock.now() - began, 3)}
    return answers


def _collect(each: dict[str, Any], node: str) -> Any:
    """In the child: the site's code, and nothing of what it does but its answer."""
    request = {"id": each["id"], "name": node, "deadline_s": each["deadline_s"]}
    if each["module"][:13] != "site_section_":
        raise WrongError("a request may name no module of the node's own")
    try:
        found = __import__(each["module"]).collect(request)
        json.dumps(found)  # here what is wrong with it can still be told
        return found  # noqa: TRY300 (an else would not see sys.exit)
    except SystemExit as error:
        raise Exited(f"sys.exit({error.code!r:.80})") from None


def _answer(child: guard.Child, until: float, deadline_s: float) -> dict[str, Any]:
    """Listen to one child, end it and what it has started, and look at what it said."""
    answered = child.listen(until, ANSWER_LIMIT)
    gone = child.dismiss(kill=True)
    error = ""
    data = None
    if len(child.said) > ANSWER_LIMIT:
        error = f"its answer exceeds {ANSWER_LIMIT >> 10} KiB"
    elif not answered:
        error = f"no answer in {deadline_s:g} s"
    else:
        try:
            data = child.value()
            _refuse_odd(data)
        except (guard.BrokenError, WrongError) as wrong:
            error, data = str(wrong), None
        except (ValueError, TypeError, LookupError, RecursionError):
            error, data = "its answer is no plain JSON", None
    if not gone:
        error += f"; its process {child.pid} cannot be killed"
    return {"data": data, "error": clean(error, TEXT_LIMIT)}


def _refuse_odd(data: Any) -> None:
    """Refuse what json.loads takes and the controller's decoder does not: WrongError."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise WrongError(f"its answer is nested deeper than {DEEPEST} levels")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _refuse_halves(value)
            elif isinstance(value, (int, float)):
                _refuse_beyond(value)
        level = below


def _refuse_halves(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WrongError("its answer holds half a surrogate pair") from None


def _refuse_beyond(number: float) -> None:
    if not math.isfinite(number) or (abs(number) >= _WHOLE_NUMBERS and isinstance(number, int)):
        raise WrongError("its answer holds a number beyond 64 bits, or none at all (NaN)")


def _adopt_orphans() -> None:
    """What a section leaves running becomes our child, and ends with us."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
