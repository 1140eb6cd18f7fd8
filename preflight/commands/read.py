"""`preflight read`: outputs that somebody captured on a machine out of reach, judged all the same.

A support ticket brings a dmesg, not a login. The checks are those of a run; what a text does not
tell they do not judge, and nothing in a damaged text is proven healthy.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from preflight.commands.read_archive import read_archive
from preflight.commands.read_judged import document, exit_code, judge_captured
from preflight.errors import UsageError
from preflight.fleet.files import open_stream
from preflight.offline.archive import MAGIC
from preflight.offline.readers import KINDS, captured
from preflight.report.findings import counts, findings
from preflight.report.plain import plain
from preflight.report.terminal import finding_lines
from preflight.report.text import printable, wrapped
from preflight.verdict import Outcome

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from preflight.ledger import Entry
    from preflight.offline.captured import Captured

LARGEST = 64 << 20
"""Bytes of one text; who has more passes the part around the fault."""

_WIDTH = 100
_QUIET = {Outcome.OK: "ok", Outcome.NOT_RUN: "-"}


def run(arguments: argparse.Namespace) -> int:
    """Judge every file: 0 fine, 1 a fault, 3 not all could be judged, 5 nothing of a known kind.

    UsageError (exit 4) for a file that cannot be opened or is larger than LARGEST, and for an
    archive that is damaged.
    """
    read: dict[str, Captured | None] = {}
    swept: list[Entry] = []
    for path in arguments.files:
        name, content = printable(str(path)), _content(path)
        if content.startswith(MAGIC):
            parts, found = read_archive(name, content, alone=len(arguments.files) == 1)
            read.update(parts)
            swept += found
        else:
            read[name] = captured(content.decode("utf-8", "replace"))
    entries = (*judge_captured(read), *swept)
    code = exit_code(read, entries)
    if arguments.json:
        sys.stdout.write(plain(document(read, entries, code)))
    else:
        width = min(shutil.get_terminal_size().columns, _WIDTH)
        sys.stdout.write("".join(f"{line}\n" for line in _lines(read, entries, code, width)))
    return code


def _content(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with open(open_stream(path), "rb") as file:  # noqa: PTH123  a descriptor
                content = file.read(LARGEST + 1)
    except IsADirectoryError as error:
        folder = f"cannot read {path}: it is a folder; type preflight read {path}/*"
        raise UsageError(folder) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a readable file") from error
    if len(content) > LARGEST:
        raise UsageError(f"{path} has over {LARGEST >> 20} MiB: pass the part around the fault")
    return content


def _lines(
    read: Mapping[str, Captured | None], entries: Sequence[Entry], code: int, width: int
) -> Iterator[str]:
    for name, one in read.items():
        yield name
        what = one.kind if one else f"nothing that can be read here, which is: {KINDS}"
        yield from wrapped(printable(what), first=" " * 7, indent=" " * 7, width=width)
        for each in entries:
            word = _QUIET.get(each.verdict.outcome)
            if word is not None and each.nodes == (name,):
                words = f"{each.check}{each.subject.removeprefix(name)}: {each.verdict.sentence}"
                yield from wrapped(words, first=f"{word:<6} ", indent=" " * 7, width=width)
    for finding in findings(entries):
        yield from finding_lines(finding, (), width)
    counted = counts(entries)
    told = ", ".join(
        f"{counted[outcome]} {outcome.value}" for outcome in Outcome if counted[outcome]
    )
    yield f"{told.replace('_', ' ') or 'nothing was judged'}    exit {code}"
