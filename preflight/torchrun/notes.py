"""What rank 0 and the other ranks tell each other through the job's store: typed and bounded."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from preflight.errors import WireError

CHUNK = 64 << 10
"""Bytes of a payload's input or output in one note."""

_Nonce = Annotated[str, Meta(max_length=64)]
_Id = Annotated[int, Meta(ge=0, le=2**31)]
_Rank = Annotated[int, Meta(ge=0, le=2**24)]
_Word = Annotated[str, Meta(max_length=64)]
_Name = Annotated[str, Meta(max_length=255)]
_Sentence = Annotated[str, Meta(max_length=512)]
_Bytes = Annotated[bytes, Meta(max_length=CHUNK)]


class Hello(Struct, frozen=True):
    """Rank 0's first note: the run that all others belong to."""

    nonce: _Nonce
    version: _Word


class Present(Struct, frozen=True, kw_only=True):
    """A rank's first note: who it is, where it runs, and the part of its environment we judge."""

    nonce: _Nonce
    version: _Word
    rank: _Rank
    local_rank: _Rank
    group: _Rank
    per_node: _Rank
    hostname: _Name
    address: _Name
    pid: _Id
    python: Annotated[str, Meta(max_length=4096)]
    environ: Annotated[dict[str, Annotated[str, Meta(max_length=32768)]], Meta(max_length=512)]


class Start(Struct, frozen=True, tag_field="do", tag="start"):
    """Start an entry of the payload in a process of its own."""

    child: _Id
    entry: _Word
    timeout_s: Annotated[float, Meta(gt=0, le=1e7)]
    limit: Annotated[int, Meta(gt=0, le=2**32)]


class Feed(Struct, frozen=True, tag_field="do", tag="feed"):
    """Bytes for its standard input; `last`: there will be no more."""

    child: _Id
    data: _Bytes = b""
    last: bool = False


class End(Struct, frozen=True, tag_field="do", tag="end"):
    """End it, whatever it is doing."""

    child: _Id


class Ask(Struct, frozen=True, tag_field="do", tag="ask"):
    """Say that you are there."""

    number: _Id


class Leave(Struct, frozen=True, tag_field="do", tag="leave"):
    """The run is over: end everything, say so, and leave with this code when all have."""

    code: Annotated[int, Meta(ge=0, le=255)]


Order = Start | Feed | End | Ask | Leave


class Said(Struct, frozen=True, tag_field="say", tag="said"):
    """What a child wrote."""

    child: _Id
    out: _Bytes = b""
    err: _Bytes = b""


class Ended(Struct, frozen=True, tag_field="say", tag="ended"):
    """A child is gone; status None if it had to be left behind."""

    child: _Id
    status: int | None


class Unable(Struct, frozen=True, tag_field="say", tag="unable"):
    """A child could not be started."""

    child: _Id
    sentence: _Sentence
    advice: _Sentence


class Here(Struct, frozen=True, tag_field="say", tag="here"):
    """The answer to `Ask`."""

    number: _Id


class Leaving(Struct, frozen=True, tag_field="say", tag="leaving"):
    """The rank goes before it was told to."""

    why: _Sentence


Reply = Said | Ended | Unable | Here | Leaving


class ToRank(Struct, frozen=True):
    """An order, bound to the run."""

    nonce: _Nonce
    order: Order


class FromRank(Struct, frozen=True):
    """A reply, bound to the run; `number` counts a rank's replies, so that a lost one shows."""

    nonce: _Nonce
    rank: _Rank
    number: _Id
    reply: Reply


_T = TypeVar("_T", Present, ToRank, FromRank)
_K = TypeVar("_K")


class Decoder:
    """Reads the notes of one run; WireError for anything else."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._present = msgspec.json.Decoder(Present)
        self._order = msgspec.json.Decoder(ToRank)
        self._reply = msgspec.json.Decoder(FromRank)

    def present(self, note: bytes) -> Present:
        """Read a rank's first note."""
        return self._bound(_decode(self._present, note))

    def order(self, note: bytes) -> Order:
        """Read an order of rank 0."""
        return self._bound(_decode(self._order, note)).order

    def reply(self, note: bytes) -> FromRank:
        """Read what a rank replied."""
        return self._bound(_decode(self._reply, note))

    def _bound(self, note: _T) -> _T:
        if note.nonce != self._nonce:
            raise WireError("a note of another run lies in the job's store")
        return note


def decode_hello(note: bytes) -> Hello:
    """Read rank 0's first note."""
    return _decode(msgspec.json.Decoder(Hello), note)


def _decode(decoder: msgspec.json.Decoder[_K], note: bytes) -> _K:
    try:
        return decoder.decode(note)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"a note in the job's store is none of preflight's: {reason}") from error
