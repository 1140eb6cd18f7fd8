"""The job's own TCPStore, over which its ranks exchange notes, and each rank's place in the job.

Notes are bytes of limited size, decoded by a schema; nothing is pickled. torch is imported only
for its store: CUDA is not initialised.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from preflight.errors import PreflightError, UsageError, WireError

NOTE_LIMIT = 1 << 20
"""Bytes of the longest note that is read; preflight's own are under a tenth of it."""

CALL_S = 10.0
"""Deadline of one answer of the store; torchrun's own agent answers within microseconds."""

JOIN_S = 60.0
"""Deadline of the connection to the store."""

_BATCH = 512
_ERRORS_ONLY = "ERROR"
_owns_log = False
"""We or the job chose torch's log level; else a conftest.py loaded torch with its log on."""
_FIRST_NAP_S, _LONGEST_NAP_S = 0.005, 0.25


class StoreLostError(PreflightError):
    """The store is gone, and with it the torchrun that hosted it."""


class JobStore:
    """One connection to the store. Calls from several threads run one at a time, waits included."""

    def __init__(self, store: Any, *, logs_timeouts: bool = False) -> None:
        self._store = store
        self._logs_timeouts = logs_timeouts
        self._lock = threading.Lock()
        self._timeout_error: type[Exception] = _distributed().DistStoreError

    @classmethod
    def open(cls, place: Place) -> JobStore:
        """Connect as the job's ranks do; StoreLostError if there is no store."""
        global _owns_log  # noqa: PLW0603  torch is loaded once per process, by us or by another
        _owns_log = _owns_log or "torch" not in sys.modules or "TORCH_CPP_LOG_LEVEL" in os.environ
        dist = _distributed()
        try:
            raw = dist.TCPStore(
                place.master_addr,
                place.master_port,
                None,
                is_master=False,
                timeout=timedelta(seconds=JOIN_S),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise StoreLostError(
                f"no store of torchrun answers at {place.master_addr}:{place.master_port}: look at "
                "the master node's torchrun and at the firewall in front of it"
            ) from error
        raw.set_timeout(timedelta(seconds=CALL_S))
        return cls(dist.PrefixStore(place.prefix, raw), logs_timeouts=not _owns_log)

    def write(self, key: str, note: bytes) -> None:
        """Write a note under a key, in place of an older one."""
        self._call("set", key, note)

    def read(self, key: str, within_s: float = CALL_S) -> bytes | None:
        """Wait for a note and return it; None if there is none in time. WireError if too long."""
        if not self.wait([key], within_s):
            return None
        return _check_size(self._call("get", key))

    def wait(self, keys: Sequence[str], within_s: float) -> bool:
        """Wait until all keys are there; False if some are not in time."""
        if self._logs_timeouts:
            return self._poll(keys, within_s)
        try:
            with self._lock:
                self._store.wait(list(keys), timedelta(seconds=max(0.001, within_s)))
        except self._timeout_error:
            return False
        except RuntimeError as error:
            raise _lost(error) from error
        return True

    def _poll(self, keys: Sequence[str], within_s: float) -> bool:
        """Wait by polling: a torch with its log on logs each wait that times out."""
        deadline, nap_s = time.monotonic() + within_s, _FIRST_NAP_S
        while not self._call("check", list(keys)):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        return True

    def take(self, key: str, within_s: float) -> bytes | None:
        """Read a note as `read` does, and remove it."""
        note = self.read(key, within_s)
        if note is not None:
            self._call("delete_key", key)
        return note

    def read_all(self, keys: Sequence[str]) -> list[bytes]:
        """Read notes that are known to be there, many in one round trip."""
        notes: list[bytes] = []
        for start in range(0, len(keys), _BATCH):
            notes += map(_check_size, self._call("multi_get", list(keys[start : start + _BATCH])))
        return notes

    def has(self, key: str) -> bool:
        """Whether a note is there."""
        return bool(self._call("check", [key]))

    def add(self, key: str, amount: int = 0) -> int:
        """Add to a counter and return its new value."""
        return int(self._call("add", key, amount))

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            with self._lock:
                return getattr(self._store, name)(*arguments)
        except RuntimeError as error:
            raise _lost(error) from error


def _check_size(note: bytes) -> bytes:
    if len(note) > NOTE_LIMIT:
        raise WireError(f"a note in the job's store has {len(note)} bytes: not preflight's")
    return note


def _lost(error: RuntimeError) -> StoreLostError:
    first = str(error).partition("\n")[0][:120]
    return StoreLostError(f"the job's store is gone ({first}): look at the master's torchrun")


def _distributed() -> Any:
    """Import the part of torch that has the store, without its warnings and its C++ log."""
    chosen = os.environ.setdefault("TORCH_CPP_LOG_LEVEL", _ERRORS_ONLY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch.distributed as dist
    finally:
        if chosen is _ERRORS_ONLY:  # the job's environment stays as it was
            del os.environ["TORCH_CPP_LOG_LEVEL"]
    if not dist.is_available():
        raise StoreLostError("this torch was built without torch.distributed: install one with it")
    return dist


CHUNK = 64 << 10
"""Bytes of a payload's input or output in one note."""

_Nonce = Annotated[str, Meta(max_length=64)]
_Id = Annotated[int, Meta(ge=0, le=2**31)]
_Rank = Annotated[int, Meta(ge=0, le=2**24)]
_Status = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_Word = Annotated[str, Meta(max_length=64)]
_Name = Annotated[str, Meta(max_length=255)]
_Sentence = Annotated[str, Meta(max_length=512)]
_Bytes = Annotated[bytes, Meta(max_length=CHUNK)]


class Hello(Struct, frozen=True):
    """Rank 0's first note: the run that all other notes belong to."""

    nonce: _Nonce
    version: _Word


class Present(Struct, frozen=True, kw_only=True):
    """A rank's first note: its numbers, where it runs, and the part of its environment we check."""

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
    """Kill the child, whatever it is doing."""

    child: _Id


class Ask(Struct, frozen=True, tag_field="do", tag="ask"):
    """Ask the rank to answer `Here`."""

    number: _Id


class Leave(Struct, frozen=True, tag_field="do", tag="leave"):
    """The run is over: end all children, report ready, and exit with this code when all are."""

    code: Annotated[int, Meta(ge=0, le=255)]


Order = Start | Feed | End | Ask | Leave


class Output(Struct, frozen=True, tag_field="say", tag="said"):
    """Output of a child."""

    child: _Id
    out: _Bytes = b""
    err: _Bytes = b""


class Ended(Struct, frozen=True, tag_field="say", tag="ended"):
    """A child has ended; status None if it could not be reaped."""

    child: _Id
    status: _Status | None


class Unable(Struct, frozen=True, tag_field="say", tag="unable"):
    """A child could not be started."""

    child: _Id
    sentence: _Sentence
    advice: _Sentence


class Here(Struct, frozen=True, tag_field="say", tag="here"):
    """The answer to `Ask`."""

    number: _Id


class Leaving(Struct, frozen=True, tag_field="say", tag="leaving"):
    """The rank exits before rank 0 ordered it to."""

    why: _Sentence


Reply = Output | Ended | Unable | Here | Leaving


class ToRank(Struct, frozen=True):
    """An order to a rank, bound to the run."""

    nonce: _Nonce
    order: Order


class FromRank(Struct, frozen=True):
    """A rank's reply, bound to the run; `number` counts its replies, so that a loss shows."""

    nonce: _Nonce
    rank: _Rank
    number: _Id
    reply: Reply


_T = TypeVar("_T", Hello, Present, ToRank, FromRank)


def decode_note(note: bytes, kind: type[_T], nonce: str = "") -> _T:
    """Read a note of the run with that nonce; WireError for anything else."""
    try:
        message = msgspec.json.decode(note, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"a note in the job's store is not preflight's: {reason}") from error
    if nonce and message.nonce != nonce:
        raise WireError("a note in the job's store is of another run")
    return message


_Size = Annotated[int, Meta(ge=1, le=2**24)]


class Place(Struct, frozen=True, kw_only=True, rename="upper"):
    """One rank's place in the job, from torchrun's variables."""

    rank: _Rank
    world_size: _Size
    local_rank: _Rank
    """The job's GPU index: 0 for all ranks under torchrun's --virtual-local-rank."""
    local_world_size: _Size
    group_rank: _Rank
    master_addr: str
    master_port: Annotated[int, Meta(ge=0, le=65535)]
    run_id: str = field(name="TORCHELASTIC_RUN_ID")
    restart: _Id = field(default=0, name="TORCHELASTIC_RESTART_COUNT")
    max_restarts: _Id = field(default=0, name="TORCHELASTIC_MAX_RESTARTS")
    agent_store: bool = field(default=True, name="TORCHELASTIC_USE_AGENT_STORE")
    """Whether torchrun itself hosts the store at the master port; else the job's rank 0 does."""

    @property
    def index_on_node(self) -> int:
        """The index of this rank on its node, also where LOCAL_RANK is virtual."""
        return self.rank % self.local_world_size

    @property
    def prefix(self) -> str:
        """The prefix of our keys in the job's store, unique to this start of the job."""
        return f"preflight/{self.run_id}/{self.restart}"


def read_place(environ: Mapping[str, str]) -> Place:
    """Read a rank's place; UsageError if torchrun's variables were changed."""
    try:
        place = msgspec.convert(dict(environ), Place, strict=False)
    except ValueError as error:
        raise UsageError(
            f"torchrun's environment is incomplete ({error}): start pytest as torchrun's own "
            "program, torchrun ... -m pytest --preflight"
        ) from error
    if place.rank >= place.world_size:
        raise UsageError(
            f"RANK {place.rank} of WORLD_SIZE {place.world_size} is impossible: do not change "
            "torchrun's variables"
        )
    return place
