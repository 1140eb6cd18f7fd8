"""The options of `preflight history`, apart from its code: the command imports that only on use."""

from __future__ import annotations

import argparse

LONGEST = 3660
_EXAMPLES = """\
examples:
  preflight history --history=/srv/nightly    what changed since last night, and
                                              who is not ready most often
  preflight history gpu041 --history=...      one node's own past
  preflight history --worst --nights=90 ...   repeat offenders
  preflight history --gpu=GPU-4f1c... ...     one GPU, wherever it sat

DIR is the folder that runs are given as --preflight-history. With the variable
PREFLIGHT_HISTORY set to it, both options may be left out. Exit code: 0 told,
4 wrong usage or a history that cannot be read, 5 no run is remembered there.
"""


def add_history_options(parser: argparse.ArgumentParser) -> None:
    """Offer the options of the verb."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Tell what earlier runs measured and found: trends, repeat offenders."
    parser.epilog = _EXAMPLES
    parser.add_argument("node", metavar="NODE", nargs="?", help="a node, as runs name it")
    parser.add_argument("--gpu", metavar="UUID", help="one GPU, as nvidia-smi -L names it")
    parser.add_argument("--worst", action="store_true", help="the nodes not ready most often")
    parser.add_argument(
        "--history", metavar="DIR",
        help="folder, sqlite:///FILE or postgresql://... (default: $PREFLIGHT_HISTORY)",
    )  # fmt: skip
    parser.add_argument(
        "--nights", metavar="N", type=int, default=30,
        help="how many nights before the last run count (default: 30)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
