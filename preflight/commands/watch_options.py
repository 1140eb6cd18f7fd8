"""What `preflight watch` can be asked; without anything that it needs to answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from preflight.watching.model import CAP_MIB, STALLED_AFTER_S

if TYPE_CHECKING:
    import argparse

ALL = "nccl,dist"


def add_watch_options(watch: argparse.ArgumentParser) -> None:
    """Declare its arguments; the launch itself stands behind `--` and is never looked at."""
    watch.add_argument(
        "--debug", metavar="WHAT", nargs="?", const=ALL, default="",
        help=f"write down all that NCCL and torch.distributed tell (={ALL}); slows a job down",
    )  # fmt: skip
    watch.add_argument(
        "--debug-mib",
        metavar="N",
        default=str(CAP_MIB),
        help=f"what each debug file may hold, in MiB (default {CAP_MIB})",
    )
    watch.add_argument(
        "--stalled-after", metavar="SECONDS",
        help=f"look into it after so long without progress (default {STALLED_AFTER_S:g})",
    )  # fmt: skip
    watch.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="where the folder watch-DATE-TIME-HOST is made (default: here)",
    )
    watch.add_argument(
        "--tee", action="store_true",
        help="keep a copy of the launch's output; it then writes into a pipe, not to a terminal",
    )  # fmt: skip
    watch.add_argument(
        "--nodes", metavar="LIST", default="",
        help="the job's nodes, to look at them too (default: the Slurm allocation's)",
    )  # fmt: skip
    watch.add_argument("--inventory", metavar="FILE", default="", help="the same, from a file")
    watch.add_argument("--keep", action="store_true", help="keep the folder of a healthy launch")
    watch.add_argument(
        "--print-env", action="store_true",
        help="print the variables as a shell's exports, for another launcher; starts nothing",
    )  # fmt: skip
