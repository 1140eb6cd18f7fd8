"""Golden files: what the product printed once, compared byte by byte.

`PREFLIGHT_FREEZE=write` writes them anew; read the difference before you commit it.
"""

from __future__ import annotations

import difflib
import gzip
import os
import re
import sys
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
FIXED = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or not version("pytest").startswith("9."),
    reason="golden files are made with Python 3.11 and pytest 9, whose own words are among ours",
)
WRITE = os.environ.get("PREFLIGHT_FREEZE") == "write"

_LARGE = 4096
"""Bytes; a larger golden file is compressed, unless it is a table, whose lines git compares."""
_MOST_LINES = 80
_LINE = 400


def difference(path: Path, text: str) -> str:
    """Compare with a golden file; "" where nothing differs, else the first lines that do."""
    if WRITE:
        _write(path, text)
    expected = _read(path)
    if expected == text:
        return ""
    return f"{path.relative_to(FOLDER)}:\n" + changes(expected, text, most=_MOST_LINES)


def changes(before: str, after: str, most: int | None = None) -> str:
    """Return the lines that differ, "-" those of `before`, at `most` so many."""
    lines = difflib.unified_diff(_short(before), _short(after), "", "", "", "", 2, "")
    return "\n".join(islice(lines, 2, most)) or "only the ends of lines differ"


def _short(text: str) -> list[str]:
    """Cut lines that are too long for an eye, after each tag and where there is none."""
    cut = (re.split(r"(?<=>)(?=<)", line) for line in text.splitlines())
    return [piece for pieces in cut for long in pieces for piece in _pieces(long)]


def _pieces(long: str) -> list[str]:
    return [long[at : at + _LINE] for at in range(0, len(long), _LINE)] or [""]


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def _read(path: Path) -> str:
    if path.exists():
        return path.read_bytes().decode("utf-8", "surrogateescape")
    assert _packed(path).exists(), f"{path} is missing; PREFLIGHT_FREEZE=write makes it"
    return gzip.decompress(_packed(path).read_bytes()).decode("utf-8", "surrogateescape")


def _write(path: Path, text: str) -> None:
    content = text.encode("utf-8", "surrogateescape")
    path.parent.mkdir(parents=True, exist_ok=True)
    small = len(content) <= _LARGE or path.suffix == ".tsv"
    (_packed(path) if small else path).unlink(missing_ok=True)
    if small:
        path.write_bytes(content)
    elif not _packed(path).exists() or _read(path) != text:
        _packed(path).write_bytes(gzip.compress(content, 9, mtime=0))


def normalised(text: str, folder: Path) -> str:
    """Replace what differs from run to run or from machine to machine, and nothing else."""
    for pattern, instead in _DIFFERS:
        text = pattern.sub(instead, text)
    return text.replace(str(folder), "/tmp/preflight-RUNFOLD")


def _differs(reason: str, pattern: str, instead: str) -> tuple[re.Pattern[str], str]:
    assert reason
    return re.compile(pattern, re.MULTILINE), instead


_VERSION = re.escape(version("pytest-preflight"))
_ISO = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)?"
_QUOTE, _LINE_END = r'(?:\\?"|&quot;)', r"(?:\n|\\n|&#10;)"
_DIFFERS = (
    _differs(
        "a release must not rewrite all golden files",
        rf'\b(preflight(?:"?: ?"?|[ -])){_VERSION}\b', r"\1VERSION",
    ),
    _differs(
        "pytest names itself, Python and the plugins that happen to be installed",
        r"^(platform linux -- |plugins: ).*$", r"\1...",
    ),
    _differs("when it was judged", rf'("started": ?"|timestamp="){_ISO}', r"\1WHEN"),
    _differs(
        "the same, in the metrics",
        r"^(preflight_last_run_(?:timestamp|duration)_seconds) .*$", r"\1 NUMBER",
    ),
    _differs("how long judging took", r'\b(time=")\d+\.\d+', r"\1SECONDS"),
    _differs(
        "the same, in the report: what was measured has seconds of its own, which are kept",
        r'("started": ?"WHEN",\s*"seconds": ?)[\d.]+', r"\1SECONDS",
    ),
    _differs("the same, in our last lines", r"\d+\.\d s,(\s+)exit (\d)", r"SECONDS s,\1exit \2"),
    _differs(
        "the same, in pytest's, whose rule is as long as the line",
        r"^(?:=+ )?(\d+ .* in|no tests .* in) \d+\.\d+s(?: \([\d:]+\))?(?: =+)?$",
        r"== \1 SECONDS ==",
    ),
    _differs(
        "the same two, at the top of the page",
        r"<span>[^<]* UTC</span>( · <span>tier \w+</span> · )<span>[\d.]+ (?:s|min)</span>",
        r"<span>WHEN</span>\1<span>SECONDS</span>",
    ),
    _differs(
        "the day, in its title", r"(<title>preflight: .* · )\d+ \w{3} 20\d\d( · )", r"\1WHEN\2"
    ),
    _differs("the machine's name", r'(\bhostname=")[^"]*', r"\1HOST"),
    _differs(
        "pytest names the line of our source that raised, which is no expectation",
        r"/[^\s\"<>]*/preflight/[\w/]+\.py:\d+: ", "SOURCE: ",
    ),
    _differs(
        "pytest cuts a long message after so many characters, of which that source's path has some",
        r'(<failure message="broken: [^"]*?Traceback)[^"]*"', r'\1"',
    ),
    _differs(
        "that line is in the traceback of a site's check that is broken, with the line itself",
        rf"(File {_QUOTE})[^\"&\\]*/preflight/[\w/]+\.py({_QUOTE}, )line \d+, in \w+"
        rf"({_LINE_END}).*?{_LINE_END}",
        r"\1SOURCE\2\3",
    ),
)  # fmt: skip
