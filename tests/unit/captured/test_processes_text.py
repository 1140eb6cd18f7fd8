"""Listings of processes are judged by the rules of live nodes; half a listing clears nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured import Captured, process_listing
from preflight.commands.read import judge_captured
from preflight.verdict import Outcome, Verdict
from tests.unit.captured.sound import sound


def read(text: str) -> Captured | None:
    """The first thing in a text that such a tool printed."""
    return next(process_listing.read(text), None)


CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "ps"
CASES = sorted(CORPUS.glob("*.json"))

HEADER = "  PID  PPID USER     STAT WCHAN           ELAPSED COMMAND\n"
SOUND = HEADER + " 4100  4001 alice    Sl+  futex_wait   1-02:03:04 python train.py\n"
ZOMBIE = " 4200  4100 alice    Z    -              02:00:00 [python] <defunct>\n"
FUSER = """                     USER        PID ACCESS COMMAND
/dev/nvidia3:        bob        5100 F...m python3
"""
LSOF = """COMMAND     PID USER   FD   TYPE  DEVICE SIZE/OFF NODE NAME
python3    5100  bob   12u   CHR   195,3      0t0  457 /dev/nvidia3
"""


def verdict(text: str) -> Verdict:
    """What host.stale_processes says of a text."""
    (entry,) = judge_captured({"node": read(text)})
    assert entry.check == "host.stale_processes"
    return entry.verdict


@pytest.mark.proves("host.stale_processes", passes="a captured ps without leftover processes")
def test_a_whole_listing_passes() -> None:
    """A process with a parent and a state is nobody's leftover."""
    assert verdict(SOUND).outcome is Outcome.OK


@pytest.mark.proves("host.stale_processes", finds="an old zombie in a captured ps")
def test_old_zombies_and_their_parents() -> None:
    """A zombie two hours old is told with the parent that never reaped it."""
    said = verdict(
        SOUND + "   4200    4100 alice    Z    -            02:00:00 [python] <defunct>\n"
    )
    assert said.outcome is Outcome.WARN
    assert (
        "zombie pid 4200 ([python] <defunct>, user alice, started 2 h 0 min ago)" in said.sentence
    )
    assert "its parent 4100 (python train.py) never reaped it" in said.sentence
    assert "kill" not in said.advice


@pytest.mark.parametrize("wchan", ["os_acquire_mutex", "nv_open_q", "-"])
def test_who_is_in_d_state_is_told(wchan: str) -> None:
    """One look does not tell a slow disk from a driver that hangs: a warning, never ok."""
    said = verdict(SOUND + f" 4242     1 root     D    {wchan}     3-00:00:00 python3 train.py\n")
    assert said.outcome is Outcome.WARN
    assert "pid 4242" in said.sentence
    assert "D state" in said.sentence


def test_a_thread_of_the_kernel_may_wait_for_its_disk() -> None:
    """Flushers are in D state on every busy host."""
    assert verdict(SOUND + " 77     2 root     D    -     3-00:00:00 [kworker/u8:1]\n").outcome is (
        Outcome.OK
    )


@pytest.mark.parametrize("text", [FUSER, LSOF])
def test_whoever_has_a_gpu_open_is_told(text: str) -> None:
    """Without NVML nobody can say whether it is needed: a warning with pid, owner and command."""
    said = verdict(text)
    assert said.outcome is Outcome.WARN
    assert "pid 5100 (python3, user bob) uses a GPU" in said.sentence


@pytest.mark.proves("host.stale_processes", unknown="a captured ps without parents or states")
@pytest.mark.parametrize(
    "text",
    [
        "USER   PID %CPU COMMAND\nalice 4100  0.0 python train.py\n",
        "  4100  S python train.py\n  4101  S python train.py\n",
        HEADER,
    ],
)
def test_half_a_listing_clears_nobody(text: str) -> None:
    """Orphans show by their parents: without them the verdict is unknown, and says what to type."""
    said = verdict(text)
    assert said.outcome is Outcome.UNKNOWN
    assert "capture ps -eo pid,ppid,user,stat,wchan:24,etime,args" in said.advice


AUX_HEADER = "USER     PID %CPU %MEM    VSZ   RSS TTY STAT START   TIME COMMAND\n"
AUX = "carol+  4343  0.0  0.1  16488  4056 {}  {}  {}   0:07 {}\n"
GREP = AUX.format("pts/3", "S+", "10:01", "grep --color=auto smi")
WEB = AUX.format("?", "Z", "2025", "[Web Content] <defunct>")


@pytest.mark.parametrize(
    "row",
    [
        AUX.format("?", "D", "Jun03", "/usr/bin/nvidia-smi -q"),
        AUX_HEADER + AUX.format("pts/1", "Dl+", "09:15", "nvidia-smi"),
        AUX.format("pts/11", "Ds", "2025", "[nvidia-smi]"),
        " 4343 tty1     D      1-00:07 nvidia-smi\n",
        GREP + AUX.format("?", "D", "Jun03", "nvidia-smi") + WEB,
    ],
)
def test_who_waits_is_told_without_parents_and_header(row: str) -> None:
    """One row of `ps aux` or `ps x` that grep left: D state needs no parent to be worth a look."""
    said = verdict(row)
    assert said.outcome is Outcome.WARN
    assert "pid 4343 (" in said.sentence
    assert "nvidia-smi" in said.sentence
    assert "is in D state in the only sample" in said.sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WEB, "(the rest shows: zombie pid 4343 ([Web Content] <defunct>, user carol+))"),
        (AUX.format("?", "D", "Jun03", "[kworker/u8:2]"), "no parents to find orphans by"),
        (" 4343 pts/0    Sl     0:46 python3 -c spawn_main(5)\n", "no parents to find orphans by"),
        ("carol  4343  4001  0 13:41 pts/1    00:00:00 python train.py\n", "no states"),
        ("1000  4343  4001  4343  0   1 Jun03 ?   1-00:00:00 [python] <defunct>\n", "no states"),
        (GREP, "it lists no readable process"),
    ],
)
def test_a_row_alone_clears_nobody(text: str, words: str) -> None:
    """Who may be an orphan is not known; the zombie of a browser condemns nothing for sure."""
    said = verdict(text)
    assert said.outcome is Outcome.UNKNOWN
    assert words in said.sentence


@pytest.mark.corpus
@pytest.mark.parametrize("label", CASES, ids=lambda path: path.stem)
def test_real_listings(label: Path) -> None:
    """What was left behind is told or not cleared; healthy machines are never condemned."""
    said = json.loads(label.read_text())
    found = verdict(label.with_suffix(".txt").read_text())
    assert not found.makes_not_ready or found.outcome is Outcome.UNKNOWN
    if said["category"] == "healthy":
        assert found.outcome in (Outcome.OK, Outcome.WARN)
    if said["category"] == "stale_process":
        named = set(said["stale_pids"]) <= set(found.evidence.get("pids", ()))
        assert named or found.outcome is Outcome.UNKNOWN


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=400), st.integers(0, len(SOUND)))
def test_any_text_is_read_or_refused(text: str, cut: int) -> None:
    """Junk behind a header, or anywhere in a listing: none, or a verdict that is sound."""
    for each in (text, HEADER + text, SOUND[:cut] + text + SOUND[cut:]):
        sound(read(each))
