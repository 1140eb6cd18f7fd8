"""A report that is read again may have been written by anybody: one line, and what to give."""

from __future__ import annotations

import functools
import gzip
import json
import operator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace

from preflight.commands import cli
from preflight.errors import UsageError
from preflight.fabric.decoding.sensitivity import SensitivityRow
from preflight.report.document import BlameRow, PairRow, encode
from preflight.report.events import Began, Events, reread
from preflight.verdict import fail

from .nights import BENT, report

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXTS = ("subject", "component", "blame")
"""They name devices and pairs as well, and are shown as text."""

WHOLE = encode(report(("n1", "n2"))).decode()
PAIR = PairRow(a="n1", b="n2", rail=0, round=0, backend="gloo", state="ok", sizes=())
MISSED = SensitivityRow(
    node="n1", rail=0, operations=1, loaded_s=1, pairs=1, one_in=None, every_s=None, slower=None
)
BLAME = BlameRow(
    kind="node", component="n1", sentence="", confidence=1, advice="", pairs=(), culprits=("n1",)
)
HOSTILE = "v\x1b[31mm\n-o;reboot"


def test_a_run_reads_its_own_report(tmp_path: Path) -> None:
    """What it wrote comes back."""
    (tmp_path / "report.json").write_text(WHOLE)
    assert encode(reread(tmp_path)).decode() == WHOLE


@pytest.mark.parametrize(
    "started",
    ["0001-01-01", "", "yesterday", "9999-12-31T23:59:59Z", "2026-11-23", "2026-13-45T25:61:00Z"]
    + [f"2026-11-23{between}22:52:20+00:00" for between in ("\n", "\x9b", "\u202e", "<", '"', " ")],
)
def test_a_time_that_no_clock_shows_is_refused(tmp_path: Path, started: str) -> None:
    """Also before a page or a metric is made of it, or a JUnit file, which would hold its text."""
    (tmp_path / "report.json").write_text(json.dumps({**json.loads(WHOLE), "started": started}))
    with pytest.raises(UsageError, match=r"is not a report of this preflight: .*give another run"):
        reread(tmp_path)


@pytest.mark.parametrize("view", ["--public", "--prometheus={0}/x.prom", "--json", "--html=-"])
@pytest.mark.parametrize("odd", ["counts", "expected", "missing", "coverage", "evidence", "events"])
def test_numbers_and_evidence_without_bounds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: str, view: str
) -> None:
    """A count that no float holds, and evidence as deep as Python walks: one line, exit 4."""
    document = json.loads(encode(report(("n1", "n2"), {("gpu.ecc", "n1"): fail("b", advice="d")})))
    deep: list[object] = []
    for _ in range(600):
        deep = [deep]
    if odd == "counts":
        document["counts"]["ok"] = 10**400
    elif odd == "coverage":
        counted = ("rounds", "rounds_total", "seed", "pairs", "pairs_run", "leaf_pairs")
        known = dict.fromkeys(("pairs_known", "runs_left", "leaf_pairs_known"))
        more = {"topology": "", "leaf_pairs_run": 10**400}
        document["coverage"] = dict.fromkeys(counted, 10**400) | known | more
    elif odd in ("evidence", "events"):
        document["verdicts"][0]["evidence"] = {"a": deep}
    else:
        document[odd] = 10**400
    (tmp_path / "report.json").write_text(json.dumps(document))
    if odd == "events":
        (tmp_path / "report.json").unlink()
        began = {
            "event": "began", "preflight": "0.1.0", "run": "ab", "tier": "quick", "origin": "",
            "started": "2026-11-22T02:00:00+00:00", "nodes": ["n1"], "expected": {},
        }  # fmt: skip
        said = {"event": "verdict", **document["verdicts"][0]}
        (tmp_path / "events.jsonl").write_text(f"{json.dumps(began)}\n{json.dumps(said)}\n")
    words = view.format(tmp_path).split("=")
    assert cli.main(["report", str(tmp_path), *words]) == 4
    told = capsys.readouterr().err
    assert "is not a report of this preflight" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("odd", ["culprits", "blames", "component"])
def test_blames_without_bounds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: str
) -> None:
    """Each culprit of each blame is a finding of each of a pair's verdicts: one line, exit 4."""
    bent = {("gpu.ecc", "n1"): fail("b", advice="d", blame="c0 and c1")}
    document = json.loads(encode(report(("n1", "n2"), bent)))
    row = json.loads(msgspec.json.encode(BLAME)) | {"pairs": ["n1"], "culprits": []}
    (verdict,) = [one for one in document["verdicts"] if one["blame"]]
    document["verdicts"] = [verdict] * 5000
    document["blames"] = [{**row, "component": f"c{number}"} for number in range(2)]
    if odd == "culprits":
        for blame in document["blames"]:
            blame["culprits"] = [f"m{number}" for number in range(1000)]
    elif odd == "blames":
        document["blames"] *= 1000
    else:
        document["blames"][0]["component"] = "c" * 5000
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert cli.main(["report", str(tmp_path)]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a report of this preflight: its blames" in line


def test_a_check_whose_id_no_file_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page looks for the check's documentation by its id."""
    document = json.loads(encode(report(("n1",), {("gpu.count", "n1"): BENT})))
    document["verdicts"][0]["check"] = "gpu.count" * 40
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert cli.main(["report", str(tmp_path), f"--html={tmp_path}/a.html"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "gpu.count" in line


def _leaves(value: object, place: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where a node is named: by itself, or as the key of a table."""
    if value == "n1":
        yield place
    below = value.items() if isinstance(value, dict) else ()
    for key, one in enumerate(value) if isinstance(value, list) else below:
        yield from [(*place, key)] * (key == "n1")
        yield from _leaves(one, (*place, key))


def test_no_field_holds_a_name_that_is_none(tmp_path: Path) -> None:
    """Names are pasted into shells and printed: all of them keep to the grammar of host names."""
    bent = fail("bent", advice="drain", culprits=("n1",), suspects=("n1",))
    told = report(("n1", "n2"), {("gpu.ecc", "n1"): bent}, leaves={"n1": "leaf1"}, pairs=[PAIR])
    fleet = replace(told.fleet, apart=(("n1", "n2"),), unjudged=("n1",), left_out={"n1": "busy"})
    told = replace(told, fleet=fleet, sensitivity=(MISSED,), blames=(BLAME,))
    whole = encode(told).decode()
    path = tmp_path / "report.json"
    path.write_text(whole)
    assert reread(tmp_path)
    places = [place for place in _leaves(json.loads(whole)) if place[-1] not in _TEXTS]
    assert len(places) >= 12
    for *above, last in places:
        document = json.loads(whole)
        table = functools.reduce(operator.getitem, above, document)
        value = table.pop(last) if last == "n1" else HOSTILE
        table[HOSTILE if last == "n1" else last] = value
        path.write_text(json.dumps(document))
        with pytest.raises(UsageError, match="is not a report of this preflight") as caught:
            reread(tmp_path)
        assert str(caught.value).isprintable(), (above, last)


def test_no_killed_run_holds_a_name_that_is_none(tmp_path: Path) -> None:
    """Its events are held to the same."""
    began = Began(
        preflight="0.1.0", run="ab", started="2026-11-22T02:00:00+00:00", tier="quick",
        nodes=("n1",), origin="", expected={"gpu.count": ("*",)},
    )  # fmt: skip
    line = msgspec.json.encode(began).decode()
    (tmp_path / "events.jsonl").write_text(line)
    assert reread(tmp_path).fleet.nodes == ("n1",)
    (tmp_path / "events.jsonl").write_text(line.replace('"n1"', json.dumps(HOSTILE)))
    with pytest.raises(UsageError, match="is not a report of this preflight"):
        reread(tmp_path)


def test_a_check_has_an_id(tmp_path: Path) -> None:
    """It is printed as it is; a stranger's report has no other words there."""
    (tmp_path / "report.json").write_text(WHOLE.replace("gpu.ecc", "\\u001b[31m</pre>"))
    with pytest.raises(UsageError, match="is not the id of a check"):
        reread(tmp_path)


@pytest.mark.parametrize("held", [7, None, [[]], {}, "n1"])
@pytest.mark.parametrize("key", ["busy", "not_looked_at"])
def test_evidence_may_be_anything(tmp_path: Path, key: str, held: object) -> None:
    """In the events of a killed run, from which is told who is ready."""
    began = Began(
        preflight="0.1.0", run="ab", started="2026-11-22T02:00:00+00:00", tier="quick",
        nodes=("n1", "n2"), origin="",
        expected={"fabric.pair": ("n1-n2",), "job.all": ("fleet:all",)},
    )  # fmt: skip
    lines = [msgspec.json.encode(began)]
    for check, subject in (("fabric.pair", "n1-n2"), ("job.all", "fleet:all")):
        row = {"event": "verdict", "check": check, "subject": subject, "outcome": "ok"}
        text = {"sentence": "fine", "advice": "", "evidence": {key: held}}
        lines.append(msgspec.json.encode({**row, **text}))
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    assert reread(tmp_path).fleet.not_ready == ()


@pytest.mark.parametrize("name", ["report.json", "events.jsonl"])
def test_a_document_without_bottom_is_refused(tmp_path: Path, name: str) -> None:
    """Brackets that nest a hundred thousand deep, where a field is skipped."""
    deep = WHOLE.strip()[:-1].replace("\n", "") + ',"odd":' + "[" * 100_000
    (tmp_path / name).write_text(deep)
    with pytest.raises(UsageError, match="give another run"):
        reread(tmp_path)


def test_the_page_of_a_killed_run_blames_by_its_samples(tmp_path: Path) -> None:
    """It measured, but was killed before its verdicts: the page shows the slow rail."""
    frozen = Path(__file__).parents[2] / "frozen" / "runs" / "rehearsal-slow-rail"
    (tmp_path / "measured.json").write_bytes(
        gzip.decompress((frozen / "measured.json.gz").read_bytes())
    )
    Events(tmp_path / "events.jsonl").begin(
        Began(
            preflight="0", run="r", started="2026-11-24T10:00:00Z", tier="quick", nodes=("n1",),
            origin="", expected={"fabric.allreduce": ("*",)},
        )
    )  # fmt: skip
    page = tmp_path / "a.html"
    assert cli.main(["report", str(tmp_path), f"--html={page}"]) == 0
    assert "Every pair against its peers" in page.read_text()
    assert "No node or path is blamed" not in page.read_text()
