"""One line on how much of the fabric was looked at: what no run has seen may be bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.report.document import CoverageRow


def coverage_words(seen: CoverageRow) -> str:
    """Say it in words, with how to come to the rest."""
    more = f"; {_leaf_pairs(seen)}" if seen.leaf_pairs else ""
    if seen.repairs:
        more += f"; {seen.repairs:,} for partners of nodes that are out"
    if seen.retests:
        more += f"; {seen.retests:,} measured again"
    if seen.pairs_run == seen.pairs:
        return f"{_every(seen.pairs)} this run{more}"
    this_run = f"{seen.pairs_run:,} of {seen.pairs:,} pairs this run"
    return f"{this_run}{_others(seen)}{more}"


def _every(pairs: int) -> str:
    return "the only pair" if pairs == 1 else f"all {pairs:,} pairs"


def _others(seen: CoverageRow) -> str:
    if seen.pairs_known is None and seen.rounds >= seen.rounds_total > 0:
        return " (all were planned: the others are not run, with the reason)"
    if seen.pairs_known is None:
        return " (all: --preflight-sweep=exhaustive, or night by night: --preflight-history=DIR)"
    more = seen.pairs_known > seen.pairs_run
    known = f", {seen.pairs_known:,} with earlier ones" if more else ""
    if seen.runs_left:
        runs = "run" if seen.runs_left == 1 else "runs"
        return f"{known}; all in {seen.runs_left:,} more {runs} like this"
    if seen.runs_left is None:
        return f"{known}; suspects take its only round: give --preflight-budget=SECONDS"
    lacking = seen.pairs - seen.pairs_known
    return f", all{f' but {lacking:,}' if lacking else ''} with earlier ones"


def _leaf_pairs(seen: CoverageRow) -> str:
    known = seen.leaf_pairs_known
    more = f", {known:,} with earlier runs" if known and known > seen.leaf_pairs_run else ""
    return f"leaf pairs {seen.leaf_pairs_run:,} of {seen.leaf_pairs:,}{more}"
