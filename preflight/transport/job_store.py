"""The job's own store, as a board on which the ranks leave each other notes.

Notes are bytes, capped and decoded by a schema; nothing is pickled. torch is imported here for its
store alone: CUDA stays untouched.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from preflight.errors import PreflightError, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.torchrun.place import Place

NOTE_LIMIT = 1 << 20
"""Bytes of the longest note that is read; ours stay under a tenth of it."""

CALL_S = 10.0
"""For one answer of the store; torchrun's own agent serves it within microseconds."""

JOIN_S = 60.0
"""For the store to accept us."""

_AT_ONCE = 512
_SILENT = "ERROR"
_ours = False
"""torch's log is silent: else somebody (a conftest.py) loaded it before us, with its log on."""
_FIRST_NAP_S, _LONGEST_NAP_S = 0.005, 0.25


class StoreLostError(PreflightError):
    """The store is gone, and with it the torchrun that hosted it."""


class Board:
    """One connection to the store. Calls from several threads take turns, also while they wait."""

    def __init__(self, store: Any, *, talkative: bool = False) -> None:
        self._store = store
        self._talkative = talkative
        self._turn = threading.Lock()
        self._too_late = _errors()

    @classmethod
    def open(cls, place: Place) -> Board:
        """Connect as the job's ranks do; StoreLostError with what to do if there is no store."""
        global _ours  # noqa: PLW0603  torch is loaded once per process, by us or by another
        _ours = _ours or "torch" not in sys.modules or "TORCH_CPP_LOG_LEVEL" in os.environ
        dist = _distributed()
        try:
            raw = dist.TCPStore(
                place.master,
                place.port,
                None,
                is_master=False,
                timeout=timedelta(seconds=JOIN_S),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise StoreLostError(
                f"no store of torchrun answers at {place.master}:{place.port}: look at the "
                "master node's torchrun and at the firewall in front of it"
            ) from error
        raw.set_timeout(timedelta(seconds=CALL_S))
        return cls(dist.PrefixStore(place.prefix, raw), talkative=not _ours)

    def write(self, key: str, note: bytes) -> None:
        """Leave a note under a key, in place of an older one."""
        self._call("set", key, note)

    def read(self, key: str, within_s: float = CALL_S) -> bytes | None:
        """Wait for a note and return it; None if there is none in time. WireError if too long."""
        if not self.wait([key], within_s):
            return None
        return _sized(self._call("get", key))

    def wait(self, keys: Sequence[str], within_s: float) -> bool:
        """Wait until all keys are there; False if some are not in time."""
        if self._talkative:
            return self._poll(keys, within_s)
        try:
            with self._turn:
                self._store.wait(list(keys), timedelta(seconds=max(0.001, within_s)))
        except self._too_late:
            return False
        except RuntimeError as error:
            raise _lost(error) from error
        return True

    def _poll(self, keys: Sequence[str], within_s: float) -> bool:
        """As `wait`, by looking again and again: a torch with its log on tells each vain wait."""
        ends, nap_s = time.monotonic() + within_s, _FIRST_NAP_S
        while not self._call("check", list(keys)):
            left_s = ends - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        return True

    def take(self, key: str, within_s: float) -> bytes | None:
        """As `read`, and remove the note."""
        note = self.read(key, within_s)
        if note is not None:
            self._call("delete_key", key)
        return note

    def read_all(self, keys: Sequence[str]) -> list[bytes]:
        """Read notes that are known to be there, many in one round trip."""
        notes: list[bytes] = []
        for at in range(0, len(keys), _AT_ONCE):
            notes += map(_sized, self._call("multi_get", list(keys[at : at + _AT_ONCE])))
        return notes

    def has(self, key: str) -> bool:
        """Whether a note is there."""
        return bool(self._call("check", [key]))

    def count(self, key: str, more: int = 0) -> int:
        """Add to a counter and return what it came to."""
        return int(self._call("add", key, more))

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            with self._turn:
                return getattr(self._store, name)(*arguments)
        except RuntimeError as error:
            raise _lost(error) from error


def _sized(note: bytes) -> bytes:
    if len(note) > NOTE_LIMIT:
        raise WireError(f"a note of {len(note)} bytes lies in the job's store: none of ours is")
    return note


def _lost(error: RuntimeError) -> StoreLostError:
    first = str(error).partition("\n")[0][:120]
    return StoreLostError(f"the job's store is gone ({first}): look at the master's torchrun")


def _errors() -> type[Exception]:
    kind: type[Exception] = _distributed().DistStoreError
    return kind


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's C++ log while it is read, and leave the job's environment as it was."""
    chosen = os.environ.setdefault("TORCH_CPP_LOG_LEVEL", _SILENT)
    try:
        yield
    finally:
        if chosen is _SILENT:
            del os.environ["TORCH_CPP_LOG_LEVEL"]


def _distributed() -> Any:
    """Import the part of torch that has the store; its warnings are not for our screen."""
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        import torch.distributed as dist
    if not dist.is_available():
        raise StoreLostError("this torch was built without torch.distributed: install one with it")
    return dist
