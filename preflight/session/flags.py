"""Declares the options (of options.toml), the ini keys, and the hooks for a site's plugins.

Imports the standard library only: every pytest run of an environment loads this file.

Write the hooks in a `conftest.py` beside your pytest.ini, or in an installed pytest plugin. All are
called in the one process that measures and reports, never in a worker of pytest-xdist. Their names
begin with `pytest_` because pytest accepts no others. In a conftest.py that must also load where
preflight is not installed, mark them `@pytest.hookimpl(optionalhook=True)`.
`docs/how-to/own-check.md` has an example of each.
"""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from preflight.fleet.model import Host
    from preflight.report.document import Report
    from preflight.run.site_sections import Section


TABLES: Final = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
"""The groups of options, and the ranges of their numbers."""


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
    for name, group in TABLES["group"].items():
        declare = parser.getgroup(name, f"preflight: {group['title']}").addoption
        for option, (value, about) in group["options"].items():
            declare(option, help=about, **value_settings(value))
    parser.addini("preflight_nodes", "Nodes, as --preflight-nodes", default="")
    parser.addini("preflight_inventory", "Inventory file, as --preflight-inventory", default="")
    parser.addini(
        "preflight_checks", "Folders with the site's own checks", type="paths", default=[]
    )


def value_settings(value: str | list[str]) -> dict[str, Any]:
    """Return how argparse, or pytest's parser, declares the value of an option of TABLES."""
    if not value:
        return {"action": "store_true"}
    if isinstance(value, list):
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
