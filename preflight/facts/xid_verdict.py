"""A verdict on the GPUs from what the driver wrote of them: the GPU is named, not its echoes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight.facts.gpu_log import OFF_THE_BUS, echoes, roots, slot_of, troubles
from preflight.facts.kernel_log import ago, elapsed_s, unread, whole, window
from preflight.facts.limits import limit
from preflight.facts.same_place import CODE, repeated
from preflight.facts.words import count
from preflight.facts.xids import advice_again, in_recovery_action
from preflight.verdict import fail, not_run, warn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.facts.gpu_log import Trouble
    from preflight.facts.model import Facts
    from preflight.facts.same_place import Repeated
    from preflight.verdict import Verdict

_SHOWN = 4


def judge_xids(
    promised: int | None,
    facts: Facts,
    fatal: Collection[int] = (),
    tolerated: Collection[int] = (),
) -> Verdict:
    """Judge the GPUs of a node by its kernel log; `fatal`, `tolerated`: Xids as the site sees them.

    Xids from before the driver was loaded anew are a warning: whatever they told of was reset.
    """
    log = facts.kernel_log
    expects = bool(promised) or bool(facts.gpus)
    if log is None:
        return unread(facts) if expects or _captured(facts) else _none_here()
    settled = _settled(troubles(log.lines), facts)
    said = [_as_the_site_sees_it(each, fatal, tolerated) for each in settled]
    if not said and not expects and log.source != "text":
        return _none_here()
    again = repeated(log.lines)
    found = [_suspected(each, again.get(each.slot)) for each in roots(said)]
    evidence: dict[str, Any] = {"troubles": [_evidence(each) for each in said], "log": log.source}
    graves = [each for each in found if each.grade in ("fatal", "reset") and not each.old]
    if graves:
        return fail(
            f"{_told(graves, said, facts)}; expected no Xid that needs a reset "
            f"{window(log, facts)}",
            advice=_advice(graves),
            cause=_cause(graves, facts),
            **evidence,
        )
    notable = [each for each in found if _notable(each, facts)]
    if notable:
        then = ", before the GPU was reset" if all(each.old for each in notable) else ""
        return warn(
            f"{_told(notable, said, facts)}{then}; none needs a reset at once",
            advice=_advice(notable).replace("drain, ", "").replace("reset the GPU, ", ""),
            user=all(each.grade == "application" for each in notable),
            **evidence,
            **_places(notable),
        )
    rest = f"; {count(len(found), 'older note')} that need no reset" if found else ""
    said_so = f"no Xid {window(log, facts)} asks for a reset{rest}"
    return whole(said_so, log, ("xid", "nvrm"), **evidence)


def lost_slots(facts: Facts) -> set[str]:
    """GPUs that the log says are off the bus: PCIe errors on these are only an echo."""
    lines = facts.kernel_log.lines if facts.kernel_log is not None else ()
    return {e.slot for e in troubles(lines) if e.code in (79, OFF_THE_BUS) and not e.old}


def missing_slots(facts: Facts) -> tuple[str, ...]:
    """Those of them that do not answer any more."""
    answering = {slot_of(gpu.bus_id) for gpu in facts.gpus or ()}
    return tuple(sorted(lost_slots(facts) - answering))


def _settled(said: Sequence[Trouble], facts: Facts) -> list[Trouble]:
    """Mark as old what the driver itself says needs nothing any more."""
    calm = {
        slot_of(gpu.bus_id)
        for gpu in facts.gpus or ()
        if gpu.health is not None and gpu.health.recovery_action == "none"
    }
    told = in_recovery_action()
    return [
        replace(each, old=each.old or (each.slot in calm and each.code in told)) for each in said
    ]


def _none_here() -> Verdict:
    return not_run("no GPUs promised, none here, no Xid in its kernel log")


def _captured(facts: Facts) -> bool:
    return facts.nonce == "captured"


def _as_the_site_sees_it(
    one: Trouble, fatal: Collection[int], tolerated: Collection[int]
) -> Trouble:
    if one.code in fatal and one.grade != "fatal":
        return replace(one, grade="reset")
    return replace(one, grade="notice") if one.code in tolerated else one


def _suspected(one: Trouble, again: Repeated | None) -> Trouble:
    """A program's exception that comes back to one part of the GPU: maybe that part is broken."""
    if again is None or one.code != CODE or one.grade != "application":
        return one
    enough = limit("same_tpc_bursts")
    meaning = (
        f"{again.bursts} times apart on {again.place} alone: from {enough:g} on its hardware may "
        "be at fault"
    )
    return replace(
        one,
        grade="configurable",
        meaning=meaning,
        advice=advice_again(),
        place=again.place,
        times=1,
    )


def _notable(one: Trouble, facts: Facts) -> bool:
    """Whether it is worth a person's look: what a program did is so for a day, no longer."""
    if one.grade in ("fatal", "reset", "configurable"):
        return True
    since_s = elapsed_s(one.last_s, facts)
    return since_s is None or since_s < limit("application_xid_s")


def _told(found: Sequence[Trouble], said: Sequence[Trouble], facts: Facts) -> str:
    """GPU 3 (0000:5d:00): Xid 79 (...), 2 h ago; GPU 5 ..."""
    slots = list(dict.fromkeys(each.slot for each in found))
    parts = []
    for slot in slots[:_SHOWN]:
        own = [each for each in found if each.slot == slot]
        words = ", ".join(each.label + (f" {each.times} times" * (each.times > 1)) for each in own)
        then = dict.fromkeys(str(echo.code) for each in own for echo in echoes(each, said))
        numbers = [code for code in then if code.isdecimal()]
        words += f", then Xid {', '.join(numbers)}" if numbers else ""
        parts.append(f"{_name(slot, facts)}: {words}{ago(own[-1].last_s, facts)}")
    more = f"; and {len(slots) - _SHOWN} more GPUs" if len(slots) > _SHOWN else ""
    return "; ".join(parts) + more


def _name(slot: str, facts: Facts) -> str:
    for gpu in facts.gpus or ():
        if gpu.bus_id and slot_of(gpu.bus_id) == slot:
            return f"GPU {gpu.index} ({slot})"
    return slot if slot.startswith("GPU") else f"GPU {slot}"


def _advice(found: Sequence[Trouble]) -> str:
    """What the first asks for, and the words of the log where it has no number."""
    first = found[0]
    number = f"Xid {first.code}: " if isinstance(first.code, int) and len(found) > 1 else ""
    return number + first.advice


def _cause(graves: Sequence[Trouble], facts: Facts) -> str:
    """The culprit in the words of the checks that see the same GPU from another side."""
    slots = {each.slot for each in graves}
    if len(slots) != 1:
        return ""
    slot = next(iter(slots))
    if slot in missing_slots(facts):
        return "gpu.count"
    index = next((g.index for g in facts.gpus or () if slot_of(g.bus_id) == slot), None)
    return f"gpu {slot}" if index is None else f"memory of GPU{index}"


def _places(notable: Sequence[Trouble]) -> dict[str, Any]:
    """The suspected part by GPU, where there is one."""
    places = {each.slot: each.place for each in notable if each.place}
    return {"places": places} if places else {}


def _evidence(one: Trouble) -> dict[str, object]:
    return {
        "gpu": one.slot,
        "xid": one.code,
        "class": one.grade,
        "times": one.times,
        "last_s": one.last_s,
        "old": one.old,
    }
