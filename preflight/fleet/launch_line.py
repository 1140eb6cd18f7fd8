"""How the job starts: its launch line or torchrun's ranks, and which node is its master.

Nothing of a line is ever run. torchrun's options end where its script begins: what follows is the
script's, however much it looks like torchrun's.
"""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import shipped_table
from preflight.core.text import did_you_mean
from preflight.errors import UsageError
from preflight.fleet.job_environment import ASSIGNMENT, public_variables
from preflight.fleet.model import Host, Shape
from preflight.fleet.nodeset import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from preflight.fleet.inventory import AnyInventory


_LAUNCHERS: Final = shipped_table(__file__, "launchers.toml")
_WITH_VALUE: Final = frozenset[str](_LAUNCHERS["torchrun"]["with_value"])
_FLAGS: Final = frozenset[str](_LAUNCHERS["torchrun"]["alone"])
_SHORT_OPTIONS: Final = ("-r", "-t")


def torchrun_options(words: Sequence[str]) -> dict[str, str]:
    """Options by their long names with dashes; the last of a repeated one, as argparse has it."""
    options = _option_values(words[: script_index(words, takes_value=_SHORT_OPTIONS)], _full_name)
    if "standalone" in options:
        # It makes a rendezvous of its own on a free port of each node.
        for name in ("master-addr", "master-port"):
            options.pop(name, None)
        options["rdzv-endpoint"] = "localhost:0"
    return options


def _option_values(words: Sequence[str], name_of: Callable[[str], str | None]) -> dict[str, str]:
    """The values of options by the name that `name_of` gives each; None leaves an option out."""
    values: dict[str, str] = {}
    for at, word in enumerate(words):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (name := name_of(key)):
            values[name] = value if equals else next(iter(words[at + 1 : at + 2]), "")
    return values


def script_index(
    words: Sequence[str], *, takes_value: Collection[str], stops: Collection[str] = ()
) -> int:
    """The index of the first word that is neither an option nor the value of one."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if not word.startswith("-") or word in stops:
            return at
        has_value = word in takes_value or (
            word.startswith("--") and "=" not in word and _takes_value(word[2:], words[at + 1 :])
        )
        at += 2 if has_value else 1
    return len(words)


def _takes_value(key: str, following: Sequence[str]) -> bool:
    """Whether an option takes the next word: an unknown one does, unless that is a script."""
    name = _full_name(key)
    if name in _WITH_VALUE or name in _FLAGS:
        return name in _WITH_VALUE
    return bool(following) and not following[0].startswith("-") and not following[0].endswith(".py")


def _full_name(key: str) -> str:
    """The option that argparse takes an abbreviation for; the word itself if there is not one."""
    name = key.replace("_", "-")
    options = _WITH_VALUE | _FLAGS
    longer = [option for option in options if option.startswith(name)]
    return longer[0] if name not in options and len(longer) == 1 else name


ADVICE: Final = "give it alone, as: VAR=... torchrun --nproc-per-node=8 train.py"

_TORCHRUN: Final = frozenset[str](_LAUNCHERS["torchrun"]["names"])
_OTHER_LAUNCHERS: Final[dict[str, dict[str, str]]] = _LAUNCHERS["others"]
_STARTERS: Final = frozenset[str](_LAUNCHERS["around"]["starters"])
_PYTHON: Final = re.compile(r"python[0-9.]*")
_SHELLS: Final = frozenset[str](_LAUNCHERS["around"]["shells"])
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
    environ, launcher, options, before = _split_line(_words(line))
    address, port = options.get("master-addr"), options.get("master-port")
    if "rdzv-endpoint" in options:
        address, port = _endpoint(options["rdzv-endpoint"])
    elif port is None:
        port = environ.get("MASTER_PORT")
    return Launch(
        environ=public_variables(environ),
        nproc_per_node=_rank_count(options.get("nproc-per-node")),
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


def _split_line(
    words: Sequence[str],
) -> tuple[dict[str, str], str, dict[str, str], tuple[str, ...]]:
    """Split a launch line: variables, the launcher, its own options, the words before it."""
    environ: dict[str, str] = {}
    has_starter = False
    for at, word in enumerate(words):
        name, assigned = word.rpartition("/")[2], ASSIGNMENT.fullmatch(word)
        if assigned:
            environ[assigned[1]] = assigned[2]
        elif _OPERATOR.fullmatch(word):
            raise UsageError(f"--preflight-launch: {word!a} is not read here: {ADVICE}")
        elif name in _SHELLS and any(re.fullmatch("-[a-z]*c", w) for w in words[at + 1 : at + 4]):
            raise UsageError(f"--preflight-launch: what is inside {name} -c is not read: {ADVICE}")
        elif name in _TORCHRUN or name in _OTHER_LAUNCHERS or _PYTHON.fullmatch(name):
            return environ, *_launcher(words, at), tuple(words[:at])
        has_starter = has_starter or name in _STARTERS
    if not has_starter and not environ:
        raise UsageError(f"--preflight-launch: no launcher is known in it: {ADVICE}")
    return environ, "", {}, ()


def _launcher(words: Sequence[str], at: int) -> tuple[str, dict[str, str]]:
    """The launcher at that position, or behind `python -u -m` there, and its options."""
    name = words[at].rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        takes_value = ("-W", "-X", "--check-hash-based-pycs")
        at += 1 + script_index(words[at + 1 :], takes_value=takes_value, stops=("-m", "-c"))
        at += words[at : at + 1] == ["-m"]
        name = words[at].rpartition("/")[2] if at < len(words) else ""
    if name in _TORCHRUN:
        return "torchrun", torchrun_options(words[at + 1 :])
    name = name.partition(".")[0]
    if name not in _OTHER_LAUNCHERS:
        return "", {}
    own = [*takewhile(lambda word: not word.endswith(".py"), words[at + 1 :])]
    return name, _option_values(own, lambda key: _OTHER_LAUNCHERS[name].get(key.replace("_", "-")))


def _endpoint(text: str) -> tuple[str | None, str | None]:
    """Address and port of `host:port`; port 0 is one that torchrun picks itself."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, ""
    host = host.strip("[]")
    if port == "0":
        return (None if host in _LOCAL else host), None
    return host, port or None


def _rank_count(text: str | None) -> int | None:
    if text is None or text in ("auto", "gpu", "cpu", "xpu"):
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= 1024:  # noqa: PLR2004  more than any node has
        return int(text)
    give = "give a number of ranks, 1 to 1024"
    if text.startswith("$"):
        give = "give the number itself, variables of the shell are not expanded here"
    raise UsageError(f"--preflight-launch: --nproc-per-node is {text[:60]!a}: {give}")


def port_number(text: str | None, where: str) -> int | None:
    """Read a TCP port; UsageError that names where it stood."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= 65535:  # noqa: PLR2004  TCP
        return int(text)
    raise UsageError(f"{where}: the master port is {text[:60]!a}: give a number, 1 to 65535")


_TORCHRUN_PREFIX: Final = "PET_"
"""torchrun takes each option from PET_<OPTION> where the line does not have it."""

_NODES: Final = ("-N", "--nodes")
_TASKS: Final = ("--ntasks-per-node", "--tasks-per-node")


def shape_of(launch: Launch, environ: Mapping[str, str]) -> Shape | None:
    """Read a launch; None for an unknown launcher, UsageError for an impossible value."""
    if not launch.launcher:
        return None
    nodes, tasks = _srun_option(launch.before, _NODES), _srun_option(launch.before, _TASKS)
    if launch.launcher != "torchrun":
        nnodes = _nnodes(launch.options["nnodes"]) if "nnodes" in launch.options else None
        return Shape(launcher=launch.launcher, nnodes=nnodes, srun_nodes=nodes, srun_tasks=tasks)
    defaults = {
        key.removeprefix(_TORCHRUN_PREFIX).lower().replace("_", "-"): value
        for key, value in environ.items()
        if key.startswith(_TORCHRUN_PREFIX)
    }
    options = {**defaults, **launch.options}
    static = options.get("rdzv-backend", "static") == "static"
    endpoint = options.get("rdzv-endpoint", "")
    masters = tuple(f"--{name}" for name in ("master-addr", "master-port") if name in options)
    by_master = static and not endpoint
    per_node = options.get("nproc-per-node", "1")
    nproc = launch.nproc_per_node
    if nproc is None and re.fullmatch("[1-9][0-9]{0,3}", per_node):
        nproc = int(per_node)
    return Shape(
        launcher=launch.launcher,
        nnodes=_nnodes(options.get("nnodes", "1")),
        nproc=nproc,
        standalone="standalone" in options,
        static=static,
        endpoint=options.get("master-addr", "") if by_master else endpoint,
        ignored=() if by_master else masters,
        node_rank="node-rank" in options,
        srun_nodes=nodes,
        srun_tasks=tasks,
    )


def _nnodes(text: str) -> tuple[int, int] | None:
    if "$" in text:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--preflight-launch: --nnodes is {text!a}: give a number, or MIN:MAX")
    return int(match[1]), int(match[2] or match[1])


def _srun_option(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the number that srun's option has; None if it is missing or not a plain number."""
    if not any(word.rpartition("/")[2] == "srun" for word in words):
        return None
    for at, word in enumerate(words):
        for name in names:
            value = word.removeprefix(name).removeprefix("=") if word.startswith(name) else ""
            value = next(iter(words[at + 1 : at + 2]), "") if word == name else value
            if re.fullmatch(r"[1-9][0-9]{0,5}", value):
                return int(value)
    return None


_LOCAL = ("localhost", "127.0.0.1", "::1")


def choose_master(
    hosts: Sequence[Host],
    *,
    launch: str | None,
    environ: str | None,
    table: str | None,
    left_out: Collection[str] = (),
) -> tuple[str | None, str]:
    """Return the master node (None: the first), and a remark if its address is not a known node.

    The launch line wins over the environment, and both over the inventory, as for the port.
    `left_out`: nodes of the inventory that this run leaves out.
    """
    names = {host.name for host in hosts}
    fallback = _node_of(environ, hosts) if environ else None
    fallback = fallback or (table if table in names else None)
    if not launch:
        return fallback, ""
    if node := _node_of(launch, hosts):
        return node, ""
    master = fallback or hosts[0].name
    if launch in left_out:
        return fallback, f", tried on {master}: the master {launch} is not in this run"
    if launch in _LOCAL and len(hosts) == 1:
        return hosts[0].name, ""
    if launch not in _LOCAL and is_address(launch):
        return fallback, f", tried on {master}: {launch} is the address of no node known here"
    raise UsageError(_no_node_message(launch, hosts))


def _no_node_message(address: str, hosts: Sequence[Host]) -> str:
    start = f"--preflight-launch: the master address {address[:60]!a}"
    if "$" in address:
        return f"{start} is not expanded here: give the name of the node itself"
    if address in _LOCAL:
        return f"{start} means another machine on each of {len(hosts)} nodes: give a node's name"
    hint = did_you_mean(address, [host.name for host in hosts])
    return f"{start} names no node of this fleet{hint or '; give the name of one of its nodes'}"


def _node_of(address: str, hosts: Sequence[Host]) -> str | None:
    """Return the node of that name or address, or the only one with that short name."""
    exact = next((host.name for host in hosts if address in (host.name, host.address)), None)
    if exact or is_address(address):
        return exact
    short = address.partition(".")[0]
    # One must be the short name of the other: h1 and h1.cluster.example.
    near = [name for name in (host.name for host in hosts) if name.partition(".")[0] == short]
    near = [name for name in near if short in (name, address)]
    return near[0] if len(near) == 1 else None


TORCHRUN = "torchrun"
RANK_ORIGIN = "torchrun rank"


class RankedNode(Struct, frozen=True, kw_only=True):
    """One node of the job; `environ` is None if none of its ranks answered."""

    group: int
    """Its GROUP_RANK, which orders the fleet."""
    label: str
    hostname: str = ""
    address: str
    python: tuple[str, ...] = ("python3",)
    environ: dict[str, str] | None = None
    uneven: dict[str, tuple[str | None, ...]] = {}
    """Variables that differ between its ranks: values in the order of the local ranks."""


class RankedJob(Struct, frozen=True, kw_only=True):
    """The whole job as torchrun started it."""

    nodes: tuple[RankedNode, ...]
    ranks: int
    per_node: int
    restarts: int
    """torchrun's --max-restarts."""

    def hosts(self, inventory: AnyInventory | None) -> list[Host]:
        """Return the nodes, with what the inventory expects of each that it knows."""
        return [_host(node, inventory) for node in self.nodes]

    def environs(self, hosts: list[Host]) -> dict[str, dict[str, str]]:
        """Return the job's environment by node name; "" for nodes whose ranks did not answer."""
        environs = {
            host.name: node.environ
            for host, node in zip(hosts, self.nodes, strict=True)
            if node.environ is not None
        }
        common = next(iter(environs.values()), {})
        names = ("MASTER_ADDR", "MASTER_PORT")
        shared = {name: value for name, value in common.items() if name in names}
        return {"": shared, **environs}


def _host(node: RankedNode, inventory: AnyInventory | None) -> Host:
    name = _inventory_name(node, inventory) if inventory else node.label
    host = inventory.host(name) if inventory else Host(name=name, address=name)
    login = {"address": node.address, "transport": "torchrun", "group_rank": node.group}
    return replace(host, **login, python=node.python)


def _inventory_name(node: RankedNode, inventory: AnyInventory) -> str:
    """Return the inventory's name of a node, found by long or short host name or by address."""
    short = node.hostname.partition(".")[0]
    for name in (node.hostname, short, node.label):
        if name in inventory.names:
            return name
    for name in inventory.names:
        if inventory.host(name).address == node.address and not node.address.startswith("127."):
            return name
    longer = [name for name in inventory.names if short and name.partition(".")[0] == short]
    return longer[0] if len(longer) == 1 else node.label
