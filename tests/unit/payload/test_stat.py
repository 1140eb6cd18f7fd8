"""The parser of /proc/PID/stat, on which every finding about a process rests."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.processes import Care
from probe.procfs import Stat, look

TAIL = b"4 4 4 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 12 0 98765 1024 3 184467"


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name), st.sampled_from("RSDZTI"))
def test_any_name_of_a_process_is_read_whole(comm: bytes, state: str) -> None:
    """Blanks, newlines and parentheses in a name do not shift the fields behind it."""
    stat = Stat(b"77 (" + comm + b") " + state.encode() + b" " + TAIL)
    assert (stat.pid, stat.comm, stat.state) == (77, comm, state)
    assert (stat.ppid, stat.threads, stat.start, stat.kernel) == (4, 11, 98765, False)


@given(st.binary(max_size=200))
def test_anything_else_is_refused(line: bytes) -> None:
    """Whatever is not such a line raises ValueError and nothing else."""
    with contextlib.suppress(ValueError):
        assert Stat(line).pid >= 0 or line


def test_our_own_process_is_found_among_all() -> None:
    """The kernel's real line of this process says its parent and a plausible age."""
    stat = Care().everyone()[os.getpid()]
    assert stat.ppid == os.getppid()
    assert 0 < stat.age_s() < 86400


def test_a_process_that_is_gone_is_none() -> None:
    """An unused pid is None, not an error: processes end while we look."""
    assert look(2**22 + 1) is None


def test_kernel_threads_are_distinguished() -> None:
    """Kthreadd is no process of anybody's job."""
    kthreadd = look(2)
    if kthreadd is None or kthreadd.comm != b"kthreadd":
        pytest.skip("no kernel threads visible in this process namespace")
    assert kthreadd.kernel
