"""What `preflight diagnose` can be asked; without anything that it needs to answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands.targets import add_targets

if TYPE_CHECKING:
    import argparse


def add_diagnose_options(diagnose: argparse.ArgumentParser) -> None:
    """Declare its arguments; targets are those of a run."""
    diagnose.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path,
        help="judge again what --save has kept, and ask nobody",
    )  # fmt: skip
    add_targets(diagnose)
    diagnose.add_argument("--pid", metavar="N", type=int, nargs="+", help="only these processes "
                          "here, what is below them, and the rest of a rank's job")  # fmt: skip
    diagnose.add_argument("--job", metavar="ID", default="", help="which one, where several run: "
                          "its run id, or MASTER_ADDR:MASTER_PORT")  # fmt: skip
    diagnose.add_argument("--look-s", metavar="N", type=float, default=3.0, help="seconds between "
                          "the two looks: 3; longer for a job with slow steps")  # fmt: skip
    diagnose.add_argument("--json", action="store_true", help="print one JSON document instead")
    diagnose.add_argument("--save", metavar="DIR", type=Path, help="keep all that was seen there")
