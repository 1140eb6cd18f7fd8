"""Who broke a sweep off, and who merely waited for them: told from the order of their last words.

A healthy node whose partner died says nothing useful either; only what a node says of itself, and
what came first, proves anything against it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_WAITED = re.compile(
    r"^(Dist(Store|Network)Error|Rendezvous\w*Error|TimeoutError|BrokenPipeError|Connection\w*Error)"
    r"|torch\.rendezvous|Socket Timeout|client socket|Connection reset|Broken pipe|failed to recv"
    r"|^the sweep.s store was silent"
)
NOBODY = "the nodes waited for one another and none of them says what went wrong"
_ALONE = "it waited in vain for the sweep's store or the others, who went on without it"
_MANY = 3


class Word(Struct, frozen=True):
    """What was heard of a node that did not get through."""

    node: str
    kind: Literal["said", "gone", "silent"]
    """It said what went wrong; its conversation broke; it just said nothing more."""
    reason: str

    @property
    def own(self) -> bool:
        """Whether it tells of this node, and not of others for whom it waited."""
        return self.kind == "gone" or (self.kind == "said" and not _WAITED.search(self.reason))


class Silence(Struct, frozen=True):
    """What the words come to. Nobody is in both; no culprits but victims: nobody is proven."""

    culprits: dict[str, str] = {}
    """Node name → what happened there."""
    victims: dict[str, str] = {}
    """Node name → for whom it waited, in words."""


def explain(
    words: Iterable[Word], *, nodes: Collection[str], host: str, through: Collection[str]
) -> Silence:
    """Tell culprits from victims, given the words in the order in which they arrived.

    `host` hosts the store: after its loss, others can only fail. `through` are the nodes that
    measured and finished: where there are any, who is missing was held up by nobody else.
    """
    heard = _heard(words, host)
    own = {name: word.reason for name, word in heard.items() if word.own}
    rest = {name: word for name, word in heard.items() if not word.own}
    silent = {name: word.reason for name, word in rest.items() if word.kind == "silent"}
    if through and heard.get(host, _FINE).kind != "gone":
        own |= {name: silent.get(name, _ALONE) for name in rest}
    elif not own and silent.keys() != set(nodes):
        own = silent
    return Silence(own, {name: _for_whom(own) for name in rest if name not in own})


_FINE = Word("", "said", "")


def _heard(words: Iterable[Word], host: str) -> dict[str, Word]:
    """One word of each node: its first, unless a later one says more of the node itself."""
    heard: dict[str, Word] = {}
    for word in words:
        known = heard.get(word.node)
        storeless = heard.get(host, _FINE).kind == "gone" and word.kind == "said"
        this = Word(word.node, "silent", word.reason) if storeless else word
        if known is None or (this.own and not known.own):
            heard[word.node] = this
    return heard


def _for_whom(culprits: Collection[str]) -> str:
    names = list(culprits)
    if not names:
        return NOBODY
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"waited for {', '.join(names[:_MANY])}{more}"
