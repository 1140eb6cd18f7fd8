"""What `preflight explain` can be asked; without anything that it needs to answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_explain_options(explain: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    explain.add_argument(
        "files", metavar="LOG", type=Path, nargs="+",
        help="logs of any size, also gzipped: one for all ranks or one each; - is standard input; "
        "or the folder that preflight watch or a run of torchrun --log-dir left",
    )  # fmt: skip
    explain.add_argument("--json", action="store_true", help="print one JSON document instead")
    explain.add_argument(
        "--symptoms", metavar="DIR", type=Path, action="append", default=[],
        help="a folder with symptoms of your own, one .toml each (docs/explain.md)",
    )  # fmt: skip
