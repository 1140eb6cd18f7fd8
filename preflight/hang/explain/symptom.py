"""Symptoms of failed jobs as data, their hits in a log, and the explanation.

There is one file per symptom in `symptoms/`. To add a symptom, add a file; its examples test its
pattern (docs/reference/explain.md).
"""

from __future__ import annotations

import re
import signal
import string
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.check import is_check_id
from preflight.core.files import parse_toml, read_text
from preflight.core.text import whole
from preflight.errors import UsageError
from preflight.hang.explain.failure_words import is_quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = Path(__file__).resolve().with_name("symptoms")

Category = Literal[
    "port_in_use", "stale_process", "device_ordinal", "duplicate_gpu", "oom_one_rank",
    "nic_or_ib_link", "wrong_interface", "firewall", "timeout_rank_missing", "collective_mismatch",
    "gpu_hardware", "version_mismatch", "shm", "env_misconfig", "other", "no_failure", "unknown",
]  # fmt: skip

Role = Literal["cause", "sign", "hint", "echo", "fact"]
"""`cause`: ends the search. `sign`: a failure that another may have caused. `hint`: matters if
nothing failed. `echo`: an error of other ranks after a failure. `fact`: identifies ranks."""

Reads = Literal[
    "", "timeout", "call", "position", "summary", "alone", "end", "member", "xid", "memory",
]  # fmt: skip
"""What else a line reports: a collective's time-out, a call that failed, how far a rank had come in
its group, the summary of the rank that failed first, that no other failed, the exit code of a rank,
a process of the start, an Xid, the memory of a GPU."""

_NUMBERS = ("seq", "timeout_ms", "enqueued", "completed", "member", "of", "world", "xid")
_NEEDED: dict[Reads, tuple[str, ...]] = {
    "timeout": ("op", "timeout_ms"), "position": ("enqueued", "completed"),
    "summary": ("rank",),
}  # fmt: skip
"""Fields that are compared as numbers, and those without which a line says nothing."""

_LARGEST = 1 << 20
_TEXT = 1 << 14
_PATIENCE_S, _PATIENCE_PER_CHARACTER_S = 2.0, 1e-6
"""Of a site's file: its bytes; how much of a text its expressions search; the processor time that
each of them may take, and how much more for each character."""

_MOST_FILES, _LOADING_S = 300, 10.0
"""Of a site's folder: its files, and the processor time that reading and compiling them may take.
Python compiles `(?i)[\\0-\\uffff]` in 10 ms, so short expressions may take minutes."""

Expressions = Annotated[tuple[Annotated[str, Meta(max_length=2000)], ...], Meta(max_length=20)]
"""Ours have up to 500 characters, and a symptom up to eleven."""

RANKING: dict[Role, int] = {"cause": 0, "sign": 1, "hint": 2, "echo": 3, "fact": 4}


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that must show the symptom, and the fields that must be read from it."""

    text: str
    fields: dict[str, str] = {}


class Circumstance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that change what a symptom means; all of them must hold."""

    numbers: dict[str, tuple[int, ...]] = {}
    """Fields, each of which has one of these numbers."""
    greater: tuple[str, str] | None = None
    """Two fields; the number of the first is greater."""
    met: str = ""
    """Another symptom that the logs show."""
    several: str = ""
    """A field with more than one value in the logs: `{several}` in the remark."""
    world: int = 0
    """The number of ranks."""
    one_node: bool = False
    """All ranks are on one node, as their communicator shows."""
    last: bool = False
    """Hardly any line follows, and the training made no step."""
    category: Category = "unknown"
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    remark: str = ""
    """Added to the sentence."""
    cause: str = ""
    advice: str = ""
    """Replace those of the symptom, if they are given."""
    lesser: bool = False
    """The cause is then only a sign."""
    moot: bool = False
    """The hint does not matter then."""


class Symptom(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a log may show, and what it means."""

    id: str = ""
    """The file's name."""
    file: str = ""
    """The path of a site's own file."""
    category: Category
    role: Role
    follows: bool = False
    """A rank's end can produce this too: it counts only if no rank died before it, and a sign only
    if no launcher reported a positive exit code before it."""
    retried: bool = False
    """A sign of programs that try again: it counts only if nothing else failed."""
    dies: bool = False
    """A sign after which a rank is dead, so that its peers' connections fail too."""
    waits: bool = False
    """A sign of ranks that only waited for another."""
    at_end: Literal["", "lines", "steps"] = ""
    """It counts only in the last lines of a log, or if no later step has a finite number."""
    reads: Reads = ""
    phase: Literal["", "preparation", "start", "interrupt", "job_end"] = ""
    """When in a job it happens: before its program; when a program starts, which ends by it before
    it begins; by a signal; or at the end of all."""
    optional: bool = False
    """A script may do without it: it counts only at the end of a log without steps."""
    unprepared: bool = False
    """A program lacks something: a preparation that failed before is the cause."""
    exits: tuple[int, ...] = ()
    """Exit codes of a rank that ends so; a negative one is a signal."""
    confidence: Annotated[float, Meta(ge=0, le=1)]
    """Probability that the category is right if this is the first failure."""
    anchors: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=200)]
    """Only lines with one of these words are searched."""
    patterns: Expressions
    """Regular expressions; the first match counts, and its named groups are the fields."""
    further: Expressions = ()
    """More expressions for fields, searched in the same lines."""
    unless: Expressions = ()
    """Expressions for lines that deny it: `dmesg shows neither`."""
    span: Annotated[int, Meta(ge=0, le=40)] = 0
    """Lines after the one with the anchor that belong to it."""
    sentences: tuple[str, ...]
    """Sentences with {fields}; the first whose fields are all known is used."""
    numbers: dict[str, dict[str, str]] = {}
    """By field: texts in any field that replace the field's number."""
    words: dict[str, dict[str, str]] = {}
    """By field: the meaning of its numbers, for `{FIELD_words}`; "" for all others."""
    when: tuple[Circumstance, ...] = ()
    """The first that holds replaces category and confidence."""
    survived_by: str = ""
    """A later fact in the same file that shows that no process ended by this."""
    cause: str
    advice: str
    check: str = ""
    """What to run next: a check of preflight, or a command."""
    culprits: tuple[str, ...] = ()
    """Fields that name the culprit; `speaker` is the rank, otherwise the node, that wrote it.

    In `a/b`, b counts if a is unknown."""
    instead: dict[Category, str] = {}
    """Other meanings of the same words, given as alternatives."""
    source: str
    examples: tuple[Example, ...]
    counter: tuple[str, ...] = ()
    """Texts that must not show it."""

    def fields(self, text: str) -> dict[str, str] | None:
        """Read the fields from a text; None if it does not match."""
        if self.denied_by(text):
            return None
        for pattern in _compiled(self.patterns):
            match = self._search(pattern, text)
            if match is not None and (self.role == "fact" or not is_quoted(text, *match.span())):
                further = (self._search(pattern, text) for pattern in _compiled(self.further))
                fields: dict[str, str] = {}
                for found in filter(None, (match, *further)):
                    groups = found.groupdict()
                    fields = {key: value for key, value in groups.items() if value} | fields
                return self._usable(fields)
        return None

    def denied_by(self, text: str) -> bool:
        """Whether a text has its words only to deny it."""
        return any(self._search(pattern, text) for pattern in _compiled(self.unless))

    def readings(self, text: str) -> list[dict[str, str]]:
        """The fields, once for each Xid of a list in the text; none if it does not match."""
        fields = self.fields(text)
        if fields is None or self.reads != "xid" or "bus" in fields or self.file:
            return [] if fields is None else [fields]
        matches = [
            match for pattern in _compiled(self.patterns) for match in pattern.finditer(text)
        ]
        matches = [match for match in matches if not is_quoted(text, *match.span())]
        codes = [match["xid"] + (match.groupdict().get("more") or "") for match in matches]
        every = dict.fromkeys(re.findall(r"\b\d+", " ".join(codes)))
        return [{**fields, "xid": code} for code in every]

    def is_begun_in(self, text: str) -> bool:
        """Whether one of its anchors is in a line."""
        return any(word in text for word in self.anchors)

    def _usable(self, fields: dict[str, str]) -> dict[str, str] | None:
        """Leave out what is no number where one is read; None if nothing can be read then."""
        of_one = self.reads in (*_NEEDED, "end") or "world" in fields
        numbers = [name for name in fields if name in _NUMBERS or (name == "rank" and of_one)]
        for name in numbers:
            if whole(fields[name].removeprefix("-"), 2**64) is None:
                del fields[name]
        return fields if all(name in fields for name in _NEEDED.get(self.reads, ())) else None

    def _search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Search; UsageError if a site's expression takes more than linear time in all its texts.

        `re` looks for signals while it goes back, but not within one repeat: the text is short.
        """
        if not self.file:
            return pattern.search(text)
        text = text[:_TEXT]
        left_s = _LEFT_S.get((self.file, pattern), _PATIENCE_S)
        left = [left_s + _PATIENCE_PER_CHARACTER_S * len(text)]
        try:
            with _limited(left):
                return pattern.search(text)
        except _TooSlowError:
            raise UsageError(
                f"{self.file}: the expression {pattern.pattern[:60]!a} goes back too often in a "
                "text; give each repeat a limit ({0,80} for *) or make it possessive (*+)"
            ) from None
        finally:
            _LEFT_S[self.file, pattern] = left[0]

    def sentence(self, fields: Mapping[str, str]) -> str:
        """Format the first sentence whose fields are all known; the last one has none."""
        known = (words for words in self.sentences if fields.keys() >= {*_names(words)})
        return next(known).format_map(fields)


class _TooSlowError(Exception):
    """The time of a site's expression is up."""


_LEFT_S: dict[tuple[str, re.Pattern[str]], float] = {}
"""The processor time that each of a site's expressions may still take."""


def _interrupt(*_: object) -> None:
    raise _TooSlowError


@contextmanager
def _limited(left: list[float]) -> Iterator[None]:
    """Raise _TooSlowError in the block after so much processor time, and keep what is left."""
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, left[0])
        try:
            yield
        finally:
            left[0], _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


def _names(sentence: str) -> list[str]:
    """The fields of a sentence; ValueError for more than a name, such as a width of 10**9."""
    names = []
    for _, name, width, conversion in string.Formatter().parse(sentence):
        if width or conversion or not (name or "a").isidentifier():
            raise ValueError(f"{{{name}}} in a sentence is more than the name of a field")
        names += [name] if name else []
    return names


def next_commands(words: str) -> str:
    """Turn the check ids among words parted by ", " into one command, which comes last."""
    parts = words.split(", ")
    ids = [part for part in parts if is_check_id(part)]
    run = [f"preflight check --checks={','.join(ids)}"] if ids else []
    return "; ".join([*(part for part in parts if part not in ids), *run])


def load_symptoms(folder: Path = FOLDER) -> tuple[Symptom, ...]:
    """Read every symptom; UsageError names the file if one is wrong, or the folder if it is big."""
    paths = sorted(folder.glob("*.toml"))
    if folder == FOLDER:
        return tuple(map(_load, paths))
    page = "see docs/reference/explain.md"
    if len(paths) > _MOST_FILES:
        raise UsageError(f"{folder}: {len(paths)} .toml files, at most {_MOST_FILES}; {page}")
    try:
        with _limited([_LOADING_S]):
            return tuple(map(_load, paths))
    except _TooSlowError:
        raise UsageError(
            f"{folder}: reading its symptoms takes over {_LOADING_S:g} s of processor time; "
            f"write fewer or shorter expressions; {page}"
        ) from None


def _load(path: Path) -> Symptom:
    page = "see docs/reference/explain.md"
    text = read_text(path, _LARGEST, str(path), page)
    own = {"id": path.stem, "file": "" if path.parent == FOLDER else str(path)}
    try:
        symptom = msgspec.convert({**parse_toml(text), **own}, Symptom)
        if symptom.file:  # tests hold the shipped ones to it: their expressions are compiled late
            _refuse_invalid(symptom)
    except (ValueError, OverflowError, RecursionError, re.error) as error:
        raise UsageError(f"{path}: {error}; {page}") from error
    return symptom


def _refuse_invalid(symptom: Symptom) -> None:
    """Refuse a file whose last sentence may lack a field, or whose expressions are invalid."""
    _compiled(symptom.patterns)
    _compiled(symptom.further)
    _compiled(symptom.unless)
    if not all((symptom.anchors, all(symptom.anchors), symptom.patterns, symptom.sentences)):
        raise ValueError("needs anchors, patterns and sentences")
    if needs := [_names(sentence) for sentence in symptom.sentences][-1]:
        raise ValueError(f"its last sentence needs the field {needs[0]!a}, which may be unknown")
    words = [word for meanings in symptom.words.values() for word in meanings.values()]
    for sentences, field in (
        (words, "number"),
        ([case.remark for case in symptom.when], "several"),
    ):
        if other := {name for sentence in sentences for name in _names(sentence)} - {field}:
            raise ValueError(f"a text may use {{{field}}}, but not {{{min(other)}}}")
    numbers = [number for texts in symptom.numbers.values() for number in texts.values()]
    if wrong := [number for number in numbers if whole(number.removeprefix("-"), 2**64) is None]:
        raise ValueError(f"{wrong[0]!a} in its table of numbers is no number")


@cache
def shipped() -> tuple[Symptom, ...]:
    """The symptoms that come with preflight, read once."""
    return load_symptoms()
