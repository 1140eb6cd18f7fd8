"""What is known of a job's last words, as data: one file per symptom in `symptoms/`.

A person adds a symptom by adding a file; its own examples hold it to its pattern (docs/explain.md).
"""

from __future__ import annotations

import re
import string
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.core.files import parse_toml
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).resolve().with_name("symptoms")

Category = Literal[
    "port_in_use", "stale_process", "device_ordinal", "duplicate_gpu", "oom_one_rank",
    "nic_or_ib_link", "wrong_interface", "firewall", "timeout_rank_missing", "collective_mismatch",
    "gpu_hardware", "version_mismatch", "shm", "env_misconfig", "other", "unknown",
]  # fmt: skip

Role = Literal["cause", "sign", "hint", "echo", "fact"]
"""`cause`: ends the search. `sign`: a failure that another may have brought about. `hint`: matters
where nothing failed. `echo`: what others say once somebody has failed. `fact`: tells who is who."""

RANKING: dict[Role, int] = {"cause": 0, "sign": 1, "hint": 2, "echo": 3, "fact": 4}


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that the symptom must be found in, and what must be read out of it."""

    text: str
    fields: dict[str, str] = {}


class Symptom(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a log may say, and what that means."""

    id: str = ""
    """The file's name."""
    category: Category
    role: Role
    follows: bool = False
    """A cause that a rank's end brings about as well: it is one where no rank had died before."""
    retried: bool = False
    """A sign that programs give which then try again: it counts where nothing else failed."""
    dies: bool = False
    """A sign after which a rank is no more, so that its peers' links fail too."""
    waits: bool = False
    """A sign of those who only waited for another."""
    confidence: Annotated[float, Meta(ge=0, le=1)]
    """That the category is right where this is the first failure."""
    anchors: tuple[str, ...]
    """A line without any of these words is not looked at."""
    patterns: tuple[str, ...]
    """Regular expressions; the first that matches counts, its named groups are the fields."""
    further: tuple[str, ...] = ()
    """More expressions for fields, searched in the same lines."""
    span: Annotated[int, Meta(ge=0, le=40)] = 0
    """Lines after the one with the anchor that belong to it."""
    sentences: tuple[str, ...]
    """What is said, with {fields}; the first of which all fields are known."""
    numbers: dict[str, dict[str, str]] = {}
    """By field: what a text in any field says in place of the field's number."""
    words: dict[str, dict[str, str]] = {}
    """By field: what its numbers mean, told as `{FIELD_words}`; "" for all others."""
    cause: str
    advice: str
    check: str = ""
    """What to run next: preflight's check, or a command."""
    culprits: tuple[str, ...] = ()
    """Fields that name the culprit; `speaker` is the rank, else the node, that said it.

    In `a/b`, b counts where a is not known."""
    instead: dict[Category, str] = {}
    """What else the same words may mean: told as alternatives."""
    source: str
    examples: tuple[Example, ...]
    counter: tuple[str, ...] = ()
    """Texts in which it must not be found."""

    def fields(self, text: str) -> dict[str, str] | None:
        """Read a text; None where it is about something else."""
        for pattern in _compiled(self.patterns):
            found = pattern.search(text)
            if found is not None:
                told = {key: value for key, value in found.groupdict().items() if value}
                for more in _compiled(self.further):
                    other = more.search(text)
                    if other is not None:
                        told |= {k: v for k, v in other.groupdict().items() if v and k not in told}
                return told
        return None

    def sentence(self, told: Mapping[str, str]) -> str:
        """Say it with as much as is known."""
        for each in self.sentences:
            if all(name in told for name in _names(each)):
                return each.format_map(dict(told))
        return self.sentences[-1]


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


def _names(sentence: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(sentence) if name]


def load_symptoms(folder: Path = FOLDER) -> tuple[Symptom, ...]:
    """Read every symptom; UsageError that names the file where one is wrong."""
    return tuple(_load(path) for path in sorted(folder.glob("*.toml")))


def _load(path: Path) -> Symptom:
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
        symptom = msgspec.convert({**content, "id": path.stem}, Symptom)
        _refuse_careless(symptom)
    except (OSError, ValueError, re.error) as error:
        raise UsageError(f"{path}: {error}; see docs/explain.md") from error
    return symptom


def _refuse_careless(symptom: Symptom) -> None:
    """Refuse a file whose last sentence may lack a field, or whose expressions are none."""
    _compiled(symptom.patterns)
    _compiled(symptom.further)
    if not symptom.anchors or not symptom.patterns or not symptom.sentences:
        raise ValueError("needs anchors, patterns and sentences")
    if left := _names(symptom.sentences[-1]):
        raise ValueError(f"its last sentence needs the field {left[0]!a}, which may be unknown")


@cache
def shipped() -> tuple[Symptom, ...]:
    """The symptoms that come with preflight, read once."""
    return load_symptoms()
