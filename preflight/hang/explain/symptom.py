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
from msgspec.structs import replace

from preflight.check import is_check_id
from preflight.core.files import parse_toml, read_text
from preflight.core.text import whole
from preflight.errors import UsageError
from preflight.facts.boards import xid_info
from preflight.hang.answer_text import Alternative
from preflight.hang.call_waits import Wait

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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

_MOST_FILES, _LOADING_S = 200, 10.0
"""Of a site's folder: its files, and the processor time that reading and compiling them may take.
Python compiles `(?i)[\\0-\\uffff]` in 10 ms, so short expressions may take minutes."""

Expressions = Annotated[tuple[Annotated[str, Meta(max_length=2000)], ...], Meta(max_length=20)]
"""Ours have up to 500 characters, and a symptom up to eleven."""

_OF_DATA = re.compile(
    r"(?:(?:\[[^\]\s]{1,60}\]:?|\d[\d:.,TZ/+-]{0,40}|INFO|DEBUG|(?i:eval(?:uation)?|test"
    r"|train(?:ing)?|validation)) {1,4}){0,5}"
    r"(?:(?i:(?:sample |user )?(?:prompt|question|completion)|\[?sample(?: #?\d{1,6})?\]?|generated"
    r"|generation|title|issue #?\d{1,6})|Q)[:\]] {0,4}\S"
)
"""Begins a line in which a training or an evaluation prints text of its data, or a person asks."""
_REPORT = (
    r"(?i:message|msg|log|err|errors?|exc\w*|exception|reason|details?|desc\w*|event|stack\w*"
    r"|traceback|status|string|std(?:err|out))"
)
"""Ends the name of a field that reports a failure."""
_SETTING = re.compile(
    r"(?:\[[^\]\s]{1,40}\]:? ?)?"
    r"(?:\s{0,40}(?:#+(?!\d)|//|/\*|<!--|[;*•]|\d{1,2}[.)]|- [\w.-]{1,60}:)\s|\s{0,40}--[a-z]"
    r"|.{0,200}\s(?:#|//)\s|[+$]\s.{0,200}\b(?:grep|rg|awk|sed)\b"
    r"|(?=\s\s|export |\w{0,60}[_=]|[\w.-]{1,60} =)"
    rf"(?!\s{{0,40}}(?!on[_-])[\w.-]{{0,60}}?{_REPORT}[\"']?\s{{0,3}}[:=])"
    r"(?!(?!\s\s|on[_-]).{0,200}(?:Error|Exception|ERROR|FATAL)\b)"
    r"\s{0,40}(?:export )?[A-Za-z][A-Za-z._-]{0,60}[\"']?(?:\s?[:=]\s|(?<=[A-Z])=)"
    r"|[\s\"'{,]{0,20}[\w.-]{0,60}(?i:retr[iy]|ignor|skip|pattern|regex|transient|recover"
    r"|requeue|restart)[\w.-]{0,60}[\"']?\s{0,9}[:=][^=]{0,200}$)"
)
"""Begins a comment, an item of a list, a setting, an option, or a search."""
_SUPPOSED = re.compile(
    r"(?i)\b(?:(?:watch|look|wait|listen|scan|search|check|poll|grep|monitor)(?:e?s|ing)?"
    r" (?:[\w./-]{1,40} ){0,3}for\b[^.,;:!?\n]{0,24}$"
    r"|(?:(?<!failed to )(?<!unable to )(?:handles?|avoids?|prevents?|catch(?:es)?|fix(?:e[sd])?"
    r"|works? around)|in case of|such as|e\.g\.|(?:retr(?:y|ies)|recovers?|restarts?|to do|happens)"
    r" (?:on|after|from)|(?:will|would|may|might) (?:stop|fail|abort|end|exit) with|todo"
    r"|policy|policies|patterns?|rules?|notes?|known issues?|troubleshooting|saw|seen"
    r"|how (?:do|to|can)|why do(?:es)?|(?:did|does|has|have) (?:you|anyone|we|they|it|that)"
    r"|(?:if|when|whenever|once|unless) (?:[\w-]{1,30} ){1,4}(?:sees?|shows?|gets?|hits?|finds?"
    r"|reports?|prints?|contains?|raises?|logs?|matches))\b[^.;!?\n]{0,40}$)"
)
"""Ends before words of a failure that did not happen: a help text, a question, a rule."""
_EXPLAINED = re.compile(
    r"[^\n.]{0,60}?(?: (?:->|=>|→) ?[a-z]|\] PASSED|\b(?:means|restarts|triggers|requeues)\b"
    r"|\b(?:is|are|gets?|will be) (?:re-?tried|ignored|handled|expected|tolerated|treated|fixed)\b"
    r"|\b(?:may|might|can|could) (?:appear|happen|occur)\b)|[^\n]{0,200}\?$"
)
"""Follows the words of a failure that a text explains, or asks about."""
_ITEM = re.compile(r"\s{0,20}- [\"']?[A-Za-z.: ]{0,24}")
"""Begins an item of a list."""
_OPEN_QUOTE = re.compile(
    rf"(?P<reports>\b{_REPORT}[\"']?\s?[:=]\s?|(?:Error|Exception)\("
    r"|\b(?i:error|failure|failed)\b[^\"']{0,30})?"
    r"(?:^|(?<=[\s(\[{=:,|]))(?P<mark>[\"'])(?:(?!(?P=mark)).)*$"
)
"""A quotation that is not closed, and what shows that it is of the report of a failure."""


def is_supposed(text: str, begin: int, end: int) -> bool:
    """Whether words of a failure are in a comment, settings, a question, data of the training."""
    first = text.rfind("\n", 0, begin) + 1
    before = text[first:begin]
    item = _ITEM.match(text, first)
    if _OF_DATA.match(text) or _SETTING.match(before) or (item and begin <= item.end()):
        return True
    return _SUPPOSED.search(before) is not None or _EXPLAINED.match(text, end) is not None


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Whether words of a failure are supposed, or stand between quotation marks."""
    opened = _OPEN_QUOTE.search(text[text.rfind("\n", 0, begin) + 1 : begin])
    in_quotes = opened and not opened["reports"] and opened["mark"] not in text[begin:end]
    return bool(in_quotes) or is_supposed(text, begin, end)


TRIED_AGAIN = re.compile(
    r"(?i)(?<!not )(?<!after )(?<!while )(?<!before )(?<!failed )(?<!stopped )\b(?:re-?trying"
    r"|(?:will|going to) (?:re-?try|try again)|trying again|retry (?:in|loop|\(?\d)|reconnecting"
    r"|attempt (\d{1,3}) ?(?:of|/) ?(?!\1\b)\d)"
)
"""A line with these words reports no end: the program goes on."""
AT_END = 3
"""Lines at the end of a log, which do not show whether it did."""

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
    category: Category = "unknown"
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    remark: str = ""
    """Added to the sentence."""
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
    """A rank's end can produce this cause too: it counts only if no rank died before it."""
    retried: bool = False
    """A sign of programs that try again: it counts only if nothing else failed."""
    dies: bool = False
    """A sign after which a rank is dead, so that its peers' connections fail too."""
    waits: bool = False
    """A sign of ranks that only waited for another."""
    reads: Reads = ""
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
        if any(self._search(one, text) for one in _compiled(self.unless)):
            return None
        for pattern in _compiled(self.patterns):
            found = self._search(pattern, text)
            if found is not None and (self.role == "fact" or not is_quoted(text, *found.span())):
                fields = {key: value for key, value in found.groupdict().items() if value}
                for more in _compiled(self.further):
                    other = self._search(more, text)
                    if other is not None:
                        fields |= {
                            k: v for k, v in other.groupdict().items() if v and k not in fields
                        }
                return self._usable(fields)
        return None

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
        """Format the first sentence whose fields are all known."""
        for each in self.sentences:
            if all(name in fields for name in _names(each)):
                return each.format_map(dict(fields))
        return self.sentences[-1]


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
    found = []
    for _, name, width, conversion in string.Formatter().parse(sentence):
        if width or conversion or not (name or "a").isidentifier():
            raise ValueError(f"{{{name}}} in a sentence is more than the name of a field")
        found += [name] if name else []
    return found


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
    if left := [_names(sentence) for sentence in symptom.sentences][-1]:
        raise ValueError(f"its last sentence needs the field {left[0]!a}, which may be unknown")
    words = [word for meanings in symptom.words.values() for word in meanings.values()]
    for sentences, known in ((words, "number"), ([one.remark for one in symptom.when], "several")):
        if other := {name for one in sentences for name in _names(one)} - {known}:
            raise ValueError(f"a text may use {{{known}}}, but not {{{min(other)}}}")
    numbers = [number for named in symptom.numbers.values() for number in named.values()]
    if wrong := [one for one in numbers if whole(one.removeprefix("-"), 2**64) is None]:
        raise ValueError(f"{wrong[0]!a} in its table of numbers is no number")


@cache
def shipped() -> tuple[Symptom, ...]:
    """The symptoms that come with preflight, read once."""
    return load_symptoms()


class Speaker(Struct, frozen=True, kw_only=True):
    """The process that wrote a line, as far as the line shows it."""

    rank: int | None = None
    """Global rank."""
    node: str = ""
    pid: int | None = None
    label: str = ""
    """The launcher's prefix."""

    def joined(self, other: Speaker) -> Speaker:
        """Fill gaps from another speaker."""
        return Speaker(
            rank=self.rank if self.rank is not None else other.rank,
            node=self.node or other.node,
            pid=self.pid if self.pid is not None else other.pid,
            label=self.label or other.label,
        )

    @property
    def words(self) -> str:
        """`rank 3 on gpu004`, or as much of it as is known."""
        rank = f"rank {self.rank}" if self.rank is not None else ""
        return " on ".join(filter(None, (rank, self.node)))


class Place(Struct, frozen=True):
    """A line of a log."""

    source: str
    line: int
    text: str
    """Cleaned and cut."""


class Hit(Struct, frozen=True, kw_only=True):
    """One symptom in one place."""

    symptom: Symptom
    place: Place
    speaker: Speaker
    fields: dict[str, str]
    time: float | None
    """Seconds since 1 March; None if the line has no time."""
    order: int
    """The number of the line among all lines read."""
    tried_again: bool = False
    """Whether the line itself says so."""

    @property
    def retried(self) -> bool:
        """Whether it counts only if nothing else failed."""
        return self.symptom.retried or self.tried_again


class Explanation(Struct, frozen=True, kw_only=True):
    """The answer; `preflight explain --json` prints it as it is (docs/reference/explain.md)."""

    category: Category = "unknown"
    culprits: tuple[str, ...] = ()
    """`rank 3`, `node gpu004`, `gpu 2`, `hca mlx5_1`, `port 29500`."""
    sentence: str
    advice: str
    evidence: tuple[Place, ...] = ()
    confidence: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    cause: str = ""
    next: str = ""
    """What to check next with preflight."""
    lines: int = 0
    """How many lines were read."""
    consequences: tuple[str, ...] = ()
    """Failures that followed from it."""
    line: str = ""
    """The line of the script where the culprit was, where dumps show it."""
    waits: tuple[Wait, ...] = ()
    """Where each rank waited, and for which ranks, from flight recorder dumps."""
    unseen: tuple[str, ...] = ()
    """What the dumps do not show."""


_MOST = 16
_PROOFS = 6
_WORDS = {
    "rank2": "rank",
    "missing": "rank",
    "peer": "node",
    "bus": "gpu",
    "tasks": "task",
    "near": "rank",
    "local_rank": "local rank",
}
"""The kind of a culprit, if it differs from the field's name."""
_TASK = re.compile(r"/task:(\d{1,9})")


def culprits(same: Sequence[Hit], first: Hit) -> tuple[str, ...]:
    """The culprits by the fields that the symptom names, over all its hits.

    If the fields are empty, the culprit is the node, if only one reports it. A symptom without
    culprit fields names no culprit: the writer of the line only reports the failure. Where hits
    name both ends of different paths, the end that all of them share is the culprit, if any.
    """
    fields = first.symptom.culprits
    of_hits = [
        dict.fromkeys(name for field in fields for name in _first_known(field, hit))
        for hit in [first, *same]
    ]
    found = {name: None for some in of_hits for name in some}
    shared = [name for name in found if all(name in some for some in of_hits)]
    if len({hit.speaker.node for hit in [first, *same]}) > 1:  # each node has such an HCA
        shared = [name for name in shared if not name.startswith("hca ")]
    if "peer" in fields and shared:
        return tuple(shared)
    nodes = {hit.speaker.node for hit in [first, *same]}
    telling = first.symptom.culprits and first.symptom.role in ("cause", "sign")
    if not found and telling and len(nodes) == 1:
        return tuple(f"node {node}" for node in nodes if node)
    ranked = any(name.startswith("rank ") for name in found)
    named = [name for name in found if not (ranked and name.startswith("local rank "))]
    return tuple(named)[:_MOST]


def rank_words(ranks: Collection[int], most: int = 8) -> str:
    """`rank 3`, `ranks 0, 2, 5 ...`."""
    shown = sorted(ranks)
    words = ", ".join(map(str, shown[:most])) + (" ..." if len(shown) > most else "")
    return f"rank{'s' * (len(shown) > 1)} {words}"


def names(speaker: Speaker) -> tuple[str, ...]:
    """`rank 3` and `node gpu004`, as far as they are known."""
    rank = (f"rank {speaker.rank}",) if speaker.rank is not None else ()
    node = (f"node {speaker.node}",) if speaker.node else ()
    return (*rank, *node)


def tasks_of(value: str) -> list[str]:
    """The numbers of JAX's tasks in a list such as `/job:jax_worker/replica:0/task:3`."""
    return sorted(set(_TASK.findall(value)), key=int)


def _first_known(fields: str, hit: Hit) -> tuple[str, ...]:
    """`speaker/gpu` is the rank or node that wrote it; the GPU only if neither is known."""
    return next(filter(None, (_culprit(field, hit) for field in fields.split("/"))), ())


def _culprit(field: str, hit: Hit) -> tuple[str, ...]:
    if field == "speaker":
        return names(hit.speaker)
    if field == "speaker_node":
        return (f"node {hit.speaker.node}",) if hit.speaker.node else ()
    value = hit.fields.get(field)
    if value is None:
        return ()
    word = _WORDS.get(field, field)
    if word == "task":
        return tuple(f"task {one}" for one in tasks_of(value))
    several = value.split(",") if word == "rank" else [value]
    return tuple(f"{word} {one.strip()}" for one in several)


def proofs(places: Iterable[Place]) -> tuple[Place, ...]:
    """The first few lines, each once, on one line each."""
    seen: dict[tuple[str, int], Place] = {}
    for place in places:
        text = re.sub(r"\s+", " ", place.text).strip()[:240]
        seen.setdefault((place.source, place.line), replace(place, text=text))
    return tuple(seen.values())[:_PROOFS]


def with_meanings(hit: Hit) -> dict[str, str]:
    """Add the speaker and the meaning of numbers: a completion's status, an errno, an Xid."""
    fields = dict(hit.fields)
    if hit.speaker.words:
        fields.setdefault("speaker", hit.speaker.words)
    if rank := fields.get("rank"):
        fields["rank_words"] = f"rank{'s' * (',' in rank)} {rank}"
    if tasks := tasks_of(fields.get("tasks", "")):
        fields["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    for field, meanings in hit.symptom.words.items():
        number = number_of(hit, field)
        words = meanings.get(str(number), meanings.get("", "")) if number else ""
        if words:
            fields[f"{field}_words"] = words.format(number=number)
    if "xid" in fields:
        fields["xid_words"] = xid_info(int(fields["xid"])).meaning
    return fields


def number_of(hit: Hit, field: str) -> int:
    """The number of a field, or the number that a text stands for; 0 without either."""
    number = whole(hit.fields.get(field, ""), 2**64)
    if number is not None:
        return number
    names = hit.symptom.numbers.get(field, {})
    texts = hit.fields.values()
    return int(next((names[name] for name in names if any(name in one for one in texts)), 0))
