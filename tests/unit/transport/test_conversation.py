"""What holds for a command on a node whichever transport carries it."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import STDERR_KEPT, ReachError
from tests.unit.transport.sshd import PATIENCE_S, processes_with, wait_until

if TYPE_CHECKING:
    from preflight.core.remote_command import Connection, Remote

pytestmark = pytest.mark.slow

NASTY = "a'b\"c $(touch /tmp/x) `id` \\ ; & | > < * ? ~ ! # \t{1..3} \u00e9"


def python(connection: Connection, program: str, *words: str, **options: float) -> Remote:
    """Start a Python program on the node."""
    limit = int(options.get("limit", 8 << 20))
    timeout_s = options.get("timeout_s", PATIENCE_S)
    argv = [sys.executable, "-I", "-c", program, *words]
    return connection.start(argv, timeout_s=timeout_s, limit=limit)


def test_output_and_status_come_back(connection: Connection) -> None:
    """Both outputs and the exit status of a command arrive apart from each other."""
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    answer = python(connection, program).wait(PATIENCE_S)
    assert (answer.status, answer.stdout, answer.stderr) == (3, b"out\n", b"err\n")
    assert not answer.overflow


@pytest.mark.parametrize("word", [NASTY, "", "-n", "line\nbreak"])
def test_words_arrive_as_they_are(connection: Connection, word: str) -> None:
    """No word of a command line is read by a shell."""
    answer = python(connection, "import sys; print(ascii(sys.argv[1]))", word).wait(PATIENCE_S)
    assert answer.stdout.decode() == ascii(word) + "\n"


def test_a_conversation_goes_both_ways(connection: Connection) -> None:
    """Lines are answered one by one, until the input's end ends the command."""
    program = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    remote = python(connection, program)
    for word in (b"one", b"two"):
        remote.send(word + b"\n")
        assert remote.read_line(PATIENCE_S) == word.upper()
    remote.finish_input()
    assert remote.read_line(PATIENCE_S) is None
    assert remote.wait(PATIENCE_S).status == 0


def test_an_unfinished_line_is_no_line(connection: Connection) -> None:
    """What follows the last newline is left to `wait`, so a cut answer never looks whole."""
    remote = python(connection, "print('whole'); print('cut', end='')")
    assert remote.read_line(PATIENCE_S) == b"whole"
    assert remote.read_line(PATIENCE_S) is None
    assert remote.wait(PATIENCE_S).stdout == b"cut"


def test_a_flood_on_stderr_blocks_nothing(connection: Connection) -> None:
    """Two megabytes on standard error before the answer: it comes, and the last words are kept."""
    program = "import sys; sys.stderr.write('x' * 2_500_000 + 'last words'); print('answer')"
    remote = python(connection, program)
    assert remote.read_line(PATIENCE_S) == b"answer"
    answer = remote.wait(PATIENCE_S)
    assert answer.status == 0
    assert answer.stderr.endswith(b"last words")
    assert STDERR_KEPT - 64 < len(answer.stderr) <= STDERR_KEPT


def test_both_sides_may_write_at_once(connection: Connection) -> None:
    """A command that answers while it is still being written to does not block either side."""
    program = "import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    remote = python(connection, program, limit=32 << 20)
    block = b"y" * (6 << 20)
    remote.send(block)
    remote.finish_input()
    assert remote.wait(PATIENCE_S).stdout == block


def test_output_beyond_the_limit_is_cut_off(connection: Connection) -> None:
    """A hundred megabytes cost us the limit, and the command its life."""
    token = uuid.uuid4().hex
    program = "import os\nwhile True: os.write(1, b'z' * 65536)"
    answer = python(connection, program, token, limit=1 << 20).wait(PATIENCE_S)
    assert answer.overflow
    assert len(answer.stdout) == 1 << 20
    wait_until(lambda: not processes_with(token), "the flooding command is gone")


def test_a_line_beyond_the_limit_is_refused(connection: Connection) -> None:
    """A line without end is named as such."""
    program = "import os\nfor _ in range(1600): os.write(1, b'z' * 65536)"
    with pytest.raises(ReachError, match="more than 1 MiB") as caught:
        python(connection, program, limit=1 << 20).read_line(PATIENCE_S)
    assert caught.value.step == "answer"


def test_silence_is_not_waited_for(connection: Connection) -> None:
    """A reading deadline raises TimeoutError, and the command can still be read afterwards."""
    remote = python(connection, "input(); print('awake')")
    with pytest.raises(TimeoutError):
        remote.read_line(0.3)
    remote.send(b"\n")
    assert remote.read_line(PATIENCE_S) == b"awake"


def test_who_does_not_read_is_not_written_to_for_ever(connection: Connection) -> None:
    """Sending has a deadline of its own."""
    remote = python(connection, "import time; time.sleep(60)")
    with pytest.raises(TimeoutError):
        remote.send(b"n" * (8 << 20), 0.5)
    remote.kill()


def test_who_has_left_cannot_be_written_to(connection: Connection) -> None:
    """Sending to a command that has ended says so."""
    remote = python(connection, "pass")
    remote.wait(PATIENCE_S)
    with pytest.raises(ReachError):
        remote.send(b"n" * (8 << 20), PATIENCE_S)


def test_our_deadline_ends_the_wait(connection: Connection) -> None:
    """Waiting ends at its deadline; without a status by then there is none."""
    remote = python(connection, "import time; print('begun', flush=True); time.sleep(60)")
    assert remote.read_line(PATIENCE_S) == b"begun"
    assert remote.wait(0.2).status is None


def test_the_nodes_own_deadline_ends_even_the_stubborn(connection: Connection) -> None:
    """A command that ignores SIGTERM is gone after its deadline, though no one waits for it."""
    token = uuid.uuid4().hex
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)"
    )
    remote = python(connection, program, token, timeout_s=1)
    assert remote.read_line(PATIENCE_S) == b"deaf"
    assert processes_with(token)
    wait_until(lambda: not processes_with(token), "timeout -k has ended the command")
    status = remote.wait(PATIENCE_S).status
    assert status in (137, -signal.SIGKILL, -1)  # timeout falls with the group it kills


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for(connection: Connection) -> None:
    """The command's own exit ends the reading, whoever else has its pipes open."""
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True)"
    )
    remote = python(connection, program)
    pid = int(remote.read_line(PATIENCE_S) or b"0")
    try:
        assert remote.wait(PATIENCE_S).status == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_reading_lines_ends_with_the_command_too(connection: Connection) -> None:
    """The same holds for one who reads line by line."""
    program = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True)"
    )
    remote = python(connection, program)
    pid = int(remote.read_line(PATIENCE_S) or b"0")
    try:
        assert remote.read_line(PATIENCE_S) is None
    finally:
        os.kill(pid, signal.SIGKILL)
        remote.kill()


def test_several_commands_share_one_login(connection: Connection) -> None:
    """Commands on one connection run at once and do not mix."""
    remotes = [python(connection, "print(input())") for _ in range(5)]
    for number, remote in reversed(list(enumerate(remotes))):
        remote.send(f"{number}\n".encode())
    assert [remote.read_line(PATIENCE_S) for remote in remotes] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_missing_program_has_status_127(connection: Connection) -> None:
    """A missing program is reported as a shell reports it."""
    answer = connection.start(["no-such-program"], timeout_s=PATIENCE_S).wait(PATIENCE_S)
    assert answer.status == 127
    assert b"no-such-program" in answer.stderr
