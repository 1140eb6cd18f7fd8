"""Every switch that was told of has its fans and power supplies."""

from __future__ import annotations

import re

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.switch_model import Switch, SwitchPart
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check("ib.switch", stage="facts", tier="prolog", requires=("reach.answer",))

_BAD = re.compile(r"err|fail|fault|bad|crit|alarm|not ok|nok\b|dead|stop", re.IGNORECASE)
_GONE = re.compile(r"absent|not[ _]?(?:present|installed)|missing|removed|off\b", re.IGNORECASE)
ADVICE = "look at the switch itself: replace the fan or supply, free its air, plug its power in"


def judge(switches: tuple[Switch, ...] | None) -> Verdict:
    """A fan that stands still and a supply without power are faults; one left out is a warning."""
    if switches is None:
        return not_run("no node tells of its switches; `preflight read` judges an ibswinfo of one")
    parts = [(one, part) for one in switches for part in one.parts]
    bad = [_told(*each) for each in parts if _BAD.search(each[1].status) or each[1].rpm == 0]
    gone = [_told(*each) for each in parts if _GONE.search(each[1].status)]
    if bad or gone:
        more = f" (and {len(bad) + len(gone) - 1} more)" if len(bad) + len(gone) > 1 else ""
        conclude = fail if bad else warn
        return conclude((bad + gone)[0] + more, advice=ADVICE, findings=bad + gone)
    mute = [_told(*each) for each in parts if each[1].rpm is None and each[1].status != "OK"]
    if mute or not parts:
        said = mute[0] if mute else "no fan and no power supply is told"
        return unknown(said, advice="ask the switch again")
    fans = sum(part.rpm is not None for _, part in parts)
    supplies = len({(one.name, part.name.split()[0]) for one, part in parts if _is_supply(part)})
    said = f"{count(fans, 'fan')} turning, {count(supplies, 'power supply', 'power supplies')} OK"
    return ok(f"{', '.join(one.name for one in switches)}: {said}")


def _told(switch: Switch, part: SwitchPart) -> str:
    seen = "stands still (0 rpm)" if part.rpm == 0 else f"says {part.status or 'nothing'}"
    return f"{switch.name}: {part.name} {seen}, OK is expected"


def _is_supply(part: SwitchPart) -> bool:
    return part.name.upper().startswith("PSU")


def test_ib_switch(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts.switches))
