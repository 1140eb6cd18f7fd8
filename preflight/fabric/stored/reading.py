"""Stored samples become typed values here, or one sentence that says where they are unusable."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from preflight.errors import UsageError
from preflight.fabric.observed import Observed, observe
from preflight.fabric.samples import Sweep
from preflight.fabric.stored.forms import Document, Stored
from preflight.fabric.stored.opening import open_samples
from preflight.fabric.stored.sane import refuse_absurd, refuse_absurd_sweep
from preflight.fleet.inventory_keys import plainly

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fabric.stored.forms import Form

T = TypeVar("T")

_LOOKED_AT = 64 << 20
"""Bytes of a cut-off file that are searched for what could still be read."""

_BYTE = re.compile(r"\(byte (\d+)\)")
_AROUND = 20
_ENTRIES = (("rounds", "pairs"), ("tried", "digests"))
_CUT = re.compile(rb"(?<=[\s:,\[])(-?[\d.eE+-]*|t|tr|tru|f|fa|fal|fals|n|nu|nul)\Z")
"""What may be the first part of a number or a word that went on."""
_LONGEST = 64
"""Bytes at the end in which such a part is looked for."""
_BLANK = re.compile(r"[\s,]*")


def read_stored(given: Path) -> Stored:
    """Read a run's folder, or a file of samples of either form.

    UsageError names the file, the place in it, and what to do. Files may be hostile: what they
    hold is bounded, typed and consistent afterwards, and names are names of hosts.
    """
    return stored_in(*open_samples(given))


def stored_in(path: Path, content: bytes) -> Stored:
    """The same for content that was read from `path` already."""
    try:
        document = _decoded(content, Document)
        return _stored(path, content, document.form, document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except MemoryError as error:
        raise UsageError(
            f"{path}: its samples do not fit into this machine's memory; decode it on a larger "
            "one, or store the short form (docs/samples.md)"
        ) from error


def _stored(path: Path, content: bytes, form: Form, document: Document) -> Stored:
    if form == "short":
        observed = _decoded(content, Observed)
        refuse_absurd(observed)
        return Stored(path=path, form=form, observed=observed)
    swept = bytes(document.sweep) if form == "run" else content
    if swept in (b"", b"null"):
        nothing = Observed(nodes=(), backend="", tried=(), digests=())
        return Stored(path=path, form=form, observed=nothing, run=document.nonce)
    sweep = _decoded(swept, Sweep)
    refuse_absurd_sweep(sweep)
    return Stored(path=path, form=form, sweep=sweep, observed=observe(sweep), run=document.nonce)


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{plainly(str(error))}; correct or leave out that entry") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(_broken(content, str(error))) from error
    except RecursionError as error:
        raise UsageError("it is nested too deep to be samples; give another file") from error


def _broken(content: bytes, reason: str) -> str:
    """Say where it is no JSON, and how much of it was still sound."""
    place = _BYTE.search(reason)
    if place is None:
        return _ends(content, content)
    at = int(place[1])
    cut = _CUT.search(content[-_LONGEST:])
    whole = len(content) - len(cut[0]) if cut else len(content)
    if at >= whole:
        return _ends(content, content[:whole])
    around = content[max(0, at - _AROUND) : at + _AROUND]
    return f"no JSON at byte {at:,}, near {around!a}: {_readable(content[:at])}; write it again"


def _ends(content: bytes, sound: bytes) -> str:
    return (
        f"it ends in the middle, after {len(content):,} bytes: {_readable(sound)}; "
        "copy it again from where it was written"
    )


def _readable(content: bytes) -> str:
    """How many entries stand whole before the damage, and which is the last."""
    text = content[:_LOOKED_AT].decode("utf-8", "replace")
    for before, entries in _ENTRIES:
        ahead = re.search(rf'"{before}"\s*:', text)
        start = re.compile(rf'"{entries}"\s*:\s*\[').search(text, ahead.end() if ahead else 0)
        if start is not None:
            count, last = _whole(text, start.end())
            least = "at least " if len(content) > _LOOKED_AT else ""
            named = f", the last {last!a}" if last else ""
            return f"{least}{count:,} of its {entries} before that are whole{named}"
    return "none of its pairs before that is whole"


def _whole(text: str, at: int) -> tuple[int, str]:
    decoder = json.JSONDecoder()
    count, last = 0, ""
    while blank := _BLANK.match(text, at):
        try:
            entry, at = decoder.raw_decode(text, blank.end())
        except (ValueError, RecursionError):
            break
        count += 1
        last = f"{entry.get('a')}-{entry.get('b')}"[:80] if isinstance(entry, dict) else ""
    return count, last
