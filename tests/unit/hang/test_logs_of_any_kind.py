"""Logs are what dead jobs leave: torn, binary, endless, and full of escapes."""

from __future__ import annotations

import argparse
import errno
import gzip
import json
import os
import random
import subprocess
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from preflight.commands import cli, read
from preflight.core import files
from preflight.errors import UsageError
from preflight.hang.explain import log_lines
from preflight.hang.explain.explanation import lines
from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain
from preflight.hang.watch.output import logs
from tests.cases import draws
from tests.unit.hang.logs import communicator, explained, status, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.hang.explain.explanation import Explanation

FAILED = "RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"
PIECES = [
    *(example.text for symptom in shipped() for example in symptom.examples),
    *(timed_out(rank, 4) for rank in range(3)),
    "Traceback (most recent call last):", '  File "x.py", line 3, in f', "KeyError: 'a'",
    "\x1b[31mred", "<script>alert(1)</script>", "\x00\xff", "[rank999999]:", "{speaker}",
]  # fmt: skip


def _sound(answer: Explanation) -> None:
    assert 0 <= answer.confidence <= 1
    assert answer.sentence
    assert answer.advice
    for line in lines(answer, 80):
        assert line.isprintable()
    for proof in answer.evidence:
        assert proof.text.isprintable()


@pytest.mark.parametrize("head", ["", '{"log":"a\\n","stream":"stdout","time":"1","attrs":'])
@pytest.mark.parametrize("end", ["", "1" + 1501 * "}"])
def test_json_nested_without_end_hides_no_failure(tmp_path: Path, head: str, end: str) -> None:
    """The decoder of JSON gives up at a thousand levels, in its own way."""
    line = head + 1500 * '{"a":' + end + "\n"
    assert explained(tmp_path, line + FAILED + line).category == "port_in_use"


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=30),
    st.sampled_from(["\n", "\r\n", "\r", " "]),
)
@draws(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lines_are_explained_or_not(tmp_path: Path, texts: list[str], end: str) -> None:
    """However they are cut and joined: an answer, whose words a terminal can show."""
    _sound(explained(tmp_path, end.join(texts).encode("utf-8", "surrogatepass")))


@pytest.mark.slow
@given(st.binary(max_size=4000))
@draws(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read(tmp_path: Path, junk: bytes) -> None:
    """Binary junk around a line hides nothing and breaks nothing."""
    _sound(explained(tmp_path, junk))
    assert (
        explained(tmp_path, junk.replace(b"\x1f\x8b", b""), b"\n" + FAILED.encode()).category
        == "port_in_use"
    )


def test_gzip_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Whatever the file is called."""
    assert explained(tmp_path, gzip.compress(FAILED.encode())).category == "port_in_use"


@pytest.mark.slow
def test_a_torn_gzip_counts_up_to_its_tear(tmp_path: Path) -> None:
    """What could be read is judged, and the answer says that there was more."""
    path = tmp_path / "torn.gz"
    noise = "".join(f"{os.urandom(40).hex()}\n" for _ in range(50_000))
    whole = gzip.compress((FAILED + noise).encode(), compresslevel=1)
    path.write_bytes(whole[: len(whole) // 2])
    found = Scanner(shipped()).read([path])
    assert explain(found).category == "port_in_use"
    assert len(found.troubles) == 1
    assert "torn.gz" in found.troubles[0]


@pytest.mark.parametrize("escape", ["\x1b[", "^[[", "#033[", "\\x1b[", "\\u001b[", "\\033["])
def test_a_colour_within_a_word_hides_nothing(tmp_path: Path, escape: str) -> None:
    """As a terminal, `cat -v`, syslog, JSON and Python write it."""
    log = FAILED.replace("bind", f"bi{escape}1;31mnd{escape}0m").replace(
        "in use", f"i{escape}Kn use"
    )
    assert explained(tmp_path, log).category == "port_in_use"


STEPS = "".join(f"step {step} loss {step / 7:.5f}\n" for step in range(20_000))
DEAD = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm",
    [
        lambda whole: whole[:-8],
        lambda whole: whole[:-4],
        lambda whole: whole[:-8] + b"\1\2\3\4" + whole[-4:],
        lambda whole: whole + b"and what somebody wrote behind it\n",
    ],
    ids=["no trailer", "half a trailer", "another sum", "more behind it"],
)
def test_the_end_of_a_torn_gzip_is_what_tells(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    """All lines that decompress count, above all the last one; the error is reported."""
    path = tmp_path / "torn.gz"
    path.write_bytes(harm(gzip.compress((STEPS + DEAD).encode())))
    found = Scanner(shipped()).read([path])
    answer = explain(found)
    assert (answer.category, answer.evidence[0].line) == ("oom_one_rank", 20_001)
    assert len(found.troubles) == 1
    assert "read up to an error" in found.troubles[0]


def test_a_fault_within_a_gzip_keeps_all_before_it(tmp_path: Path) -> None:
    """Not only whole pieces count: the line just before the error is read, too."""
    first = gzip.compress((STEPS + DEAD).encode())
    answer = explained(tmp_path, first[:-8] + b"\xff" * 5_000)
    assert answer.category == "oom_one_rank"


@pytest.mark.parametrize("pad", [b"", b"\0" * 512])
def test_several_gzips_in_one_file(tmp_path: Path, pad: bytes) -> None:
    """As `cat a.gz b.gz` or a log that is appended to; zeros behind them are no fault."""
    path = tmp_path / "both.gz"
    path.write_bytes(gzip.compress(STEPS.encode()) + gzip.compress(DEAD.encode()) + pad)
    found = Scanner(shipped()).read([path])
    assert (explain(found).category, found.troubles) == ("oom_one_rank", [])
    assert found.hits[0].place.line == 20_001


@pytest.mark.slow
def test_a_gzip_that_swells(tmp_path: Path) -> None:
    """Of a few bytes come many: they are read in pieces, and to their end."""
    answer = explained(tmp_path, gzip.compress(b"\n" * 1_500_000 + DEAD.encode()))
    assert answer.evidence[0].line == 1_500_001


@pytest.mark.slow
def test_a_gzip_that_is_a_bomb_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size bounds the time that it takes; the message has the command for a trusted file."""
    monkeypatch.setattr(files, "UNPACKED_ALWAYS", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(DEAD.encode() + b"\n" * 5_000_000))
    found = Scanner(shipped()).read([path])
    assert explain(found).category == "oom_one_rank"
    assert found.line_count < 2_500_000
    (trouble,) = found.troubles
    assert "unpacks to over 100 times its size" in trouble
    assert f"zcat {path} | preflight explain -" in trouble


def test_a_gzip_of_parts_without_end_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of 20 bytes holds nothing; a log to which parts of a line each are added is read."""
    monkeypatch.setattr(files, "UNPACKED_ALWAYS", 1 << 20)
    path = tmp_path / "parts.gz"
    end = gzip.compress(DEAD.encode())
    path.write_bytes(gzip.compress(b"") * 2000 + end)
    found = Scanner(shipped()).read([path])
    assert found.troubles
    assert not found.hits
    path.write_bytes(
        b"".join(gzip.compress(b"step %d of the run\n" % at) for at in range(2000)) + end
    )
    assert Scanner(shipped()).read([path]).hits


@pytest.mark.parametrize("given", ["random", "headless"])
def test_what_is_no_text_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """A line names the file; what is legible in it counts all the same."""
    noise = random.Random(7).randbytes(200_000)  # noqa: S311
    packed = gzip.compress("".join(f"step {at} {at * at}\n" for at in range(5000)).encode())
    path = tmp_path / "job.log.gz"
    path.write_bytes(noise if given == "random" else packed[10:])
    assert cli.main(["explain", str(path)]) == 3
    told = capsys.readouterr()
    assert f"{path}: could not be read as text" in told.err
    assert told.out.startswith("unknown")
    assert explained(tmp_path, noise + b"\n" + FAILED.encode()).category == "port_in_use"


@pytest.mark.parametrize(
    "log",
    [
        b"\x1b[31mstep 1\x1b[0m\n" * 50,
        b"step 1\n" * 50 + b"\0" * 4096 + b"step 2\n",
        b"step 1\n" * 500 + bytes(range(256)),
        b"1/10 [=]\b\b\b\b\b\b\b\b" * 50 + b"\n",
        ("\u6b65\u9aa4 1\n" * 50).encode("gbk"),
    ],
    ids=["colours", "torn", "few bytes", "progress bar", "chinese"],
)
def test_a_text_with_some_bytes_that_are_none_is_read(tmp_path: Path, log: bytes) -> None:
    """Colours, zeros after a crash and other encodings make no log unreadable."""
    assert explained(tmp_path, log).category == "no_failure"


def test_a_number_beyond_64_bits_is_no_rank(tmp_path: Path) -> None:
    """Of such numbers thousands can have one hash, and a table of them takes the square of time."""
    summary = (
        "Root Cause (first observed failure):\n[0]:\n  rank      : {} (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 9)\n"
    )
    answer = explained(tmp_path, summary.format(7 + 1000 * ((1 << 61) - 1)) + summary.format(5))
    assert answer.culprits == ("rank 5",)


@pytest.mark.parametrize("size", [2, 7, 64])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_cross_the_borders_of_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, end: str
) -> None:
    """Read a few bytes at a time, the same is found at the same line."""
    log = ("step 1\n" * 5 + FAILED + timed_out(1, 3)).replace("\n", end)
    monkeypatch.setattr(log_lines, "CHUNK", size)
    for one in (log.encode(), gzip.compress(log.encode())):
        answer = explained(tmp_path, one)
        assert (answer.category, answer.evidence[0].line, answer.lines) == ("port_in_use", 6, 7)


@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_a_proof_has_the_line_number_that_editors_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Editors and `grep -n` count line feeds, not the carriage returns of progress bars."""
    bar = "\r" + "\r".join(f"{part:3}%|{'#' * part}| {part}/99" for part in range(40))
    trace = 'Traceback (most recent call last):\r\n  File "a.py", line 5, in f\nKeyError: {}\n'
    log = f"start\r\n{bar}\r\n\r\x1b[K\n{trace.format(8)}{bar}\r\r\n\n{bar}{bar}\r{trace.format(9)}"
    monkeypatch.setattr(log_lines, "CHUNK", size)
    for one in (log.encode(), gzip.compress(log.encode()), log.encode("utf-16")):
        answer = explained(tmp_path, one, one)
        for proof in answer.evidence:
            assert log.split("\n")[proof.line - 1] == proof.text
        proofs = [(Path(proof.source).name, proof.line) for proof in answer.evidence]
        assert proofs == [("0.log", 11), ("1.log", 11)]
        assert answer.lines == 2 * log.count("\n")


@pytest.mark.parametrize("size", [40, 100, 1 << 20])
def test_parts_of_a_progress_bar_that_a_container_wrote_are_counted_as_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Kubernetes writes a long line in parts, which are read as one."""
    head = "2026-10-05T10:00:00.000000000Z stderr"
    bar = f"{head} P 10%\r20%\r\n{head} P 30%\r40%\n{head} F 50%\r60%\n"
    monkeypatch.setattr(log_lines, "CHUNK", size)
    answer = explained(tmp_path, f"{head} F start\n{5 * bar}{head} F {FAILED}")
    assert (answer.category, answer.evidence[0].line, answer.lines) == ("port_in_use", 17, 17)


def test_a_line_without_end_takes_no_endless_memory(tmp_path: Path) -> None:
    """50 MB without a newline are one line, and a failure after it stands in the second."""
    answer = explained(tmp_path, b"x" * 50_000_000 + b"\n" + FAILED.encode())
    assert (answer.category, answer.evidence[0].line, answer.lines) == ("port_in_use", 2, 2)


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_a_huge_line_is_known_by_its_ends(tmp_path: Path, size: int) -> None:
    """What a program prints behind its binary junk, without a newline, is in the tail."""
    answer = explained(tmp_path, b"step 1\n" + b"x" * size + FAILED.encode() + b"step 2\n")
    assert (answer.category, answer.evidence[0].line, answer.lines) == ("port_in_use", 2, 3)


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_text_of_two_bytes_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """What PowerShell redirects; characters may be cut by what is read at once."""
    monkeypatch.setattr(log_lines, "CHUNK", 1_001)
    log = ("\ufeff" + "step \U0001f600\r\n" * 900 + FAILED).encode(code)
    for one in (log, gzip.compress(log)):
        answer = explained(tmp_path, one)
        assert (answer.category, answer.evidence[0].line) == ("port_in_use", 901)


def test_a_pipe_that_nobody_has_opened_yet(tmp_path: Path) -> None:
    """Its writer is waited for, as `cat` does."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    words = ["bash", "-c", 'sleep 0.5; cat > "$0"', str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        writer.stdin.write(FAILED)
        writer.stdin.close()
        assert explain(Scanner(shipped()).read([path])).category == "port_in_use"


def test_a_pipe_that_nobody_opens_ends_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute `explain` and `read` say so; they waited for ever."""
    monkeypatch.setattr(files, "PIPE_S", 0.05)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="nothing was written into this pipe"):
        Scanner(shipped()).read([path])
    with pytest.raises(UsageError, match="nothing was written into this pipe"):
        read.run(argparse.Namespace(files=[path], json=False))


@pytest.mark.parametrize("what", ["absent", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    """One line that says what to give."""
    path = tmp_path if what == "folder" else tmp_path / "absent.log"
    with pytest.raises(UsageError, match="give log files"):
        Scanner(shipped()).read([path])


def test_what_no_disk_holds_is_not_read(tmp_path: Path) -> None:
    """A log between holes of a TiB, as copytruncate leaves one: only its text counts."""
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.seek(1 << 40)
        file.write(FAILED.encode())
        file.truncate(2 << 40)
    size = 0
    for block in log_lines.blocks(path, []):
        size += len(block)
        assert size < 1 << 20
    assert explain(Scanner(shipped()).read([path])).category == "port_in_use"


def test_no_more_is_read_than_100_times_what_the_disk_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system does not say what is a hole, or the owner makes it as it is read."""

    def seek(handle: int, position: int, how: int) -> int:
        if how in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(handle, position, how)

    real = os.lseek
    monkeypatch.setattr(os, "lseek", seek)
    path = tmp_path / "a.log"
    path.write_text(FAILED)
    os.truncate(path, 1 << 40)
    size, troubles = 0, list[str]()
    for block in log_lines.blocks(path, troubles):
        size += len(block)
        assert size < 64 << 20
    (trouble,) = troubles
    assert "if that is right, use a pipe" in trouble


def test_devices_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/zero is no log, nor is a device ever opened: /dev/watchdog0 would restart us."""
    real, kinds = os.open, []

    def opened(path: Path, flags: int) -> int:
        kinds.append(flags)
        return real(path, flags)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(UsageError, match="neither a file nor a pipe"):
        Scanner(shipped()).read([Path("/dev/zero")])
    assert kinds
    assert all(flags & os.O_PATH for flags in kinds)


@pytest.mark.parametrize(
    "log",
    [
        timed_out(4, 9, "ALLGATHER").replace("NumelOut=64", "NumelOut=192000000"),
        communicator(9, 3_000_000) + timed_out(4, 9),
    ],
    ids=["by what is gathered", "by the communicator"],
)
def test_a_number_of_ranks_takes_no_memory(tmp_path: Path, log: str) -> None:
    """Three million ranks in a line of 240 bytes are a number, and no list."""
    explained(tmp_path, log)
    tracemalloc.start()
    try:
        answer = explained(tmp_path, log)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert "rank 4 of 3000000 waited" in answer.sentence


_DIGITS = "9" * 5000
_TIMED_OUT = timed_out(4, 9)


@pytest.mark.parametrize(
    "line",
    [
        _TIMED_OUT.replace("SeqNum=9", f"SeqNum={_DIGITS}"),
        _TIMED_OUT.replace("[Rank 4]", f"[Rank {_DIGITS}]"),
        _TIMED_OUT.replace("600000)", f"{_DIGITS})"),
        _TIMED_OUT.replace("600000)", f"{_DIGITS[:400]})"),
        communicator(9, 4).replace("nranks 4", f"nranks {_DIGITS}"),
        status(1, 4).replace("enqueued work: 4", f"enqueued work: {_DIGITS}"),
        f"  rank      : {_DIGITS} (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n",
        f'Traceback (most recent call last):\n  File "a.py", line {_DIGITS}, in f\n',
        f"NVRM: Xid (PCI:0000:5d:00): {_DIGITS}, pid=1\n",
        f"NVRM: Xid (PCI:0000:5d:00): {'9' * 2500}\x1b[0m{'9' * 2500}, pid=1\n",
        f"NET/IB : Got completion from peer 10.9.8.7<4> with error {_DIGITS}, opcode 0, len 0\n",
        f"NET/IB : Got completion with error 12, opcode 0, len 0, vendor err {_DIGITS} (Recv)\n",
        f"NCCL WARN Call to ibv_modify_qp failed with error {_DIGITS} (errno)\n",
    ],
    ids=lambda line: line[:40].strip(),
)
def test_a_number_without_end_silences_no_other_line(tmp_path: Path, line: str) -> None:
    """What no float holds is no number of a rank: its line is left out, the others are read."""
    cause = "[rank3]: CUDA error: uncorrectable ECC error encountered\n"
    answer = explained(tmp_path, cause + line)
    assert (answer.category, answer.culprits) == ("gpu_hardware", ("rank 3",))


@pytest.mark.slow
def test_folders_within_each_other_without_an_end_are_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder that a launch left, where its ranks may write: it ended in a traceback."""
    deep = str(tmp_path / "torchrun")
    made = [deep]
    os.mkdir(deep)  # noqa: PTH102  a Path of so many parts takes long
    for _ in range(1900):
        made.append(f"{made[-1]}/a")
        os.mkdir(made[-1])  # noqa: PTH102
    try:
        assert cli.main(["explain", str(tmp_path)]) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert "folders are too deep within each other; give log files, or" in line
        assert logs(tmp_path, []) == []
    finally:
        for folder in reversed(made):  # shutil's own way is as deep
            os.rmdir(folder)  # noqa: PTH106


def test_a_log_that_is_removed_meanwhile_is_a_line_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch may still end, and tidy up, or its user may be a stranger."""
    (tmp_path / "nccl").mkdir()
    (tmp_path / "output.log").write_text("OSError: [Errno 98] Address already in use\n")
    gone = tmp_path / "nccl" / "gone.log"
    really = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        try:
            return really(path, **options)
        finally:
            if path == gone:
                gone.unlink(missing_ok=True)

    monkeypatch.setattr(Path, "stat", stat)
    gone.write_text("x\n")
    assert cli.main(["explain", str(tmp_path)]) in (1, 4)
    assert "Traceback" not in capsys.readouterr().err
    gone.symlink_to("nowhere")
    assert logs(tmp_path, []) == []


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark_is_read(tmp_path: Path, code: str) -> None:
    """As a tool that cuts a log leaves it."""
    answer = explained(tmp_path, ("step 1\r\n" * 9 + FAILED).encode(code))
    assert (answer.category, answer.evidence[0].line) == ("port_in_use", 10)


@pytest.mark.parametrize("prefix", ["", "n3: ", "2026-10-05T10:00:00Z stderr F "])
@pytest.mark.parametrize("field", ["message", "exc_info", "exception", "stack_trace"])
def test_a_traceback_in_a_structured_log_is_read(tmp_path: Path, field: str, prefix: str) -> None:
    """It is one string of a JSON object; the rank is another field."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 5, in f\nKeyError: \u202e0\n'
    step = json.dumps({"time": "2026-10-05T10:00:00Z", "level": "INFO", "message": "step 1"})
    failed = json.dumps({"msg": "failed", "level": "error", "rank": 3, field: trace})
    answer = explained(tmp_path, f"{prefix}{step}\n" * 5 + f"{prefix}{failed}\n")
    assert (answer.culprits[0], answer.evidence[0].line) == ("rank 3", 6)
    assert "raised KeyError: 0 at a.py:5 (f)" in answer.sentence


def test_of_lines_that_are_repeated_without_end_the_last_is_read(tmp_path: Path) -> None:
    """What the job reports between the first ones and the last is no end."""
    lone, end = "KeyError: 'x'\n", "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    assert explained(tmp_path, lone * 50 + end).category == "no_failure"
    assert explained(tmp_path, lone * 50 + end + lone).category == "other"


def test_tracebacks_that_are_repeated_are_read_to_the_last(tmp_path: Path) -> None:
    """Only their numbers differ; one of another line, or of another rank, is a different one."""
    trace = "[rank{0}]: Traceback (most recent call last):\n"
    trace += '[rank{0}]:   File "a.py", line {1}, in f\n[rank{0}]: KeyError: {2}\n'
    caught = "".join(trace.format(3, 5, number) for number in range(50))
    steps = "".join(f"step {number} loss 2.5\n" for number in range(30))
    last = explained(tmp_path, caught + steps + trace.format(3, 5, 99))
    assert (last.culprits, last.evidence[0].line) == (("rank 3",), 183)
    assert explained(tmp_path, caught + steps + trace.format(4, 5, 9)).culprits == ("rank 4",)
    assert explained(tmp_path, caught + steps).confidence < 0.5


def test_headers_of_tracebacks_without_end_hide_no_traceback(tmp_path: Path) -> None:
    """The last of them goes on."""
    head = "Traceback (most recent call last):\n"
    answer = explained(tmp_path, head * 500 + '  File "a.py", line 5, in f\nKeyError: 0\n')
    assert "raised KeyError: 0 at a.py:5 (f)" in answer.sentence
