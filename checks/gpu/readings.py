"""What all checks of GPU readings share, and how the expected value of a reading is found.

Why one: a reading that NVML did not report must never pass, and that rule is easily forgotten in
the fifteenth check. A judge gives its troubles and the readings it needs; this module weighs them.

Every expected value names its source, so that a sentence can say which number decided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from preflight.checks.deviations import on_most
from preflight.core.text import count, first_finding
from preflight.facts.boards import among, board, gpu_models
from preflight.facts.gpu import GpuHealth, driver_too_old
from preflight.facts.model import Facts, Gpu, read_once
from preflight.facts.node import Group, Node, decided, most
from preflight.verdict import Verdict, fail, not_run, ok, unknown, warn

T = TypeVar("T")

_MIN_SIBLINGS: Final = 3
"""Two alike of three may be a mixed machine; three alike are peers."""


class Expectation(Struct, Generic[T], frozen=True):
    """An expected value, and its source: "expected", "on 12 of 13 nodes of group train"."""

    value: T
    origin: str
    by: Literal["expectation", "group", "siblings", "default"]


Best = Callable[[Iterable[Any]], Any]
"""Picks the best of several values: `max` for lanes or watts, `any` for a mode to be on."""


def expected_value(
    expectation: T | None, name: str, facts: Facts, group: Group, best: Best | None = None
) -> Expectation[Any] | None:
    """The expected value of the field `name` of each GPU; None where no source has one.

    `best`: without a group, each GPU should have what the best one of this node has. By number, a
    second slow slot of four would hide the first.
    """
    if expectation is not None:
        return Expectation(expectation, "expected", "expectation")
    peers: frozenset[str] = frozenset() if name == "name" else gpu_models(facts)
    vote = decided(group.majority(among(reader(name), peers)))
    if vote is not None:
        return Expectation(vote.value, on_most(vote, group), "group")
    values = _values(facts, name)
    common = most(values, _MIN_SIBLINGS)
    if best is not None and len(distinct := set(_known_values(facts, name))) > 1:
        common, values = best(distinct), _known_values(facts, name)
    if common is not None:
        siblings = f"on {values.count(common)} of {len(values)} GPUs of this node"
        return Expectation(common, siblings, "siblings")
    return None


def best_on_a_board(facts: Facts) -> Best | None:
    """The places of a baseboard are alike, but a machine for cards may have two kinds of slots."""
    kinds = {gpu.name for gpu in facts.gpus or ()}
    return max if len(kinds) == 1 and board(*kinds) is not None else None


def expected_of_kind(
    name: str, facts: Facts, group: Group, best: Best | None = None, expectation: Any = None
) -> Expectation[Any] | None:
    """The same for a value that depends on the board: GPUs of mixed kinds decide nothing."""
    kinds = {gpu.name for gpu in facts.gpus or ()}
    if expectation is None and len(kinds) != 1:
        return None
    return expected_value(expectation, name, facts, group, best)


def is_model(name: str, expected: str | None) -> bool:
    """Whether the name has every expected word: "H100 80GB" is in it, "H10" is not."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    expected_words = set(re.findall(r"[a-z0-9]+", (expected or "").lower()))
    return bool(expected_words) and expected_words.issubset(words)


@cache
def reader(name: str) -> Callable[[Facts], Any]:
    """One reader per field, always the same object: a group counts each vote once."""
    return lambda facts: most(_values(facts, name))


_GPU_FIELDS: Final = frozenset(Gpu.__struct_fields__)


def reading(gpu: Gpu, name: str) -> Any:
    """A field of the GPU or of its readings; None where NVML did not report it."""
    if name in _GPU_FIELDS:
        return getattr(gpu, name)
    return None if gpu.health is None else getattr(gpu.health, name)


def _values(facts: Facts, name: str) -> list[Any]:
    if any(gpu.refused(name) for gpu in _gpus_with_errors(facts)):
        return []  # what the others have in common is no majority without it
    return _known_values(facts, name)


def _known_values(facts: Facts, name: str) -> list[Any]:
    values = [reading(gpu, name) for gpu in facts.gpus or ()]
    return [value for value in values if value not in (None, "")]


NVML: Final = ("reach.answer", "host.driver_hung")
"""The checks without which NVML has no readings: a check of its readings requires them."""

SHORT_OF_MEMORY: Final = ("Insufficient Memory", "Insufficient Resources")
"""NVML's errors (codes 20 and 23) for lack of host memory: no fault of driver or GPU."""

MAY_PASS: Final = ("Timeout", "In use by another client")
"""NVML's errors (codes 10 and 19) for a GPU that does not answer now, but may in a moment."""

GRANT: Final = "run the probe as root, or grant it CAP_SYS_ADMIN, which NVML needs"


class Trouble(Struct, frozen=True):
    """One fault of one GPU, or (None) of the node as a whole."""

    gpu: Gpu | None
    what: str
    advice: str
    grave: bool = True
    part: str = ":"
    """What stands between the GPU's name and what is wrong: its link, a colon."""

    @property
    def sentence(self) -> str:
        """GPU3 (0000:5e:00.0): 2 uncorrectable ECC errors."""
        return self.what if self.gpu is None else f"{gpu_label(self.gpu)}{self.part} {self.what}"


def gpu_label(gpu: Gpu) -> str:
    """A GPU as an operator finds it: GPU3 (0000:5e:00.0)."""
    return f"GPU{gpu.index} ({gpu.bus_id})" if gpu.bus_id else f"GPU{gpu.index}"


@read_once
def healths(facts: Facts) -> tuple[tuple[Gpu, GpuHealth], ...]:
    """The GPUs whose readings were requested."""
    return tuple((gpu, gpu.health) for gpu in facts.gpus or () if gpu.health is not None)


@read_once
def _gpus_with_errors(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs of which NVML failed to read something."""
    return tuple(gpu for gpu, health in healths(facts) if health.errors)


def uptime_s(facts: Facts) -> float:
    """Seconds since boot, an upper bound of how long the driver has counted; 0 if not known."""
    return max(0.0, facts.time_s - facts.boot_s) if facts.boot_s else 0.0


class Question(NamedTuple):
    """The readings of every GPU that a check needs."""

    what: str
    """The common name of the readings that it needs."""
    needs: tuple[str, ...]
    """Fields of `GpuHealth` or `Gpu`: one must be known, and none may be refused just now."""
    cause: str = ""
    """With it, troubles of one GPU alone join those of other checks with the same cause."""
    also: tuple[str, ...] = ()
    """All other fields that its judge reads: one that is refused just now makes it unknown too."""


def judge_gpus(node: Node, question: Question, troubles: Iterable[Trouble], fine: str) -> Verdict:
    """Weigh the troubles of a node's GPUs against what could not be read."""
    facts, (readings_name, needs, cause, also) = node.facts, question
    if not facts.gpus:
        if node.expected.gpus:
            sentence = f"no {readings_name}: NVML did not answer"
            return unknown(sentence, advice="load the driver, recheck")
        return not_run("no GPUs here")
    worst_first = sorted(troubles, key=lambda trouble: not trouble.grave)
    refusing = [gpu for gpu in _gpus_with_errors(facts) if gpu.refused(*needs, *also)]
    unread = _without_reading(facts.gpus, needs) or refusing
    if worst_first and (worst_first[0].grave or not unread):
        return _fail_or_warn(worst_first, cause)
    if unread:
        return _unknown(facts, unread, readings_name, (*needs, *also), worst_first)
    if all(_has_no_such_reading(gpu, needs) for gpu in facts.gpus):
        names = sorted({gpu.name or "GPU" for gpu in facts.gpus})
        too_old = driver_too_old(facts.driver.version, needs, readings_name)
        return not_run(too_old or f"NVML has no {readings_name} for {', '.join(names)}")
    return ok(fine)


def _fail_or_warn(troubles: Sequence[Trouble], cause: str) -> Verdict:
    worst, findings = troubles[0], [trouble.sentence for trouble in troubles]
    gpus = [trouble.gpu for trouble in troubles if trouble.grave == worst.grave]
    culprits = {gpu.index for gpu in gpus if gpu is not None}
    one_gpu = worst.gpu is not None and len(culprits) == 1
    verdict = fail if worst.grave else warn
    return verdict(
        first_finding(findings),
        advice=worst.advice,
        cause=f"{cause} of GPU{worst.gpu.index}" if cause and one_gpu and worst.gpu else "",
        findings=findings,
        gpus=sorted(culprits),
    )


def _unknown(
    facts: Facts,
    unread: Sequence[Gpu],
    readings_name: str,
    needs: Sequence[str],
    troubles: Sequence[Trouble],
) -> Verdict:
    text, others_did = f"no GPU reports its {readings_name}", ""
    if others := len(facts.gpus or ()) - len(unread):
        text = f"{', '.join(gpu_label(gpu) for gpu in unread[:8])} did not report {readings_name}"
        others_did = f"; {count(others, 'other')} did"
    errors = [error for gpu in unread if gpu.health for error in gpu.health.errors]
    refusals = [error for error in errors if error.partition(":")[0] in needs]
    denied = all(gpu.health and set(needs) & set(gpu.health.denied) for gpu in unread)
    sentence = f"{text}{others_did}" + (f" ({refusals[0]})" if refusals else "")
    sentence += f"; besides: {troubles[0].sentence}" if troubles else ""
    advice = "look for NVRM and Xid in dmesg; update the driver, recheck"
    return unknown(
        sentence,
        advice=f"{GRANT}, recheck" if denied else advice,
        grant=GRANT if denied else "",
        cause=f"readings of GPU{unread[0].index}" if refusals and len(unread) == 1 else "",
        findings=[trouble.sentence for trouble in troubles],
    )


def _reports(gpu: Gpu, needs: Sequence[str]) -> bool:
    """Whether it reports any of these readings."""
    for name in needs:  # noqa: SIM110  a generator takes three times as long, for each GPU and check
        if reading(gpu, name) not in (None, ""):
            return True
    return False


def _without_reading(gpus: Sequence[Gpu], needs: Sequence[str]) -> list[Gpu]:
    """GPUs without the reading, except where no GPU of the same kind has it."""
    without = [gpu for gpu in gpus if not _reports(gpu, needs)]
    if not without:
        return []
    reporting = {gpu.name for gpu in gpus if _reports(gpu, needs)}
    return [
        gpu
        for gpu in without
        if not _has_no_such_reading(gpu, needs)
        or ((gpu.name in reporting or gpu.refused("name")) and not gpu.mig_enabled)
    ]


def _has_no_such_reading(gpu: Gpu, needs: Sequence[str]) -> bool:
    health = gpu.health
    if health is None or _reports(gpu, needs):
        return False
    return all(name in health.lacks for name in needs)
