"""A node may say whatever it likes: it harms its own verdicts and nobody else's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.stories import liar

if TYPE_CHECKING:
    from tests.stories.conftest import Told
    from tests.stories.here import Here

UNUSABLE = (
    "nan", "infinite", "negative", "overflowing", "mistyped", "strange", "deep", "huge",
    "replayed", "recorded", "newlines", "drip",
)  # fmt: skip
HARMLESS = ("twice", "pretender")
FORBIDDEN = set("\x1b\x07\x00\x85\x9b\r\u202e\u2066\u200b\ud800")


def fleet(here: Here, kinds: tuple[str, ...]) -> None:
    """Write the inventory of an honest node and a liar of each kind."""
    program = Path(liar.__file__)
    pythons = {"honest": "env A=1"} | {kind: f"{sys.executable} {program} {kind}" for kind in kinds}
    tables = "".join(
        f'[node.{name}]\naddress = "127.0.0.1"\npython = "{python} {sys.executable}"\n'
        for name, python in pythons.items()
    )
    here.inventory.write_text(f'[defaults]\ntransport = "local"\n{tables}')


def reasons(told: Told, check: str) -> dict[str, str]:
    """Why each node has no answer."""
    rows = told.report["verdicts"]
    return {
        row["subject"]: row["sentence"]
        for row in rows
        if row["check"] == check and row["outcome"] not in ("ok", "not_run")
    }


def test_answers_to_the_probe_that_are_none(here: Here) -> None:
    """Huge, deep, NaN, mistyped, another run's, endless, never-ending: each condemns its sender."""
    fleet(here, (*UNUSABLE, *HARMLESS))
    told = here.judge_all("-m", "preflight_reach", "--preflight-budget=12")
    assert told.exit == 1, told.out
    assert "Traceback" not in told.out + told.err
    why = reasons(told, "reach.answer")
    assert set(why) == set(UNUSABLE), told.out
    assert set(told.report["fleet"]["ready"]) == {"honest", *HARMLESS}
    assert "belongs to another run" in why["replayed"]
    assert "more than 8 MiB" in why["huge"]
    assert "over 100000 lines" in why["newlines"]
    assert told.report["missing"] == 0


def test_a_node_that_claims_to_be_another(here: Here) -> None:
    """An answer counts for the node that was asked, whatever name is written in it; once."""
    here.check("site.a", "conclude(ok(f'{node.facts.host} {node.facts.seconds}'))")
    fleet(here, HARMLESS)
    told = here.judge()
    said = {v["subject"]: v["sentence"] for v in told.report["verdicts"]}
    assert said["pretender"].startswith("honest ")
    assert not said["honest"].startswith("honest ")
    assert "1000000000" not in said["twice"]


def test_hostile_words_in_every_text(here: Here) -> None:
    """Escape sequences, markup, bidi and half surrogates reach no screen, report, or JUnit file."""
    here.check(
        "site.words",
        "conclude(fail(f'{node.facts}', advice=node.facts.kernel, said=node.facts.user))",
    )
    fleet(here, ("evil",))
    junit = here.folder / "junit.xml"
    told = here.judge_all("-v", "-k", "evil and not fabric", f"--junitxml={junit}", "-rA")
    assert told.exit == 1
    assert told.report["missing"] == 0
    ET.parse(junit)  # noqa: S314  we wrote it a moment ago
    texts = [told.out, told.err, junit.read_text()]
    texts += [path.read_text() for path in told.folder.iterdir() if path.name != "measured.json"]
    for text in texts:
        assert not FORBIDDEN & set(text)
    measured = (told.folder / "measured.json").read_bytes()
    assert not {0x1B, 0x07, 0x00} & set(measured)
    json.loads(measured)


def test_answers_of_the_port_stage_that_are_none(here: Here) -> None:
    """A liar in the port stage has no report, and what it was not asked to try is not believed."""
    kinds = ("overflowing", "replayed", "deep", "accusing")
    fleet(here, kinds)
    for kind in kinds:  # honest in the probe, a liar afterwards
        script = here.folder / f"later-{kind}"
        script.write_text(
            f'#!/bin/sh\ncase "$*" in *" ports") exec {sys.executable} {liar.__file__} {kind} '
            f'{sys.executable} "$@";; esac\nexec {sys.executable} "$@"\n'
        )
        script.chmod(0o755)
    text = here.inventory.read_text()
    for kind in kinds:
        text = text.replace(
            f"{sys.executable} {liar.__file__} {kind} {sys.executable}",
            f"{here.folder}/later-{kind}",
        )
    here.inventory.write_text(text)
    told = here.judge_all("-m", "preflight_net", "--preflight-budget=40")
    assert set(reasons(told, "net.ports")) == set(kinds), told.out
    assert "not asked to try" in reasons(told, "net.ports")["accusing"]
    assert told.report["fleet"]["ready"] == ["honest"]
