"""`preflight install-hook`: puts the prolog, the health check and hook.toml where Slurm runs them.

The templates are those of contrib/slurm. What an operator has edited is never replaced unasked.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from preflight.commands import add_json, print_answer
from preflight.core.command_line import FINE, UNCLEAR
from preflight.core.files import (
    file_errors,
    open_folder,
    read_regular,
    remove,
    typed_path,
    write_typed,
)
from preflight.core.registry import shipped_path
from preflight.core.text import printable
from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.hook.child import UNJUDGED
from preflight.hook.hook_values import load_config
from preflight.report.terminal import labelled

PROLOG, HEALTHCHECK, SETTINGS = "prolog.d/50-preflight", "healthcheck", "hook.toml"
_PROGRAM = Path(sys.executable).with_name("preflight")
_LARGEST = 64 << 10
_LONGEST_S = 90.0
_SAFE_PATH = re.compile(r"/[\w./+@-]*")
"""A path that needs no quotes in a shell script."""

Action = Literal["write", "replace", "same", "keep", "remove", "missing"]
_ACTION_WORDS: dict[Action, str] = {
    "write": "new",
    "replace": "replaces a file that differs",
    "same": "is as it should be",
    "keep": "was edited, so it stays",
    "remove": "is removed",
    "missing": "is not there",
}
_CHANGES = ("write", "replace", "remove")


class HookFile(Struct, frozen=True, kw_only=True):
    """One file, and what is done with it."""

    path: str
    action: Action
    mode: str
    content: str


class Trial(Struct, frozen=True, kw_only=True):
    """What the installed hook did on this node."""

    prolog_exit: int | None
    """Of the prolog's script; null where hook.toml enforces: it might drain this node."""
    healthcheck_exit: int
    """Of `preflight healthcheck --plain`: 0 ready, 1 not ready, 2 could not check."""
    found: tuple[str, ...]
    trouble: str


class InstallDocument(Struct, frozen=True, kw_only=True):
    """What `preflight install-hook --json` prints."""

    schema: int = 1
    exit: int
    dry_run: bool
    files: tuple[HookFile, ...]
    slurm_conf: tuple[str, ...]
    """Lines to add to slurm.conf; none are removed or written by preflight."""
    trial: Trial | None
    """Null for --dry-run, --uninstall and --prefix."""


def _template(name: str) -> str:
    return shipped_path(f"contrib/slurm/{name}").read_text(encoding="utf-8")


def run(arguments: argparse.Namespace) -> int:
    """Install, undo or only show: 0 done, 3 the installed hook cannot check this node.

    UsageError (exit 4), before anything is written, for what the hook itself would not trust.
    """
    arguments.prefix = arguments.prefix or ""
    files = _plan(arguments)
    changes = [file for file in files if file.action in _CHANGES]
    if not arguments.prefix:
        _refuse_untrusted(files)
    if not arguments.json:
        sys.stdout.writelines(f"{line}\n" for line in _file_lines(files, arguments))
        sys.stdout.flush()  # what will be written is shown first
    if not arguments.dry_run:
        for file in changes:
            _apply(file, Path(arguments.prefix + file.path))
    is_tried = not (arguments.dry_run or arguments.uninstall or arguments.prefix)
    trial = _try_installed(arguments) if is_tried else None
    code = UNCLEAR if trial and (trial.trouble or trial.prolog_exit) else FINE
    document = InstallDocument(
        exit=code, dry_run=arguments.dry_run, files=files,
        slurm_conf=tuple(_slurm_conf(arguments)), trial=trial,
    )  # fmt: skip
    print_answer(arguments, document, lambda width: _outcome(document, arguments, width))
    return code


def _plan(arguments: argparse.Namespace) -> tuple[HookFile, ...]:
    """Compare each file with what should be in it."""
    program = str(_PROGRAM)
    for path in (program, arguments.slurm_dir, arguments.config_dir):
        if not _SAFE_PATH.fullmatch(path):
            raise UsageError(f"{path!a} cannot stand in a script: give a plain absolute path")
    config = f"{arguments.config_dir}/{SETTINGS}"
    values = {"PREFLIGHT": program, "CONFIG": config}
    rows = [
        (f"{arguments.slurm_dir}/{PROLOG}", _script(PROLOG, values), 0o755),
        (f"{arguments.slurm_dir}/preflight-healthcheck", _script(HEALTHCHECK, values), 0o755),
        (config, _hook_toml(arguments), 0o644),
    ]
    return tuple(
        HookFile(
            path=path,
            action=_action(Path(arguments.prefix + path), content, arguments),
            mode=f"{mode:04o}",
            content=content,
        )
        for path, content, mode in rows
    )


def _script(name: str, values: dict[str, str]) -> str:
    text = _template(name)
    for key, value in values.items():
        text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, count=1, flags=re.MULTILINE)
    return text


def _hook_toml(arguments: argparse.Namespace) -> str:
    """Return hook.toml; without an inventory its line is a comment, so that the hook can run."""
    fleet = f"{arguments.config_dir}/fleet.toml"
    text = _template(SETTINGS).replace("/etc/preflight/fleet.toml", fleet)
    return text if Path(arguments.prefix + fleet).exists() else text.replace("\ninven", "\n# inven")


def _action(path: Path, content: str, arguments: argparse.Namespace) -> Action:
    try:
        text = read_regular(path, _LARGEST).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return "missing" if arguments.uninstall else "write"
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; move it away") from error
    is_unedited = text.replace("\n# inven", "\ninven") == content.replace("\n# inven", "\ninven")
    if arguments.uninstall:
        return "remove" if is_unedited or (arguments.force and path.name != SETTINGS) else "keep"
    if is_unedited:
        return "same"
    # hook.toml is the operator's: an edited one is what the hook is to do.
    return "replace" if arguments.force and path.name != SETTINGS else "keep"


def _refuse_untrusted(files: Sequence[HookFile]) -> None:
    """Refuse files that another user could change, and folders that this user cannot write."""
    for file in files:
        folder = next(parent for parent in Path(file.path).parents if parent.exists())
        if file.action in _CHANGES and not os.access(folder, os.W_OK):
            raise UsageError(f"cannot write into {folder}: run it as root, or see --slurm-dir and "
                             "--config-dir")  # fmt: skip
    if os.geteuid() != 0:
        return
    for path in (_PROGRAM, *(Path(file.path) for file in files)):
        # Slurm's own user may own its folder: it can start programs as root on every node anyway.
        if risk := who_may_change(path, and_slurm=path.name != SETTINGS and path != _PROGRAM):
            raise UsageError(
                f"root would run or read {path}, and {risk}; chown root: and chmod go-w it, with "
                "the folders above"
            )


def _apply(file: HookFile, path: Path) -> None:
    with file_errors(f"cannot write {path}", "what was written so far stays"):
        if file.action == "remove":
            remove(path)
            with suppress(OSError), open_folder(path.parent.parent, make=False) as parent:
                os.rmdir(path.parent.name, dir_fd=parent)  # unless it holds other programs' prologs
            return
        os.umask(0o022)  # users read the inventory in a folder that is made here
        write_typed(path, file.content.encode(), int(file.mode, 8), make=True, folders=0o755)


def _try_installed(arguments: argparse.Namespace) -> Trial:
    """Run the installed scripts once, as Slurm would, and the health check that drains nothing."""
    config = Path(arguments.config_dir, SETTINGS)
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    if node := os.environ.get("SLURMD_NODENAME"):
        environ["SLURMD_NODENAME"] = node
    try:
        observes = not load_config(config).enforce
        script = _call([f"{arguments.slurm_dir}/{PROLOG}"], environ) if observes else None
        words = [str(_PROGRAM), "healthcheck", "--plain", "--json", f"--config={config}"]
        answer = _call(words, environ)
    except (UsageError, OSError, subprocess.TimeoutExpired) as error:
        return Trial(prolog_exit=None, healthcheck_exit=UNJUDGED, found=(), trouble=str(error))
    prolog_exit = script.returncode if script else None
    try:
        document = msgspec.json.decode(answer.stdout)["judged"]
        findings = tuple(
            f"{row['check']} {row['outcome']}: {row['sentence']}" for row in document["findings"]
        )
        unread = tuple(f"{row['check']} unknown: {row['why']}" for row in document["unknown"])
        trouble = str(document["trouble"])
    except (ValueError, KeyError, TypeError):
        findings, unread = (), ()
        trouble = answer.stderr.strip() or "no answer; see: journalctl -t preflight"
    return Trial(
        prolog_exit=prolog_exit, healthcheck_exit=answer.returncode,
        found=(*findings, *unread), trouble=trouble,
    )  # fmt: skip


def _call(words: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=environ, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=_LONGEST_S, check=False,
    )  # fmt: skip


def _slurm_conf(arguments: argparse.Namespace) -> Iterator[str]:
    for line in _template("slurm.conf.snippet").splitlines():
        if line and not line.startswith("#"):
            yield line.replace("/etc/slurm/", f"{arguments.slurm_dir}/")


def _file_lines(files: Sequence[HookFile], arguments: argparse.Namespace) -> Iterator[str]:
    path_width = max(len(file.path) for file in files)
    for file in files:
        mode = f", mode {file.mode}" if file.action in ("write", "replace") else ""
        path = arguments.prefix + file.path
        yield f"{file.action:<10} {path:<{path_width}}  {_ACTION_WORDS[file.action]}{mode}"
        if file.action == "keep" and Path(file.path).name != SETTINGS:
            yield f"           to {'remove' if arguments.uninstall else 'replace'} it, add --force"
        if arguments.dry_run and file.action in ("write", "replace"):
            yield from (f"           {line}".rstrip() for line in file.content.splitlines())


def _outcome(document: InstallDocument, arguments: argparse.Namespace, width: int) -> Iterator[str]:
    def line(label: str, words: str) -> Iterator[str]:
        yield from labelled(label, printable(words), width)

    if not any(file.action in _CHANGES for file in document.files):
        edits = any(file.action == "keep" for file in document.files)
        yield from line("nothing", "to change, and what was edited stays" if edits else "to change")
    elif document.dry_run:
        yield from line("dry run", "nothing was written; leave out --dry-run to write these files")
    trial = document.trial
    if trial and trial.prolog_exit is not None:
        yield from line("tried", f"the prolog: exit {trial.prolog_exit}, 0 expected")
    elif trial and not trial.trouble:
        yield from line("tried", "not the prolog: hook.toml enforces, so it might drain this node")
    if trial:
        state = {0: "ready", 1: "not ready"}.get(trial.healthcheck_exit, "could not be checked")
        yield from line("tried", f"the health check: this node is {state}"
                        + f" ({trial.trouble})" * bool(trial.trouble))  # fmt: skip
        for finding in trial.found:
            yield from line("", finding)
    if arguments.uninstall:
        yield from line("next", "remove these lines from slurm.conf, then: scontrol reconfigure")
    else:
        if not Path(f"{arguments.prefix}{arguments.config_dir}/fleet.toml").exists():
            folder = arguments.config_dir
            words = f"say what the nodes have: preflight learn -o {folder}/fleet.toml; then name "
            yield from line("next", f"{words}it as `inventory` in {folder}/{SETTINGS}")
        yield from line("next", "add these lines to slurm.conf, then: scontrol reconfigure")
    yield from (f"           {text}" for text in document.slurm_conf)


_EXAMPLES = """\
It only observes: no node is drained until hook.toml says `enforce = true`.
Run it again after an upgrade; --uninstall undoes it.

examples:
  preflight install-hook --dry-run             show the files, write none
  sudo preflight install-hook                  write them, try them here
  preflight install-hook --prefix=build/root   for a package: write below it
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("--dry-run", action="store_true", help="show what would be written")
    add("--uninstall", action="store_true", help="remove the files, except those that were edited")
    add("--force", action="store_true", help="also replace or remove scripts that were edited")
    add_json(parser)
    add("--slurm-dir", metavar="DIR", type=_folder, default="/etc/slurm",
        help="folder of prolog.d and preflight-healthcheck (default: /etc/slurm)")  # fmt: skip
    add("--config-dir", metavar="DIR", type=_folder, default="/etc/preflight",
        help="folder of hook.toml and fleet.toml (default: /etc/preflight)")  # fmt: skip
    add("--prefix", metavar="DIR", type=_prefix,
        help="write all below DIR, for a package or an image; try nothing")  # fmt: skip


def _prefix(text: str) -> str:
    """Refuse an empty prefix, as of an unset variable: it would write into this machine's /etc."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give the folder of the package")
    return _folder(text)


def _folder(text: str) -> str:
    return os.path.abspath(typed_path(text, is_printed=True)) if text else ""  # noqa: PTH100  no link is followed
