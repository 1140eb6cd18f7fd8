"""Where a history is stored: in a folder, or in a database server of the site."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from preflight.core.files import FILE_MODE, NEW_FILE, reason_of, shipped_table, typed_path
from preflight.core.trust import user_name, who_may_add
from preflight.errors import UsageError
from preflight.history.run_record import HistoryError

NAME = "history.sqlite"

VARIABLE = "PREFLIGHT_HISTORY"
"""Environment variable: the history for runs and commands without the option."""

SWEEP = "PREFLIGHT_SWEEP"
"""Environment variable of a sweep's waves: the sweep's id, so that they count as one night."""

_SMALLEST_DATABASE = 512
"""Bytes of the smallest valid database; SQLite would overwrite a shorter file."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+]*)://(.*)", re.DOTALL)
_AFTER_BRACKET = re.compile(r"\][^:]|\s")
"""What urlsplit() passes over in a server: words behind the bracket of an address, and blanks."""
_QUERY = re.compile(r"[?#]")
_SERVERS = ("postgresql",)
_GIVE_ANOTHER = "give another: --preflight-history=DIR"


class Place(Struct, frozen=True):
    """An SQLite file, or the URL of a database server."""

    file: Path | None
    url: str = ""

    @property
    def words(self) -> str:
        """For messages: the file, or the server's kind, host and database."""
        return str(self.file) if self.file is not None else _hide_login(self.url)


def parse_place(text: str, working: Path) -> Place:
    """Parse the option: a folder, sqlite:///FILE, or postgresql://...; UsageError for others."""
    if not text:
        raise UsageError("--preflight-history is empty: give a folder that stays after this run")
    url = _URL.fullmatch(text)
    if url is None:
        return Place(working / typed_path(text) / NAME)
    kind, rest = url[1], url[2]
    if kind == "sqlite":
        if not rest.startswith("/") or len(rest) < len("/x"):
            raise UsageError(f"{text[:80]!a} names no file: give sqlite:///DIR/history.sqlite")
        return Place(working / typed_path(rest[1:]))
    if kind.partition("+")[0] in _SERVERS:
        with suppress(ValueError):
            # What stands before the last @ is a login, which may hold any character.
            server = rest.rpartition("@")[2]
            host = re.split("[/?]", server)[0]
            if urlsplit(f"//{server}").port != 0 and not _AFTER_BRACKET.search(host):
                return Place(None, text)
        raise UsageError(
            f"--preflight-history={_hide_login(text)[:80]!a}: its host or port is invalid; type "
            "postgresql://USER@HOST:PORT/DATABASE"
        )
    raise UsageError(
        f"a history in {kind!a} is not supported: give a folder, sqlite:///FILE or postgresql://..."
    )


def exists(place: Place) -> bool:
    """Whether the file exists; always true for a server. HistoryError if it is unusable."""
    if place.file is None:
        return True
    refuse_others_files(place)
    try:
        status = place.file.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(place, reason_of(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise unusable(place, "it is not a regular file")
    if 0 < status.st_size < _SMALLEST_DATABASE:
        raise HistoryError(explain_refusal(place, "it is not a database"))
    if status.st_uid not in (0, os.geteuid()):
        raise unusable(place, "another user owns it")
    return True


def unusable(place: Place, reason: str, advice: str = _GIVE_ANOTHER) -> HistoryError:
    """Return the error for a history that cannot be used."""
    return HistoryError(f"cannot use the history {place.words}: {reason}; {advice}")


def refuse_others_files(place: Place) -> None:
    """HistoryError where another user could put, or has put, files beside the history.

    SQLite opens the file by name and follows links. It obeys a journal beside it, which may name
    any file of this account to delete (the super-journal of https://sqlite.org/atomiccommit.html).
    """
    file = place.file
    if file is not None and (risk := who_may_add(file.parent) or _foreign_log(file)):
        raise unusable(place, risk)


def _foreign_log(file: Path) -> str:
    """Name a log or journal beside the file that belongs to another user; "" if there is none."""
    for end in ("-journal", "-wal", "-shm"):
        log = file.with_name(file.name + end)
        with suppress(OSError):
            if (owner := log.lstat().st_uid) not in (0, os.geteuid()):
                return f"{log} belongs to {user_name(owner)}"
    return ""


def create(place: Place, folder_fd: int) -> None:
    """Create an empty file in an open folder, writable only by this user."""
    if place.file is not None and not exists(place):
        try:
            handle = os.open(place.file.name, NEW_FILE, FILE_MODE, dir_fd=folder_fd)
        except FileExistsError:
            return  # another run created it first
        os.fchmod(handle, FILE_MODE)
        os.close(handle)


def explain_refusal(place: Place, refusal: str) -> str:
    """Explain why a database refused, and what to do."""
    remedies = shipped_table(__file__, "remedies.toml")
    advice = next((do for words, do in remedies.items() if words in refusal), "repair it, {0}")
    first = " ".join(refusal.replace(place.url or "\0", place.words).split())[:200]
    reason = " ".join(map(_hide_login, first.split(" ")))
    advice = advice.format(f"or {_GIVE_ANOTHER}")
    return f"cannot use the history {place.words}: {reason}; {advice}"


def _hide_login(url: str) -> str:
    """Cut a URL's login and query; cut everything if an @ may belong to either.

    >>> _hide_login("postgresql://ann:hunter2@db/nights?sslpassword=hunter3")
    'postgresql://db/nights'
    """
    kind, slashes, rest = url.partition("://")
    login, _, server = rest.rpartition("@")
    return kind + slashes + ("***" if _QUERY.search(login) else _QUERY.split(server)[0])
