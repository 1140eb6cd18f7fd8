"""Blame falls on the culprit, and on no node if the samples leave it open."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.decoding.hard_failures import decode
from preflight.fabric.schedule import circle_rounds


@dataclass(frozen=True)
class Result:
    """One pair that is either good or bad."""

    a: str
    b: str
    bad: bool
    suspect: str = ""
    rail: int = 0

    @property
    def nodes(self) -> tuple[str, str]:
        """Both ends."""
        return self.a, self.b

    @property
    def good(self) -> bool:
        """Not bad."""
        return not self.bad


def fleet(count: int) -> list[str]:
    """h0, h1, ..."""
    return [f"h{n}" for n in range(count)]


def results(count: int, bad: set[str], paths: set[tuple[str, str]], rounds: int) -> list[Result]:
    """A pair is bad if an end or the path between is."""
    pairs = [pair for around in circle_rounds(fleet(count), rounds) for pair in around]
    return [Result(a, b, bool({a, b} & bad) or (a, b) in paths) for a, b in pairs]


@given(st.integers(4, 40), st.data())
def test_one_slow_node_is_found_and_no_other_is_blamed(count: int, data: st.DataObject) -> None:
    """Exactly one slow node among four or more: it and it alone, whatever the rounds."""
    culprit = data.draw(st.sampled_from(fleet(count)))
    rounds = data.draw(st.integers(3, 20))
    found = decode(results(count, {culprit}, set(), rounds))
    assert [(one.kind, one.nodes) for one in found] == [("node", (culprit,))]


@given(st.integers(5, 30), st.data())
def test_one_bad_path_blames_neither_end(count: int, data: st.DataObject) -> None:
    """Both ends are fine with others, so it is what lies between them."""
    path = data.draw(st.sampled_from(list(combinations(fleet(count), 2))))
    found = decode(results(count, set(), {path}, 1000))
    assert [(one.kind, one.nodes) for one in found] == [("path", path)]


@given(st.integers(4, 30), st.sets(st.integers(0, 29), max_size=8))
def test_no_good_node_is_blamed_whatever_the_number_of_faults(
    count: int, numbers: set[int]
) -> None:
    """All pairs measured: a blamed node is a bad one, however many are bad."""
    bad = {f"h{n}" for n in numbers if n < count}
    found = decode(results(count, bad, set(), 1000))
    assert {one.node for one in found if one.kind == "node"} <= bad
    assert not [one for one in found if one.kind == "path"]


def test_two_nodes_cannot_be_separated() -> None:
    """With a single pair the culprit is one of two, and the blame says so."""
    (found,) = decode([Result("h1", "h2", bad=True)])
    assert (found.kind, found.nodes) == ("unresolved", ("h1", "h2"))


def test_a_node_seen_with_one_partner_only_is_not_blamed() -> None:
    """It may be the node or the path; the partner, cleared elsewhere, is not among the suspects."""
    (found,) = decode([Result("h1", "h2", bad=False), Result("h1", "h3", bad=True)])
    assert (found.kind, found.nodes) == ("unresolved", ("h3",))


def test_a_node_that_fell_silent_needs_no_guessing() -> None:
    """Its agent vanished, so even its single pair is its own."""
    (found,) = decode([Result("h1", "h2", bad=True)], {"h2"})
    assert (found.kind, found.nodes) == ("node", ("h2",))


def test_a_partner_without_the_bad_rail_clears_no_node_of_it() -> None:
    """Of four nodes one lacks rail 1, and on another rail 1 is bad: it, and no path, is named."""
    rail_1 = [("h0", "h1", True), ("h0", "h3", False), ("h1", "h3", True)]
    tested = [Result(a, b, bad=False) for a, b in combinations(fleet(4), 2)]
    tested += [Result(a, b, bad, rail=1) for a, b, bad in rail_1]
    found = decode(tested)
    assert [(one.kind, one.nodes) for one in found] == [("node", ("h1",))]
