"""Read samples of past runs from files that may be truncated, absurd or hostile.

A file's form is recognised; it is read into typed values or refused. `rebuilt` makes a sweep of the
short form, so that one judge takes both. The short form does not hold which nodes waited for which,
why a sweep ended, a node's own rails, and single times. A pair without times was not measured.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from preflight.core.files import file_errors, read_regular, unpacked_limit
from preflight.core.statistics import grouped
from preflight.errors import UsageError
from preflight.fabric.impossible_samples import refuse_absurd, refuse_absurd_sweep
from preflight.fabric.observed import EndResult, Observed, PairResult, StallTotal, ladder, observe
from preflight.fabric.pair_summary import lost_sentence
from preflight.fabric.samples import (
    Backend,
    End,
    MeetingKey,
    Moved,
    PairSamples,
    PairState,
    Rung,
    Sweep,
)
from preflight.fleet.inventory_tables import schema_reason

VERSION = 1
"""Version of both forms; raised by a change that an older reader would misread."""

Form = Literal["run", "long", "short"]
"""`run`: the measured.json of a run. `long`: a sweep, every iteration. `short`: quantiles."""

_NOTHING = Raw(b"")


class StoredSamples(Struct, frozen=True, kw_only=True):
    """Samples that were read and are valid."""

    path: Path
    form: Form
    observed: Observed
    """The decoder's input: made from the sweep, if there is one."""
    sweep: Sweep | None = None
    run: str = ""
    """The random id of a run's folder."""


class Document(Struct, frozen=True, kw_only=True):
    """The top level of a file, which shows its form; its parts are not decoded yet."""

    version: int = VERSION
    nonce: str = ""
    sweep: Raw = _NOTHING
    ladder: Raw = _NOTHING
    pairs: Raw = _NOTHING
    tried: Raw = _NOTHING
    digests: Raw = _NOTHING

    @property
    def form(self) -> Form:
        """Return its form; UsageError if it has none or is of a later version."""
        if self.version != VERSION:
            raise UsageError(
                f"its samples are of version {self.version}, this preflight reads {VERSION}; "
                "use the preflight that wrote them"
            )
        if bytes(self.tried) and bytes(self.digests):
            return "short"
        if bytes(self.ladder) and bytes(self.pairs):
            return "long"
        if self.nonce:
            return "run"
        raise UsageError(
            "it holds neither samples nor a run: a long form has ladder, rounds and pairs, a short "
            "one nodes, tried and digests (docs/reference/samples.md); give a file of either form"
        )


def encode_sweep(sweep: Sweep | Observed) -> bytes:
    """Write the long form: every iteration of both ends."""
    fields = {name: getattr(sweep, name) for name in sweep.__struct_fields__}
    return msgspec.json.encode({"version": VERSION, **fields})


def encode_observed(observed: Observed) -> bytes:
    """Write the short form: what statistics and blame need, about 1/20 of the long one."""
    return encode_sweep(observed)


LARGEST = 1 << 30
"""Bytes, before and after decompression."""

MOST_NUMBERS = 100_000_000
"""Entries of the whole document; each takes up to 40 bytes of memory."""

_MEASURED = ("measured.json", "measured.json.gz")
_MAGIC = b"\x1f\x8b"
_CHUNK = 4 << 20
_GIVE = "give the folder of a run, its measured.json, or samples as docs/reference/samples.md says"


def open_samples(run_or_file: Path) -> tuple[Path, bytes]:
    """Read the file, or the one in a run's folder; UsageError names it and says what is wrong."""
    with file_errors(f"cannot read {run_or_file}", _GIVE):
        path = _in_folder(run_or_file) if run_or_file.is_dir() else run_or_file
    try:
        content = read_regular(path, LARGEST)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {_GIVE}") from error
    if content.startswith(_MAGIC):
        content = _decompress(path, content)
    if not content.strip():
        raise UsageError(f"{path} is empty; {_GIVE}")
    if content.count(b",") > MOST_NUMBERS:
        raise UsageError(
            f"{path} holds more than {MOST_NUMBERS:,} entries; store the short form of so many "
            "samples (docs/reference/samples.md), or fewer pairs"
        )
    return path, content


def _in_folder(folder: Path) -> Path:
    path = next((folder / name for name in _MEASURED if (folder / name).exists()), None)
    if path is None:
        raise UsageError(f"{folder} holds no measured.json, so it is no run's folder; {_GIVE}")
    return path


def _decompress(path: Path, content: bytes) -> bytes:
    """Decompress piece by piece: a small file can expand to more than all memory."""
    buffer = io.BytesIO()
    most = min(LARGEST, unpacked_limit(len(content)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while piece := file.read1(_CHUNK):  # keeps what comes before the damage
                buffer.write(piece)
                if buffer.tell() > most:
                    raise UsageError(
                        f"{path} holds more than {most >> 20} MiB once it is unpacked; "
                        "store the short form of so many samples (docs/reference/samples.md)"
                    )
    except (EOFError, OSError, zlib.error) as error:
        reason = "it ends early" if isinstance(error, EOFError) else str(error)
        raise UsageError(
            f"{path} is damaged gzip ({reason}; about {buffer.tell():,} bytes could be unpacked); "
            "copy it again from where it was written"
        ) from error
    return buffer.getvalue()


T = TypeVar("T")

_BYTE = re.compile(r"\(byte (\d+)\)")
_AROUND = 20


def read_stored(path: Path) -> StoredSamples:
    """Read a run's folder, or a file of samples of either form.

    UsageError names the file, the place in it, and what to do. Files may be hostile: the result is
    bounded, typed and consistent, and its names are host names.
    """
    return stored_in(*open_samples(path))


def stored_in(path: Path, content: bytes) -> StoredSamples:
    """Read samples, as `read_stored` does, from content that was already read from `path`."""
    try:
        document = _decode(content, Document)
        return _stored_samples(path, content, document.form, document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except MemoryError as error:
        raise UsageError(
            f"{path}: its samples do not fit into this machine's memory; decode it on a larger "
            "one, or store the short form (docs/reference/samples.md)"
        ) from error


def _stored_samples(path: Path, content: bytes, form: Form, document: Document) -> StoredSamples:
    if form == "short":
        observed = _decode(content, _Earlier).upgraded
        refuse_absurd(observed)
        return StoredSamples(path=path, form=form, observed=observed)
    sweep_json = bytes(document.sweep) if form == "run" else content
    if sweep_json in (b"", b"null"):
        nothing = Observed(nodes=(), backend="", tried=(), digests=())
        return StoredSamples(path=path, form=form, observed=nothing, run=document.nonce)
    sweep = _decode(sweep_json, Sweep)
    refuse_absurd_sweep(sweep)
    return StoredSamples(
        path=path, form=form, sweep=sweep, observed=observe(sweep), run=document.nonce
    )


class _EarlierResult(PairResult, frozen=True, kw_only=True):
    """A result in files until November 2026: both ends' errors in one text."""

    text: str = msgspec.field(default="", name="error")
    """"h1: reason; h2: reason", or why it was not judged."""
    net: str = ""
    """Of both ends, if they differ: "NET/IB mlx5_3 / NET/Socket"."""
    moved_a: tuple[Moved, ...] = ()
    moved_b: tuple[Moved, ...] = ()
    stood_a: tuple[StallTotal, ...] = ()
    stood_b: tuple[StallTotal, ...] = ()

    @property
    def upgraded(self) -> PairResult:
        """Return the result with an error for each end."""
        fields = {name: getattr(self, name) for name in PairResult.__struct_fields__}
        ways = ((self.a,), (self.b,), self.nodes) if self.state == "not_run" else ()
        lost = next((names for names in ways if self.text == lost_sentence(names)), ())
        errors = (self.text, self.text) if not lost else ("", "")
        if self.text.startswith(f"{self.b}: "):
            errors = "", self.text.removeprefix(f"{self.b}: ")
        elif self.text.startswith(f"{self.a}: "):
            first, _, second = self.text.removeprefix(f"{self.a}: ").partition(f"; {self.b}: ")
            errors = first, second
        net = self.net.split(" / ")
        if any((self.text, self.net, self.moved_a, self.moved_b, self.stood_a, self.stood_b)):
            fields["lost"] = lost
            fields["first"] = EndResult(errors[0], self.moved_a, net[0], self.stood_a)
            fields["second"] = EndResult(errors[1], self.moved_b, net[-1], self.stood_b)
        return PairResult(**fields)


class _Earlier(Observed, frozen=True, kw_only=True):
    """The short form with such results."""

    tried: tuple[_EarlierResult, ...]

    @property
    def upgraded(self) -> Observed:
        """Return the short form with such results converted."""
        fields = {name: getattr(self, name) for name in Observed.__struct_fields__}
        return Observed(**{**fields, "tried": tuple(result.upgraded for result in self.tried)})


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{schema_reason(str(error))}; correct or leave out that entry") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(_describe_damage(content, str(error))) from error
    except RecursionError as error:
        raise UsageError("it is nested too deep to be samples; give another file") from error


def _describe_damage(content: bytes, reason: str) -> str:
    """Say where the content is not JSON, and how much before that is valid."""
    place = _BYTE.search(reason)
    offset = int(place[1]) if place else len(content)
    pairs = content[:offset].count(b'"a":') - 1  # the last of them may be damaged
    whole = "none of its pairs before that is whole"
    if pairs > 0:
        whole = f"at least {pairs:,} of its pairs before that are whole"
    if offset >= len(content):
        remedy = "copy it again from where it was written"
        return f"it ends in the middle, after {offset:,} bytes: {whole}; {remedy}"
    excerpt = content[max(0, offset - _AROUND) : offset + _AROUND]
    return f"not JSON at byte {offset:,}, near {excerpt!a}: {whole}; write it again"


UNTIMED = "none of its times are stored"


def rebuilt(observed: Observed) -> Sweep:
    """Return a sweep whose ends hold no times: it reverses `observe`, as far as possible."""
    timed = {digest.key for digest in observed.digests}
    rungs = grouped((rung.size_bytes, rung.operations) for rung in ladder(observed.digests))
    untimed = any(_state_of(result, timed)[1] for result in observed.tried)
    return Sweep(
        ladder=tuple(Rung(size, 0, max(counts)) for size, counts in rungs.items()),
        rounds=(),
        pairs=tuple(_pair(result, timed, observed.backend or "gloo") for result in observed.tried),
        troubles=dict(observed.silent),
        unfinished=UNTIMED if untimed else "",
        leaves=dict(observed.leaves),
        retested=observed.retested,
    )


def _pair(result: PairResult, timed: Collection[MeetingKey], backend: Backend) -> PairSamples:
    state, untimed = _state_of(result, timed)
    ends = [
        None
        if name in result.lost
        else End(name, state, (), untimed or end.error, moved=end.moved, net=end.net)
        for name, end in ((result.a, result.first), (result.b, result.second))
    ]
    return PairSamples(*result.key, backend, *ends)


def _state_of(result: PairResult, timed: Collection[MeetingKey]) -> tuple[PairState, str]:
    """Return a pair's state, by the other end if an account is missing; and why it has no times."""
    if result.lost:
        return "measured", ""
    if result.state in ("measured", "not_run") and result.key not in timed:
        return "not_run", UNTIMED
    return result.state, ""
