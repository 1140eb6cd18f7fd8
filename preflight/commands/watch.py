"""`preflight watch -- LAUNCH`: runs a launch unchanged, and keeps evidence if it hangs or dies."""

from __future__ import annotations

import argparse
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from preflight.commands import add_ras
from preflight.core.command_line import Parser, decimal_number, path_type
from preflight.core.files import file_errors, typed_path
from preflight.errors import UsageError
from preflight.hang.watch.evidence import (
    DEBUGS,
    FOLDERS,
    folder_name,
    plan,
    safe_base,
    set_in_files,
)
from preflight.hang.watch.wrapper import (
    CAP_MIB,
    EXAMINE,
    SHORTEST_S,
    STALLED_AFTER_S,
    Options,
    watch,
)

BOTH = "nccl,dist"


_EXAMPLES = """\
examples:
  preflight watch -- torchrun --nproc-per-node=8 train.py
  preflight watch --stalled-after=600 --debug=nccl -- srun train.sh
"""


def add_watch_options(watch: argparse.ArgumentParser) -> None:
    """Declare the arguments; the launch follows `--` and is not parsed."""
    watch.epilog, add = _EXAMPLES, watch.add_argument
    add("--debug", metavar="WHAT", nargs="?", const=BOTH, default="", help="keep debug output of "
        f"NCCL and torch.distributed (={BOTH}); slows the job")  # fmt: skip
    add("--debug-mib", metavar="N", default=str(CAP_MIB),
        help=f"largest size of each debug file, in MiB (default: {CAP_MIB})")  # fmt: skip
    add("--stalled-after", metavar="SECONDS", help="examine the job after this long without "
        f"progress (default: {STALLED_AFTER_S:g})")  # fmt: skip
    add("--folder", metavar="DIR", type=path_type, default=Path(),
        help="parent of the folder watch-DATE-TIME-HOST (default: the working folder)")  # fmt: skip
    add("--tee", action="store_true", help="keep a copy of the launch's output, which then goes "
        "to a pipe, not to a terminal")  # fmt: skip
    add("--nodes", metavar="LIST", default="",
        help="the job's nodes, to examine them too (default: the Slurm allocation's)")  # fmt: skip
    add("-i", "--inventory", metavar="FILE", default="", help="the same, from a file")
    add_ras(watch)
    add("--keep", action="store_true", help="keep the folder of a launch that ends well")
    add("--print-env", action="store_true", help="print the variables as shell exports, for "
        "another launcher; start nothing")  # fmt: skip


_USAGE = "preflight watch [--stalled-after=SECONDS] [...] -- COMMAND ..."


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start and watch the launch; return its exit code. UsageError (exit 4) if none was started."""
    flags, command = split(words)
    about = "Start a launch, and keep evidence where it hangs or dies."
    parser = Parser(prog="preflight watch", usage=_USAGE, description=about, allow_abbrev=False)
    add_watch_options(parser)
    arguments, extra = parser.parse_known_args(flags)
    if extra:
        raise UsageError("put the launch after --, as in: preflight watch -- torchrun train.py")
    options = _options(arguments, command)._replace(environ=environ)
    if arguments.print_env:
        sys.stdout.write("".join(f"{line}\n" for line in _exports(options)))
        return 0
    if not command or not command[0]:
        raise UsageError("no launch is given: put it after --, as in -- torchrun train.py")
    if options.nodes or options.inventory:
        _refuse_unknown_nodes(options)
    sys.stdout.flush()
    return watch(options)


def split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments at the first `--` into preflight's and the launch's."""
    if "--" not in words:
        return list(words), ()
    place = list(words).index("--")
    return list(words[:place]), tuple(words[place + 1 :])


def _refuse_unknown_nodes(options: Options) -> None:
    """Check the nodes before the start, in a separate process, as the watch itself stays small."""
    import subprocess

    words = ["-P", "-m", EXAMINE, "nodes", options.nodes, options.inventory]
    process = subprocess.run(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit {process.returncode}"]
        raise UsageError(lines[-1])


def _options(arguments: argparse.Namespace, command: tuple[str, ...]) -> Options:
    debug = frozenset(filter(None, arguments.debug.split(",")))
    if unknown := sorted(debug - {*DEBUGS}):
        raise UsageError(f"--debug={unknown[0]} is unknown; type --debug={BOTH}, or one of the two")
    stall = arguments.stalled_after
    return Options(
        command=command,
        base=typed_path(arguments.folder, is_printed=True),
        debug=debug,
        cap_mib=int(_number("--debug-mib", arguments.debug_mib, 1)),
        stalled_after_s=None if stall is None else _number("--stalled-after", stall, SHORTEST_S),
        tee=arguments.tee,
        keep=arguments.keep,
        nodes=arguments.nodes,
        inventory=arguments.inventory,
        ras=arguments.ras,
    )


def _number(option: str, text: str, smallest: float) -> float:
    try:
        number = decimal_number(text)
    except ArgumentTypeError:
        number = -1.0
    if not smallest <= number <= 1e6:  # noqa: PLR2004  a bound against nonsense; nan is not in it
        raise UsageError(
            f"{option}={text}: give a number, {smallest:g} to 1000000, as in {option}=300"
        )
    return number


def _exports(options: Options) -> Iterator[str]:
    """Yield the shell's lines, for `eval "$(preflight watch --print-env)"`."""
    with file_errors(f"cannot write evidence into {options.base}", "give another --folder=DIR"):
        base = safe_base(options.base)
    folder = str(base / folder_name())
    settings = plan(options.environ, set_in_files(options.environ), folder, options.debug)
    for setting in settings.left:
        yield "# " + setting.sentence.replace("\n", " ")
    # An existing folder may belong to another user, who could redirect what is written there.
    folders = " ".join(shlex.quote(f"{folder}/{name}") for name in ("", *FOLDERS))
    yield f"mkdir -p {shlex.quote(str(base))} && mkdir -m 750 {folders} && {{"
    for variable in settings.added:
        yield f"export {variable.name}={shlex.quote(variable.value)}  # {variable.why}"
    yield "}"
