"""What scontrol and sinfo print is read as it stands, in the ways of several versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.hook.slurm import parse_node, parse_now, parse_reasons, parse_sizes

# What slurm-wlm 22.05 printed for a node of the lab, without lines that are not read.
NODE = """\
NodeName=h1 Arch=x86_64 CoresPerSocket=1 
   CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=0.43
   Gres=gpu:8
   OS=Linux 6.1.0-22-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.94-1 
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=lab,debug 
   BootTime=2026-11-21T09:49:45 SlurmdStartTime=2026-11-22T05:14:52
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
{rest}
"""  # noqa: W291  as it prints them
TIME_S = 1795324492.0


def node(state: str, rest: str = "") -> str:
    """What it prints for a node in that state."""
    return NODE.format(state=state, rest=rest)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("IDLE", {"IDLE"}),
        ("MIXED+DRAIN", {"MIXED", "DRAIN"}),
        ("IDLE*+DRAIN", {"IDLE", "NOT_RESPONDING", "DRAIN"}),
        ("IDLE+DRAIN+NOT_RESPONDING", {"IDLE", "NOT_RESPONDING", "DRAIN"}),
        ("DOWN$", {"DOWN", "MAINT"}),
        ("drained", {"IDLE", "DRAIN"}),
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}),
    ],
)
def test_states(state: str, words: set[str]) -> None:
    """A base state and its flags, or the marks of older versions."""
    found = parse_node(node(state))
    assert found is not None
    assert found.states == words
    assert found.partitions == ("lab", "debug")
    assert found.reason == ""


def test_a_reason_without_who_and_when() -> None:
    """Brackets of its own are no stamp."""
    line = "   Reason=pf:gpu.ecc 2 [node] job 7 [root@2026-11-22T05:14:52]"
    found = parse_node(node("IDLE+DRAIN", line))
    assert found is not None
    assert found.reason == "pf:gpu.ecc 2 [node] job 7"


def test_lines_that_were_added_belong_to_the_reason() -> None:
    """Else a person's note below ours would be taken for no note at all."""
    ours = "   Reason=pf:a.b x [node] job 7 [root@2026-11-22T05:14:52]"
    found = parse_node(node("IDLE+DRAIN", f"{ours}\n          RMA 4711\n   Comment=c"))
    assert found is not None
    assert found.reason == "pf:a.b x [node] job 7\nRMA 4711"


@pytest.mark.parametrize("text", ["", "Node h9 not found\n", "   Reason=State=IDLE\n", "\0\xff"])
def test_no_state_is_told(text: str) -> None:
    """An error, an empty answer, garbage: nothing is known, which is not an idle node."""
    assert parse_node(text) is None


def test_reasons_of_a_cluster() -> None:
    """A node in two partitions is listed twice, and counts once; a line break is no node."""
    found = parse_reasons(
        "h1|2026-11-22T05:14:52|pf:a.b x|y\nh1|2026-11-22T05:14:52|pf:a.b x|y\n"
        "h2|Unknown|none\nh3|Unknown|a\nb = c\n"
    )
    assert [(one.node, one.reason, one.time_s) for one in found.values()] == [
        ("h1", "pf:a.b x|y", TIME_S),
        ("h2", "none", None),
        ("h3", "a", None),
    ]


def test_the_controllers_time() -> None:
    """What heads its configuration, where it does."""
    assert parse_now("Configuration data as of 2026-11-22T05:14:52\nX = 1\n") == TIME_S
    assert parse_now("slurm_load_ctl_conf error: Unable to contact slurm controller") is None
    assert parse_now("Configuration data as of Unknown\n") is None


def test_sizes_of_partitions() -> None:
    """Garbage is left out."""
    endless = "9" * 5000
    assert parse_sizes(f"lab 4\ndebug 2\nlab 3\n\nx\ny z\nw {endless}\n") == {"lab": 4, "debug": 2}


@given(st.text())
def test_any_text_is_borne(text: str) -> None:
    """Slurm is no friend of ours either: nothing raises."""
    parse_node(text)
    parse_node(node(text, text))
    parse_reasons(text)
    parse_now(f"Configuration data as of {text}")
    parse_sizes(text)
