"""Whom a verb asks, said as a run says it: by nodes, an inventory, or the allocation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from preflight.fleet.model import Fleet


def add_targets(parser: argparse.ArgumentParser, inventory: str = "") -> None:
    """Declare the options; `inventory`: what this verb takes of one, beyond what a run does."""
    parser.add_argument("--nodes", metavar="LIST", help="as --preflight-nodes; default: the "
                        "allocation, else this machine")  # fmt: skip
    parser.add_argument("--inventory", metavar="FILE", help=f"as --preflight-inventory{inventory}")
    parser.add_argument("--exclude", metavar="LIST", help="nodes to leave out")
    parser.add_argument("--transport", metavar="NAME", help="as --preflight-transport")
    parser.add_argument("--python", metavar="CMD", help="as --preflight-python")


def fleet_of(arguments: argparse.Namespace) -> Fleet:
    """Find the nodes that these options name; UsageError if they name nobody."""
    from preflight.fleet.sources import Wish, resolve

    return resolve(
        Wish(
            nodes=arguments.nodes,
            inventory=arguments.inventory,
            exclude=arguments.exclude,
            transport=arguments.transport,
            python=arguments.python,
            environ=dict(os.environ),
        )
    )
