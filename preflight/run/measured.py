"""Everything a run has measured so far, and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from preflight.check import Stage
from preflight.core.files import file_errors, read_regular
from preflight.errors import UsageError
from preflight.fabric.impossible_samples import refuse_absurd_sweep
from preflight.fabric.samples import Sweep
from preflight.fabric.schedule import Planned
from preflight.facts.burn import Burned
from preflight.facts.model import Facts, Ports
from preflight.facts.node import Reach
from preflight.fleet.nodeset import check_names
from preflight.verdict import Verdict

LARGEST = 1 << 30
"""Bytes of a measured.json; a node takes some 100 KiB at most, a pair 50."""


_BY_NODE = ("reach", "facts", "ports", "port_troubles", "burned")
"""The fields of `Measured` with an entry for each node."""


class Measured(Struct, frozen=True, kw_only=True):
    """Results by node name. A stage adds its own part and leaves the rest as it was."""

    nonce: str
    reach: dict[str, Reach] = {}
    facts: dict[str, Facts] = {}
    ports: dict[str, Ports] = {}
    port_troubles: dict[str, str] = {}
    """Why a node that took part in the port stage gave no usable report."""
    burned: dict[str, Burned] = {}
    """Each node's burn-in result."""
    planned: Planned | None = None
    """The rounds of pairs that were planned, over all nodes."""
    sweep: Sweep | None = None
    skipped: dict[Stage, Verdict] = {}
    """Stages that were not run, and the verdict that every subject gets instead."""

    def encode(self) -> bytes:
        """Encode the results, for another process of the same run or for a later replay."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> Measured:
        """Decode what `encode` wrote; ValueError if it is malformed or has an invalid node name."""
        measured = msgspec.json.decode(content, type=cls)
        check_names(chain.from_iterable(getattr(measured, table) for table in _BY_NODE))
        rounds = measured.planned.rounds if measured.planned else ()
        check_names(chain(*chain(*rounds), measured.planned.leaves if measured.planned else ()))
        return measured

    def restrict(self, names: AbstractSet[str]) -> Measured:
        """Keep the results of these nodes and of pairs of them: a replay may leave nodes out."""
        ports = {
            name: replace(report, attempts=tuple(a for a in report.attempts if a.target in names))
            for name, report in self.ports.items()
        }
        part = replace(self, ports=ports, sweep=self.sweep and _restrict_sweep(self.sweep, names))
        return replace(part, **{name: _rows_of(getattr(part, name), names) for name in _BY_NODE})


def read_measured(path: Path) -> Measured:
    """Read a measured.json; UsageError if it is damaged, or holds numbers that no run measures."""
    advice = "give a run's folder, or its measured.json"
    with file_errors(f"cannot read the measurements {path}", advice):
        measured = Measured.decode(read_regular(path, LARGEST))
    if measured.sweep is not None:
        try:
            refuse_absurd_sweep(measured.sweep)
        except UsageError as error:
            raise UsageError(f"{path}: sweep.{error}") from error
    return measured


def _rows_of(table: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    return {name: row for name, row in table.items() if name in names}


def _restrict_sweep(sweep: Sweep, names: AbstractSet[str]) -> Sweep:
    fields = asdict(sweep).items()
    tables = {field: _rows_of(rows, names) for field, rows in fields if isinstance(rows, dict)}
    tables["cut_off"] = {name: host for name, host in tables["cut_off"].items() if host in names}
    return replace(
        sweep,
        **tables,
        rounds=tuple(tuple(p for p in pairs if names >= {*p}) for pairs in sweep.rounds),
        pairs=tuple(pair for pair in sweep.pairs if names >= {pair.a, pair.b}),
        unsettled=tuple(pair for pair in sweep.unsettled if names >= {*pair}),
        inside=tuple(row for row in sweep.inside if row.node in names),
        nccl_logs=tuple(log for log in sweep.nccl_logs if log.node in names),
        domain=tuple(pair for pair in sweep.domain if names >= {pair.a, pair.b}),
    )


class Progress:
    """Shows nothing; a subclass shows how far a run is.

    The run's main thread and its helper threads call it: a call must be quick and never raise.
    """

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show how far a phase is, and for which nodes it waits."""

    def line(self, text: str) -> None:
        """Show a line that stays on the screen."""
