"""Whatever preflight prints or documents, an option and its value are one word: --option=value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_DECLARED = [_ROOT / "preflight/session/flags.py", *(_ROOT / "preflight/commands").glob("*.py")]
_NAMES = (re.findall(r'"(--[a-z][a-z-]+)"', file.read_text()) for file in _DECLARED)
_OURS = {name for names in _NAMES for name in names} - {"--preflight"}
_CHOICES = "standard|deep|quick|prolog|ssh|srun|paramiko|openssh|local"
_BLANK = re.compile(
    rf"(?<![-\w])(--[a-z][a-z-]+) (?:['\"{{<$./]|[0-9](?!>)|[A-Z]|(?:{_CHOICES})\b)"
)
_OTHERS = ("py-spy dump ", "docker run ")
"""Tools whose option has a name of ours."""

_ABOUT_BLANKS = ("after a blank", "after a space")
_WRITTEN = [
    *_ROOT.glob("*.md"),
    *(
        file
        for folder in ("preflight", "checks", "docs", "contrib", "inventory")
        for file in (_ROOT / folder).rglob("*")
        if file.is_file() and file.suffix in (".py", ".toml", ".md", ".sh", ".ini", ".service", "")
    ),
]


def _odd(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not any(o in line for o in _ABOUT_BLANKS)]
    return [
        line.strip()
        for line in lines
        for found in _BLANK.finditer(line)
        if found[1] in _OURS and not any(other in line for other in _OTHERS)
    ]


def test_an_option_and_its_value_are_one_word() -> None:
    """In messages, help texts, docs and scripts alike."""
    odd = {str(file.relative_to(_ROOT)): _odd(file.read_text()) for file in _WRITTEN}
    assert {name: lines for name, lines in odd.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("exclude it: --preflight-exclude 'gpu1'", True),
        ("--preflight-budget SECONDS", True),
        ("give --preflight-tier deep", True),
        ("--preflight-budget=SECONDS", False),
        ("unless --preflight-budget says otherwise", False),
        ("srun --jobid 7", False),
        ("sweep --resume 2>/dev/null", False),
    ],
)
def test_a_blank_is_seen(text: str, *, odd: bool) -> None:
    """And prose that goes on after an option's name is not one."""
    assert bool(_odd(text)) == odd
