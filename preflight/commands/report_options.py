"""The arguments of `preflight report`, with the help that teaches them."""

from __future__ import annotations

import argparse
from pathlib import Path

_EXAMPLE = """\
examples:
  preflight report preflight-runs/latest
      the summary again, as the run printed it
  preflight report preflight-runs/latest --public --html for-the-vendor.html
      the page, with hosts, users, serials, UUIDs and addresses numbered
"""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Offer the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    parser.add_argument(
        "folder", metavar="RUN_DIR", type=Path,
        help="a run's folder; of a run that was killed, what it knew until then is told",
    )  # fmt: skip
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="the page for people; - is standard output"
    )
    parser.add_argument("--json", action="store_true", help="print report.json")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="the verdicts as JUnit XML")
    parser.add_argument(
        "--prometheus", metavar="FILE", type=Path, help="the numbers for node_exporter (*.prom)"
    )
    parser.add_argument("--text", action="store_true", help="print the summary (default)")
    parser.add_argument(
        "--public", action="store_true",
        help="hide hosts, users, serials, UUIDs and addresses, alike in all of it",
    )  # fmt: skip
