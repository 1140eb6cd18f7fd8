"""The `preflight` command: what needs no test session, and `run`, which starts its own.

Imports the standard library only, and the rest on use: `run` must not load what it isolates from.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.registered import Registered

USAGE = 4
VERBS = ("blame", "checks", "run")
WIDTH = 80
"""Columns of the narrowest terminal people work in."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; wrong usage is one line and exit 4."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["run"]:
        from preflight.isolated import start

        start(words[1:])
    parser = _parser()
    arguments = parser.parse_args(words)
    from preflight.errors import UsageError

    try:
        if arguments.verb == "checks":
            return _checks(arguments.id)
        if arguments.verb == "blame":
            from preflight.commands import blame

            return blame.run(arguments)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        from preflight.report.text import printable

        said = printable(str(error))  # it may name a file whose name is an escape sequence
        print(f"preflight: {said}", file=sys.stderr)  # noqa: T201  a command speaks on its terminal
        return USAGE
    parser.print_help()
    return USAGE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Exit 4 as everywhere else in preflight; argparse would say 2, which means interrupted."""
        from preflight.fleet.words import did_you_mean

        unknown = re.search(r"invalid choice: '([^']*)'", message)
        if unknown:
            message = f"unknown verb {unknown[1]!a}{did_you_mean(unknown[1], VERBS)}"
        self.exit(USAGE, f"preflight: {message}; see: preflight --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="preflight",
        description="Prove a GPU fleet fit before the job starts. To judge one, run: "
        "pytest --preflight --preflight-nodes 'gpu[001-064]'",
    )
    parser.add_argument("--version", action="version", version=f"preflight {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    checks = verbs.add_parser("checks", help="list the checks, or explain one")
    checks.add_argument("id", nargs="?", help="a check id such as gpu.count")
    blame = verbs.add_parser("blame", help="name who is to blame in stored samples of a sweep")
    blame.add_argument(
        "samples", metavar="SAMPLES_OR_RUN_DIR", type=Path,
        help="a run's folder, its measured.json, or samples of either form, also gzipped",
    )  # fmt: skip
    blame.add_argument("--json", action="store_true", help="print one JSON document instead")
    blame.add_argument(
        "--topology", metavar="FILE", type=Path,
        help="the nodes' leaf switches: a Slurm topology.conf, or an inventory (.toml, .yaml)",
    )  # fmt: skip
    blame.add_argument("--picture", metavar="FILE", type=Path, help="draw the fabric, as HTML")
    verbs.add_parser("run", help="judge a fleet, isolated: for root, cron and schedulers")
    return parser


def _checks(check_id: str | None) -> int:
    from preflight.registry import Registry, load_folder, shipped_folder

    shipped = load_folder(shipped_folder())
    if any(registered.check.id == check_id for registered in shipped):
        return _explain(str(check_id))
    from preflight.site import site_checks

    registry = Registry([*shipped, *site_checks()])
    if check_id is not None:
        return _explain_own(registry.find(check_id))
    wide = max(len(registered.check.id) for registered in registry)
    for registered in registry:
        check = registered.check
        first = (sys.modules[registered.function.__module__].__doc__ or "").splitlines()[0]
        start = f"{check.id:<{wide}}  {check.tier:<6}  {check.stage:<6}  "
        print(  # noqa: T201
            textwrap.fill(first, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
        )
    return 0


def _explain_own(registered: Registered) -> int:
    """Print the page of a site's check: what its author wrote at the top of its file."""
    page = (sys.modules[registered.function.__module__].__doc__ or "").strip()
    first = f"# {registered.check.id}\n\n{page}\n\n(from {registered.path})"
    print("\n".join(line.rstrip() for line in first.splitlines()))  # noqa: T201
    return 0


def _explain(check_id: str) -> int:
    """Print the page of one check: what, why, what it costs, how to fix."""
    package = Path(__file__).resolve().parent
    for folder in (package / "docs" / "checks", package.parent / "docs" / "checks"):
        page = folder / f"{check_id}.md"
        if page.is_file():
            print(page.read_text(encoding="utf-8").rstrip())  # noqa: T201
            return 0
    print(f"{check_id} has no page here; see docs/checks in the sources")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
