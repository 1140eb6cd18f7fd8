"""One printed value of nvidia-smi: told, not there, refused or failed. ERR! is never a number.

All forms of nvidia-smi (-q, XML, csv, table) print the same words for what they cannot tell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, ValidationError, convert

from preflight.facts.gpu_model import GpuHealth

if TYPE_CHECKING:
    from collections.abc import Callable

_ABSENT: Final = ("n/a", "not supported", "requested functionality has been deprecated", "none")
_DENIED: Final = "insufficient permission"
_FAILED: Final = ("err!", "error", "lost", "requires reset", "unknown", "timeout")
_NUMBER: Final = re.compile(r"(-?[0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z%()]*)")
_COUNT: Final = re.compile(r"[0-9]{1,19}(?: bank\(s\))?")
_HOTTEST_C: Final = 200
_WORDS_CHARS: Final = 60

_COMPUTE: Final = {
    "default": "default",
    "e. process": "exclusive_process",
    "exclusive_process": "exclusive_process",
    "e. thread": "exclusive_thread",
    "exclusive_thread": "exclusive_thread",
    "prohibited": "prohibited",
}


class Doubt(Struct, frozen=True):
    """One reading that is printed and cannot be read: what it may hide is not known."""

    field: str
    why: str


class Readings:
    """Gathers what one GPU's text tells into a `GpuHealth`, refusals included."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._refused: dict[str, list[str]] = {"lacks": [], "denied": [], "errors": []}
        self._unread: dict[str, str] = {}

    def put(self, field: str, printed: str, read: Callable[[str], Any]) -> None:
        """Take a value as printed; the first that is told stands."""
        word = printed.strip().strip("[]").strip()
        low = word.lower()
        if self.values.get(field) is not None:
            return
        value = read(word) if not low.startswith(_ABSENT) or field == "recovery_action" else None
        if value is not None:
            self.values[field] = value
        elif low.startswith(_ABSENT):
            self._refuse("lacks", field, field)
        elif _DENIED in low:
            self._refuse("denied", field, field)
        elif any(failure in low for failure in _FAILED):
            self._refuse("errors", field, f"{field}: {word[:_WORDS_CHARS]}")
        else:
            self.doubt(field, word)

    def doubt(self, field: str, word: str) -> None:
        """It is printed, and neither a reading nor a word for why there is none."""
        self._unread.setdefault(field, word[:_WORDS_CHARS])

    def doubts(self, who: str) -> tuple[Doubt, ...]:
        """What is printed of that GPU and cannot be read."""
        return tuple(
            Doubt(field, f"{who}: its {field.replace('_', ' ')} reads {word!r}: no such reading")
            for field, word in self._unread.items()
            if self.values.get(field) is None or field == "clock_reasons"
        )

    def lack(self, *fields: str) -> None:
        """The text says that the board has no such readings."""
        for field in fields:
            self._refuse("lacks", field, field)

    def failed(self, line: str) -> None:
        """Another program says this of the GPU."""
        self._refuse("errors", "", line[:200])

    def health(self) -> GpuHealth:
        """The typed readings; a value that no GPU can have is an error."""
        refused = {
            kind: tuple(line for line in lines if kind == "errors" or line not in self.values)
            for kind, lines in self._refused.items()
        }
        known = {name: value for name, value in self.values.items() if name in _FIELDS}
        try:
            return convert({**known, **refused}, GpuHealth)
        except ValidationError:
            return convert({**_possible(known, refused), **refused}, GpuHealth)

    def _refuse(self, kind: str, field: str, line: str) -> None:
        if not field or line not in self._refused[kind]:
            self._refused[kind].append(line)


_FIELDS: Final = frozenset(GpuHealth.__struct_fields__) - {"lacks", "denied", "errors"}


def _possible(known: dict[str, Any], refused: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    kept = {}
    for name, value in known.items():
        try:
            convert({name: value}, GpuHealth)
            kept[name] = value
        except ValidationError:
            refused["errors"] = (*refused["errors"], f"{name}: absurd value")
    return kept


def refused(word: str) -> bool:
    """Whether a word says why there is no reading."""
    low = word.strip().strip("[]").strip().lower()
    return low.startswith(_ABSENT) or any(failure in low for failure in (_DENIED, *_FAILED))


def number(word: str) -> int | None:
    """Read a count: 177 or "639 bank(s)"; None for anything else, other units included."""
    return int(word.partition(" ")[0]) if _COUNT.fullmatch(word) else None


def celsius(word: str) -> int | None:
    """Read "38 C" or "-2 C"; what no chip survives is no temperature."""
    degrees = _whole(word, "C")
    return degrees if degrees is not None and abs(degrees) <= _HOTTEST_C else None


def mebibytes(word: str) -> int | None:
    """Read "12 MiB"."""
    return _whole(word, "MiB")


def percent(word: str) -> int | None:
    """Read "30 %"."""
    return _whole(word, "%")


def lanes(word: str) -> int | None:
    """Read "16x"; a link without lanes is none."""
    return _whole(word, "x") or None


def watts(word: str) -> float | None:
    """Read "43.89 W"."""
    return _measured(word, "W")


def seconds(word: str) -> float | None:
    """Read "204642816 us"."""
    found = _measured(word, "us")
    return None if found is None else found / 1e6


def _whole(word: str, unit: str) -> int | None:
    found = _measured(word, unit)
    return None if found is None else int(found)


def _measured(word: str, unit: str) -> float | None:
    """A number with that unit, or bare as csv prints it where asked to; never with another."""
    match = _NUMBER.fullmatch(word)
    return float(match[1]) if match and match[2] in ("", unit) else None


def switch(word: str) -> bool | None:
    """Read Enabled, On, Yes, Active, True, and their opposites."""
    low = word.lower()
    if low in ("enabled", "on", "yes", "active", "true", "1"):
        return True
    return False if low in ("disabled", "off", "no", "not active", "false", "0") else None


def words(word: str) -> str | None:
    """Read a version or a name; None where it is one of the words for a failure."""
    failed = any(failure in word.lower() for failure in _FAILED)
    return word[:200] if word and word.isprintable() and not failed else None


def compute_mode(word: str) -> str | None:
    """Read a compute mode as the table or -q prints it."""
    return _COMPUTE.get(word.lower())


def state(word: str) -> str | None:
    """Read P0 to P15."""
    return word if re.fullmatch(r"P1?[0-9]", word) else None


def action(word: str) -> str | None:
    """Read a recovery action in the probe's words."""
    if any(failure in word.lower() for failure in _FAILED) or not word.isprintable():
        return None
    low = word.lower().replace("_", " ")
    if low in ("n/a", "not supported") or low.startswith("requested functionality"):
        return None
    known = ("none", "GPU reset", "node reboot", "drain P2P", "drain and reset", "bus reset",
             "system reboot", "recover IMEX domain")  # fmt: skip
    same = {one.lower(): one for one in (*known,)} | {"reset": "GPU reset", "reboot": "node reboot"}
    return same.get(low, word[:60])


def fabric(word: str) -> str | None:
    """Read the state of a fabric registration: "Completed", "In Progress"."""
    low = word.lower()
    return low if low in ("completed", "in progress", "not started") else None
