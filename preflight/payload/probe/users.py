"""Findings name people, not numbers; a directory service that is down must not hang the answer."""

from __future__ import annotations

import os

_LEAST = 3
"""Fields of a line of /etc/passwd up to the user id."""


class Users:
    """Names of user ids, each looked up once.

    `patient=False` reads /etc/passwd only: asking a directory (LDAP, SSSD) may block for minutes,
    so that is done only inside a guarded child.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """Return the login name, or the number as text where nobody knows it."""
        if not self._names:
            self._names = _local()
        if uid not in self._names:
            self._names[uid] = (self._patient and _asked(uid)) or str(uid)
        return self._names[uid]


def _local() -> dict[int, str]:
    names: dict[int, str] = {}
    try:
        with open("/etc/passwd", encoding="utf-8", errors="replace") as file:
            entries = [line.split(":") for line in file]
    except OSError:
        entries = []
    for name, _, uid, *_ in (entry for entry in entries if len(entry) >= _LEAST):
        if uid.isdigit():
            names.setdefault(int(uid), name)
    return names or {0: "root"}


def _asked(uid: int) -> str:
    import pwd  # only where /etc/passwd did not say

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return ""


def me(users: Users) -> str:
    """Return who this login is; USER stands in where only a directory knows the name."""
    name = users.name(os.geteuid())
    return os.environ.get("USER", name) if name.isdigit() else name
