"""What a site accepts, switches off or sets otherwise is said before and after, every time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from preflight.fleet.model import today
from tests.stories.here import UNFIT_N2

if TYPE_CHECKING:
    from tests.stories.here import Here

SOON, GONE = today() + timedelta(days=5), today() - timedelta(days=1)


def _add(here: Here, text: str) -> None:
    here.inventory.write_text(here.inventory.read_text() + text)


def _waive(check: str, nodes: str, until: object = SOON) -> str:
    return (
        f'[[waive]]\ncheck = "{check}"\nnodes = "{nodes}"\nuntil = {until}\n'
        'reason = "RMA 4711 is open"\n'
    )


def test_a_waived_failure_is_shown_and_the_node_is_ready(here: Here) -> None:
    """Exit 0, all three ready; header, finding, summary and report name the waiver."""
    here.check("site.shape", UNFIT_N2)
    _add(here, _waive("site.shape", "n2"))
    told = here.judge()
    assert told.exit == 0, told.out
    said = " ".join(told.out.split())
    assert f"waived site.shape on n2 until {SOON}: RMA 4711 is open" in said
    assert f"WAIVED n2 site.shape bent (waived until {SOON}: RMA 4711 is open)" in said
    assert f"until {SOON}: RMA 4711 is open (1 verdict)" in said
    assert "do: drain" not in said
    assert "1 waived" in said
    assert ("site.shape", "n2", "waived") in told.outcomes()
    assert told.report["fleet"]["ready"] == ["n1", "n2", "n3"]
    (row,) = told.report["overrides"]["waivers"]
    assert row == {
        "check": "site.shape", "nodes": ["n2"], "until": str(SOON), "reason": "RMA 4711 is open",
        "expired": False, "verdicts": 1,
    }  # fmt: skip


def test_an_expired_waiver_is_said_and_does_nothing(here: Here) -> None:
    """The node is condemned again; so is one that the waiver never named."""
    here.check("site.shape", UNFIT_N2)
    _add(here, _waive("site.shape", "n2", GONE) + _waive("site.shape", "n1"))
    told = here.judge()
    assert told.exit == 1
    said = " ".join(told.out.split())
    assert said.count("it has no effect: remove or renew it") == 2
    assert "nothing to waive in this run" in said
    assert told.found() == {("site.shape", "n2")}
    assert told.report["fleet"]["not_ready"] == ["n2"]


def test_corrupted_data_are_not_waived(here: Here) -> None:
    """A wrong bit is a failure whatever the inventory says."""
    here.check("site.bits", UNFIT_N2.replace("advice=", "corrupt=True, advice="))
    _add(here, _waive("site.bits", "n[1-3]"))
    told = here.judge()
    assert told.exit == 1
    assert "a waiver never hides corrupted data" in " ".join(told.out.split())
    assert told.found() == {("site.bits", "n2")}


def test_a_check_that_is_off_is_not_run_and_said(here: Here) -> None:
    """Off for one node: the others are judged; what is off for all is not measured either."""
    here.check("site.shape", UNFIT_N2)
    _add(here, '[node.n2.checks."site.shape"]\nenabled = false\n')
    told = here.judge()
    assert told.exit == 0, told.out
    said = " ".join(told.out.split())
    assert said.count("off site.shape for n2 (") == 2
    assert "1 x switched off for n2 in" in said
    assert told.report["overrides"]["off"][0]["nodes"] == ["n2"]
    _add(here, '[checks."fabric.allreduce"]\nenabled = false\n')
    told = here.judge_all("-k", "fabric.allreduce")
    assert {outcome for _, _, outcome in told.outcomes()} == {"not_run"}
    assert told.report["pairs"] == []


def test_another_number_is_in_the_header_and_in_the_sentence(here: Here) -> None:
    """A judge asks for its number by name and gets the site's; the sentence says whose it is."""
    here.check(
        "site.zombies",
        "    conclude(ok(f'at most {node.limit(\"zombie_age_s\"):g} s'))",
    )
    _add(here, "[node.n3.limits]\nzombie_age_s = 600\n")
    told = here.judge()
    assert told.exit == 0, told.out
    said = " ".join(told.out.split())
    assert "number zombie_age_s 600 s by" in said
    assert "[node.n3] (shipped: 300) for n3" in said
    sentences = {v["subject"]: v["sentence"] for v in told.report["verdicts"]}
    assert sentences["n1"] == "at most 300 s"
    assert sentences["n3"].startswith("at most 600 s (zombie_age_s 600 s by ")
    assert told.report["overrides"]["numbers"][0]["shipped"] == 300


def test_a_waiver_or_switch_of_no_check_is_refused(here: Here) -> None:
    """Exit 4 and the nearest id: a misspelled one would do nothing, unseen."""
    here.check("site.shape", UNFIT_N2)
    for text in (_waive("site.shap", "n2"), '[checks."site.shap"]\nenabled = false\n'):
        kept = here.inventory.read_text()
        _add(here, text)
        told = here.judge()
        assert told.exit == 4
        assert "there is no check 'site.shap'; did you mean 'site.shape'?" in told.err
        here.inventory.write_text(kept)
