"""`preflight watch -- LAUNCH`: the launch as it is, and evidence where it hangs or dies."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.hang.watch.evidence import (
    DEBUGS,
    FOLDERS,
    folder_name,
    plan,
    safe_base,
    set_in_files,
)
from preflight.hang.watch.watch import (
    CAP_MIB,
    EXAMINE,
    SHORTEST_S,
    STALLED_AFTER_S,
    Options,
    watch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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


_USAGE = "preflight watch [--debug[=nccl,dist]] [--stalled-after=SECONDS] [...] -- COMMAND ..."


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start and watch; the launch's exit code. UsageError (exit 4) where nothing was started."""
    own, command = split(words)
    parser = _Parser(prog="preflight watch", usage=_USAGE, allow_abbrev=False)
    add_watch_options(parser)
    told = parser.parse_args(own)
    options = _options(told, command)._replace(environ=environ)
    if told.print_env:
        sys.stdout.write("".join(f"{line}\n" for line in _exports(options)))
        return 0
    if not command:
        raise UsageError("nothing to watch: put the launch behind --, as in -- torchrun train.py")
    if options.nodes or options.inventory:
        _refuse_unknown_nodes(options)
    sys.stdout.flush()
    return watch(options)


def split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own words, and the launch's: all behind the first `--`."""
    if "--" not in words:
        return list(words), ()
    place = list(words).index("--")
    return list(words[:place]), tuple(words[place + 1 :])


def _refuse_unknown_nodes(options: Options) -> None:
    """Now, not when it hangs; by a process of its own, as a watch that stays carries little."""
    import subprocess

    words = ["-P", "-m", EXAMINE, "nodes", options.nodes, options.inventory]
    asked = subprocess.run(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"exit {asked.returncode}"]
        raise UsageError(lines[-1])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """As everywhere in preflight: one line that says what to type."""
        raise UsageError(f"{message}; type: {_USAGE}")


def _options(told: argparse.Namespace, command: tuple[str, ...]) -> Options:
    debug = frozenset(filter(None, told.debug.split(",")))
    if unknown := sorted(debug - {*DEBUGS}):
        raise UsageError(f"--debug={unknown[0]} is unknown; type --debug={ALL}, or one of the two")
    return Options(
        command=command,
        base=told.folder.expanduser(),
        debug=debug,
        cap_mib=int(_number("--debug-mib", told.debug_mib, 1)),
        stalled_after_s=(
            None
            if told.stalled_after is None
            else _number("--stalled-after", told.stalled_after, SHORTEST_S)
        ),
        tee=told.tee,
        keep=told.keep,
        nodes=told.nodes,
        inventory=told.inventory,
    )


def _number(option: str, typed: str, least: float) -> float:
    try:
        number = float(typed)
    except ValueError:
        number = -1.0
    if not least <= number <= 1e6:  # noqa: PLR2004  a bound against nonsense; nan is not in it
        raise UsageError(f"{option}={typed} is no number from {least:g} on; type e.g. {option}=300")
    return number


def _exports(options: Options) -> Iterator[str]:
    """The shell's lines, for `eval "$(preflight watch --print-env)"`."""
    try:
        base = safe_base(options.base)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"cannot write evidence to {options.base} ({why}): give --folder"
        ) from error
    folder = str(base / folder_name())
    decided = plan(options.environ, set_in_files(options.environ), folder, options.debug)
    for left in decided.left:
        yield "# " + left.sentence.replace("\n", " ")
    # One that is there already is somebody else's, who could lead what is written into it away.
    new = " ".join(shlex.quote(f"{folder}/{below}") for below in ("", *FOLDERS))
    yield f"mkdir -p {shlex.quote(str(base))} && mkdir -m 750 {new} && {{"
    for wish in decided.added:
        yield f"export {wish.name}={shlex.quote(wish.value)}  # {wish.why}"
    yield "}"
