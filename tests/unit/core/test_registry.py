"""Check files are refused in one line before anything runs, and cannot break a run that does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.core.registry import Registry, load_file, load_folder, shipped_folder
from preflight.errors import UsageError
from preflight.verdict import Outcome, Verdict
from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from pathlib import Path


def _conclude(folder: Path, body: str) -> Verdict:
    return load_file(write_check(folder, body=body))[0].conclude(object())


def test_the_shipped_checks_are_sound() -> None:
    """Every shipped check loads, and requires only what is judged before it."""
    registry = Registry(load_folder(shipped_folder()))
    assert [check.check.id for check in registry if check.check.stage == "net"] == ["net.ports"]


def test_two_checks_of_one_id(tmp_path: Path) -> None:
    """A site's check cannot silently replace a shipped one."""
    own = load_folder(write_check(tmp_path, "gpu.count").parent)
    with pytest.raises(UsageError, match=r"both declare 'gpu.count': rename one"):
        Registry([*load_folder(shipped_folder()), *own])


def test_an_unknown_requirement(tmp_path: Path) -> None:
    """A gate that nobody declares is refused by name."""
    with pytest.raises(UsageError, match=r"requires 'gpu.cuont', which no check declares"):
        Registry(load_file(write_check(tmp_path, requires=("gpu.cuont",))))


@pytest.mark.parametrize("ring", [("site.a",), ("site.a", "site.b", "site.c")])
def test_a_circle_of_requirements(tmp_path: Path, ring: tuple[str, ...]) -> None:
    """Checks that wait for each other are refused with the circle spelt out."""
    for check_id, required in zip(ring, (*ring[1:], ring[0]), strict=True):
        write_check(tmp_path, check_id, requires=(required,))
    with pytest.raises(UsageError, match=r"site.a requires .*site.a: break the circle"):
        Registry(load_folder(tmp_path))


def test_a_gate_of_a_later_stage(tmp_path: Path) -> None:
    """A check cannot wait for what is measured after it."""
    write_check(tmp_path, "site.a", requires=("site.b",))
    write_check(tmp_path, "site.b", stage="net")
    with pytest.raises(UsageError, match=r"'site.b' of the later stage net"):
        Registry(load_folder(tmp_path))


def test_a_gate_that_judges_pairs(tmp_path: Path) -> None:
    """A pair has no verdict for a single node to wait for."""
    write_check(tmp_path, "site.a", stage="fabric", requires=("site.b",))
    write_check(tmp_path, "site.b", stage="fabric", subject="pair")
    with pytest.raises(UsageError, match="which judges pairs"):
        Registry(load_folder(tmp_path))


@pytest.mark.parametrize(
    ("check_id", "more", "said"),
    [
        ("count", "", "no check id: write one such as gpu.count"),
        ("gpu.\x1b[31m", "", "no check id"),
        ("site.a", ", tier='quik'", "write one of prolog, quick, standard, deep"),
    ],
)
def test_a_declaration_that_cannot_be(tmp_path: Path, check_id: str, more: str, said: str) -> None:
    """An id that would spoil screens and a tier that does not exist are refused."""
    path = write_check(tmp_path)
    path.write_text(
        path.read_text().replace("'site.a'", repr(check_id)).replace("=()", f"=(){more}")
    )
    with pytest.raises(UsageError, match=said):
        load_file(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('boom')", "site.a raised ValueError: boom"),
        ("assert 1 == 2", "site.a raised AssertionError"),
        ("sys.exit(0)", "site.a raised SystemExit: 0"),
        ("pytest.skip('later')", "site.a raised Skipped: later"),
        ("return", "reached 0 verdicts, expected 1"),
        ("conclude(ok('a')); conclude(ok('b'))", "reached 2 verdicts, expected 1"),
        ("conclude('fine')", "concluded with str, expected a Verdict"),
    ],
)
def test_a_check_that_breaks(tmp_path: Path, body: str, said: str) -> None:
    """Whatever a check does but conclude once is `broken`: its own fault, never the node's."""
    verdict = _conclude(tmp_path, body)
    assert verdict.outcome is Outcome.BROKEN
    assert said in verdict.sentence
    assert not verdict.makes_not_ready
    assert ("Traceback" in verdict.evidence.get("traceback", "")) == ("raised" in said)


def test_ctrl_c_in_a_check_is_not_a_verdict(tmp_path: Path) -> None:
    """A person who stops the run is not a fault of the check that happened to run."""
    with pytest.raises(KeyboardInterrupt):
        _conclude(tmp_path, "raise KeyboardInterrupt")


@pytest.mark.parametrize(
    "evidence", ["note='\\ud800'", "path=object()", "number=10**400", "keys={object(): 1}"]
)
def test_evidence_that_cannot_be_written(tmp_path: Path, evidence: str) -> None:
    """A finding survives evidence that is not plain data: only the evidence is left out."""
    verdict = _conclude(tmp_path, f"conclude(fail('bad \\ud800', advice='drain', {evidence}))")
    assert (verdict.outcome, verdict.sentence) == (Outcome.FAIL, "bad ?")
    assert "cannot be written" in verdict.evidence["left_out"]
    assert json.loads(msgspec.json.encode(verdict))["advice"] == "drain"


def test_a_broken_check_may_say_anything(tmp_path: Path) -> None:
    """An exception whose words cannot be written still arrives as `broken`."""
    verdict = _conclude(tmp_path, "raise ValueError('\\ud800')")
    assert verdict.outcome is Outcome.BROKEN
    assert json.loads(msgspec.json.encode(verdict))["evidence"]["traceback"]
