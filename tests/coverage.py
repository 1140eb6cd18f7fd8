"""What each check is proven to find: docs/internals/coverage.md, made from the tests' own marks.

    python -m tests.coverage        # write it again

A test declares what it proves with `@pytest.mark.proves("gpu.count", finds="a GPU that fell off")`,
`passes="a healthy node"` or `unknown="NVML does not answer"`. The marks are read, not run.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from preflight.core.registry import load_folder, shipped_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "coverage.md"

Kind = Literal["finds", "passes", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NEVER_UNKNOWN = {
    "reach.name": "a name resolves or does not",
    "reach.route": "a node that does not answer in time is not reached",
    "reach.hostkey": "the host key is known or refused",
    "reach.login": "the login is accepted or refused",
    "reach.python": "Python starts or does not",
    "reach.answer": "no answer is the finding",
    "env.cuda_visible_devices": "without a job there is nothing to judge: `not_run`",
}
"""Checks to which no reading can be missing, and why."""

_HEAD = """# What each check is proven to find

`python -m tests.coverage` writes this page from the tests. For each entry a test plants

- under *finds*, a fault, which the check finds;
- under *passes*, a healthy subject, which passes;
- under *unknown*, a missing or unclear reading, which gives `unknown`, never `ok`.
"""


class Proof(NamedTuple):
    """One mark of one test."""

    check: str
    kind: Kind
    words: str
    test: str
    """Path and function."""


@cache
def proofs(root: Path = ROOT / "tests") -> tuple[Proof, ...]:
    """Read every mark in the tests, once; ValueError for a mark that is not as described above."""
    return tuple(
        proof
        for path in sorted(root.rglob("test_*.py"))
        if "mark.proves" in (text := path.read_text(encoding="utf-8"))
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for proof in _of_test(function, path.relative_to(root.parent))
    )


def shipped() -> list[str]:
    """The ids of all checks that come with preflight."""
    return sorted(one.check.id for one in load_folder(shipped_folder()))


def lacking(known: Iterable[Proof]) -> list[str]:
    """List what is not proven of a shipped check."""
    there = {(proof.check, proof.kind) for proof in known}
    return [
        f"{check}: no test {kind}"
        for check in shipped()
        for kind in KINDS
        if (check, kind) not in there and not (kind == "unknown" and check in NEVER_UNKNOWN)
    ]


def page(known: Iterable[Proof]) -> str:
    """Lay out the table: a row per check, its faults, its healthy subjects, what was missing."""
    cells: dict[tuple[str, Kind], list[str]] = defaultdict(list)
    for proof in known:
        words = cells[proof.check, proof.kind]
        if proof.words not in words:
            words.append(proof.words)
    rows = ["| check | finds | passes | unknown |", "|---|---|---|---|"]
    for check in shipped():
        words_of = {kind: "<br>".join(cells[check, kind]) for kind in KINDS}
        unknown = words_of["unknown"] or f"({NEVER_UNKNOWN.get(check, 'not proven')})"
        link = f"[{check}](../checks/{check}.md)"
        rows.append(f"| {link} | {words_of['finds']} | {words_of['passes']} | {unknown} |")
    return "\n".join([_HEAD, *rows]) + "\n"


def _of_test(function: ast.FunctionDef, path: Path) -> Iterator[Proof]:
    for mark in function.decorator_list:
        if not (isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.proves"):
            continue
        test = f"{path}::{function.name}"
        words = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
        if len(mark.args) != 1 or not words or not words.keys() <= set(KINDS):
            raise ValueError(f"{test}: write proves(check, finds=, passes= or unknown=)")
        check = ast.literal_eval(mark.args[0])
        yield from (Proof(check, kind, words[kind], test) for kind in KINDS if kind in words)


if __name__ == "__main__":
    PAGE.write_text(page(proofs()), encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in lacking(proofs())))
