"""The options of `preflight capture`, apart from its code: the command imports that only on use."""

from __future__ import annotations

import argparse

from preflight.commands.targets import add_targets

_EXAMPLE = """\
examples:
  preflight capture .
      this machine (in an allocation its nodes): facts, outputs of its tools, a
      run of some minutes with what NCCL logs, in one file; nothing is sent
  preflight capture . --public
      the same, with hosts, users, serials, UUIDs and addresses numbered
  preflight read preflight-capture-gpu041-20261122-210000.tar.gz
      judge it elsewhere
"""


def add_capture_options(parser: argparse.ArgumentParser) -> None:
    """Offer the arguments; targets are those of a run."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    parser.add_argument("folder", metavar="DIR", help="where the archive is written")
    add_targets(parser)
    parser.add_argument(
        "--tier", choices=("quick", "standard", "deep"), default="standard",
        help="how deep its run measures (default: standard: burn-in and sweep, 5 minutes)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="SECONDS", type=float, help="for the run; default: the tier's"
    )
    parser.add_argument(
        "--public", action="store_true",
        help="hide hosts, users, serials, UUIDs and addresses, alike in all of it",
    )  # fmt: skip
