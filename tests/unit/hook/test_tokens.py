"""Tokens in a shared folder: never more nodes than allowed, whoever asks, dies or has the time."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from preflight.hook import tokens
from preflight.hook.act import ask_folder
from preflight.hook.tokens import MARK, TokenResult, take

HOUR = 3600.0
HOLDER = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A shared folder, as an operator makes it."""
    (tmp_path / MARK).touch()
    return tmp_path


def of(folder: Path) -> list[str]:
    """The tokens there, and whatever else was left."""
    return sorted(each.name for each in folder.iterdir() if each.name != MARK)


def age(path: Path, seconds: float) -> None:
    """Make a token older, or with a negative age one from the future."""
    when = time.time() - seconds
    os.utime(path, (when, when))


def test_so_many_and_no_more(folder: Path) -> None:
    """The fourth of three is refused; who holds one needs no other."""
    got = [take(folder, name, 3, HOUR) for name in ("a", "b", "a", "c", "d", "b")]
    assert got == [
        TokenResult(granted=True, used=1),
        TokenResult(granted=True, used=2),
        TokenResult(granted=True, used=2),
        TokenResult(granted=True, used=3),
        TokenResult(granted=False, used=3),
        TokenResult(granted=True, used=3),
    ]
    assert of(folder) == ["00000001", "00000002", "00000003"]


def test_hooks_of_one_node_at_the_same_moment_share_its_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counts before the other has its token: the last one left is the node's all the same."""
    before = tokens._tokens(folder, 0.0)
    assert take(folder, "a", 1, HOUR).granted
    monkeypatch.setattr(tokens, "_tokens", lambda *_: before)
    assert take(folder, "a", 1, HOUR) == TokenResult(granted=True, used=1)
    assert take(folder, "b", 1, HOUR) == TokenResult(granted=False, used=1)
    assert take(folder, "b", 2, HOUR) == TokenResult(granted=True, used=2)
    assert of(folder) == ["00000001", "00000002"]


def test_none_are_allowed(folder: Path) -> None:
    """0 of 0 is a way to hold all drains."""
    assert take(folder, "a", 0, HOUR) == TokenResult(granted=False, used=0)


def test_none_are_allowed_any_more(folder: Path) -> None:
    """A node that had its token before is held back as well."""
    take(folder, "a", 3, HOUR)
    assert take(folder, "a", 0, HOUR) == TokenResult(granted=False, used=1)


RACE = """
import os, sys
from pathlib import Path
from preflight.hook.tokens import take
folder, most, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
gate, hold = os.pipe()
racers = []
for n in range(number):
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            os.close(hold)
            os.read(gate, 1)
            code = 0 if take(folder, f"n{n}", most, 3600.0).granted else 1
        finally:
            os._exit(code)
    racers.append(pid)
os.close(gate)
os.close(hold)  # the gate opens: all of them read its end
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in racers))
"""
"""Forks from a small process: a copy of pytest takes longer to make than to race."""


@pytest.mark.slow
def test_two_hundred_processes_at_once(folder: Path) -> None:
    """Real ones, let loose together: exactly as many as allowed are granted; and again, later."""
    for most, number in ((3, 200), (10, 40)):
        for token in folder.glob("0*"):
            age(token, 2 * HOUR)
        argv = [sys.executable, "-c", RACE, str(folder), str(most), str(number)]
        raced = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        assert raced.stdout.split() == ["0"] * most + ["1"] * (number - most)
    assert of(folder) == [f"{n:08d}" for n in range(1, 14)]


def test_old_ones_stop_counting(folder: Path) -> None:
    """They stay where they are; the number goes on, and very old ones are removed."""
    for name in ("a", "b", "c"):
        take(folder, name, 3, HOUR)
    age(folder / "00000001", HOUR + 10)
    assert take(folder, "d", 3, HOUR) == TokenResult(granted=True, used=3)
    assert take(folder, "e", 3, HOUR) == TokenResult(granted=False, used=3)
    for number in (1, 2):
        age(folder / f"0000000{number}", 61 * 86400)
    assert take(folder, "e", 3, HOUR) == TokenResult(granted=True, used=3)
    assert of(folder) == ["00000003", "00000004", "00000005"]


def test_what_nobody_can_read_counts(folder: Path) -> None:
    """Damaged, empty, from the future, a link or a folder: each takes a place."""
    for number, text in enumerate(("", "{", '{"node": 7}', "[]", "\0"), 1):
        (folder / f"0000000{number}").write_text(text)
    (folder / "00000006").symlink_to("/etc/passwd")
    (folder / "00000007").mkdir()
    (folder / "00000008").write_text('{"node": "z"}')
    age(folder / "00000008", -86400)
    assert take(folder, "a", 8, HOUR) == TokenResult(granted=False, used=8)
    assert take(folder, "a", 9, HOUR) == TokenResult(granted=True, used=9)


def test_who_dies_while_asking_leaves_no_lock(folder: Path) -> None:
    """A killed process leaves its draft, which is no token; it is removed a day later."""
    draft = folder / ".0123.draft"
    draft.write_text("{}")
    assert take(folder, "a", 1, HOUR).granted
    assert of(folder) == [".0123.draft", "00000001"]
    age(draft, 2 * 86400)
    age(folder / "00000001", 2 * HOUR)
    assert take(folder, "b", 1, HOUR).granted
    assert of(folder) == ["00000001", "00000002"]


def test_an_answer_lost_on_the_way_is_no_refusal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS the link may be made, its answer lost, and the retry fail with EEXIST."""
    real = Path.hardlink_to

    def twice(token: Path, draft: Path) -> None:
        real(token, draft)
        raise FileExistsError

    monkeypatch.setattr(Path, "hardlink_to", twice)
    assert take(folder, "a", 1, HOUR) == TokenResult(granted=True, used=1)


def test_a_listing_that_is_behind_grants_nothing_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may show an old listing: numbers that exist after all count as taken."""
    for name in ("a", "b", "c"):
        take(folder, name, 3, HOUR)
    monkeypatch.setattr(tokens, "_tokens", lambda *_: [])
    assert take(folder, "d", 3, HOUR) == TokenResult(granted=False, used=3)
    assert take(folder, "d", 4, HOUR) == TokenResult(granted=True, used=4)


def test_a_folder_that_is_not_mounted_grants_nothing(tmp_path: Path) -> None:
    """Its mount point is an empty folder of each node: all would be granted their drain."""
    answer = ask_folder(tmp_path, "a", 3, HOUR, time.monotonic() + 60)
    assert not answer.granted
    assert f"no file {tmp_path / MARK}: mount it, or touch that file once" in answer.trouble
    assert of(tmp_path) == []


def test_by_a_process_of_its_own(folder: Path) -> None:
    """As the hook asks: the answer, and the reason where there is none."""
    ends = time.monotonic() + 60
    ask = partial(ask_folder, folder, limit=1, window_s=HOUR, until_s=ends)
    if os.geteuid() == 0:
        os.chown(folder, HOLDER, -1)
        assert "chown" in ask("a").trouble
        os.chown(folder, 0, -1)
    answer = ask("a")
    assert (answer.granted, answer.used, answer.most, answer.trouble) == (True, 1, 1, "")
    assert not ask("b").granted
    assert json.loads((folder / "00000001").read_text())["node"] == "a"
    assert stat.S_IMODE((folder / "00000001").stat().st_mode) == 0o640


def test_a_file_system_that_hangs_grants_nothing(folder: Path) -> None:
    """When the time is up the wait ends: the node stays in service."""
    answer = ask_folder(folder, "a", 3, HOUR, time.monotonic() - 1)
    assert (answer.granted, answer.trouble) == (False, f"{folder} did not answer in time")
    assert of(folder) == []


def test_killed_at_any_moment(folder: Path) -> None:
    """Processes that are killed as they ask take a whole token or none."""
    words = [sys.executable, "-I", "-m", "preflight.hook.tokens", str(folder)]
    for number in range(6):
        process = subprocess.Popen([*words, f"n{number}", "99", "3600"], stdout=subprocess.DEVNULL)
        time.sleep(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for token in folder.glob("0*"):
        assert json.loads(token.read_text())["node"]
    assert take(folder, "last", 99, HOUR).granted
