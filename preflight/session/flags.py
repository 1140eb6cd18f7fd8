"""The options and ini keys of --preflight with their help, and the hooks for a site's plugins.

Imports the standard library only: every pytest run of an environment loads this file.

Write the hooks in a `conftest.py` beside your pytest.ini, or in an installed pytest plugin. All are
called in the one process that measures and reports, never in a worker of pytest-xdist. Their names
begin with `pytest_` because pytest accepts no others. In a conftest.py that must also load where
preflight is not installed, mark them `@pytest.hookimpl(optionalhook=True)`.
`docs/how-to/own-check.md` has an example of each.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from preflight.fleet.model import Host
    from preflight.report.document import Report
    from preflight.run.site_sections import Section


if TYPE_CHECKING:
    Add = Callable[..., None]

TIERS = ("quick", "standard", "deep", "prolog")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a UsageError into pytest's own (exit 4), as one printable line."""
    from preflight.errors import UsageError  # a suite without --preflight loads none of it

    try:
        yield
    except UsageError as error:
        from preflight.core.command_line import message

        lines = message(str(error), first=" " * 7).lstrip()  # pytest begins with "ERROR: "
        raise pytest.UsageError(lines) from error  # noqa: TID251  only here


def add_options(parser: pytest.Parser) -> None:
    """Add the options; all of them start with --preflight."""
    for name, title, add in (
        ("preflight", "preflight: which nodes (write --option=value)", _nodes),
        ("preflight-checks", "preflight: what is checked, for how long, and the report", _checks),
        ("preflight-job", "preflight: the job that is to start", _job),
        ("preflight-pairs", "preflight: the sweep over pairs of nodes", _pairs),
    ):
        add(parser.getgroup(name, title).addoption)
    parser.addini("preflight_nodes", "Nodes, as --preflight-nodes", default="")
    parser.addini("preflight_inventory", "Inventory file, as --preflight-inventory", default="")
    parser.addini(
        "preflight_checks", "Folders with the site's own checks", type="paths", default=[]
    )


def _nodes(add: Add) -> None:
    """Which nodes, how to reach them, and how many must be ready."""
    add(
        "--preflight",
        action="store_true",
        help="Judge a fleet instead of running your tests; alone it judges this machine",
    )
    add(
        "--preflight-nodes",
        metavar="LIST",
        help="Nodes, as in 'gpu[001-064]' or 'a,b,c'; '@gpu' is a group of ClusterShell, "
        "'@inventory:gpu' one of the inventory",
    )
    add(
        "--preflight-inventory",
        metavar="FILE",
        help="TOML or YAML file: nodes, how to reach them, what they are expected to have; or an "
        "Ansible inventory (file, folder, script, or FILE.json of ansible-inventory --list)",
    )
    add("--preflight-exclude", metavar="LIST", help="Nodes to leave out")
    add(
        "--preflight-need",
        metavar="N",
        type=int,
        help="Ready when at least N nodes are; they are written to ready.hosts",
    )
    add(
        "--preflight-transport",
        metavar="NAME",
        help="How to reach the nodes, whatever the inventory says: ssh, paramiko, openssh, local, "
        "or srun (default inside a Slurm allocation)",
    )
    add(
        "--preflight-at-once",
        metavar="N",
        type=int,
        help="Nodes that are connected to at once (default: 64); all stay connected and work "
        "together",
    )


def _checks(add: Add) -> None:
    """Which checks, how deep, for how long, and where the report goes."""
    add(
        "--preflight-checks",
        metavar="IDS",
        help="Only these checks, as in 'gpu.count,net.ports' (all: preflight list-checks)",
    )
    add(
        "--preflight-tier",
        choices=TIERS,
        help="How deep to look: prolog (passive, seconds), quick (default, a minute), "
        "standard, deep",
    )
    add(
        "--preflight-kernel-log-since",
        metavar="TIME",
        help="How far back the kernel log counts: boot (default), 90m, 2h, 3d, 2026-11-21T08:00",
    )
    add(
        "--preflight-fail-fast",
        choices=("stage", "first", "never"),
        help="Stop after the first stage with a finding (default), after the first finding, "
        "or never",
    )
    add(
        "--preflight-strict",
        action="store_true",
        help="Count warnings, and what could not be read for lack of privilege, as failures",
    )
    add(
        "--preflight-items",
        choices=("node", "group"),
        help="One pytest item per node and pair, or one per check (default: by fleet size)",
    )
    add(
        "--preflight-replay",
        metavar="RUN_DIR",
        help="Judge an earlier run again (its folder or measured.json) at its tier, with the nodes "
        "and the inventory given now; contacts no node",
    )
    add(
        "--preflight-report",
        metavar="DIR",
        help="Where report.json, report.html and ready.hosts go (default: preflight-runs/TIME)",
    )
    add(
        "--preflight-keep",
        metavar="N",
        type=int,
        help="Runs that stay in preflight-runs; older ones are removed (default: 30; 0: all stay)",
    )
    add(
        "--preflight-prometheus",
        metavar="FILE",
        help="Write the run's numbers there as well, for node_exporter: a .prom file in its "
        "textfile folder",
    )
    add(
        "--preflight-exclude-file",
        metavar="FILE",
        help="Write the nodes that are not ready there, folded in one line, for "
        "sbatch --exclude=$(cat FILE) after exit 0 or 1; -qq prints the same and nothing else",
    )
    add(
        "--preflight-budget",
        metavar="SECONDS",
        type=float,
        help="Wall time for the whole run (default by tier: 8, 60, 300, 3600)",
    )


def _job(add: Add) -> None:
    """The job that is to start."""
    add(
        "--preflight-python",
        metavar="CMD",
        help="The job's Python on the nodes, as in /opt/venv/bin/python (default: python3)",
    )
    add(
        "--preflight-env-file",
        metavar="FILE",
        help="The job's environment, KEY=VALUE lines; {node} in the path is the node's name",
    )
    add(
        "--preflight-launch",
        metavar="LINE",
        help="The job's launch line, as in 'CUDA_VISIBLE_DEVICES=0,1 torchrun "
        "--nproc-per-node=2 train.py'; it is read, never run",
    )
    add(
        "--preflight-script",
        metavar="FILE",
        help="The job's training script: reports what it will hang on (as `preflight lint` does); "
        "it is read, never run",
    )


def _pairs(add: Add) -> None:
    """The sweep over pairs."""
    add(
        "--preflight-sweep",
        metavar="ROUNDS",
        help="Rounds of pairs: a number, exhaustive (every pair), or auto (default: every pair up "
        "to 16 nodes, then 8 or 9 rounds, of these what fits the budget; with a history as many as "
        "the budget pays for)",
    )
    add(
        "--preflight-seed",
        metavar="N",
        type=int,
        help="Same seed, same rounds in the same order (default: random, shown in the header)",
    )
    add(
        "--preflight-topology",
        metavar="FILE",
        help="Slurm's topology.conf: which nodes are on which leaf switch (default: what the "
        "inventory says; inside of a Slurm job, what Slurm says)",
    )
    add(
        "--preflight-history",
        metavar="DIR",
        help="Folder (or sqlite:///FILE, postgresql://...) that remembers every run: rounds of "
        "pairs add up to all of them, and `preflight history` shows what recurs (default: "
        "$PREFLIGHT_HISTORY)",
    )
    add(
        "--preflight-keep-nccl-logs",
        action="store_true",
        help="Keep NCCL's log of the sweep in the run's measured.json, as preflight capture does",
    )
    add(
        "--preflight-catch-rate",
        metavar="RATE",
        type=float,
        help="Soak each link long enough for a 99 %% chance to catch an event this frequent (per "
        "second of load; default: a short soak; deep: 0.1)",
    )
    add(
        "--preflight-interface",
        metavar="NAME",
        help="Network interface for the sweep, as in eth0 (default: the one on the way to the "
        "other nodes)",
    )
    add(
        "--preflight-even-if-busy",
        action="store_true",
        help="Load nodes even if their GPUs are in use (default: their pairs are not run)",
    )


@pytest.hookspec(firstresult=True)
def pytest_preflight_nodes(
    config: pytest.Config,
) -> str | Iterable[str] | Iterable[Host] | None:
    """Name the nodes to judge, if neither an option nor PREFLIGHT_NODES does.

    Called once, while options are read, also for `--co`. Return a node list such as
    "gpu[001-064]", or names, which take their settings from the ini file's inventory if there is
    one; or `preflight.fleet.model.Host`s, which have their own; or None to leave it to the next
    plugin, to Slurm's allocation and to the ini file. An exception or any other answer is exit 4,
    in one line with the plugin's name.
    """


@pytest.hookspec
def pytest_preflight_probe_sections(  # type: ignore[empty-body]
    config: pytest.Config,
) -> Iterable[Section]:
    """Name files of your own that run on every node beside the probe.

    Called once, while options are read. Checks read the result of a section as
    `node.facts.section(id)`, a `preflight.facts.Extra`: `data`, or `error` if it raised, hung or
    wrote too much, which affects nothing else. A file that is missing, has no `collect` or does not
    compile, and two sections of one id, are exit 4, in one line with the plugin's name.
    """


@pytest.hookspec
def pytest_preflight_report(report: Report, folder: Path, config: pytest.Config) -> None:
    """Pass the report on to a dashboard, a database or a ticket.

    Called once, after report.json and ready.hosts were written to `folder` and the summary was
    shown; not for `--co`, wrong usage, or when nothing was judged. An exception is shown in one
    line with the plugin's name; it changes neither verdicts nor exit code, which are about the
    fleet. Limit your own time: preflight does not.
    """
