"""Drain tokens in a folder that all nodes share: one bug of ours must not empty a fleet.

Each token is a file with the next number, made by link(2): atomic on NFS too, and whole as soon as
it is there. Whoever makes number n knows that nobody took one since it counted those before n, so
that no lock is needed and nobody's death leaves one. A token is never given back: it is too old to
count some day. Its age is told by the file system's clock, not by the nodes'.

A program of its own, of the standard library alone: a shared file system may hang for ever.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = "shared"
"""A file that the operator makes once. Where the file system is not mounted it is missing: an empty
folder of the node's own would grant every node its drain."""

_NUMBER = re.compile(r"\d{8,12}")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 4096
_FORGOTTEN_S = 60 * 86_400.0
"""Twice the longest window: tokens so old are removed."""

_LEFT_OVER_S = 86_400.0


class Taken(NamedTuple):
    """What came of asking for a token."""

    granted: bool
    used: int
    """Nodes that hold a token that counts, this one included where it was granted."""


class _Token(NamedTuple):
    number: int
    age_s: float
    path: Path


def take(folder: Path, node: str, most: int, window_s: float) -> Taken:
    """Take a token for this node, unless `most` nodes hold one that is younger than the window.

    A node that holds one already needs no other. OSError where the folder cannot be used.
    """
    if not (folder / MARK).is_file():
        raise FileNotFoundError(f"no file {folder / MARK}: mount it, or touch that file once")
    draft = folder / f".{secrets.token_hex(8)}.draft"
    _write(draft, {"node": node, "time_s": time.time()})
    try:
        now_s = draft.stat().st_mtime
        found = _tokens(folder, now_s)
        fresh = [one for one in found if one.age_s < window_s]
        holders = {_holder(one.path) or one.path.name for one in fresh}
        if node in holders:
            # With none allowed the operator stops all drains: also of a node that had its token.
            return Taken(granted=most > 0, used=len(holders))
        newest = max((one.number for one in found), default=0)
        taken = _next(draft, node, newest, holders, most)
        if taken.granted:
            _tidy(folder, found, now_s)
        return taken
    finally:
        with suppress(OSError):
            draft.unlink()


def _next(draft: Path, node: str, newest: int, holders: set[str], most: int) -> Taken:
    """Link the next number; every number that is taken by now is somebody's fresh token.

    It may be this node's: another of its hooks asked at the same moment.
    """
    number = newest
    while len(holders) < most:
        number += 1
        token = draft.with_name(f"{number:08d}")
        is_ours = _link(draft, token)
        holders = holders | {node if is_ours else _holder(token) or token.name}
        if node in holders:
            return Taken(granted=True, used=len(holders))
    return Taken(granted=False, used=len(holders))


def _link(draft: Path, token: Path) -> bool:
    """Whether the token is ours; over NFS an answer may be lost and its repetition fail."""
    try:
        token.hardlink_to(draft)
    except FileExistsError:
        return draft.stat().st_nlink > 1
    return True


def _tokens(folder: Path, now_s: float) -> list[_Token]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _NUMBER.fullmatch(entry.name):
                continue
            try:
                age_s = now_s - entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:
                continue
            found.append(_Token(int(entry.name), age_s, Path(entry.path)))
    return found


def _holder(path: Path) -> str:
    """Whose token it is; "" where nobody can tell, and then it counts as somebody's."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123  a descriptor, not a path
            said = json.loads(file.read(_LARGEST))
        return said["node"] if isinstance(said["node"], str) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _write(path: Path, said: dict[str, object]) -> None:
    handle = os.open(path, _NEW, 0o640)
    with open(handle, "wb") as file:  # noqa: PTH123  a descriptor, not a path
        file.write(json.dumps(said).encode("ascii"))
        file.flush()
        os.fsync(handle)


def _tidy(folder: Path, found: list[_Token], now_s: float) -> None:
    """Remove what no window reaches any more, and what a node left that died while it asked."""
    old = [one.path for one in found if one.age_s > _FORGOTTEN_S]
    for path in folder.glob(".*.draft"):
        with suppress(OSError):
            if now_s - path.stat().st_mtime > _LEFT_OVER_S:
                old.append(path)
    for path in old:
        with suppress(OSError):
            path.unlink()


def main(words: list[str]) -> int:
    """Print one JSON document: what came of it, or why the folder cannot be used."""
    from preflight.core.trust import who_may_change

    folder, node, most, window_s = Path(words[0]), words[1], int(words[2]), float(words[3])
    try:
        if os.geteuid() == 0 and (whose := who_may_change(folder)):
            raise PermissionError(f"{whose}; give it to root: chown root, chmod go-w")
        taken = take(folder, node, most, window_s)
        said: dict[str, object] = {"granted": taken.granted, "used": taken.used, "most": most}
    except OSError as error:
        said = {"granted": False, "trouble": f"{folder}: {error.strerror or error}"}
    sys.stdout.write(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
