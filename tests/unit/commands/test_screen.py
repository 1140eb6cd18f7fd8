"""What a sweep shows is a help, and never what its night hangs on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands.nightly.state import Screen

if TYPE_CHECKING:
    import pytest


def test_a_reader_that_is_gone_costs_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`| tee` that died, a terminal that was closed: nothing raises, it is just not shown."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        screen = Screen()
        screen.line("wave 1/2")
        os.set_blocking(reader, False)
        assert os.read(reader, 99) == b"wave 1/2\n"
        os.close(reader)
        screen.line("wave 2/2")
        screen.labelled("ready", "n1")


def test_a_full_disk_costs_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot grow; nor does Python's own flush at the end complain."""
    with Path("/dev/full").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        Screen().line("wave 1/2")
