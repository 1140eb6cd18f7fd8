"""Real texts that got worse, or lost a part, never get a better verdict."""

from __future__ import annotations

import functools
import os
import random
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from preflight.captured import ethernet, nvidia_smi, topology
from preflight.commands.read import captured_parts
from preflight.facts.boards import board, up_links
from preflight.fleet.model import Expected
from tests.unit.checks.test_monotony import (
    CHECKS,
    EDITS,
    OF_GPUS,
    OF_PEERS,
    SEED,
    eased_one_by_one,
    gravest,
    verdicts,
)

from .test_several_parts import CORPUS, one_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from preflight.captured import Captured
    from preflight.facts import Facts

CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
FINDINGS: Final = ("warn", "fail", "flaky")
COUNTS: Final = ("gpu.count", "ib.count")
ENDLESS: Final = frozenset((
    "kernel log", "environment", "launch script", "ps", "fuser -v", "lsof", "nvidia-smi pmon",
    "rdma link", "nvidia-smi --query-gpu --format=csv", "nvidia-smi -L",
))  # fmt: skip
"""Lists that may end at any line: where one was cut between two rows nobody can tell."""

pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")


@functools.cache
def texts() -> tuple[tuple[str, str, Captured], ...]:
    """(name, text, what is read of it)."""
    return tuple((name, text, captured_parts(text)[0]) for name, text in one_kind().items())


def expectation(one: Captured) -> Expected:
    """An inventory that expects what the text shows."""
    gpus, nics = len(one.facts.gpus or ()), len(one.facts.nics or ())
    links = {up_links(gpu) for gpu in one.facts.gpus or ()}
    each = links.pop() if len(links) == 1 else None
    return Expected(gpus=gpus or None, nics=nics or None, nvlinks_per_gpu=each or None)


def outcomes(
    one: Captured, expected: Expected, only: Collection[str] | None = None
) -> dict[str, str]:
    """What the checks say for which the text is enough, and those that count."""
    asked = {*one.checks, *COUNTS} if only is None else {*one.checks} & {*only}
    said = verdicts(one.facts, expected, [each for each in CHECKS if each.check.id in asked])
    if not one.damaged:
        return said
    held = ("ok", "warn", "not_run")  # as `preflight read` does
    return {check: "unknown" if now in held else now for check, now in said.items()}


def parts(kind: str, text: str) -> Iterable[Captured]:
    """What the reader of one kind finds; no other reader yields that kind, and all take longer."""
    if kind in nvidia_smi.KINDS:
        return nvidia_smi.read(text)
    read = {
        topology.KIND: topology.read_ibnetdiscover,
        topology.IBSWINFO_KIND: topology.read_ibswinfo,
        "ethtool -S": ethernet.read_ethtool,
    }.get(kind)
    return captured_parts(text) if read is None else filter(None, [read(text)])


@pytest.mark.slow
def test_no_edit_makes_the_verdict_on_a_real_text_better() -> None:
    """Two edits, one after another, of what a text told, by the checks that it is enough for."""
    eased = []
    for case in range(CASES):
        pick = random.Random(f"{SEED} {case}")  # noqa: S311
        name, _, one = pick.choice(texts())
        expected = expectation(one)
        rank, done = gravest(outcomes(one, expected)), list[str]()
        for what, edit in pick.choices(EDITS, k=2):
            one = replace(one, facts=edit(pick, one.facts))
            done.append(what)
            now = gravest(outcomes(one, expected))
            if now < rank:
                eased.append((name, tuple(done)))
            rank = now
    assert eased == []


@pytest.mark.slow
def test_one_gpu_more_that_gets_worse_eases_no_verdict_on_a_real_text() -> None:
    """Two of four that differ prove as much as one; slots of cards may differ by design."""
    eased = []
    for name, _, one in texts():
        expected = expectation(one)
        known = all(board(gpu.name) for gpu in one.facts.gpus or ())

        def rank(edited: Facts, one: Captured = one, expected: Expected = expected) -> int:
            return gravest(outcomes(replace(one, facts=edited), expected))

        edits = [edit for edit in (*OF_GPUS, *OF_PEERS) if known or edit != "half the lanes"]
        eased += [(name, *each) for each in eased_one_by_one(one.facts, rank, edits, "by peers")]
    assert eased == []


@pytest.mark.slow
def test_a_cut_text_proves_nothing_of_what_is_missing() -> None:
    """Cut anywhere, by its end or in its middle: where something is missing, no check says ok."""
    passed = []
    closed = [
        (name, text, one, sick)
        for name, text, one in texts()
        if one.kind not in ENDLESS and not one.damaged and "_section" not in name
        if (sick := {c for c, o in outcomes(one, Expected()).items() if o in FINDINGS})
    ]  # a section alone is an excerpt: rows that are cut out of it leave another one
    assert len(closed) > 7

    @functools.cache  # a short text has few cuts
    def eased(which: int, at: int, end: int) -> list[str]:
        _, text, whole, sick = closed[which]
        if not text[end:].strip() and "\n" in text[at - 1 : at + 1]:
            return []  # a list that ends with a row is as whole as any
        return [
            check
            for one in parts(whole.kind, text[:at] + text[end:])
            if one.kind == whole.kind and one.facts != whole.facts
            for check, said in outcomes(one, Expected(), sick).items()
            if said == "ok"
        ]

    for case in range(CASES):
        pick = random.Random(f"{SEED} cut {case}")  # noqa: S311
        name, text, _, _ = one = pick.choice(closed)
        at = pick.randrange(len(text))
        end = len(text) if case % 2 else min(at + pick.randrange(1, 400), len(text))
        found = eased(closed.index(one), at, end)
        passed += [(name, at, end, check) for check in found]
    assert passed == []
