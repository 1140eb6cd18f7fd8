"""What `preflight blame` says of stored samples, as lines and as a document."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from preflight.core.text import plain_json, wrapped
from preflight.report.document import BlameRow, schema_of
from preflight.report.findings import Finding
from preflight.report.terminal import finding_lines

SCHEMA = 1
"""Raised by a change that an older reader would misread. Additions do not raise it."""

_INDENT = " " * 11


class Told(Struct, frozen=True, kw_only=True):
    """The whole document; docs/samples.md explains each field."""

    schema: int = SCHEMA
    preflight: str
    samples: str
    """The file they were read from."""
    form: str
    run: str
    """The random id of the run that measured them, where they are of one."""
    exit: Annotated[int, Meta(ge=0, le=5)]
    backend: str
    nodes: tuple[str, ...]
    leaves: int
    """How many leaf switches are known."""
    rails: int
    rounds: int
    pairs: int
    """Pairs that were tried, each rail and round counted."""
    not_ready: tuple[str, ...]
    exclude: str
    """Those folded, to paste after `--exclude=`."""
    apart: tuple[tuple[str, str], ...]
    """Pairs whose path is bad though both nodes are fine."""
    findings: tuple[Finding, ...]
    blames: tuple[BlameRow, ...]
    missed: str
    """What the samples were too few to show, as a run says it."""
    notes: tuple[str, ...]
    """What was not judged and why, and what is not a finding but should be known."""


def encode(told: Told) -> str:
    """Write it as indented JSON in plain ASCII that ends in a newline."""
    return plain_json(told)


def json_schema() -> dict[str, Any]:
    """Describe the document as JSON Schema; `docs/blame.schema.json` holds a copy of this."""
    return schema_of(Told, f"preflight blame --json, schema {SCHEMA}")


def lines(told: Told, width: int) -> list[str]:
    """Lay it out as a run's summary is."""
    what = (
        f"{told.samples}: {_many(len(told.nodes), 'node')}, {_many(told.pairs, 'pair')} tried "
        f"({_many(told.rails, 'rail')}, {_many(told.rounds, 'round')}), {told.backend}"
    )
    said = wrapped(what, first="samples    ", indent=_INDENT, width=width)
    for finding in told.findings:
        said += finding_lines(finding, told.nodes, width)
    if told.missed:
        said += wrapped(told.missed, first="missed     ", indent=_INDENT, width=width)
    for note in told.notes:
        said += wrapped(note, first="note       ", indent=_INDENT, width=width)
    if told.exclude:
        words = f"{told.exclude}  --exclude={told.exclude}"
        said += wrapped(words, first="not ready  ", indent=_INDENT, width=width)
    said += [f"apart      {a} and {b} must not be in one job" for a, b in told.apart]
    blamed = len({name for one in told.findings if one.condemns for name in one.subjects})
    count = f"{blamed} blamed" if blamed else "nobody is blamed"
    return [*said, f"{count}    exit {told.exit}"]


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
