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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from preflight.fleet.model import Host
    from preflight.report.document import Report
    from preflight.run.site_sections import Section


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
    for name, (title, options) in GROUPS.items():
        declare = parser.getgroup(name, f"preflight: {title}").addoption
        for option, (value, about) in options.items():
            declare(option, help=about, **value_settings(value))
    parser.addini("preflight_nodes", "Nodes, as --preflight-nodes", default="")
    parser.addini("preflight_inventory", "Inventory file, as --preflight-inventory", default="")
    parser.addini(
        "preflight_checks", "Folders with the site's own checks", type="paths", default=[]
    )


def value_settings(value: str | tuple[str, ...]) -> dict[str, Any]:
    """Return how argparse, or pytest's parser, declares the value of an option of GROUPS."""
    if not value:
        return {"action": "store_true"}
    if isinstance(value, tuple):
        return {"choices": value}
    return {"metavar": value, "type": _NUMBERS.get(value, str)}


def _whole(text: str) -> int:
    from preflight.core.command_line import whole_number

    return whole_number(text)


def _decimal(text: str) -> float:
    from preflight.core.command_line import decimal_number

    return decimal_number(text)


_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "N": _whole, "SECONDS": _decimal, "RATE": _decimal
}  # fmt: skip


class Option(NamedTuple):
    """What an option takes, and its help."""

    value: str | tuple[str, ...]
    """The name of its value, or its choices; "" if it takes none."""
    about: str


GROUPS: Final[Mapping[str, tuple[str, Mapping[str, Option]]]] = {
    "preflight": ("which nodes (write --option=value)", {
        "--preflight": Option("", "Judge a fleet instead of running your tests; alone it judges "
            "this machine"),
        "--preflight-nodes": Option("LIST", "Nodes, as in 'gpu[001-064]' or 'a,b,c'; '@gpu' is a "
            "group of ClusterShell, '@inventory:gpu' one of the inventory"),
        "--preflight-inventory": Option("FILE", "TOML or YAML file: nodes, how to reach them, what "
            "they are expected to have; or an Ansible inventory (file, folder, script, or "
            "FILE.json of ansible-inventory --list)"),
        "--preflight-exclude": Option("LIST", "Nodes to leave out"),
        "--preflight-need": Option("N", "Ready when at least N nodes are; they are written to "
            "ready.hosts"),
        "--preflight-transport": Option("NAME", "How to reach the nodes, whatever the inventory "
            "says: ssh, paramiko, openssh, local, or srun (default inside a Slurm allocation)"),
        "--preflight-at-once": Option("N", "Nodes that are connected to at once (default: 64); all "
            "stay connected and work together"),
    }),
    "preflight-checks": ("what is checked, for how long, and the report", {
        "--preflight-checks": Option("IDS", "Only these checks, as in 'gpu.count,net.ports' (all: "
            "preflight list-checks)"),
        "--preflight-tier": Option(("quick", "standard", "deep", "prolog"), "How deep to look: "
            "prolog (passive, seconds), quick (default, a minute), standard, deep"),
        "--preflight-kernel-log-since": Option("TIME", "How far back the kernel log counts: boot "
            "(default), 90m, 2h, 3d, 2026-11-21T08:00"),
        "--preflight-fail-fast": Option(("stage", "first", "never"), "Stop after the first stage "
            "with a finding (default), after the first finding, or never"),
        "--preflight-strict": Option("", "Count warnings, and what could not be read for lack of "
            "privilege, as failures"),
        "--preflight-items": Option(("node", "group"), "One pytest item per node and pair, or one "
            "per check (default: by fleet size)"),
        "--preflight-replay": Option("RUN_DIR", "Judge an earlier run again (its folder or "
            "measured.json) at its tier, with the nodes and the inventory given now; contacts no "
            "node"),
        "--preflight-report": Option("DIR", "Where report.json, report.html and ready.hosts go "
            "(default: preflight-runs/TIME)"),
        "--preflight-keep": Option("N", "Runs that stay in preflight-runs; older ones are removed "
            "(default: 30; 0: all stay)"),
        "--preflight-prometheus": Option("FILE", "Write the run's numbers there as well, for "
            "node_exporter: a .prom file in its textfile folder"),
        "--preflight-exclude-file": Option("FILE", "Write the nodes that are not ready there, "
            "folded in one line, for sbatch --exclude=$(cat FILE) after exit 0 or 1; -qq prints "
            "the same and nothing else"),
        "--preflight-budget": Option("SECONDS", "Wall time for the whole run (default by tier: 8, "
            "60, 300, 3600)"),
    }),
    "preflight-job": ("the job that is to start", {
        "--preflight-python": Option("CMD", "The job's Python on the nodes, as in "
            "/opt/venv/bin/python (default: python3)"),
        "--preflight-env-file": Option("FILE", "The job's environment, KEY=VALUE lines; {node} in "
            "the path is the node's name"),
        "--preflight-launch": Option("LINE", "The job's launch line, as in "
            "'CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 train.py'; it is read, never "
            "run"),
        "--preflight-script": Option("FILE", "The job's training script: reports what it will hang "
            "on (as `preflight lint` does); it is read, never run"),
    }),
    "preflight-pairs": ("the sweep over pairs of nodes", {
        "--preflight-sweep": Option("ROUNDS", "Rounds of pairs: a number, exhaustive (every pair), "
            "or auto (default: every pair up to 16 nodes, then 8 or 9 rounds, of these what fits "
            "the budget; with a history as many as the budget pays for)"),
        "--preflight-seed": Option("N", "Same seed, same rounds in the same order (default: "
            "random, shown in the header)"),
        "--preflight-topology": Option("FILE", "Slurm's topology.conf: which nodes are on which "
            "leaf switch (default: what the inventory says; inside of a Slurm job, what Slurm "
            "says)"),
        "--preflight-history": Option("DIR", "Folder (or sqlite:///FILE, postgresql://...) that "
            "remembers every run: rounds of pairs add up to all of them, and `preflight history` "
            "shows what recurs (default: $PREFLIGHT_HISTORY)"),
        "--preflight-keep-nccl-logs": Option("", "Keep NCCL's log of the sweep in the run's "
            "measured.json, as preflight capture does"),
        "--preflight-catch-rate": Option("RATE", "Soak each link long enough for a 99 %% chance to "
            "catch an event this frequent (per second of load; default: a short soak; deep: 0.1)"),
        "--preflight-interface": Option("NAME", "Network interface for the sweep, as in eth0 "
            "(default: the one on the way to the other nodes)"),
        "--preflight-even-if-busy": Option("", "Load nodes even if their GPUs are in use (default: "
            "their pairs are not run)"),
    }),
}  # fmt: skip
"""The groups of options: their titles, and what each option takes and says in its help."""


@pytest.hookspec(firstresult=True)
def pytest_preflight_nodes(config: pytest.Config) -> str | Iterable[str] | Iterable[Host] | None:
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
