"""Other programs rely on the report: its schema, its atomic writing, its clean text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from preflight.core.text import LONGEST, escape_json, printable, wrapped
from preflight.report.document import SCHEMA, Report
from tests.unit.report.json_schemas import schema_of

DOCS = Path(__file__).parents[3] / "docs"
OURS = schema_of(Report, f"preflight report.json, schema {SCHEMA}")


def test_the_schema_file_is_the_one_we_write() -> None:
    """docs/reference/report.schema.json describes the document as the code has it."""
    stored = json.loads((DOCS / "reference" / "report.schema.json").read_text())
    assert _unordered(stored) == _unordered(OURS)


def _unordered(schema: object) -> object:
    """The alternatives in one order: releases of msgspec differ in it."""
    if isinstance(schema, dict):
        return {key: _unordered(value) for key, value in schema.items()}
    return sorted(map(_unordered, schema), key=str) if isinstance(schema, list) else schema


def test_every_field_of_the_report_is_explained() -> None:
    """docs/reference/report.md mentions each top-level field."""
    page = (DOCS / "reference" / "report.md").read_text()
    for field in OURS["$defs"]["Report"]["properties"]:
        assert f"`{field}" in page


@given(st.text())
def test_nothing_a_node_says_can_drive_the_terminal(text: str) -> None:
    """Escape sequences, control and bidirectional characters are gone, and it ends."""
    shown = printable(text)
    assert len(shown) <= LONGEST
    assert all(char.isprintable() or char == " " for char in shown)


@given(st.text(alphabet="ab c-,[]", max_size=300), st.integers(40, 100))
def test_wrapping_keeps_to_the_width(text: str, width: int) -> None:
    """Lines of ordinary words fit the terminal."""
    words = [word[:20] for word in text.split()]
    for line in wrapped(" ".join(words), first="    do: ", indent="        ", width=width):
        assert len(line) <= width


@given(st.text())
@example("\\u001b \\\x1b")
@example("a\nb\tc")
def test_no_text_of_a_document_drives_a_terminal_that_prints_it(text: str) -> None:
    """What a node made up is replaced before it is stored; all else comes back as it was."""
    written = escape_json(msgspec.json.encode(text).decode("utf-8", "surrogatepass"))
    assert written.isascii()
    assert written.isprintable()
    back = json.loads(written)
    assert len(back) == len(text)
    for said, kept in zip(text, back, strict=True):
        drives = said not in "\n\t" and unicodedata.category(said) in {"Cc", "Cf", "Zl", "Zp"}
        assert kept == ("\ufffd" if drives else said)
