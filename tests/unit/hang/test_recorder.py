"""A recorder's file lies where anybody may write: only plain values are read from it."""

from __future__ import annotations

import base64
import json
import pickle  # noqa: TID251  of dumps that this test makes
import random
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.facts.job import Dump
from preflight.hang import flight_recorder, plain_pickle
from preflight.hang.flight_recorder import Recording, Unreadable, open_dump, read
from preflight.hang.plain_pickle import Allowance
from tests.cases import draws
from tests.simulate import torch_pickle
from tests.simulate.parallel_job import Job, Layout
from tests.unit.hang.recordings import document, entry, pending

if TYPE_CHECKING:
    from pathlib import Path

REAL = """
import datetime, os, sys, threading, time
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
folder = sys.argv[1]
child = os.fork()  # torch is imported once for both
rank = 0 if child else 1
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
def leave():
    time.sleep(1)
    for name, told in (("pickle", c10d._dump_fr_trace(includeStackTraces=False)),
                       ("json", c10d._dump_fr_trace_json(True, False))):
        with open(f"{folder}/{name}{rank}", "wb") as file:
            file.write(told)
    while not os.path.exists(f"{folder}/json{1 - rank}"):
        time.sleep(0.05)  # its end would end the other's call
    os._exit(os.waitpid(child, 0)[1] if child else 0)
threading.Thread(target=leave).start()
dist.broadcast(torch.ones(4), 0) if rank else dist.all_reduce(torch.ones(5))
time.sleep(60)
"""


@pytest.mark.slow
def test_what_torch_really_writes(tmp_path: Path) -> None:
    """Two real ranks hang in calls that do not fit; both forms of their files tell it."""
    pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL, str(tmp_path)],
        env={"TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=120,
    )
    written = (tmp_path / "pickle0").read_bytes()
    assert torch_pickle.dumps(pickle.loads(written)) == written  # noqa: S301  our own process's
    for form in ("pickle", "json"):
        recording = [read((tmp_path / f"{form}{rank}").read_bytes()) for rank in (0, 1)]
        assert all(isinstance(one, Recording) for one in recording), recording
        calls = [one.calls for one in recording if isinstance(one, Recording)]
        assert [call.op for call in calls[0]] == ["all_reduce"] * 4
        assert [call.op for call in calls[1]] == ["all_reduce"] * 3 + ["broadcast"]
        for of_rank, shape in zip(calls, ((5,), (4,)), strict=True):
            assert [call.number for call in of_rank] == [1, 2, 3, 4]
            assert [call.pending for call in of_rank] == [False, False, False, True]
            assert of_rank[-1].sizes == (shape,)
            assert of_rank[-1].about == "default_pg"


SAID = b"X\x02\x00\x00\x00id"


@pytest.mark.parametrize(
    "attack",
    [
        b"\x80\x02cposix\nsystem\n" + SAID + b"\x85R.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + SAID + b"\x85R.",
        b"(iposix\nsystem\n.",
        b"\x80\x02" + SAID + b"Q.",
        b"\x80\x02cbuiltins\nobject\n)\x81}b.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_whatever_asks_for_code_is_refused(attack: bytes) -> None:
    """Classes, functions, persistent ids and extension codes are more than plain values."""
    recording = read(attack)
    assert isinstance(recording, Unreadable)
    assert "more than plain values" in recording.why


def test_bombs_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many steps, a memo far out, keys whose hash takes for ever, lists without an end."""
    monkeypatch.setattr(plain_pickle, "MOST_STEPS", 10_000)
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 2 << 20)
    steps = b"\x80\x02" + b"N0" * (plain_pickle.MOST_STEPS // 2) + b"N."
    doubled = b"\x80\x02)" + b"q\x00h\x00\x86" * 60
    bombs = {
        "steps": steps,
        "no recording": b"\x80\x02]r\xff\xff\xff\x7f.",
        "neither a short word nor a number": b"\x80\x02}" + doubled[2:] + b"Ns.",
        "no single value": b"\x80\x02" + b"(" * 1000 + b".",
        "a number of": b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + bytes(1 << 20) + b".",
        "cut off": b"\x80\x02X\xff\xff\xff\xffshort",
        "larger than": bytes(plain_pickle.MOST_BYTES + 1),
    }
    for words, bomb in bombs.items():
        recording = read(bomb)
        assert isinstance(recording, Unreadable), words
        assert words in recording.why


@pytest.mark.parametrize("step", [b"%bs", b"(%bu"])
def test_numbers_that_all_have_one_hash_name_nothing(step: bytes) -> None:
    """A dictionary of thousands of them takes minutes; what 64 bits hold names a group as ever."""
    for number, refused in ((7 + ((1 << 61) - 1) * 5, True), (7, False), (-(1 << 63), True)):
        key = b"\x8a\x10" + number.to_bytes(16, "little", signed=True) + b"N"
        recording = read(b"\x80\x04}(X\x07\0\0\0entries]X\x09\0\0\0pg_status}" + step % key + b"u.")
        assert isinstance(recording, Unreadable) is refused
        fault = "neither a short word nor a number"
        assert not isinstance(recording, Unreadable) or fault in recording.why


def test_ranks_that_many_groups_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of groups named 17 long lists in turn: each was read anew for every group."""
    lists = [f"[{number}, " + "1, " * 200 + "2]" for number in range(17)]
    groups = {str(number): {"ranks": lists[number % 17]} for number in range(2000)}
    seen: list[str] = []
    known = flight_recorder._ranks

    def read_ranks(text: str) -> tuple[int, ...] | None:
        seen.append(text)
        return known(text)

    monkeypatch.setattr(flight_recorder, "_ranks", read_ranks)
    recording = read(json.dumps({"entries": [], "pg_config": groups}).encode())
    assert isinstance(recording, Recording)
    assert len(recording.members) == 2000
    assert sorted(seen) == sorted(lists)
    assert len({id(ranks) for ranks in recording.members.values()}) == 17


def test_numbers_that_make_a_dictionary_search_long_are_refused() -> None:
    """CPython looks at 5i+1 after i: keys that fill this path, and one that walks it each time."""
    path, place = [0], 0
    while len(path) < 5000:
        place = (5 * place + 1) % (1 << 16)
        path.append(place)
    keys = b"".join(b"J" + struct.pack("<i", key) + b"N" for key in path)
    recording = read(b"\x80\x02}(X\7\0\0\0entries]X\x09\0\0\0pg_status}(" + keys + b"uu.")
    assert isinstance(recording, Unreadable)
    assert "over 4096 things by numbers" in recording.why


def test_a_long_name_that_many_entries_share_is_cut_before_it_is_read() -> None:
    """Each entry copied its 60 MB twice, and compared it with an equal one."""
    long = "nccl:" + "x" * 100_000
    calls = [pending(n, profiling_name=long, process_group=[long, "a"]) for n in range(1, 4)]
    recording = read(document(*calls))
    assert isinstance(recording, Recording)
    assert {(len(call.op), len(call.group)) for call in recording.calls} == {(251, 256)}


@pytest.mark.slow
def test_deep_nesting_and_loops_are_only_values() -> None:
    """A list of itself, and a million lists in each other, end as calls that make no sense."""
    deep = b"]" * 200_000 + b"a" * 199_999
    itself = b"]q\x00h\x00a"
    for value in (deep, itself):
        entry = b"}X\x0b\x00\x00\x00input_sizes" + value + b"s"
        recording = read(b"\x80\x02}X\x07\x00\x00\x00entries](" + entry + b"es.")
        assert isinstance(recording, Recording)
        assert recording.calls == ()
    assert isinstance(read(b"[" * 200_000), Unreadable)
    assert isinstance(read(b'{"entries":' + b"[" * 200_000), Unreadable)


@given(st.binary(max_size=300))
def test_garbage_is_told_and_never_raised(garbage: bytes) -> None:
    """Whatever the file holds, the answer is a recording or a reason."""
    for data in (garbage, b"\x80\x02" + garbage, b'{"entries":[' + garbage):
        recording = read(data)
        assert isinstance(recording, (Recording, Unreadable))
        assert not isinstance(recording, Unreadable) or recording.why


STEPS = b"hK(]eMqN.\x88\x89}uJGX\x8a\x85\x86\x87t)asrj0\x94l\x80\x00\x05"


def _calls(number: int) -> list[dict[str, Any]]:
    """As torch has them: each line of a stack is one object, each call has its own numbers."""
    lines = [{"name": f"f{at}", "filename": f"{at % 5}.py", "line": at} for at in range(120)]
    return [
        entry(
            at * 37, frames=[*lines[at % 3 :: 3]], process_group=("0", "default_pg"),
            time_created_ns=1_758_000_000_000_000_000 + at, input_sizes=[[at % 2, 300], []],
            duration_ms=at / 8,
        )
        for at in range(number)
    ]  # fmt: skip


@draws(300)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 4), st.lists(st.sampled_from(STEPS)))
    )
)
@pytest.mark.slow
def test_entries_of_the_same_bytes_are_read_at_once_and_as_ever(
    changes: list[tuple[int, int, list[int]]],
) -> None:
    """Whatever was changed in a dump, reading each entry step by step gives the same."""
    data = torch_pickle.dumps({"version": "2.10", "entries": _calls(40)})
    for place, left_out, steps in changes:
        at = place % len(data)
        data = data[:at] + bytes(steps) + data[at + left_out :]
    results = []
    for shapes in (0, 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_pickle, "_MOST_SHAPES", shapes)
            try:
                results.append(repr((plain_pickle.plain_values(data), read(data))))
            except plain_pickle.RefusedError as error:
                results.append(str(error))
    assert results[0] == results[1]


def test_a_word_that_changes_its_place_is_read_anew() -> None:
    """A later entry has the bytes of the first, but its word has become another one."""
    call = b"}(h\0h\1u"
    word = b"X%c\0\0\0%bq%c"
    put = [word % (len(text), text, place) for text, place in ((b"state", 0), (b"one", 1))]
    later = word % (3, b"two", 1)
    data = b"\x80\x02](" + b"".join([*put, call, call, later, call, call]) + b"e."
    one, two = {"state": "one"}, {"state": "two"}
    assert plain_pickle.plain_values(data)[2:] == [one, one, "two", two, two]


@pytest.mark.slow
def test_few_entries_of_a_long_job_are_read_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training loop makes the same calls: thousands of dumps of 2,000 take minutes otherwise."""
    job = Job(Layout(tp=2, pp=2, ep=1, dp=2), random.Random(0))  # noqa: S311  the same job
    job.run()
    data = job.dump(1, entries=2000, timing=True, active=False, earlier=60, deep=20)
    learned: list[bytes] = []
    learn = plain_pickle._Machine.learn_shape

    def counted(machine: Any, content: bytes, *more: Any) -> None:
        learned.append(content)
        learn(machine, content, *more)

    monkeypatch.setattr(plain_pickle._Machine, "learn_shape", counted)
    recording = read(data)
    assert isinstance(recording, Recording)
    assert len(recording.calls) > 1500
    assert len(learned) < 200


@given(st.integers(0, 10_000), st.binary(max_size=8))
def test_a_torn_or_spoilt_file(place: int, spoilt: bytes) -> None:
    """Cut anywhere, or with other bytes in it."""
    whole = document(*(entry(number) for number in range(1, 4)), pending(4))
    at = place % len(whole)
    for data in (whole[:at], whole[:at] + spoilt + whole[at + len(spoilt) :]):
        assert isinstance(read(data), (Recording, Unreadable))


@draws(30)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=12,
    )
)
def test_fields_of_any_kind(value: object) -> None:
    """A newer torch may write other things where numbers and words stand now."""
    strange = [{**entry(1), name: value} for name in entry(1)]
    of_groups = {"pg_config": {"0": value}, "pg_status": {"0": value}}
    recording = read(json.dumps({"entries": [value, *strange, entry(9)], **of_groups}).encode())
    assert isinstance(recording, Recording)
    assert len(recording.calls) <= len(strange) + 1
    assert recording.calls[-1].number == 9
    assert all(call.number >= -(1 << 63) for call in recording.calls)


def test_words_of_a_recorder_are_harmless() -> None:
    """Control characters end here; what is endless is cut."""
    recording = read(document(pending(1, op="all\x1b[31m_reduce" + "x" * 9999)))
    assert isinstance(recording, Recording)
    assert recording.calls[0].op.isprintable()
    assert len(recording.calls[0].op) <= 256


def test_what_travelled_is_opened_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a bomb of zeros nor damaged text gets further."""
    monkeypatch.setattr(flight_recorder, "MOST_BYTES", 2 << 20)
    bomb = base64.b64encode(zlib.compress(bytes((2 << 20) + 9), 9)).decode()
    for content, words in ((bomb, "larger than"), ("%%%", "damaged"), ("AAAA", "damaged")):
        recording = open_dump(Dump(written_s=0.0, content=content), Allowance())
        assert isinstance(recording, Unreadable)
        assert words in recording.why
    recording = open_dump(Dump(written_s=0.0, why="it is of another user"), Allowance())
    assert recording == Unreadable("it is of another user")


def test_what_many_entries_refer_to_is_read_once() -> None:
    """A file of 400 bytes made 4,096 calls of 64 lines each: 10 s and 370 MB."""
    frame = {"name": "n" * 256, "filename": "f" * 256, "line": 3}
    entry = {"collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "frames": [frame] * 64}
    recording = read(pickle.dumps({"version": "2.1", "entries": [entry] * 4096}, 2))
    assert isinstance(recording, Recording)
    assert len(recording.calls) == 4096
    assert len({id(call) for call in recording.calls}) == 1
    assert len({id(line) for line in recording.calls[0].frames}) == 1


def test_the_dumps_of_one_node_share_what_they_may_take() -> None:
    """Steps and unpacked bytes; once they are used up the next dump says so, and is not opened."""
    content = base64.b64encode(zlib.compress(document(entry(1), pending(2)))).decode()
    whole = Dump(written_s=0.0, content=content)
    bomb = b"\x80\x02" + b"N0" * 300 + b"}X\x07\0\0\0entries]s."
    spinning = Dump(written_s=0.0, content=base64.b64encode(zlib.compress(bomb)).decode())
    for allowed, first in ((Allowance(steps=610), spinning), (Allowance(bytes=700), spinning)):
        assert isinstance(open_dump(first, allowed), Recording)
        assert isinstance(open_dump(spinning, allowed), Unreadable)
        assert open_dump(whole, allowed) == Unreadable(
            "the dumps of its node are too many or too large"
        )
