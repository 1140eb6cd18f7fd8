"""torchrun's own options, told apart from those of the script that it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_WITH_VALUE: Final = frozenset(
    (
        *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
        *("max-restarts", "monitor-interval", "start-method", "event-log-handler", "role"),
        *("log-dir", "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters"),
        *("duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr"),
        *("logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
    )
)
_ALONE: Final = frozenset(
    ("help", "standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env")
)
_SHORT_WITH_VALUE: Final = ("-r", "-t")


def torchrun_options(words: Sequence[str]) -> dict[str, str]:
    """Options by their long names with dashes; the last of a repeated one, as argparse has it."""
    found: dict[str, str] = {}
    end = script_at(words, takes_value=_SHORT_WITH_VALUE)
    for at, word in enumerate(words[:end]):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            found[_full(key)] = value if equals else next(iter(words[at + 1 : at + 2]), "")
    if "standalone" in found:
        # It makes a rendezvous of its own on a free port of each node.
        for name in ("master-addr", "master-port"):
            found.pop(name, None)
        found["rdzv-endpoint"] = "localhost:0"
    return found


def script_at(
    words: Sequence[str], *, takes_value: Collection[str], stops: Collection[str] = ()
) -> int:
    """Where the options end: at the first word that is neither an option nor one's value."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if not word.startswith("-") or word in stops:
            return at
        has_value = word in takes_value or (
            word.startswith("--") and "=" not in word and _expects_value(word[2:], words[at + 1 :])
        )
        at += 2 if has_value else 1
    return len(words)


def _expects_value(key: str, rest: Sequence[str]) -> bool:
    """An option that a newer torchrun may have takes the next word, unless that is a script."""
    name = _full(key)
    if name in _WITH_VALUE or name in _ALONE:
        return name in _WITH_VALUE
    return bool(rest) and not rest[0].startswith("-") and not rest[0].endswith(".py")


def _full(key: str) -> str:
    """The option that argparse takes an abbreviation for; the word itself if there is not one."""
    name = key.replace("_", "-")
    known = _WITH_VALUE | _ALONE
    longer = [each for each in known if each.startswith(name)]
    return longer[0] if name not in known and len(longer) == 1 else name
