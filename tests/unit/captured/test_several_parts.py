"""A text with several things in it: each is read and judged, none hides another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from preflight.commands.read import captured_parts, judge_captured

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
FOLDERS = ("nvidia_smi", "topo", "ib", "dmesg_xid", "ps", "env")
SUFFIXES = (".txt", ".env", ".sh")
"""Not JSON and XML: a document is closed, and nobody pastes text into it."""
XID = "[  912.1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"


def one_kind() -> dict[str, str]:
    """Texts of the corpus that are of one kind each."""
    paths = (path for folder in FOLDERS for path in sorted((CORPUS / folder).glob("*")))
    texts = {
        str(path.relative_to(CORPUS)): path.read_text(errors="replace")
        for path in paths
        if path.suffix in SUFFIXES
    }
    return {name: text for name, text in texts.items() if len(captured_parts(text)) == 1}


def _faults(text: str) -> set[tuple[str, str]]:
    parts = {one.kind: one for one in captured_parts(text)}
    return {
        (entry.nodes[0], entry.check)
        for entry in judge_captured(parts)
        if entry.verdict.outcome in ("fail", "warn", "flaky")
    }


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_what_follows_another_tools_output_is_read_as_well() -> None:
    """In either order, every kind of the two is found, and every fault of the second is judged."""
    texts = one_kind()
    assert len(texts) > 100
    pick = random.Random(20261124)  # noqa: S311
    tried, unread, hidden = 0, [], []
    while tried < int(os.environ.get("PREFLIGHT_CASES", "100")):
        first, second = pick.sample(sorted(texts), 2)
        kinds = [captured_parts(texts[name])[0].kind for name in (first, second)]
        if len(set(kinds)) < 2:
            continue
        tried += 1
        both = texts[first] + "\n" + texts[second]
        found = {one.kind for one in captured_parts(both)}
        unread += [(first, second, kind) for kind in kinds if kind not in found]
        damaged = {one.kind for one in captured_parts(both) if one.damaged}
        lost = {
            (kind, check)
            for name in (first, second)
            for kind, check in _faults(texts[name]) - _faults(both)
            if kind not in damaged and kind in found
        }
        hidden += [(first, second, one) for one in sorted(lost)]
    assert (unread, hidden) == ([], [])


def test_a_kernel_log_below_a_table_is_no_proof_of_a_quiet_log() -> None:
    """The lines of the table are none of the log's: only what it tells of is judged."""
    table = "\n".join(f"CA 'mlx5_{at}'\n\tCA type: MT4129\n" for at in range(40))
    parts = captured_parts(table + XID)
    (log,) = (one for one in parts if one.kind == "kernel log")
    assert log.checks == ("gpu.xid",)
    (said,) = (each for each in judge_captured({"log": log}) if each.check == "gpu.xid")
    assert said.verdict.outcome == "fail"
