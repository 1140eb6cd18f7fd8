"""Recorded runs, judged again from what they measured: all that a user sees of each.

A run is a folder of `runs/`: `run.json` has its arguments and the files it was started beside,
`measured.json.gz` what it measured, `expected/` what was shown. `variants.json` has more
arguments for some of them.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frozen.command import module, within
from tests.frozen.golden import FIXED, FOLDER, changes, difference, normalised
from tests.frozen.store import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = FIXED

RUNS = FOLDER / "runs"
VARIANTS: dict[str, dict[str, list[str]]] = json.loads((FOLDER / "variants.json").read_text())
NAMES = [
    *((path.parent.name, "") for path in sorted(RUNS.glob("*/run.json"))),
    *((run, variant) for run, variants in VARIANTS.items() for variant in variants),
]
IN_A_MONTH = (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
REPORTS = (
    (),
    ("--json",),
    ("--html", "-"),
    ("--junit", "-"),
    ("--prometheus", "again.prom"),
    ("--public",),
    ("--public", "--json"),
)
"""Arguments of `preflight report`."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is everywhere as long: paths are wrapped with the text around them."""
    made = Path(tempfile.mkdtemp(prefix="preflight-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("name", "variant"), NAMES, ids=["+".join(filter(None, pair)) for pair in NAMES]
)
def test_a_recorded_run_is_judged_as_before(name: str, variant: str, folder: Path) -> None:
    """The exit code, the screen, every file of the report, and every report made of it later."""
    run = json.loads((RUNS / name / "run.json").read_text())
    _lay_out(folder, name, run["files"])
    more = VARIANTS[name][variant] if variant else []
    seen = _judged(folder, [*run["arguments"], *more])
    if not variant:
        seen["reports.txt"] = _reported(folder, seen)
    place = RUNS / name / (f"expected-{variant}" if variant else "expected")
    wrong = [difference(place / file, text) for file, text in seen.items()]
    assert not any(wrong), "\n".join(filter(None, wrong))


def _lay_out(folder: Path, name: str, files: dict[str, str]) -> None:
    """Write what the run was started beside; it starts in `working`."""
    (folder / "working").mkdir()
    for path, text in files.items():
        place = folder / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text(text.replace(SOON, IN_A_MONTH))
    packed = (RUNS / name / "measured.json.gz").read_bytes()
    (folder / "measured.json").write_bytes(gzip.decompress(packed))


def _judged(folder: Path, arguments: list[str]) -> dict[str, str]:
    """Judge the measurements; what was shown and written, by file name."""
    told = module(
        folder / "working", "pytest", "-p", "no:cacheprovider", "--preflight",
        *(word.replace("{run}", str(folder)) for word in arguments),
        f"--preflight-replay={folder}/measured.json", f"--preflight-report={folder}/report",
        f"--preflight-prometheus={folder}/metrics.prom", f"--junitxml={folder}/junit.xml",
    )  # fmt: skip
    beside = [folder / name for name in ("metrics.prom", "junit.xml", "exclude.txt")]
    written = [one for one in (*sorted(folder.glob("report/*")), *beside) if one.exists()]
    shown = told.text("pytest --preflight ...") + "".join(f"wrote {one.name}\n" for one in written)
    seen = {"terminal.txt": shown} | {path.name: path.read_text() for path in written}
    assert told.exit in (0, 1), shown
    assert "INTERNALERROR" not in shown
    return {name: _normalised(text, folder) for name, text in seen.items()}


def _normalised(text: str, folder: Path) -> str:
    """As all golden files, and with the day that an inventory was given."""
    return normalised(text, folder).replace(IN_A_MONTH, SOON)


def _reported(folder: Path, seen: dict[str, str]) -> str:
    """Every report that can be made of a run's folder; what the run itself wrote, by its name."""
    same = {text: f"as {name}\n" for name, text in seen.items()}
    page = seen.get("report.html", "")
    if page:
        (folder / "measured.json").rename(folder / "report" / "measured.json")  # as a run leaves it
    shown = []
    for words in REPORTS:
        told = within(folder, "report", "report", *words)
        file = folder / words[-1] if words and words[-1].endswith(".prom") else None
        text = _normalised(file.read_text() if file and file.exists() else told.out, folder)
        out = same.get(text, text)
        if page and words[:1] == ("--html",):
            out = f"as report.html: {changes(page, text)}\n"
        err = _normalised(told.err, folder)
        shown.append(f"$ preflight report {' '.join(words)}\n{out}{err}exit {told.exit}\n\n")
    return "".join(shown)
