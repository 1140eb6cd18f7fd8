"""No expression of the product takes more than linear time, whatever text it is given."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.patterns.attacks import attacks
from tests.patterns.collected import collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.patterns.attacks import Attack

    Apply = Callable[[str | bytes], object]

CASES = int(os.environ.get("PREFLIGHT_CASES", "60"))
"""Attacks on each expression; `make bench-full` tries a hundred times as many."""

_STEPS = ((256, 1024), (1024, 4096), (4096, 16384))
"""Lengths that are compared; where the first two show no growth, the others are not tried."""
_GROWS = (6.0, 7.5, 8.5)
"""Of four times the text, 4 is linear and 16 the square; a short text shows less of it."""
_SURE_S = 0.02
"""Processor time of so short a text that nothing longer need be tried."""
_NOTHING_S = 2e-5

_SHORT = {
    "checks/gpu/driver_log.py": "kernel_text._CHARS: lines of 512 characters",
    "checks/host/test_host_log.py": "the same",
    "checks/net/test_nic_log.py": "the same",
    "checks/gpu/test_kernel_log.py": "the same",
}
"""Whose texts another module cuts."""

_END_IN_AT = (
    "preflight/core/text.py:_URL_LOGIN",
    "preflight/payload/probe/redact.py:_URL_LOGIN",
)
"""Given words only up to their last @, where each :// finds its end."""

_MADE_WHEN_RUN = {
    "preflight/facts/boards.py": "a table of boards, matched from the beginning",
    "preflight/payload/probe/node_files.py": "literals of its callers, for names of files",
    "preflight/report/hide.py": "NAMING and PLAIN of forms.py, and escaped names",
    "preflight/transport/openssh.py": "an escaped mark",
    "preflight/transport/payload_session.py": "an escaped name of a program",
    "preflight/hang/diagnose/places.py": "places.toml, which is read here",
    "preflight/hang/explain/exceptions.py": "exceptions.toml, which is read here",
    "preflight/hang/explain/repeats.py": "escaped words",
    "preflight/hang/explain/symptom.py": "the symptoms, which are read here",
    "preflight/commands/__init__.py": "NAMES_CODE of trust.py",
    "preflight/commands/install_hook.py": "two keys of a unit or a script, written here",
    # Held in a table of the module, and found there.
    "checks/host/test_host_log.py": "_KINDS",
    "checks/net/test_nic_log.py": "_KINDS",
    "preflight/captured/environment.py": "_FORMS",
    "preflight/captured/unread.py": "_FORMS",
    "preflight/core/trust.py": "_PARTED",
}
"""Modules with calls of `re` whose expression is no literal, and what it is made of."""


def _apply(regex: re.Pattern[Any], method: str) -> Apply:
    if method in ("search", "match", "fullmatch"):
        return getattr(regex, method)  # type: ignore[no-any-return]
    return lambda text: regex.sub(text[:0], text)


def _cost_s(apply: Apply, text: str | bytes, tries: int) -> float:
    costs = []
    for _ in range(tries):
        began = time.thread_time()
        apply(text)
        costs.append(time.thread_time() - began)
    return min(costs)


def _growth(apply: Apply, attack: Attack, *, of_bytes: bool) -> str:
    """What four times the text cost, at each length; "" where that is linear."""
    told = []
    for (short, long), limit in zip(_STEPS, _GROWS, strict=True):
        texts = [attack.text(length) for length in (short, long)]
        given = [one.encode("latin-1", "replace") if of_bytes else one for one in texts]
        for tries in (1, 3):
            before_s = _cost_s(apply, given[0], tries)
            if before_s > _SURE_S:
                return f"{before_s:.3f} s at {short}"
            after_s = _cost_s(apply, given[1], tries)
            times = 4 * after_s / max(before_s, 3e-7) * len(texts[0]) / len(texts[1])
            if after_s < _NOTHING_S or times < limit:
                return ""
        told.append(f"{times:.1f} times at {long}")
        if after_s > _SURE_S:
            break
    return ", ".join(told)


@pytest.mark.parametrize("half", [0, 1])
def test_time_is_linear_in_the_length_of_the_text(half: int) -> None:
    """Of texts made from an expression's own repeats, four times the length costs four times."""
    uses, _ = collect()
    slow = []
    for regex, places in sorted(uses.items(), key=lambda item: min(item[1]))[half::2]:
        where = min(place for place, _ in places)
        if where.rpartition(":")[0] in _SHORT:
            continue
        of_bytes = isinstance(regex.pattern, bytes)
        pattern = regex.pattern.decode("latin-1") if of_bytes else regex.pattern
        pattern = f"(?x){pattern}" if regex.flags & re.VERBOSE else pattern
        methods = {m if m in ("search", "match", "fullmatch") else "sub" for _, m in places}
        for attack in attacks(pattern, CASES):
            tried = replace(attack, after="@") if where in _END_IN_AT else attack
            said = next(
                (s for m in methods if (s := _growth(_apply(regex, m), tried, of_bytes=of_bytes))),
                "",
            )
            if said:
                slow.append(f"{where} {regex.pattern!r}\n    {tried}: {said}")
                break
    assert not slow, "\n".join(slow)


def test_no_expression_escapes() -> None:
    """Every call of `re` has a literal that was read, or stands in the table above."""
    uses, unread = collect()
    assert len(uses) > 700
    assert {one.partition(": ")[0] for one in unread} == set(_MADE_WHEN_RUN)
