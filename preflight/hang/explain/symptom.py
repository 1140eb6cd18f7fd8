"""What is known of a job's last words, as data, and what of it a log holds, in whose words.

One file per symptom in `symptoms/`.
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
from msgspec.structs import replace

from preflight.core.files import parse_toml
from preflight.core.text import whole
from preflight.errors import UsageError
from preflight.facts.boards import xid_info
from preflight.hang.answer_text import Alternative

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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


class Circumstance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a symptom means something else than by itself: where all that is named here holds."""

    numbers: dict[str, tuple[int, ...]] = {}
    """Fields, each with one of these numbers."""
    greater: tuple[str, str] | None = None
    """Two fields, the first of which is the greater number."""
    met: str = ""
    """Another symptom that the logs hold."""
    several: str = ""
    """A field of which the logs tell more than one value: `{several}` in the remark."""
    world: int = 0
    """The number of ranks."""
    category: Category = "unknown"
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    remark: str = ""
    """Added to the sentence."""
    lesser: bool = False
    """A cause is but a sign then."""
    moot: bool = False
    """A hint does not matter then."""


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
    when: tuple[Circumstance, ...] = ()
    """The first that holds is told in place of category and confidence."""
    survived_by: str = ""
    """A fact that tells, further down in the same file, that this ended nobody."""
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


class Speaker(Struct, frozen=True, kw_only=True):
    """Who wrote a line, as far as the line tells."""

    rank: int | None = None
    """Global rank."""
    node: str = ""
    pid: int | None = None

    def joined(self, other: Speaker) -> Speaker:
        """Complete it by what another knows."""
        return Speaker(
            rank=self.rank if self.rank is not None else other.rank,
            node=self.node or other.node,
            pid=self.pid if self.pid is not None else other.pid,
        )

    @property
    def words(self) -> str:
        """`rank 3 on gpu004`, or as much of it as is known."""
        rank = f"rank {self.rank}" if self.rank is not None else ""
        return " on ".join(filter(None, (rank, self.node)))


class Place(Struct, frozen=True):
    """Where a line stands."""

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
    time: tuple[float, ...] | None
    """Comparable with other times of the same form; None where the line tells none."""
    order: int
    """The how-many-th line it is of all that were read."""


class Explanation(Struct, frozen=True, kw_only=True):
    """The answer; `preflight explain --json` prints it as it is (docs/explain.md)."""

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
    """That were read."""


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
"""What a field is of, where that is not its own name."""
_TASK = re.compile(r"/task:(\d{1,9})")


def culprits(same: Sequence[Hit], first: Hit) -> tuple[str, ...]:
    """Who is to blame by the fields that the symptom names, over all its places.

    Where they name nobody, it is the one node whose lines tell of it. A symptom that names no
    field accuses nobody: who writes that line only reports it.
    """
    found: dict[str, None] = {}
    for hit in [first, *same]:
        for field in first.symptom.culprits:
            for name in _first_known(field, hit):
                found.setdefault(name)
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
    """`speaker/gpu` is the rank or node that said it; the GPU only where neither is known."""
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


def decoded(hit: Hit) -> dict[str, str]:
    """Add who spoke, and what numbers mean: a completion's status, an errno, an Xid."""
    told = dict(hit.fields)
    if hit.speaker.words:
        told.setdefault("speaker", hit.speaker.words)
    if rank := told.get("rank"):
        told["rank_words"] = f"rank{'s' * (',' in rank)} {rank}"
    if tasks := tasks_of(told.get("tasks", "")):
        told["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    for field, meanings in hit.symptom.words.items():
        number = number_of(hit, field)
        words = meanings.get(str(number), meanings.get("", "")) if number else ""
        if words:
            told[f"{field}_words"] = words.format(number=number)
    if "xid" in told:
        told["xid_words"] = xid_info(int(told["xid"])).meaning
    return told


def number_of(hit: Hit, field: str) -> int:
    """The number of a field, or that which a text stands for; 0 where neither is told."""
    told = whole(hit.fields.get(field, ""), 2**64)
    if told is not None:
        return told
    names = hit.symptom.numbers.get(field, {})
    texts = hit.fields.values()
    return int(next((names[name] for name in names if any(name in one for one in texts)), 0))
