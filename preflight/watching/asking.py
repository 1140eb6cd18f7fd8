"""Asks ranks for their flight recorder while they hang, through the pipes that torch made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from preflight.watching.settings import RECORDER_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

ANSWER_S = 2.5
"""torch looks into its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC), then it writes."""


def ask_for_dumps(folder: Path) -> int:
    """Ask every rank that listens; how many do."""
    asked = 0
    for pipe in (folder / RECORDER_FOLDER).glob("*.pipe"):
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its rank has gone
        try:
            os.write(handle, b"1\n")
            asked += 1
        except OSError:
            continue
        finally:
            os.close(handle)
    return asked
