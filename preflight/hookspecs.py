"""Where a site hooks in: whom to judge, what else to ask on each node, whom to tell the outcome.

Write these functions in a `conftest.py` beside your pytest.ini, or in an installed pytest plugin.
All are called in the one process that measures and reports, never in a worker of pytest-xdist.
pytest takes no hook whose name does not begin with `pytest_`, hence the names. A conftest.py that
must also load where preflight is not installed marks them `@pytest.hookimpl(optionalhook=True)`.
`docs/site-checks.md` shows each at work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from preflight.fleet.model import Host
    from preflight.report.document import Report
    from preflight.section import Section


@pytest.hookspec(firstresult=True)
def pytest_preflight_nodes(
    config: pytest.Config,
) -> str | Iterable[str] | Iterable[Host] | None:
    """Name the nodes to judge, when neither an option nor PREFLIGHT_NODES has.

    Called once, while options are read, also for `--co`. Returns a node list such as
    "gpu[001-064]", or names, whose settings are those of the inventory of the ini file if there is
    one; or `preflight.fleet.model.Host`s, which bring their own; or None to leave it to the next
    plugin, to Slurm's allocation and to the ini file. An exception, or an answer that is none of
    these, is exit 4 in one line with the plugin's name.
    """


@pytest.hookspec
def pytest_preflight_probe_sections(  # type: ignore[empty-body]
    config: pytest.Config,
) -> Iterable[Section]:
    """Name files of your own that run on every node beside the probe.

    Called once, while options are read. What each section finds arrives in checks as
    `node.facts.section(id)`, a `preflight.facts.Extra`: `data`, or `error` if it raised, hung or
    flooded, which harms nothing else. A file that is missing, has no `collect`, does not compile,
    or two sections of one id, is exit 4 in one line with the plugin's name.
    """


@pytest.hookspec
def pytest_preflight_report(report: Report, folder: Path, config: pytest.Config) -> None:
    """Pass the outcome on: to a dashboard, a database, a ticket.

    Called once, after report.json and ready.hosts were written to `folder` and the summary was
    shown; not for `--co`, wrong usage, or when nothing was judged. An exception is a line with the
    plugin's name on the screen, and changes neither verdicts nor exit code: those speak of the
    fleet, and report.json has what could not be passed on. Bound your own time: nothing else does.
    """
