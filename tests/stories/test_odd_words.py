"""Odd words as the value of any option of any verb: a documented exit code, and nothing is left."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.commands import cli
from preflight.hook.entry import option_parser
from tests.stories.test_command_line import ISOLATED, VERBS, ran

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

ODD = (
    "", "--", "~nouser", "~nouser/x", "\x1b[31mred", "x" * 300, "[]", "-", "\udce2(\udca1",
    "9" * 5000, "nan", "-1", "1e999", "a\nb", "/dev/null/x",
)  # fmt: skip
"""Also undecodable bytes, as Python passes them, and a number that int() refuses."""
CODES = range(6)
CALM = {
    "check": ("--co",),
    "nightly": ("--plan", "--whole-fleet"),
    "watch": ("--print-env",),
    "install-hook": ("--dry-run",),
    "diagnose": ("a.invalid", "--look-s=0.1"),
    "learn": ("a.invalid",),
    "capture": ("a.invalid",),
    "prolog": ("--plain", "--config=/dev/null/x"),
    "healthcheck": ("--plain", "--config=/dev/null/x"),
}
"""Words with which a verb contacts nothing that exists, and starts and writes nothing."""
SLOW = {"check": 12, "nightly": 8, "prolog": 2, "healthcheck": 2, "diagnose": 6, "learn": 6,
        "capture": 6}  # fmt: skip
"""Verbs of which each case takes a tenth of a second and more, and how many cases are drawn."""
NODES = ("nodes", "words", "--preflight-nodes", "node")
"""An odd word that is a name of a host would be looked up."""


def parser(verb: str) -> argparse.ArgumentParser:
    """The parser of a verb, with all its options."""
    if verb in cli.ISOLATED:
        of_verb: argparse.ArgumentParser = importlib.import_module(cli.ISOLATED[verb]).parser()
        return of_verb
    if verb in ISOLATED:
        return option_parser("prolog" if verb == "prolog" else "healthcheck")
    subparsers = cli._parser(verb)._subparsers
    assert subparsers is not None
    own: argparse.ArgumentParser = subparsers._group_actions[0].choices[verb]  # type: ignore[index]
    if verb == "watch":
        importlib.import_module("preflight.commands.watch").add_watch_options(own)
    return own


def cases(verb: str) -> Iterator[tuple[str, ...]]:
    """Each option with each word, then each word alone."""
    calm = CALM.get(verb, ())
    for action in parser(verb)._actions:
        for word in ODD:
            if action.dest in NODES and word == "nan":
                continue
            if not action.option_strings:
                yield (word, *calm) if action.dest not in NODES else (*calm[1:], word)
            elif action.nargs != 0:
                name = action.option_strings[-1]
                yield (f"{name}={word}" if name.startswith("--") else f"{name}{word}", *calm)


@pytest.mark.parametrize("verb", VERBS)
def test_odd_words(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, no escape sequence on the terminal, no file or folder of that name."""
    every = sorted(cases(verb))
    drawn = random.Random(19).sample(every, min(len(every), SLOW.get(verb, len(every))))  # noqa: S311
    for words in drawn:
        with Path("/dev/null").open() as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            told = ran(tmp_path, verb, *words)
        shown = f"preflight {verb} {words!r:.300}\n{told.out[-2000:]}\n{told.err[-2000:]}"
        assert told.exit in CODES, f"exit {told.exit}: {shown}"
        assert "Traceback" not in told.out + told.err, shown
        assert "INTERNALERROR" not in told.out + told.err, shown
        assert "\x1b" not in told.out + told.err, shown
        assert not [*tmp_path.iterdir()], shown
