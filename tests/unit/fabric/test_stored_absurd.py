"""Samples that cannot be, or contradict themselves, are refused with their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from tests.unit.fabric.stored_files import long_form, refused, short_form

LONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "negative time": (
        lambda d: d["pairs"][2]["first"]["timings"][0]["times_us"].__setitem__(3, -1.0),
        "expected a number >= 0.0, at pairs[2].first.timings[0].times_us[3]",
    ),
    "text for a number": (
        lambda d: d["pairs"][0].update(rail="one"),
        "expected a whole number, got text, at pairs[0].rail",
    ),
    "a state of its own": (
        lambda d: d["pairs"][0]["first"].update(state="excellent"),
        "invalid enum value 'excellent', at pairs[0].first.state",
    ),
    "a pair with itself": (
        lambda d: d["pairs"][1].update(b=d["pairs"][1]["a"]),
        "is paired with itself",
    ),
    "a pair that stands twice": (
        lambda d: d["pairs"].append(d["pairs"][0]),
        "pairs[6] ('h1-h4'): h1-h4 stands twice there",
    ),
    "an unknown node": (
        lambda d: d["pairs"][0].update(a="h9"),
        "pairs[0] ('h9-h4'): 'h9' is not one of the nodes",
    ),
    "ranks that disagree about rounds": (
        lambda d: d["pairs"][0].update(round=1),
        "pairs[0] ('h1-h4'): h1-h4 is not in rounds[1]; correct the rounds: ranks disagree",
    ),
    "a round that is not there": (
        lambda d: d["pairs"][0].update(round=77),
        "h1-h4 is not in rounds[77]",
    ),
    "a rail beyond all": (
        lambda d: d["pairs"][0].update(rail=10**9),
        "expected a whole number <= 1024, at pairs[0].rail",
    ),
    "a round with a node twice": (
        lambda d: d["rounds"][0].append(["h1", "h9"]),
        "rounds[0]: 'h1' stands twice",
    ),
    "another node's account": (
        lambda d: d["pairs"][0]["first"].update(node="h2"),
        "it is the account of 'h2', not of h1",
    ),
    "gaps that are missing": (
        lambda d: d["pairs"][0]["second"]["timings"][1]["gaps_us"].pop(),
        "second.timings[1]: 10 times and 9 gaps",
    ),
    "a timing without times": (
        lambda d: d["pairs"][0]["first"]["timings"][1].update(times_us=[], gaps_us=[]),
        "at pairs[0].first.timings[1].times_us",
    ),
    "times of nothing": (
        lambda d: d["pairs"][0]["first"]["timings"][1].update(times_us=[0, 0, 1], gaps_us=[1] * 3),
        "first.timings[1]: most of its times are 0 us",
    ),
    "the partner's account": (
        lambda d: d["pairs"][0]["first"].update(node="h4"),
        "it is the account of 'h4', not of h1; correct node, or swap",
    ),
    "a stranger's account": (
        lambda d: d["pairs"][0]["first"].update(node="h9"),
        "it is the account of 'h9', not of h1; correct node",
    ),
    "a start before all clocks": (
        lambda d: d["pairs"][0]["first"].update(started_s=-1.5),
        "expected a number >= 0.0, at pairs[0].first.started_s",
    ),
    "a start after all clocks": (
        lambda d: d["pairs"][0]["first"].update(started_s=1e15),
        "expected a number <= 1000000000000.0, at pairs[0].first.started_s",
    ),
    "retests from before the start": (lambda d: d.update(retested=-1), "number >= 0, at retested"),
    "retests after the end": (lambda d: d.update(retested=99), "sweep: retested 99"),
    "a leaf of a hostile name": (
        lambda d: d.update(leaves={"-x": "1"}),
        "leaves: '-x' is not a host",
    ),
    "a size twice": (
        lambda d: d["pairs"][0]["first"]["timings"].append(d["pairs"][0]["first"]["timings"][0]),
        "first.timings: a size stands twice",
    ),
    "mixed backends": (lambda d: d["pairs"][0].update(backend="nccl"), "backends are mixed"),
    "a hostile name": (
        lambda d: d["left_out"].update({"<b>\x1b[31m": "x"}),
        "left_out: '<b>\\x1b[31m' is not a host name",
    ),
    "a backend that is none": (
        lambda d: [pair.update(backend="mpi") for pair in d["pairs"]],
        "invalid enum value 'mpi', at pairs[0].backend",
    ),
    "a node that is cut off and was not left out": (
        lambda d: d.update(cut_off={"h4": "h1"}),
        "cut_off ('h4'): it does not stand in left_out; add it there",
    ),
    "a node that is cut off from a stranger": (
        lambda d: d.update(cut_off={"h5": "h9"}, left_out={"h5": "cut off"}),
        "cut_off ('h5'): from 'h9', which took no part; name the host",
    ),
    "a node that is cut off from itself": (
        lambda d: d.update(cut_off={"h5": "h5"}, left_out={"h5": "cut off"}),
        "cut_off ('h5'): from 'h5', which took no part",
    ),
    "a node that was left out and measured": (
        lambda d: d.update(left_out={"h4": "no torch"}),
        "left_out: 'h4' stands there, and has an account",
    ),
    "the inside of a node that was left out": (
        lambda d: d.update(
            left_out={"h5": "x"}, inside=[{"node": "h5", "backend": "gloo", "rails": [None]}]
        ),
        "left_out: 'h5' stands there, and has an account",
    ),
    "a pair over NVLink between two domains": (
        lambda d: d.update(
            domains={"h1": "rack/1", "h2": "rack/2"},
            domain=[
                {"a": "h1", "b": "h2", "rail": 0, "round": 0, "backend": "nccl"}
                | {"first": None, "second": None}
            ],
        ),
        "domain[0] ('h1-h2'): its nodes are of two domains; correct domains",
    ),
    "a size of nothing": (
        lambda d: d["ladder"][0].update(size_bytes=0),
        "expected a whole number >= 1, at ladder[0].size_bytes",
    ),
    "no iterations": (
        lambda d: d["ladder"][1].update(iterations=0),
        "number >= 1, at ladder[1].iterations",
    ),
    "a time that no clock tells": (
        lambda d: d["pairs"][0]["first"]["timings"][0]["times_us"].__setitem__(3, 1e-300),
        "first.timings[0]: a time is under 0.1 ns",
    ),
    "a later version": (
        lambda d: d.update(version=2),
        "its samples are of version 2, this preflight reads 1",
    ),
    "another document": (lambda d: [d.pop(key) for key in list(d)], "neither samples nor a run"),
}


@pytest.mark.parametrize("what", LONG)
def test_an_absurd_long_form_is_refused_with_its_place(tmp_path: Path, what: str) -> None:
    """One sentence says which entry contradicts what, and what to do."""
    change, expected = LONG[what]
    assert expected in refused(tmp_path, long_form(change))


SHORT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no operations": (lambda d: d["digests"][0].update(operations=0), "at digests[0].operations"),
    "times that fall": (
        lambda d: d["digests"][3].update(p50_us=1e9),
        "its times do not ascend from best_us over the percentiles to most_us",
    ),
    "a negative time": (lambda d: d["digests"][0].update(best_us=-1), "at digests[0].best_us"),
    "a cut below nothing": (lambda d: d["digests"][0].update(cut_us=-1), "at digests[0].cut_us"),
    "a digest of no pair": (
        lambda d: d["digests"][0].update(round=5),
        "digests[0] ('h1-h4'): its pair is not in tried",
    ),
    "a digest twice": (lambda d: d["digests"].append(d["digests"][0]), "stands twice"),
    "a node twice": (lambda d: d["nodes"].append("h1"), "nodes: a node stands twice"),
    "two partners at once": (
        lambda d: d["tried"][1].update(a="h1"),
        "is with h4 and with",
    ),
    "more standouts than operations": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, 1, 1, 1, 1]] * 11),
        "an operation stands out twice",
    ),
    "a standout after the last operation": (
        lambda d: d["digests"][0].update(standouts=[[0, 10, 1, 1, 1, 1]]),
        "standouts[0]: operation 10 of 10",
    ),
    "more standouts than are kept": (
        lambda d: d["digests"][0].update(
            operations=1000, standouts=[[0, at, 1, 1, 1, 1] for at in range(300)]
        ),
        "at digests[0].standouts",
    ),
    "an operation that stands out twice": (
        lambda d: d["digests"][0].update(standouts=[[0, 3, 1, 1, 1, 1]] * 2),
        "an operation stands out twice",
    ),
    "a standout beyond the longest": (
        lambda d: d["digests"][0].update(standouts=[[0, 3, 1e9, 1e9, 1, 1]]),
        "standouts[0]: 1e+09 us at both ends, and most_us is 200; correct either",
    ),
    "a best time that no clock tells": (
        lambda d: d["digests"][0].update(best_us=1e-300),
        "a time is under 0.1 ns; store times as they were measured",
    ),
    "a backend that is none": (
        lambda d: d.update(backend="mpi"),
        "invalid enum value 'mpi', at backend",
    ),
    "no backend": (lambda d: d.update(backend=""), "fabric: it names no backend"),
    "a standout before all clocks": (
        lambda d: d["digests"][0].update(standouts=[[-5, 1, 1, 1, 1, 1]]),
        "at digests[0].standouts[0][0]",
    ),
    "a median of nothing": (
        lambda d: d["digests"][0].update(best_us=0, p50_us=0),
        "number > 0.0, at digests[0].p50_us",
    ),
    "a stranger that stood still": (
        lambda d: d["tried"][0].update(stood_still="h9"),
        "tried[0] ('h1-h4'): stood_still or lost names another node",
    ),
    "retests from before the start": (lambda d: d.update(retested=-1), "number >= 0, at retested"),
    "a silent node of no name": (lambda d: d.update(silent={"": "x"}), "silent: '' is not a host"),
    "a negative standout": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, -1, 1, 1, 1]]),
        "at digests[0].standouts[0][2]",
    ),
    "a negative stall": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, 1, 1, 1, 1, 0, -1]]),
        "at digests[0].standouts[0][7]",
    ),
}


@pytest.mark.parametrize("what", SHORT)
def test_an_absurd_short_form_is_refused_with_its_place(tmp_path: Path, what: str) -> None:
    """As above."""
    change, expected = SHORT[what]
    assert expected in refused(tmp_path, short_form(change))
