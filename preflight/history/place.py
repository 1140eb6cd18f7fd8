"""Where a history is kept: a folder of the operator's, or a database that a site runs."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from msgspec import Struct

from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.history.run_record import HistoryError

NAME = "history.sqlite"

VARIABLE = "PREFLIGHT_HISTORY"
"""Of the environment: the history of runs and commands that name none."""

SWEEP = "PREFLIGHT_SWEEP"
"""Of the environment of a sweep's waves: its id, so that they are remembered as one night."""

_MODE = 0o640
_LEAST = 512
"""Bytes of the smallest database there is; SQLite would write over whatever is shorter."""
_URL = re.compile(r"([a-z][a-z0-9+]*)://(.*)", re.DOTALL)
_QUERY = re.compile(r"[?#]")
_SERVERS = ("postgresql",)
_OR_ELSE = "or give another: --preflight-history=DIR"


class Place(Struct, frozen=True):
    """A file of SQLite, or else the URL of a database server."""

    file: Path | None
    url: str = ""

    @property
    def words(self) -> str:
        """As it may be shown: of a server the kind, the host and the database."""
        return str(self.file) if self.file is not None else _shown(self.url)

    @property
    def folder(self) -> Path | None:
        """The folder of the file; None for a server."""
        return None if self.file is None else self.file.parent


def place_of(text: str, working: Path) -> Place:
    """Read what was typed: a folder, sqlite:///FILE, or postgresql://...; UsageError if neither."""
    if not text:
        raise UsageError("--preflight-history is empty: give a folder that outlives this run")
    url = _URL.fullmatch(text)
    if url is None:
        return Place(working / Path(text).expanduser() / NAME)
    kind, rest = url[1], url[2]
    if kind == "sqlite":
        if not rest.startswith("/") or len(rest) < len("/x"):
            raise UsageError(f"{text[:80]!a} names no file: give sqlite:///DIR/history.sqlite")
        return Place(working / Path(rest[1:]).expanduser())
    if kind.partition("+")[0] in _SERVERS:
        return Place(None, text)
    raise UsageError(
        f"a history in {kind!a} is not known: give a folder, sqlite:///FILE or postgresql://..."
    )


def there(place: Place) -> bool:
    """Whether there is anything to read; a server is asked. HistoryError for what is no file."""
    if place.file is None:
        return True
    # SQLite opens it by its name, and follows a link.
    if os.geteuid() == 0 and (said := who_may_change(place.file.parent)):
        raise HistoryError(f"cannot use the history {place.words}: {said}; {_OR_ELSE}")
    try:
        found = place.file.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HistoryError(
            f"cannot use the history {place.words}: {error.strerror}; {_OR_ELSE}"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise HistoryError(f"cannot use the history {place.words}: it is no file; {_OR_ELSE}")
    if 0 < found.st_size < _LEAST:
        raise HistoryError(in_words(place, "it is not a database"))
    if found.st_uid not in (0, os.geteuid()):
        raise HistoryError(
            f"cannot use the history {place.words}: it is neither ours nor root's; {_OR_ELSE}"
        )
    return True


def make(place: Place, folder: int) -> None:
    """Make an empty file in a folder that is held open, for nobody else to write to."""
    if place.file is not None and not there(place):
        try:
            handle = os.open(
                place.file.name,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                _MODE,
                dir_fd=folder,
            )
        except FileExistsError:
            return  # another run was a moment faster
        os.fchmod(handle, _MODE)
        os.close(handle)


def in_words(place: Place, said: str) -> str:
    """What a database's refusal means, and what to do about it."""
    advice = {
        "locked": "another run writes it: run again when that has ended",
        "is not a database": f"move it away to begin anew, {_OR_ELSE}",
        "malformed": f"it is damaged: move it away to begin anew, {_OR_ELSE}",
        "readonly": f"make it writable for this user, {_OR_ELSE}",
        "unable to open": f"see that this user may read and write there, {_OR_ELSE}",
        "disk is full": f"make room there, {_OR_ELSE}",
        "interrupted": f"it takes more work to read than any of ours: move it away, {_OR_ELSE}",
        "disk I/O error": f"see to its disk, {_OR_ELSE}",
    }
    remedy = next((do for word, do in advice.items() if word in said), f"mend it, {_OR_ELSE}")
    first = " ".join(said.replace(place.url or "\0", place.words).split())[:200]
    shown = " ".join(map(_shown, first.split(" ")))
    return f"cannot use the history {place.words}: {shown}; {remedy}"


def _shown(url: str) -> str:
    """Cut out of a URL its login and its query; all, where an @ may be of either.

    >>> _shown("postgresql://ann:hunter2@db/nights?sslpassword=hunter3")
    'postgresql://db/nights'
    """
    kind, slashes, rest = url.partition("://")
    login, _, server = rest.rpartition("@")
    return kind + slashes + ("***" if _QUERY.search(login) else _QUERY.split(server)[0])
