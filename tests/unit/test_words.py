"""Docs, help and messages say one word for one thing, and none of another language's metaphors."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.commands import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SAY = {
    r"condemn\w*|acquit\w*|unfit|unhealthy": "not ready, ready",
    r"promised|owed": "expected",
    r"told|untold|said|heard": "reported, measured, checked",
    r"somebody|nobody|whom": "node, rank, GPU, process, user",
    r"errand|sureness|partak\w*|muster\w*": "a literal word",
    r"anew": "again",
}
"""What to avoid, and what to say instead."""

RIGHTFUL = {
    "CHANGELOG.md": {"*"},
    "docs/reference/renamed.md": {"owed", "condemns", "promised", "unfit"},
    "preflight/payload/probe/gpu_health.py": {"unhealthy"},
    "preflight/history/tables.py": {"unfit"},  # what schema 3 said
    "preflight/report/events.py": {"owed"},
}
"""Files with words of the table that are the name of something: an old key, NVML's own word."""

_AVOID = re.compile(rf"(?<![\w-])({'|'.join(SAY)})(?![\w-])", re.IGNORECASE)


def _odd(text: str, name: str) -> list[str]:
    rightful = RIGHTFUL.get(name, set())
    if "*" in rightful:
        return []
    found = (one.lower() for one in _AVOID.findall(text))
    return sorted({f"{name}: {one}" for one in found if one not in rightful})


def _tracked(*patterns: str) -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            yield name, path.read_text(encoding="utf-8")


def test_no_page_has_a_word_to_avoid() -> None:
    """README, SECURITY, CONTRIBUTING, docs, contrib and the example inventory."""
    pages = _tracked("*.md", "docs/*.md", "docs/checks/*.md", "contrib/*", "inventory/*")
    assert [one for name, text in pages if "tests/" not in name for one in _odd(text, name)] == []


def _sentences(text: str) -> str:
    """The string constants of a module that have a blank in them: messages, help and docstrings."""
    return "\n".join(
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    )


@pytest.mark.slow
def test_no_message_has_a_word_to_avoid() -> None:
    """Every string of the product with a blank in it: sentences, advice, help, docstrings."""
    modules = _tracked("preflight/*.py", "checks/*.py")
    odd = [one for name, text in modules for one in _odd(_sentences(text), name)]
    assert odd == []


@pytest.mark.parametrize("verb", [[], *([one] for one in cli.VERBS if one in cli.COMMANDS)])
def test_no_help_has_a_word_to_avoid(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a help text is put together from several strings."""
    with pytest.raises(SystemExit):
        cli.main([*verb, "--help"])
    assert _odd(capsys.readouterr().out, " ".join(verb)) == []
