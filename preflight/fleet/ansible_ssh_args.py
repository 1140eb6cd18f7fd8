"""Arguments that an Ansible inventory adds to ssh: those that change the way in are refused.

preflight does not run Ansible's command line, and a ProxyJump that is dropped in silence would
make every node look unreachable.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_NO_MATTER: Final = frozenset(
    (
        *("compression", "connectionattempts", "connecttimeout", "controlmaster", "controlpath"),
        *("controlpersist", "forwardagent", "loglevel", "preferredauthentications"),
        *("serveralivecountmax", "serveraliveinterval", "tcpkeepalive", "identitiesonly"),
        # Host keys are always checked: a wish to skip that is not granted, and not needed here.
        *("stricthostkeychecking", "updatehostkeys", "checkhostip"),
    )
)
_FLAGS: Final = frozenset(("-C", "-q", "-4", "-6", "-t", "-tt", "-T", "-x", "-a", "-v"))


def odd_argument(text: str) -> str:
    """Return the first argument that changes where or how ssh connects; '' if none does."""
    try:
        words = iter(shlex.split(text))
    except ValueError:
        return "a quote that is not closed"
    return next((word for word in _told(words) if word), "")


def _told(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        if word in _FLAGS:
            continue
        if not word.startswith("-o"):
            yield word.partition("=")[0]
            return
        option = word[2:] or next(words, "")
        key, _, value = option.replace(" ", "=", 1).partition("=")
        nowhere = key.lower() == "userknownhostsfile" and value.strip() == "/dev/null"
        yield "" if key.lower() in _OF_NO_MATTER or nowhere else key or word
