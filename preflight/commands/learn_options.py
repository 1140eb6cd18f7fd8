"""The options of `preflight learn`, apart from its code: the command imports that only on use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands.targets import add_targets

if TYPE_CHECKING:
    import argparse


def add_learn_options(parser: argparse.ArgumentParser) -> None:
    """Offer the options of the verb; targets are those of a run."""
    parser.add_argument(
        "run", metavar="RUN_DIR", nargs="?", type=Path,
        help="learn from what a run measured (its folder or measured.json), and ask nobody",
    )  # fmt: skip
    add_targets(parser, inventory=": its nodes and ways in are kept, its promises are not")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: the terminal")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
