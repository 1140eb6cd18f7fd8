"""Values of a job's settings travel in reports; the passwords inside of them must not."""

from __future__ import annotations

import re
from typing import Final

_URL_LOGIN: Final = re.compile(r"(://)(?:[^/\s]*|\S*:\S*)@")
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
    return _ASSIGNED.sub(r"\1***", _URL_LOGIN.sub(r"\1***@", value))
