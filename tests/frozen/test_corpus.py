"""Real outputs of real machines: `preflight read` and `preflight explain` answer as before.

The texts belong to others, so only digests of our answers are stored: a digest that differs says
which text to compare, with the answer of an older checkout.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.frozen.command import Told, within
from tests.frozen.golden import FOLDER, ROOT, difference

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = ROOT.parent / "shared" / "corpus"
INDEX = CORPUS / "INDEX.csv"
LOGS = ("nccl_logs", "dmesg_xid")

_OUTCOME = re.compile(r'"outcome": ?"(\w+)"')


def _row(name: str, verb: str, told: Told) -> str:
    answer = f"{told.exit}\n{told.out}\n{told.err}".encode("utf-8", "surrogateescape")
    counted = Counter(_OUTCOME.findall(told.out))
    outcomes = " ".join(f"{many} {outcome}" for outcome, many in sorted(counted.items()))
    digest = hashlib.sha256(answer).hexdigest()[:32]
    return f"{name}\t{verb}\t{told.exit}\t{outcomes}\t{digest}\n"


def _rows(files: list[tuple[str, str]]) -> Iterator[str]:
    for kind, name in files:
        for verb in ("read", "explain") if kind in LOGS else ("read",):
            yield _row(name, verb, within(CORPUS, verb, name))
            yield _row(name, f"{verb} --json", within(CORPUS, verb, "--json", name))
    for kind in sorted({kind for kind, _ in files}):
        verb = "explain" if kind == "nccl_logs" else "read"
        every = [name for each, name in files if each == kind]
        yield _row(f"{kind}/*", f"{verb} --json", within(CORPUS, verb, "--json", *every))


@pytest.mark.corpus
@pytest.mark.skipif(not INDEX.exists(), reason="the corpus of real outputs is not here")
def test_answers_to_real_outputs() -> None:
    """Each text on its own, for people and as JSON, and all texts of a kind together."""
    with INDEX.open() as lines:
        files = sorted((row["category"], row["file"]) for row in csv.DictReader(lines))
    text = "file\tverb\texit\toutcomes\tsha256\n" + "".join(_rows(files))
    wrong = difference(FOLDER / "corpus.tsv", text)
    assert not wrong, wrong
