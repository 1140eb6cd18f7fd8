"""`preflight learn`: writes an inventory from what the nodes themselves report.

Asks the nodes as a run does (one login, one round trip, no load), or reads a run's measurements.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

from preflight import __version__
from preflight.commands import (
    add_json,
    add_nodes_or_folder,
    add_targets,
    fleet_of,
    folder_among,
    remark,
)
from preflight.commands.learned_groups import (
    LEARNED_KEYS,
    LearnedGroup,
    learned_groups,
    unlearnable,
)
from preflight.core.command_line import FINE, FOUND, INTERRUPTED, UNCLEAR, path_type
from preflight.core.files import is_folder, parse_toml, typed_path, write_output
from preflight.core.text import count, printable
from preflight.errors import UsageError
from preflight.fleet.baselines import UNITS
from preflight.fleet.inventory import inventory_of
from preflight.fleet.model import Host
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import FleetRequest, resolve
from preflight.run.measured import Measured, read_measured
from preflight.run.probe_stage import probe_fleet
from preflight.transport.ways import SETUP_AT_MOST, Ways

_TEMPLATE = Path(__file__).with_name("learned.toml.j2")
_LOGIN_KEYS = ("user", "port", "identity_file", "known_hosts", "ssh_config")
_AUTOMATIC = ("ssh", "srun", "torchrun")
"""Transports that a run chooses by itself."""


def inventory_text(
    groups: Sequence[LearnedGroup], left_out: Mapping[str, str], origin: str, day: date
) -> str:
    """Return the inventory's text; `left_out` maps each node that was not learned to the reason."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701  a text, whose values are quoted as TOML
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "value": _value, "folded": fold, "quoted": shlex.join,
        "comment": lambda words: printable(" ".join(words.split())),
    }  # fmt: skip
    nodes = [host for group in groups for host in group.hosts]
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        version=__version__, day=day, learned=count(len(nodes), "node"), origin=origin,
        left_out=left_out, groups=groups, nodes=nodes, login_keys=_LOGIN_KEYS, keys=LEARNED_KEYS,
        units=UNITS, automatic=_AUTOMATIC, usual_python=Host(name="h", address="h").python,
    )  # fmt: skip


def _value(value: float | str) -> str:
    """Return a value of TOML; its basic strings allow all of JSON's escapes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return str(value).lower() if isinstance(value, bool) else f"{value:.12g}"


PROBE_S = 60.0
"""For all nodes together."""


_Source = tuple[tuple[Host, ...], Measured, str]
"""The nodes that preflight or a run asked, what they reported, and where that is from."""


def run(arguments: argparse.Namespace) -> int:
    """Print or write the inventory: 0 all nodes learned, 1 some, 3 none.

    UsageError (exit 4) for targets that name no node, and for a file that exists already.
    """
    to_stdout = arguments.output in (None, Path("-"))
    output = None if to_stdout else typed_path(arguments.output)
    if output is not None and output.exists() and not arguments.force:
        raise UsageError(f"{output} exists already: give another file, or --force to replace it")
    run_folder = folder_among(arguments)
    try:
        all_hosts, measured, origin = (
            _read_run(run_folder, arguments.inventory) if run_folder else _probe(arguments)
        )
    except KeyboardInterrupt:
        remark("interrupted: no inventory is written")
        return INTERRUPTED
    left_out = {h.name: reason for h in all_hosts if (reason := _refusal(h.name, measured))}
    for name, reason in left_out.items():
        remark(f"not learned: {name}: {reason}")
    hosts = [host for host in all_hosts if host.name not in left_out]
    if not hosts:
        remark("no node could be learned: no inventory is written")
        return UNCLEAR
    groups = learned_groups(hosts, measured.facts, measured.sweep, measured.burned)
    text = inventory_text(groups, left_out, origin, datetime.now(UTC).date())
    inventory_of(output or Path("learned.toml"), text)  # it must be readable again
    if output is not None:
        write_output(output, text.encode())
        remark(f"written: {output}; use it: preflight check -i {shlex.quote(str(output))}")
    if arguments.json:
        sys.stdout.write(json.dumps(parse_toml(text), indent=1, default=str) + "\n")
    elif output is None:
        sys.stdout.write(text)
    return FOUND if left_out else FINE


def _probe(arguments: argparse.Namespace) -> _Source:
    fleet, nonce = fleet_of(arguments), secrets.token_hex(16)
    with closing(Ways(fleet.hosts)) as ways:
        answers = probe_fleet(
            fleet.hosts, ways, nonce, deadline_s=PROBE_S, at_most=SETUP_AT_MOST,
            progress=lambda *_: None,
        )  # fmt: skip
        for answer in answers.values():
            if answer.connection is not None:
                answer.connection.close()
    measured = Measured(
        nonce=nonce,
        facts={name: answer.facts for name, answer in answers.items() if answer.facts},
        reach={name: answer.reach for name, answer in answers.items()},
    )
    return fleet.hosts, measured, fleet.origin


def _read_run(path: Path, inventory: str | None) -> _Source:
    """Read a run's folder or its measured.json; an inventory says how to reach its nodes."""
    path = path / "measured.json" if is_folder(path) else path
    measured = read_measured(path)
    if not measured.reach:
        raise UsageError(f"{path} holds no nodes: give the folder of a run that checked nodes")
    origin = f"the run in {path.parent.name or path}"
    if inventory is None:
        return tuple(_host(name, measured) for name in measured.reach), measured, origin
    request = FleetRequest(nodes=",".join(measured.reach), inventory=inventory, ask_slurm=False)
    return resolve(request).hosts, measured, origin


def _host(name: str, measured: Measured) -> Host:
    """Return a node as its run knew it; the inventory or ~/.ssh says how to log in."""
    if measured.reach[name].transport != "local":
        return Host(name=name, address=name)
    facts = measured.facts.get(name)
    python = (facts.python.executable,) if facts and facts.python.executable else ("python3",)
    return Host(name=name, address="127.0.0.1", transport="local", python=python)


def _refusal(name: str, measured: Measured) -> str:
    if name in measured.facts:
        return unlearnable(measured.facts[name])
    reach = measured.reach.get(name)
    return reach.sentence if reach and reach.sentence else "it sent no facts"


_EXAMPLES = """\
examples:
  preflight learn 'gpu[001-064]' -o fleet.toml     ask the nodes, load none
  preflight learn preflight-runs/latest -i fleet.toml -o new.toml
      add the bandwidth that the pairs of this run reached
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; nodes are chosen as for a run."""
    parser.epilog = _EXAMPLES
    add_nodes_or_folder(parser, "RUN_DIR", "a run's folder or measured.json; then no node is asked")
    add_targets(parser, inventory=": its nodes and logins are kept, its expected values are not")
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", type=path_type, help="default: standard output")
    add_json(parser)
    add("--force", action="store_true", help="replace FILE if it exists")
