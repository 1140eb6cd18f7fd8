"""The tables of an inventory file, as types: keys, values and their bounds.

An unknown name is an error: it would be a threshold that is silently not applied.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from preflight.core.text import did_you_mean
from preflight.core.thresholds import Override, shipped
from preflight.errors import UsageError
from preflight.fleet.baselines import UNITS, highest_ceiling
from preflight.fleet.leaf_switches import LEAF_NAME
from preflight.fleet.model import TRANSPORTS, UNWAIVABLE, Expectations, Port, User, Waiver, today
from preflight.fleet.nodeset import fold

SWEEP_PREFIXES = ("gloo.", "nccl.")
"""Limits of a sweep, which is judged once for all nodes."""

MOST_TIMES_CEILING = 10
"""Times the highest known ceiling: a newer GPU may be faster; more than this is a wrong unit."""

_TIME_ZONES = timedelta(days=1)
_FLEET_WIDE = "one sweep judges all groups together: put it into [defaults.limits]"


class BaselineTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A baseline with its date and origin, as `preflight learn` writes it."""

    value: float
    learned: date | None = None
    of: Annotated[str, Meta(max_length=200)] = ""


Limits = dict[str, float | dict[str, float]]
Baselines = dict[str, float | BaselineTable]


def limit_overrides(layer: Layer, origin: str) -> dict[str, Override]:
    """The limits of one table by full name; UsageError names the table and the nearest name.

    Only [defaults], which applies to all nodes, may set a sweep's.
    """
    overrides: dict[str, Override] = {}
    names = {*shipped(), *UNITS}
    for name, value in _flatten(layer.limits or {}):
        if name not in names:
            raise UsageError(f"unknown limit {name[:80]!a} in {origin}{did_you_mean(name, names)}")
        if name.startswith(SWEEP_PREFIXES) and not origin.endswith("[defaults]"):
            raise UsageError(f"{name} in {origin}: {_FLEET_WIDE}")
        overrides[name] = Override(_valid_number(name, value, origin), origin)
    return overrides


def baseline_overrides(layer: Layer, origin: str) -> dict[str, Override]:
    """The baselines of one table by measure."""
    overrides: dict[str, Override] = {}
    for name, value in (layer.baselines or {}).items():
        if name not in UNITS:
            hint = did_you_mean(name, UNITS)
            raise UsageError(f"unknown baseline {name[:80]!a} in {origin}{hint}")
        baseline = value if isinstance(value, BaselineTable) else BaselineTable(value)
        learned = ", ".join(filter(None, [str(baseline.learned or ""), baseline.of]))
        if baseline.learned and baseline.learned > datetime.now(UTC).date() + _TIME_ZONES:
            when = f"{name} in {origin} was learned {baseline.learned}, a day in the future"
            raise UsageError(f"{when}: correct it")
        overrides[name] = Override(_valid_number(name, baseline.value, origin), origin, learned)
    return overrides


def _flatten(table: Limits) -> Iterator[tuple[str, float]]:
    """Yield full names, whether a file has `nccl.peers_ratio = 0.5` or `[...limits.nccl]`."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", number) for inner, number in value.items())
        else:
            yield name, value


def _valid_number(name: str, value: float, origin: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} in {origin} is {value}: give a number, 0 or more")
    most = highest_ceiling(name)
    if most is not None and value > MOST_TIMES_CEILING * most:
        raise UsageError(
            f"{name} in {origin} is {value:g} {UNITS[name]}: no known part reaches "
            f"more than {most:g}; correct the unit or the decimal point"
        )
    return float(value)


class WaiveTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[waive]]`; it must have an end date, or it would outlive its reason."""

    check: Annotated[str, Meta(min_length=1, max_length=80)]
    nodes: Annotated[str, Meta(min_length=1)]
    until: date
    reason: Annotated[str, Meta(max_length=200)]


class CheckTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[checks."gpu.ecc"]`: whether the check runs."""

    enabled: bool = True


class Layer(Expectations, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of all nodes, a group or one node; the most specific table wins."""

    transport: str | None = None
    user: User | None = None
    port: Port | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    python: str | list[str] | None = None
    leaf: str | None = None
    limits: Limits | None = None
    baselines: Baselines | None = None
    checks: dict[str, CheckTable] | None = None


class GroupTable(Layer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[group.NAME]`: its nodes and their settings."""

    nodes: str
    learned: date | None = None
    """The day on which `preflight learn` wrote it from what it measured."""


class NodeTable(Layer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one node."""

    address: str | None = None


class JobTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[job]`: what the job that will be launched uses."""

    master: str | None = None
    master_port: Port | None = None
    nproc_per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    env_file: str | None = None
    launch: str | None = None
    interface: str | None = None


class FileTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    defaults: Layer = Layer()
    job: JobTable = JobTable()
    group: dict[str, GroupTable] = {}
    node: dict[str, NodeTable] = {}
    checks: dict[str, CheckTable] = {}
    waive: tuple[WaiveTable, ...] = ()


EXPECTATION_KEYS = Expectations.__struct_fields__
"""For each of these the most specific table wins; limits and baselines merge name by name."""
FILES = ("identity_file", "known_hosts", "ssh_config")
CONNECTION_KEYS = ("transport", "user", "port", *FILES)


def settings(keys: Iterable[str], value_of: Callable[[str], Any]) -> dict[str, Any]:
    """The values of those of the keys that are set."""
    return {key: value for key in keys if (value := value_of(key)) is not None}


_A_DATE = "a date such as 2026-12-24"
_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
    "date": _A_DATE,
}


def schema_reason(reason: str, table: str = "") -> str:
    """Reword a schema's error: "expected a whole number, got text, at port in [job]"."""

    def words(match: re.Match[str]) -> str:
        kinds = [_TYPE_NAMES.get(word, word) for word in match[1].split(" | ")]
        # Do not offer "nothing": a user knows that a key may be left out.
        return " or ".join(word for word in kinds if word != "nothing" or len(kinds) == 1)

    complaint, _, place = reason.partition(" - at `")
    complaint = re.sub(r" matching regex .*", " without blanks, signs or a leading dash", complaint)
    complaint = re.sub(r"`([a-z |]+)`", words, complaint).replace("`", "'")
    complaint = complaint.replace("Invalid RFC3339 encoded date", f"expected {_A_DATE}")
    place = place.rstrip("`").removeprefix("$").removeprefix(".")
    place = " in ".join(filter(None, (place, table))) or "the top of the file"
    return f"{complaint[:1].lower()}{complaint[1:]}, at {place}"


def table_reason(content: dict[Any, Any], reason: str) -> str:
    """Reword the error of a whole file, with the name of the innermost table that has it."""
    for where, keys, kind in reversed([*_tables(content)]):
        if isinstance(keys, dict) and kind not in (FileTable, WaiveTable):
            try:
                convert(keys, kind)
            except ValidationError as error:
                return schema_reason(str(error), where)
    return schema_reason(reason)


def refuse_unknown_keys(content: Any) -> None:
    """Name an unknown key by its table and the nearest known one, which msgspec does not do."""
    if not isinstance(content, dict):
        raise UsageError('holds no tables: write [group.NAME] with nodes = "gpu[001-064]"')
    for where, keys, kind in _tables(content):
        for key in _items(keys):
            if key not in kind.__struct_fields__:
                hint = did_you_mean(str(key), kind.__struct_fields__)
                raise UsageError(f"unknown key {str(key)!a} in {where}{hint}")


def _tables(content: dict[Any, Any]) -> Iterator[tuple[str, Any, type[Struct]]]:
    """Every table of a file with its name and type, the outer ones first."""
    layers = [
        (f"{table}.{name}", keys, kind)
        for table, kind in (("group", GroupTable), ("node", NodeTable))
        for name, keys in _items(content.get(table)).items()
    ]
    yield "the file", content, FileTable
    yield "[defaults]", content.get("defaults"), Layer
    yield "[job]", content.get("job"), JobTable
    yield from ((f"[{name}]", keys, kind) for name, keys, kind in layers)
    waived = content.get("waive")
    for keys in waived if isinstance(waived, list) else ():
        yield "[[waive]]", keys, WaiveTable
    outer = [("", content), ("defaults.", content.get("defaults"))]
    for where, keys in [*outer, *((f"{name}.", keys) for name, keys, _ in layers)]:
        inner = _items(keys)
        for name, table in _items(inner.get("checks")).items():
            yield f'[{where}checks."{name}"]', table, CheckTable
        for name, table in _items(inner.get("baselines")).items():
            yield f'[{where}baselines."{name}"]', table, BaselineTable


def _items(table: Any) -> dict[Any, Any]:
    return table if isinstance(table, dict) else {}


def refuse_impossible(where: str, layer: Layer) -> None:
    """Refuse values that have the right type and are still impossible."""
    if layer.transport is not None:
        refuse_unknown_transport(layer.transport, where)
    if layer.leaf is not None and not LEAF_NAME.fullmatch(layer.leaf):
        raise UsageError(
            f"leaf in {where} is {layer.leaf[:40]!a}: give a switch's name, up to 64 letters, "
            "digits and ._:/@+-"
        )
    for key in FILES:
        if any(sign in (getattr(layer, key) or "") for sign in ('"', "\\", "${")):
            raise UsageError(
                f"{key} in {where} holds a quote, a backslash or ${{, which ssh would read in its "
                "own way: rename it"
            )
    limit_overrides(layer, where)
    baseline_overrides(layer, where)
    for key in ("allreduce_min_gbs", "intra_node_min_gbs"):
        number = getattr(layer, key)
        if number is not None and not math.isfinite(number):
            raise UsageError(f"{key} in {where} is {number}: give a number of GB/s")


def refuse_unknown_transport(name: str, where: str) -> None:
    """Raise UsageError for an unknown transport, with the nearest known name."""
    if name not in TRANSPORTS:
        hint = did_you_mean(name, TRANSPORTS)
        raise UsageError(f"unknown transport {name[:40]!a} in {where}{hint}")


def read_argv(words: str | list[str] | None, where: str) -> tuple[str, ...]:
    """Read the job's Python as an argv prefix; it is never passed to a shell."""
    if words is None:
        return ("python3",)
    try:
        argv = shlex.split(words) if isinstance(words, str) else words
    except ValueError as error:
        raise UsageError(f"{where}: {error}; quote it as the shell would") from error
    if not argv or not argv[0]:
        raise UsageError(f"{where} is empty: give a command such as /opt/venv/bin/python")
    if not all(word.isprintable() for word in argv):
        raise UsageError(f"{where} holds a control character: {' '.join(argv)[:60]!a}; remove it")
    return tuple(argv)


LONGEST_WAIVER = timedelta(days=366)
"""A waiver that lasts longer would be forgotten."""

MOST_WAIVERS, MOST_WAIVED = 1000, 1 << 20
"""Of a file, and the nodes of all its waivers together."""

_REACH_PREFIX = "reach."
_SHORTEST_REASON = 3


def read_waivers(
    tables: Sequence[WaiveTable],
    expand: Callable[[str], Sequence[str]],
    names: Collection[str],
    origin: str,
) -> tuple[Waiver, ...]:
    """Read a file's waivers; UsageError for one that could hide what must not be hidden.

    `names`: the file's nodes, if it names any; a waiver of another node is a mistake.
    """
    if len(tables) > MOST_WAIVERS:
        raise UsageError(f"has {len(tables)} tables [[waive]]: keep at most {MOST_WAIVERS}")
    known_names = dict.fromkeys(names)
    waivers: list[Waiver] = []
    remaining = MOST_WAIVED
    for table in tables:
        waivers.append(_read_waiver(table, expand, known_names, origin))
        remaining -= len(waivers[-1].nodes)
        if remaining < 0:
            problem = f"its tables [[waive]] name over {MOST_WAIVED:,} nodes together"
            raise UsageError(f"{problem}: waive on fewer nodes, or switch the check off")
    return tuple(waivers)


def _read_waiver(
    table: WaiveTable, expand: Callable[[str], Sequence[str]], names: Collection[str], origin: str
) -> Waiver:
    where = f"[[waive]] of {table.check!a}"
    refuse_hiding(table.check, where)
    if len(table.reason.strip()) < _SHORTEST_REASON:
        raise UsageError(f"{where}: the reason {table.reason!a} says nothing: write why")
    if table.until - today() > LONGEST_WAIVER:
        raise UsageError(f"{where}: until {table.until} is over a year away: write a nearer day")
    nodes = tuple(expand(table.nodes))
    strangers = [name for name in nodes if names and name not in names]
    if strangers:
        hint = did_you_mean(strangers[0], names)
        raise UsageError(f"{where}: {fold(strangers)} is not in this inventory{hint}")
    return Waiver(
        check=table.check,
        nodes=nodes,
        until=table.until,
        reason=table.reason.strip(),
        origin=origin,
    )


def refuse_hiding(check: str, where: str) -> None:
    """Refuse a waiver or a switch that would make an unchecked node look ready."""
    if check.startswith(_REACH_PREFIX):
        raise UsageError(
            f"{where}: a node that cannot be reached cannot be judged; leave it out with "
            "--preflight-exclude"
        )
    if check in UNWAIVABLE and where.startswith("[[waive]]"):
        raise UsageError(f"{where}: corrupted data are never waived; remove it")


def refuse_unknown_checks(ids: Iterable[tuple[str, str]], known: Collection[str]) -> None:
    """Refuse a (check id, where it is written) of an unknown check; name the nearest."""
    for check, where in ids:
        if check not in known:
            hint = did_you_mean(check, known) or "; see: preflight list-checks"
            raise UsageError(f"{where}: there is no check {check[:80]!a}{hint}")
