"""What holds of every archive of `preflight capture`, from a real machine or from the lab."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.captured.archive import Archive, unpack
from preflight.commands.read import FACTS, judge_captured, read_archive
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.verdict import Verdict

FOLDER = Path(__file__).parent
_CARRIED = re.compile(
    r"NCCL INFO (?:NET/.+? ?: Using |Channel \d+(?:/\d+)?\s*: .* via |Using network )"
)
_NOT_READ = ("ibdev2netdev.txt", "env.txt", "dmesg.txt", "journalctl.txt")
"""Outputs that are kept for people, or of which only some lines are kept."""


def hold(path: Path) -> tuple[Archive, dict[tuple[str, str], Verdict]]:
    """Hold an archive against what every one keeps; its parts, and verdicts by (part, check)."""
    content = path.read_bytes()
    archive = unpack(content)
    read, swept = read_archive(path.name, content, alone=True)
    entries = (*judge_captured(read), *swept)
    assert not [one for one in entries if one.verdict.outcome is Outcome.BROKEN]
    for part in archive.manifest.parts:
        one = read.get(part.name)
        if part.name.endswith("/facts.json"):
            assert one is not None, part.error
            assert (one.kind, one.damaged) == (FACTS, "")
        elif part.name.endswith(".log") and part.name in archive.files:
            assert _CARRIED.search(archive.files[part.name].decode()), part.name
        elif part.name.endswith(".txt") and part.status == 0 and not part.name.endswith(_NOT_READ):
            assert one is None or one.checks, f"{part.name} is of no kind that is known"
    return archive, {(one.nodes[0], one.check): one.verdict for one in entries}
