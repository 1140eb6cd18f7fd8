"""-qq: standard output carries the folded bad nodes alone, so that a script can use them as is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from preflight.report.exclude import excluded

if TYPE_CHECKING:
    import pytest

    from preflight.report.document import FleetRow

TERSE = -2
"""pytest's verbosity at -qq."""

_SPOKE = (0, 1)


def is_terse(config: pytest.Config) -> bool:
    """Whether -qq was typed."""
    return config.get_verbosity() <= TERSE


def hush(config: pytest.Config, terminal: pytest.TerminalReporter) -> None:
    """Let pytest say on standard error what it still has to say: a crash must be seen there."""
    from _pytest.config import create_terminal_writer

    terminal._tw = create_terminal_writer(config, sys.stderr)  # noqa: SLF001  it has no option


def tell(fleet: FleetRow, exit_code: int) -> None:
    """Print the nodes to leave out, in one line, and no line for none.

    Where not all was judged the line is not the whole truth: standard error says so.
    """
    if nodes := excluded(fleet):
        sys.stdout.write(f"{nodes}\n")
        sys.stdout.flush()
    if exit_code not in _SPOKE:
        sys.stderr.write(f"preflight: exit {exit_code}, not all was judged; run without -qq\n")
