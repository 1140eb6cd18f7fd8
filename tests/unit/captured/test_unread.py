"""What no reader knows in a text is named with its lines: it is no part of an `ok`."""

from __future__ import annotations

import json
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from preflight.captured.unread import unread
from preflight.commands.cli import main
from preflight.commands.read import captured_parts

from .strangers import STRANGERS
from .test_several_parts import CORPUS, one_kind
from .test_topology_text import matrix

if TYPE_CHECKING:
    from pathlib import Path

TABLE = matrix({}, 8)
CSV = "\n".join(("name, pstate", *["NVIDIA H100 80GB HBM3, P0"] * 8, ""))
LOG = "".join(f"[ {at}.5] usb 1-{at % 9}: new high-speed USB device\n" for at in range(1, 30))
SMALL_TALK = (
    "Last login: Mon Nov 23 10:11:12 2026 from 10.0.0.1\nWelcome to gpu-0041\n\n"
    "****************\n*  GPU NODE 41  *\n****************\n\n"
    "root@gpu-0041:~# uptime\nroot@gpu-0041:~# nvidia-smi topo -m\n"
)


@pytest.mark.parametrize("tool", STRANGERS)
def test_what_stands_between_two_known_outputs_is_named(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault may be in it: the lines are named, and the text as a whole is not judged."""
    text = TABLE + "\n" + STRANGERS[tool] + "\n" + LOG
    first = len(TABLE.splitlines()) + 2
    last = first + len(STRANGERS[tool].splitlines()) - 1
    (tmp_path / "ticket.txt").write_text(text)
    assert main(["read", str(tmp_path / "ticket.txt"), "--json"]) == 3
    files = {one["file"]: one for one in json.loads(capsys.readouterr().out)["files"]}
    (name,) = (name for name, one in files.items() if not one["kind"])
    assert name == f"{tmp_path}/ticket.txt (lines {first}-{last})"
    assert len(files) == 3
    main(["read", str(tmp_path / "ticket.txt")])
    told = capsys.readouterr().out
    assert f"(lines {first}-{last})\n       not read: no reader knows these lines\n" in told


def test_banners_prompts_and_a_few_words_are_not_named(tmp_path: Path) -> None:
    """A healthy text is fine, whatever the shell wrote around it."""
    text = f"{SMALL_TALK}{CSV}\nThat was the first.\nHere is the other:\n\n{SMALL_TALK}{TABLE}"
    (tmp_path / "ticket.txt").write_text(text)
    assert main(["read", str(tmp_path / "ticket.txt")]) == 0


def test_many_parts_are_a_few_lines() -> None:
    """Of a hundred parts eight are named, the last to the end."""
    text = (TABLE + "\n" + STRANGERS["words"]) * 100
    found = unread(text, ["nvidia-smi topo -m"])
    assert len(found) == 8
    assert found[-1][1] == len(text.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_a_strange_part_behind_a_real_output_is_named() -> None:
    """Where its lines pass for that tool's, the text is damaged; it is never passed over."""
    missed, strangers = set(), cycle(STRANGERS.values())
    for text, stranger in zip(one_kind().values(), strangers, strict=False):
        (alone,) = captured_parts(text)
        joined = text.rstrip("\n") + "\n\n" + stranger
        parts = captured_parts(joined)
        named = unread(joined, [one.kind for one in parts])
        if not named and not (parts[0].damaged and not alone.damaged):
            missed.add(alone.kind)
    # A script may hold any line, and ps lists whatever columns it is asked for.
    assert missed <= {"launch script", "ps", "lsof"}


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_real_outputs_are_read_whole() -> None:
    """No line of a text of one kind is called strange."""
    found = {
        name: parts
        for name, text in one_kind().items()
        if (parts := unread(text, [one.kind for one in captured_parts(text)]))
    }
    assert found == {}


@pytest.mark.parametrize("behind", ["root@gpu-0041:~#", "\n" + TABLE, "End of the list.\n\nBye"])
def test_what_follows_a_csv_is_no_cut_row_of_it(behind: str) -> None:
    """Half a row is: it has a comma, or it is where the text ends."""
    (first, *_) = captured_parts(CSV + behind)
    assert first.damaged == ""
    for half in ("NVIDIA H1", "NVIDIA, H100, P0\n\n" + TABLE):
        (first, *_) = captured_parts(CSV + half)
        assert first.damaged == "a row of it is cut off"
