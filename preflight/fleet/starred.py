"""Values of a job's settings travel in reports; the passwords inside of them must not."""

from __future__ import annotations

import re
from typing import Final

_URL_LOGIN: Final = re.compile(r"(://)(?:[^/\s]*|[^\s:]*:\S*)@")
_UP_TO_AT: Final = re.compile(r"(?<!\S)\S*@")
"""Of each word: behind its last @ is no login."""
_ASSIGNED: Final = re.compile(
    r"((?:token|secret|passw(?:or)?d|passphrase|pwd|api[-_]?key|access[-_]?key|credentials?|bearer)"
    r"[\"']?\s*[=:]+\s*[\"']?)(?!/)[^&;,\s\"']+",
    re.IGNORECASE,
)


def starred(value: str) -> str:
    """Star the login in an URL, and what stands behind a word such as token.

    >>> starred("http://ann:hunter2@proxy:3128")
    'http://***@proxy:3128'
    """
    bare = _UP_TO_AT.sub(lambda found: _URL_LOGIN.sub(r"\1***@", found[0]), value)
    return _ASSIGNED.sub(r"\1***", bare)
