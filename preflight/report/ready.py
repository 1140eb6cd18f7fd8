"""Who may be launched on, who may not, and the exit code that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.ledger import Entry


class Readiness(Struct, frozen=True, kw_only=True):
    """Nodes in fleet order. `apart`: pairs whose path is bad though both nodes are fine."""

    ready: tuple[str, ...]
    not_ready: tuple[str, ...]
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def launchable(self) -> tuple[str, ...]:
        """The ready nodes, without the later one of each pair that must stay apart."""
        dropped: set[str] = set()
        for a, b in self.apart:
            if a not in dropped:
                dropped.add(b)
        return tuple(name for name in self.ready if name not in dropped)


def readiness(nodes: Sequence[str], entries: Iterable[Entry], *, strict: bool) -> Readiness:
    """Sort the nodes by whether any verdict condemns them.

    A verdict condemns the node it blames, else its subject; a pair with both ends cleared keeps
    them apart; a pair that blames neither makes both not ready, as either may be the culprit.
    """
    bad: set[str] = set()
    apart: list[tuple[str, str]] = []
    for entry in entries:
        if not counts_as_failure(entry, strict=strict):
            continue
        if entry.verdict.blame in nodes:
            bad.add(entry.verdict.blame)
        elif len(entry.nodes) == 2 and entry.verdict.blame.startswith("pair "):  # noqa: PLR2004  a pair
            apart.append((entry.nodes[0], entry.nodes[1]))
        else:
            bad.update(entry.nodes)
    return Readiness(
        ready=tuple(name for name in nodes if name not in bad),
        not_ready=tuple(name for name in nodes if name in bad),
        apart=tuple(pair for pair in apart if bad.isdisjoint(pair)),
    )


def counts_as_failure(entry: Entry, *, strict: bool) -> bool:
    """Whether a verdict makes its subject not ready; `strict` adds warnings and missing grants."""
    return entry.verdict.condemns or (
        strict and entry.verdict.outcome in (Outcome.WARN, Outcome.UNKNOWN)
    )


def exit_code(
    entries: Sequence[Entry],
    ready: Readiness,
    *,
    strict: bool,
    need: int | None,
    interrupted: bool = False,
    broke: bool = False,
) -> int:
    """Map a finished run to its exit code.

    0 ready; 1 something is condemned, flaky or unknown; 2 interrupted; 3 preflight broke or lost
    verdicts and nothing is condemned; 5 nothing to check. With `need`, enough ready nodes are 0.
    """
    if interrupted:
        return 2
    if not entries:
        return 3 if broke else 5
    if any(counts_as_failure(entry, strict=strict) for entry in entries):
        enough = need is not None and len(ready.launchable) >= need
        return 0 if enough and not broke else 1
    ours = any(e.verdict.outcome in (Outcome.BROKEN, Outcome.LOST) for e in entries)
    if ours or broke:
        return 3
    return 1 if need is not None and len(ready.launchable) < need else 0
