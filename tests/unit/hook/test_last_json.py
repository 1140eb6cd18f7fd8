"""last.json: whole, for root alone to write, and never more of them than a disk has room for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.errors import UsageError
from preflight.hook import work
from preflight.hook.decision import plain_code
from preflight.verdict import Outcome
from tests.unit.hook.builders import BAD_ECC, HOT, STALE, call, results

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_kept_whole(tmp_path: Path) -> None:
    """What is written is read back to the letter, for the node and for the job, 0640."""
    one = work.Document(call=call(job="4711"), assessment=results(BAD_ECC, HOT))
    work.write(tmp_path / "state", one)
    for path in (tmp_path / "state" / work.NAME, tmp_path / "state" / "jobs" / "4711.json"):
        assert msgspec.json.decode(path.read_bytes(), type=work.Document) == one
        assert path.stat().st_mode & 0o777 == 0o640


def test_old_jobs_make_room(tmp_path: Path) -> None:
    """The newest hundred jobs are kept; a job's odd number is no path."""
    for number in range(103):
        work.write(tmp_path, work.Document(call=call(job=str(number)), assessment=results(BAD_ECC)))
        os.utime(tmp_path / "jobs" / f"{number}.json", (number, number))
    work.write(tmp_path, work.Document(call=call(job="../evil"), assessment=results(BAD_ECC)))
    work.write(tmp_path, work.Document(call=call(job="999"), assessment=results(BAD_ECC)))
    names = {path.name for path in (tmp_path / "jobs").iterdir()}
    assert len(names) == 100
    assert {"999.json", "102.json"} <= names
    assert "0.json" not in names


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    """A person's copy, a link, a folder, another's file: only what the hook wrote makes room."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "mine-4711.json").touch()
    (jobs / "5.json").symlink_to(jobs / "mine-4711.json")
    (jobs / "6.json").mkdir()
    (jobs / "7.json").touch()
    if os.geteuid() == 0:
        os.chown(jobs / "7.json", 65534, 65534)
    theirs = {"mine-4711.json", "5.json", "6.json"} | ({"7.json"} if os.geteuid() == 0 else set())
    for name in theirs - {"5.json"}:
        os.utime(jobs / name, (1, 1))
    for number in range(100, 205):
        work.write(tmp_path, work.Document(call=call(job=str(number)), assessment=results(BAD_ECC)))
    names = {path.name for path in jobs.iterdir()}
    assert theirs <= names
    assert len(names - theirs) == 100


def test_a_link_in_the_place_of_its_folder_is_not_followed(tmp_path: Path) -> None:
    """It would be written, and cleared, elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "jobs").symlink_to(elsewhere)
    with pytest.raises(
        UsageError, match="jobs is a symbolic link, which preflight does not follow"
    ):
        work.write(tmp_path / "state", work.Document(call=call(), assessment=results(BAD_ECC)))
    assert not list(elsewhere.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="what root trusts needs root")
def test_a_folder_of_a_stranger_is_not_written_to(tmp_path: Path) -> None:
    """Whoever owns the folder could have put a link in the place of our file."""
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(UsageError, match="is not used"):
        work.write(tmp_path, work.Document(call=call(), assessment=results(BAD_ECC)))
    assert not list(tmp_path.iterdir())


def test_plain_codes() -> None:
    """0 healthy, 1 unhealthy, 2 could not judge; a user's processes are no fault of the node's."""
    warned = msgspec.structs.replace(BAD_ECC, outcome=Outcome.WARN)
    assert [plain_code(results(one)) for one in (BAD_ECC, HOT, STALE, warned)] == [1, 1, 0, 0]
    assert plain_code(results()) == 0
    assert plain_code(results(STALE, trouble="a check broke")) == 2
    assert plain_code(results(BAD_ECC, trouble="a check broke")) == 1
