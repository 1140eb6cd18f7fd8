"""A launch line, read: the launcher's own options, torchrun's, and variables before it.

Nothing of it is ever run. torchrun's options end where its script begins: what follows is the
script's, however much it looks like torchrun's.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.errors import UsageError
from preflight.fleet.job_environment import ASSIGNMENT, public

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


ALONE: Final = "give it alone, as: VAR=... torchrun --nproc-per-node=8 train.py"

_TORCHRUN: Final = frozenset(
    ("torchrun", "torch.distributed.run", "torch.distributed.launch", "torchrun.py")
)
_OTHERS: Final[dict[str, dict[str, str]]] = {
    "accelerate": {
        "main-process-ip": "master-addr",
        "main-process-port": "master-port",
        "num-machines": "nnodes",
    },
    "deepspeed": {
        "master-addr": "master-addr",
        "master-port": "master-port",
        "num-gpus": "nproc-per-node",
        "num-nodes": "nnodes",
    },
}
"""Other launchers' names for what we read; their options end at the first *.py."""

_STARTERS: Final = frozenset(("srun", "mpirun", "mpiexec", "orterun", "prun"))
_PYTHON: Final = re.compile(r"python[0-9.]*")
_SHELLS: Final = frozenset(("bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh"))
_OPERATOR: Final = re.compile(r"[;&|()<>]+")


class Launch(Struct, frozen=True, kw_only=True):
    """What a launch line says: variables in front of it, and its launcher's options."""

    environ: dict[str, str]
    nproc_per_node: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    launcher: str = ""
    """torchrun, accelerate or deepspeed; "" where it is another."""
    options: dict[str, str] = {}
    """Its own options, by torchrun's names for them."""
    before: tuple[str, ...] = ()
    """The words in front of it: srun's own."""


def read_launch(line: str) -> Launch:
    """Read `VAR=... torchrun --nproc-per-node=8 ... train.py`; UsageError if it says nothing."""
    if not line.strip():
        raise UsageError("--preflight-launch is empty: give the line that starts the job")
    words = _words(line)
    environ, launcher, options, before = _understood(words)
    address, port = options.get("master-addr"), options.get("master-port")
    if "rdzv-endpoint" in options:
        address, port = _endpoint(options["rdzv-endpoint"])
    elif port is None:
        port = environ.get("MASTER_PORT")
    return Launch(
        environ=public(environ),
        nproc_per_node=_number(options.get("nproc-per-node"), "--nproc-per-node"),
        master_addr=address or (None if "rdzv-endpoint" in options else environ.get("MASTER_ADDR")),
        master_port=port_number(port, "--preflight-launch"),
        launcher=launcher,
        options=options,
        before=before,
    )


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"--preflight-launch: {error}; quote it as the shell would") from error


def _understood(
    words: Sequence[str],
) -> tuple[dict[str, str], str, dict[str, str], tuple[str, ...]]:
    """The variables before the launcher, its name, its own options, and the words before it."""
    environ: dict[str, str] = {}
    started = False
    for at, word in enumerate(words):
        name, assigned = word.rpartition("/")[2], ASSIGNMENT.fullmatch(word)
        if assigned:
            environ[assigned[1]] = assigned[2]
        elif _OPERATOR.fullmatch(word):
            raise UsageError(f"--preflight-launch: {word!a} is not read here: {ALONE}")
        elif name in _SHELLS and any(re.fullmatch("-[a-z]*c", w) for w in words[at + 1 : at + 4]):
            raise UsageError(f"--preflight-launch: what is inside {name} -c is not read: {ALONE}")
        elif name in _TORCHRUN or name in _OTHERS or _PYTHON.fullmatch(name):
            return environ, *_launcher(words, at), tuple(words[:at])
        started = started or name in _STARTERS
    if not started and not environ:
        raise UsageError(f"--preflight-launch: no launcher is known in it: {ALONE}")
    return environ, "", {}, ()


def _launcher(words: Sequence[str], at: int) -> tuple[str, dict[str, str]]:
    """The launcher that stands there, or behind `python -u -m` and the like, and its options."""
    name = words[at].rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        takes_value = ("-W", "-X", "--check-hash-based-pycs")
        at += 1 + script_at(words[at + 1 :], takes_value=takes_value, stops=("-m", "-c"))
        at += words[at : at + 1] == ["-m"]
        name = words[at].rpartition("/")[2] if at < len(words) else ""
    if name in _TORCHRUN:
        return "torchrun", torchrun_options(words[at + 1 :])
    name = name.partition(".")[0]
    return (name, _renamed(words[at + 1 :], _OTHERS[name])) if name in _OTHERS else ("", {})


def _renamed(words: Sequence[str], names: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.endswith(".py"):
            break
        key, equals, value = word.removeprefix("--").partition("=")
        name = names.get(key.replace("_", "-")) if word.startswith("--") else None
        if name:
            found[name] = value if equals else next(iter(words[at + 1 : at + 2]), "")
    return found


def _endpoint(text: str) -> tuple[str | None, str | None]:
    """Address and port of `host:port`; port 0 is one that torchrun picks itself."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, ""
    host = host.strip("[]")
    if port == "0":
        return (None if host in ("localhost", "127.0.0.1", "::1") else host), None
    return host, port or None


def _number(text: str | None, option: str) -> int | None:
    if text is None or text in ("auto", "gpu", "cpu", "xpu"):
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= 1024:  # noqa: PLR2004  more than any node has
        return int(text)
    if text.startswith("$"):
        raise UsageError(
            f"--preflight-launch: {option} is {text[:60]!a}: give the number itself, "
            "variables of the shell are not expanded here"
        )
    raise UsageError(
        f"--preflight-launch: {option} is {text[:60]!a}: give a number of ranks, 1 to 1024"
    )


def port_number(text: str | None, where: str) -> int | None:
    """Read a TCP port; UsageError that names where it stood."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= 65535:  # noqa: PLR2004  TCP
        return int(text)
    raise UsageError(f"{where}: the master port is {text[:60]!a}: give a number, 1 to 65535")
