"""Drain tokens in a folder that all nodes share, so that one bug of preflight cannot empty a fleet.

Each token is a file with the next number, made by link(2): atomic on NFS too, and whole as soon as
it exists. A node that makes number n knows that no other took one since it counted those before n,
so no lock is needed, and a node that dies leaves none behind. Tokens are not returned: they expire.
Their age is measured by the file system's clock, not the nodes'.

A separate program of the standard library alone: a shared file system may hang forever.
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
"""A file that the operator makes once. It is missing where the file system is not mounted: an empty
mount point would grant every node its drain."""

_NUMBER = re.compile(r"[0-9]{8,12}")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 4096
_EXPIRED_S = 60 * 86_400.0
"""Twice the longest window: older tokens are removed."""

_OLD_DRAFT_S = 86_400.0


class TokenResult(NamedTuple):
    """The answer to a request for a token."""

    granted: bool
    used: int
    """Nodes with a token in the window, this one included where it was granted."""


class _Token(NamedTuple):
    number: int
    age_s: float
    path: Path


def take(folder: Path, node: str, limit: int, window_s: float) -> TokenResult:
    """Take a token for this node, unless `limit` nodes hold one younger than the window.

    A node needs only one. OSError where the folder cannot be used.
    """
    if not (folder / MARK).is_file():
        raise FileNotFoundError(f"no file {folder / MARK}: mount it, or touch that file once")
    draft = folder / f".{secrets.token_hex(8)}.draft"
    _write(draft, {"node": node, "time_s": time.time()})
    try:
        now_s = draft.stat().st_mtime
        tokens = _tokens(folder, now_s)
        recent = [token for token in tokens if token.age_s < window_s]
        holders = {_holder(token.path) or token.path.name for token in recent}
        if node in holders:
            # With `limit` = 0 the operator stops all drains, also of a node with a token.
            return TokenResult(granted=limit > 0, used=len(holders))
        newest = max((token.number for token in tokens), default=0)
        result = _link_next(draft, node, newest, holders, limit)
        if result.granted:
            _remove_expired(folder, tokens, now_s)
        return result
    finally:
        with suppress(OSError):
            draft.unlink()


def _link_next(draft: Path, node: str, newest: int, holders: set[str], limit: int) -> TokenResult:
    """Link the next free number; each number taken meanwhile is another hook's fresh token.

    That hook may be of this node, and have asked at the same moment.
    """
    number = newest
    while len(holders) < limit:
        number += 1
        token = draft.with_name(f"{number:08d}")
        is_ours = _link(draft, token)
        holders = holders | {node if is_ours else _holder(token) or token.name}
        if node in holders:
            return TokenResult(granted=True, used=len(holders))
    return TokenResult(granted=False, used=len(holders))


def _link(draft: Path, token: Path) -> bool:
    """Whether this process made the token; over NFS a reply may be lost and its retry fail."""
    try:
        token.hardlink_to(draft)
    except FileExistsError:
        return draft.stat().st_nlink > 1
    return True


def _tokens(folder: Path, now_s: float) -> list[_Token]:
    tokens = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _NUMBER.fullmatch(entry.name):
                continue
            try:
                age_s = now_s - entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:
                continue
            tokens.append(_Token(int(entry.name), age_s, Path(entry.path)))
    return tokens


def _holder(path: Path) -> str:
    """Return the node that holds the token; "" where unknown, and the token counts all the same."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123  a descriptor, not a path
            token = json.loads(file.read(_LARGEST))
        return token["node"] if isinstance(token["node"], str) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _write(path: Path, content: dict[str, object]) -> None:
    handle = os.open(path, _CREATE, 0o640)
    with open(handle, "wb") as file:  # noqa: PTH123  a descriptor, not a path
        file.write(json.dumps(content).encode("ascii"))
        file.flush()
        os.fsync(handle)


def _remove_expired(folder: Path, tokens: list[_Token], now_s: float) -> None:
    """Remove expired tokens, and drafts of nodes that died while they asked."""
    expired = [token.path for token in tokens if token.age_s > _EXPIRED_S]
    for path in folder.glob(".*.draft"):
        with suppress(OSError):
            if now_s - path.stat().st_mtime > _OLD_DRAFT_S:
                expired.append(path)
    for path in expired:
        with suppress(OSError):
            path.unlink()


def main(words: list[str]) -> int:
    """Print one JSON document: the answer, or why the folder cannot be used."""
    from preflight.core.trust import who_may_change

    folder, node, limit, window_s = Path(words[0]), words[1], int(words[2]), float(words[3])
    try:
        if os.geteuid() == 0 and (writer := who_may_change(folder)):
            raise PermissionError(f"{writer}; give it to root: chown root, chmod go-w")
        answer = take(folder, node, limit, window_s)
        result: dict[str, object] = {"granted": answer.granted, "used": answer.used, "most": limit}
    except OSError as error:
        result = {"granted": False, "trouble": f"{folder}: {error.strerror or error}"}
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
