"""Symptoms are data: each file is tested by its examples, and a wrong one is refused."""

from __future__ import annotations

import ast
import re
import shutil
import signal
from typing import TYPE_CHECKING, get_args

import pytest

from preflight.commands import cli
from preflight.commands.cli import VERBS
from preflight.core.registry import load_folder, shipped_folder
from preflight.errors import UsageError
from preflight.hang.explain import symptom as symptom_files
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import FOLDER, Reads, load_symptoms, shipped
from preflight.hang.explain.unexplained import NOTHING

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.hang.explain.symptom import Symptom

NEEDED = {
    "port_in_use", "stale_process", "device_ordinal", "duplicate_gpu", "oom_one_rank",
    "nic_or_ib_link", "wrong_interface", "firewall", "timeout_rank_missing", "collective_mismatch",
    "gpu_hardware", "version_mismatch", "shm", "env_misconfig", "other", "unknown",
}  # fmt: skip

OWN = """
category = "other"
role = "cause"
confidence = 0.5
anchors = ["coffee"]
patterns = ['out of coffee on (?P<node>\\w+)']
sentences = ["{node} is out of coffee", "no coffee"]
cause = "somebody drank it"
advice = "buy some"
source = "the kitchen"
[[examples]]
text = "warning: out of coffee on n7"
fields = { node = "n7" }
"""


@pytest.mark.parametrize("symptom", shipped(), ids=lambda one: one.id)
def test_each_symptom_is_found_in_its_own_examples(symptom: Symptom) -> None:
    """Each expression has one, behind an anchor; never in what it is not."""
    assert symptom.examples
    for example in symptom.examples:
        assert any(word in example.text for word in symptom.anchors), example.text
        fields = symptom.fields(example.text)
        assert fields is not None, example.text
        assert example.fields.items() <= fields.items()
        assert "{" not in symptom.sentence({**fields, "speaker": "rank 1"})
    for text in symptom.counter:
        assert symptom.fields(text) is None
    for pattern in symptom.patterns:
        assert any(re.search(pattern, example.text) for example in symptom.examples), pattern


@pytest.mark.slow
@pytest.mark.parametrize("symptom", shipped(), ids=lambda one: one.id)
def test_the_scanner_finds_what_the_pattern_finds(symptom: Symptom, tmp_path: Path) -> None:
    """No anchor hides behind another one's letters."""
    for place, example in enumerate(symptom.examples):
        log = tmp_path / f"{place}.log"
        log.write_text(example.text + "\n")
        assert symptom.id in Scanner(shipped()).read([log]).symptom_ids, example.text


def test_every_category_is_known() -> None:
    """What the command may answer, something can be found for."""
    assert {one.category for one in shipped()} == NEEDED


def test_the_shipped_symptoms_are_as_valid_as_those_of_a_site_must_be(tmp_path: Path) -> None:
    """Preflight does not look at that again whenever it explains a log."""
    copied = shutil.copytree(FOLDER, tmp_path / "symptoms")
    assert [one.id for one in load_symptoms(copied)] == [one.id for one in shipped()]


def test_a_site_adds_its_own(tmp_path: Path) -> None:
    """One file, no code."""
    (tmp_path / "coffee.toml").write_text(OWN)
    (mine,) = load_symptoms(tmp_path)
    fields = mine.fields("out of coffee on n7")
    assert fields == {"node": "n7"}
    assert mine.sentence(fields) == "n7 is out of coffee"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('role = "cause"', 'role = "rumour"', "Invalid enum value"),
        ("out of coffee on (", "out of coffee on ((", "missing )"),
        ('"no coffee"', '"{node} again"', "its last sentence needs the field 'node'"),
        ('anchors = ["coffee"]', "anchors = []", "needs anchors"),
        ("category", "kategory", "kategory"),
        ("[[examples]]", "[examples", "Expected ']'"),
        ("out of coffee on (", "a{99999999999}(", "the repetition number is too large"),
        ("out of coffee on (", f"{'(' * 900}{')' * 900}(", "recursion"),
        ('"no coffee"', '"no {node:>999999999} coffee"', "more than the name of a field"),
        ('"no coffee"', '"no {node.a} coffee"', "more than the name of a field"),
        ('anchors = ["coffee"]', 'anchors = [""]', "needs anchors"),
        ('anchors = ["coffee"]', f'anchors = ["{"a" * 2000}"]', "length <= 200"),
        ('anchors = ["coffee"]', f"anchors = {['a'] * 201}", "length <= 200"),
        ("out of coffee on (", f"{'a' * 2000}(", "length <= 2000"),
        ("[[examples]]", f"further = {['a'] * 21}\n[[examples]]", "length <= 20"),
        ("[[examples]]", f"unless = ['{'a' * 2001}']\n[[examples]]", "length <= 2000"),
        ("[[examples]]", '[words.node]\n"" = "{node}"\n[[examples]]', "may use {number}"),
        ("[[examples]]", '[numbers.node]\nn7 = "x"\n[[examples]]', "'x' in its table of numbers"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    """With what is wrong in it."""
    (tmp_path / "coffee.toml").write_text(OWN.replace(old, new, 1))
    with pytest.raises(UsageError, match=r"coffee\.toml") as refused:
        load_symptoms(tmp_path)
    assert reason in str(refused.value)


def test_a_folder_takes_limited_time_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short expressions may take seconds to compile, and a folder may have many files."""
    before = signal.getsignal(signal.SIGVTALRM)
    expression = r"(?i)" + r"[\0-\uffff]" * 180
    (tmp_path / "coffee.toml").write_text(OWN.replace("out of coffee on (", f"{expression}("))
    monkeypatch.setattr(symptom_files, "_LOADING_S", 0.2)
    with pytest.raises(UsageError, match=r"takes over 0\.2 s of processor time"):
        load_symptoms(tmp_path)
    assert signal.getsignal(signal.SIGVTALRM) is before
    for at in range(300):
        (tmp_path / f"{at}.toml").write_text(OWN)
    with pytest.raises(UsageError, match=r"301 \.toml files, at most 300"):
        load_symptoms(tmp_path)


@pytest.mark.parametrize("expression", ["out (a+)+$", ".*a.*a.*a.*x", "[^!]*a[^!]*a[^!]*a!x"])
@pytest.mark.slow
def test_an_expression_that_goes_back_without_end_is_a_line(
    tmp_path: Path,
    expression: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A site's own is not known to take linear time: it gets so much, and no more."""
    monkeypatch.setattr(symptom_files, "_PATIENCE_S", 0.2)
    site = tmp_path / "site"
    site.mkdir()
    text = re.sub("patterns = .*", lambda _: f'patterns = ["{expression}"]', OWN)
    text = text.replace("[[examples]]", "span = 40\n[[examples]]")
    (site / "coffee.toml").write_text(text)
    log = tmp_path / "a.log"
    log.write_text(f"coffee out {'a' * 15000}!\n{'a' * 15000}\n" * 20)
    before = signal.getsignal(signal.SIGVTALRM)
    assert cli.main(["explain", str(log), f"--symptoms={site}"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"preflight: {site}/coffee.toml: the expression '")
    assert "give each repeat a limit" in line
    assert signal.getsignal(signal.SIGVTALRM) is before


@pytest.mark.parametrize("reads", ["", "timeout", "position", "summary", "end", "member", "xid"])
@pytest.mark.parametrize("field", ["world", "rank", "xid", "seq", "member", "of"])
@pytest.mark.slow
def test_a_field_that_is_no_number_is_left_out(tmp_path: Path, reads: str, field: str) -> None:
    """A site's expression may take any word for a rank."""
    text = OWN.replace("(?P<node>", f"(?P<{field}>").replace('"{node} is', '"it is')
    (tmp_path / "coffee.toml").write_text(f'reads = "{reads}"\n{text}')
    log = tmp_path / "a.log"
    log.write_text("[rank1]: out of coffee on n7\n")
    assert cli.main(["explain", str(log), f"--symptoms={tmp_path}"]) in (0, 1, 3)


def test_what_to_run_next_exists() -> None:
    """Checks and verbs that an explanation sends somebody to."""
    advice = " ".join(f"{one.check} {one.advice}" for one in shipped()) + NOTHING.advice
    checks = {one.check.id for one in load_folder(shipped_folder())}
    named = set(re.findall(r"\b[a-z]+\.[a-z_0-9]+\b", " ".join(one.check for one in shipped())))
    assert named <= checks
    assert set(re.findall(r"preflight ([a-z]+)\b", advice)) <= set(VERBS)


def test_every_symptom_says_where_it_is_from() -> None:
    """A person who doubts one finds its source."""
    assert all(one.source and one.cause and one.advice for one in shipped())
    assert len(list(FOLDER.glob("*.toml"))) == len(shipped())


def test_no_rule_of_the_engine_names_a_symptom() -> None:
    """A new symptom is one file: what rules ask is a key of its row, never its name."""
    # Words of the engine's own that are names of symptoms too.
    own_words = {*NEEDED, *get_args(Reads), "mismatch", "not_started"}
    names = {symptom.id for symptom in shipped()} - own_words
    for path in FOLDER.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names, f"{path.name}:{node.lineno} names {node.value}"
