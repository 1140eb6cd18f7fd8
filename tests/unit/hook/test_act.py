"""What is decided is done: one question, one word to Slurm, each within its time."""

from __future__ import annotations

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from preflight.hook.act import NAME, act, quota, read_record, write_record
from preflight.hook.hook_values import BreakerConfig, DrainRecord, HookConfig
from preflight.hook.slurm import Slurm, SlurmError
from preflight.hook.tokens import MARK
from tests.unit.hook.builders import BAD_ECC, HOT, NODE, call, config, results
from tests.unit.hook.fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from preflight.hook.hook_values import Assessment, Call, Decision, Occasion

ECC = "pf:gpu.ecc GPU 3: 2 errors; 0 expected [node] job 81723"


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """A node that Slurm has as idle."""
    return FakeSlurm(tmp_path / "bin")


@pytest.fixture
def chosen(tmp_path: Path, slurm: FakeSlurm) -> HookConfig:
    """Enforced, by tokens in a folder."""
    folder = tmp_path / "breaker"
    folder.mkdir()
    (folder / MARK).touch()
    return config(folder, state_dir=tmp_path / "state", slurm_bin=slurm.folder, undrain_after_s=0.0)


def run(
    found: Assessment, chosen: HookConfig, why: Call | None = None, left_s: float = 60
) -> Decision:
    """Act, with so much time."""
    return act(why or call(), found, chosen, time.monotonic() + left_s)


def test_a_healthy_node_asks_nobody(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """No process is started, no file is made."""
    assert run(results(), chosen).log == ""
    assert run(results(), chosen, call("healthcheck")).log == ""
    assert not (slurm.folder / "calls").exists()
    assert not chosen.state_dir.exists()


def test_a_drain_and_its_end(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """A faulty node goes out, with our reason; what heals comes back by the health check."""
    assert run(results(HOT), chosen).action == "drain"
    assert slurm.seen == ("IDLE+DRAIN", "pf:gpu.throttle GPU 3 is hot [node] job 81723")
    assert slurm.calls == ["show node", "sinfo --noheader", f"update NodeName={NODE}"]
    again = run(results(HOT), chosen)
    assert (again.action, again.exit_code) == ("none", 1)
    cool = results(passed=("gpu.throttle",))
    assert run(cool, chosen, call("healthcheck")).action == "undrain"
    assert slurm.seen == ("IDLE", "")
    assert read_record(chosen.state_dir) is None
    assert run(cool, chosen, call("healthcheck")).log == ""


def _draining(hooks: Executor, chosen: HookConfig, slurm: FakeSlurm) -> Future[Decision]:
    """A hook whose drain Slurm has begun to set, and ends only after `slurm.write("go")`."""
    slurm.write("waits")
    hook = hooks.submit(run, results(HOT), chosen)
    while not (slurm.folder / "began").exists():
        time.sleep(0.01)
    return hook


@pytest.mark.slow
@pytest.mark.parametrize("second", ["prolog", "healthcheck"])
def test_hooks_that_drain_at_once_leave_a_drain_that_is_undone(
    chosen: HookConfig, slurm: FakeSlurm, second: Occasion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm had one's reason and drained.json the other's: it was taken for a person's, for good.

    Nor does the second remove the record of the first, whose update Slurm does not have yet.
    """
    monkeypatch.setattr("preflight.hook.slurm.CALL_S", 60.0)
    with ThreadPoolExecutor() as hooks:
        first = _draining(hooks, chosen, slurm)
        other = hooks.submit(run, results(HOT), chosen, call(second))
        wait([other], timeout=1)
        slurm.write("go")
    assert {first.result().action, other.result().action} == {"drain", "none"}
    assert slurm.seen == ("IDLE+DRAIN", "pf:gpu.throttle GPU 3 is hot [node] job 81723")
    cool = results(passed=("gpu.throttle",))
    assert run(cool, chosen, call("healthcheck")).action == "undrain"
    assert slurm.seen == ("IDLE", "")


def test_a_hook_that_decides_for_too_long_is_not_waited_for(
    chosen: HookConfig, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's node is not touched meanwhile, and its own line says why."""
    monkeypatch.setattr("preflight.hook.slurm.CALL_S", 60.0)
    with ThreadPoolExecutor() as hooks:
        first = _draining(hooks, chosen, slurm)
        step = run(results(BAD_ECC), chosen, left_s=0.5)
        slurm.write("go")
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "another hook of this node is deciding" in step.log
    assert first.result().action == "drain"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_whose_the_state_dir_is_holds_no_hook(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """A stranger's lock in his folder is neither taken nor waited for."""
    chosen.state_dir.mkdir()
    lock = chosen.state_dir / "lock"
    lock.touch()
    for path in (chosen.state_dir, lock):
        os.chown(path, 65534, 65534)
    with lock.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert run(results(BAD_ECC), chosen).action == "drain"
    assert slurm.seen == ("IDLE+DRAIN", ECC)


def test_nothing_of_a_job_reaches_scontrol(
    chosen: HookConfig, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where Slurm's configuration is; LD_PRELOAD and the like stay out."""
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    run(results(BAD_ECC), chosen)
    environ = set((slurm.folder / "environ").read_text().split()) - {"PWD", "OLDPWD", "_", "SHLVL"}
    assert environ == {"LC_ALL", "TZ", "SLURM_TIME_FORMAT", "SLURM_CONF"}


def test_a_persons_drain_stays(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """Its reason too; and the hook takes no token for it."""
    slurm.set("IDLE+DRAIN", "RMA 4711")
    assert run(results(BAD_ECC), chosen).action == "none"
    assert slurm.seen == ("IDLE+DRAIN", "RMA 4711")
    assert slurm.calls == ["show node"]


def test_a_reason_that_a_person_edits_is_his(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """The hook forgets that it ever was its own, for good."""
    run(results(HOT), chosen)
    ours = slurm.seen[1]
    slurm.set("IDLE+DRAIN", f"{ours} RMA 4711")
    cool = results(passed=("gpu.throttle",))
    assert run(cool, chosen, call("healthcheck")).action == "none"
    assert read_record(chosen.state_dir) is None
    slurm.set("IDLE+DRAIN", ours)
    assert run(cool, chosen, call("healthcheck")).action == "none"
    assert slurm.seen == ("IDLE+DRAIN", ours)


def test_what_stays_takes_the_place_of_what_heals(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """Heat brought it down, then memory went bad: it does not come back when it is cool."""
    run(results(HOT), chosen)
    assert run(results(HOT, BAD_ECC), chosen).action == "drain"
    assert slurm.seen == ("IDLE+DRAIN", ECC)
    cool = results(passed=("gpu.throttle", "gpu.ecc"))
    assert run(cool, chosen, call("healthcheck")).action == "none"


def test_a_controller_that_does_not_answer(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """Down or hanging: it is unknown who holds the node, so the job starts."""
    slurm.write("down")
    step = run(results(BAD_ECC), chosen)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "Unable to contact slurm controller" in step.log
    slurm.write("hangs")
    step = run(results(BAD_ECC), chosen, left_s=0.2)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "did not answer within 0." in step.log


@pytest.mark.slow
def test_a_drain_that_slurm_does_not_take(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """The prolog fails, which drains; the health check can only say so."""
    slurm.write("refuses")
    step = run(results(BAD_ECC), chosen)
    assert (step.action, step.exit_code) == ("drain", 1)
    assert "Invalid user id" in step.log
    step = run(results(BAD_ECC), chosen, call("healthcheck"))
    assert (step.action, step.exit_code) == ("withheld", 0)
    cool = DrainRecord(check="gpu.throttle", reason=ECC, time_s=1.0, heals=True)
    write_record(chosen.state_dir, cool)
    slurm.set("IDLE+DRAIN", ECC)
    step = run(results(passed=("gpu.throttle",)), chosen, call("healthcheck"))
    assert (step.action, step.exit_code) == ("withheld", 0)


def test_a_memory_that_cannot_be_written(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """The node is drained all the same, and the log says that only an operator can resume it."""
    chosen.state_dir.parent.joinpath("state").write_text("no folder")
    step = run(results(HOT), chosen)
    assert step.action == "drain"
    assert f"cannot write {chosen.state_dir / NAME}" in step.log
    assert slurm.seen[0] == "IDLE+DRAIN"


def test_an_open_breaker(chosen: HookConfig, slurm: FakeSlurm) -> None:
    """Three others of four hold tokens: the fourth stays in service, and its prolog exits 0."""
    assert chosen.breaker is not None
    assert chosen.breaker.directory is not None
    for number in range(1, 4):
        text = f'{{"node": "other{number}"}}'
        (chosen.breaker.directory / f"0000000{number}").write_text(text)
    step = run(results(BAD_ECC), chosen)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "the breaker is open, 3 nodes drained in the window and 3 allowed" in step.log
    assert slurm.seen == ("IDLE", "")
    slurm.write("sizes", "gpu 80\n")  # 5 % of which are 4
    assert run(results(BAD_ECC), chosen).action == "drain"


@pytest.fixture
def counting(tmp_path: Path, slurm: FakeSlurm) -> HookConfig:
    """Enforced, by counting at the controller."""
    breaker = BreakerConfig(slurm=True)
    return HookConfig(
        enforce=True, breaker=breaker, state_dir=tmp_path / "state", slurm_bin=slurm.folder
    )


def reasons(*nodes: str, ago_s: float = 60.0) -> str:
    """So many nodes with a reason of ours, as sinfo lists them."""
    return "".join(f"{node}|{utc(ago_s)}|{ECC}\n" for node in nodes)


def utc(ago_s: float) -> str:
    """So long ago, as Slurm writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - ago_s))


def test_drains_counted_at_the_controller(counting: HookConfig, slurm: FakeSlurm) -> None:
    """Ours, within the window; a person's and old ones do not count."""
    people = "p1|2026-11-22T05:14:52|RMA\n"
    slurm.write("reasons", reasons("a", "b", "c") + people)
    assert run(results(BAD_ECC), counting).action == "withheld"
    slurm.write("reasons", reasons("a", "b") + reasons("c", "d", ago_s=7200) + people)
    assert run(results(BAD_ECC), counting).action == "drain"


@pytest.mark.parametrize("listing", ["", "a|b|c|d\n\xff||\n", "gpu041\n"])
def test_an_answer_without_this_node_is_none(
    counting: HookConfig, slurm: FakeSlurm, listing: str
) -> None:
    """A sinfo that prints nothing, or garbage, must not pass for a fleet without drains."""
    slurm.write("strange")
    slurm.write("reasons", listing)
    step = run(results(BAD_ECC), counting)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "sinfo does not list gpu041: run" in step.log
    assert slurm.seen == ("IDLE", "")


def test_the_controllers_clock_decides(counting: HookConfig, slurm: FakeSlurm) -> None:
    """Drains of this minute by its clock, whatever the node's own says: two days off here."""
    ago_s = 2 * 86_400.0
    slurm.write("now", utc(ago_s - 60))
    slurm.write("reasons", reasons("a", "b", "c", ago_s=ago_s))
    step = run(results(BAD_ECC), counting)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "3 nodes drained in the window and 3 allowed" in step.log


def test_without_a_clock_all_drains_count(counting: HookConfig, slurm: FakeSlurm) -> None:
    """However old: that may be too many, and never lets too many go; the line says so."""
    slurm.write("timeless")
    slurm.write("reasons", reasons("a", "b", "c", ago_s=7200))
    step = run(results(BAD_ECC), counting)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "shows no time, so 3 drains of any age count, and 3 are allowed" in step.log
    slurm.write("reasons", reasons("a", "b", ago_s=7200))
    assert run(results(BAD_ECC), counting).action == "drain"


def test_nodes_that_raced_step_back(counting: HookConfig, slurm: FakeSlurm) -> None:
    """Four counted two others each, and drained: whoever finds too many is resumed, exit 0."""
    first = (slurm.folder / "sinfo").read_text()
    after = first.replace("reasons ;;", "reasons; /bin/cp raced reasons ;;")
    (slurm.folder / "sinfo").write_text(after)
    slurm.write("reasons", reasons("a", "b"))
    slurm.write("raced", reasons("a", "b") + reasons("c", "d", NODE, ago_s=0))
    step = run(results(BAD_ECC), counting)
    assert (step.action, step.exit_code) == ("withheld", 0)
    assert "drained and resumed" in step.log
    assert slurm.seen == ("IDLE", "")
    assert read_record(counting.state_dir) is None
    slurm.write("reasons", reasons("a", "b"))
    slurm.write("raced", reasons("a", "b", NODE, ago_s=60) + reasons("c", "d", ago_s=0))
    assert run(results(BAD_ECC), counting).action == "drain"  # the later ones step back


@pytest.mark.parametrize("name", ["ALL", "all", "h[1-9]", "h1,h2", "", "-h1", "h1 State=DOWN"])
def test_one_node_only(slurm: FakeSlurm, name: str) -> None:
    """A name that scontrol takes for several nodes is refused before it is asked."""
    with pytest.raises(SlurmError, match="is not the name of one node"):
        Slurm(slurm.folder, time.monotonic() + 60).drain(name, ECC)
    assert not (slurm.folder / "calls").exists()


def test_a_program_of_somebody_else_is_not_run(slurm: FakeSlurm) -> None:
    """Root does not start what another could have written; and a missing one is named."""
    (slurm.folder / "scontrol").chmod(0o777)
    asked = Slurm(slurm.folder, time.monotonic() + 60)
    with pytest.raises(SlurmError, match="every user may write"):
        asked.node(NODE)
    (slurm.folder / "scontrol").unlink()
    with pytest.raises(SlurmError, match=r"no scontrol in .*: set slurm_bin"):
        asked.node(NODE)


def test_how_many_are_allowed() -> None:
    """The greater of 3 and 5 % of the job's partition; else of the smallest that the node is in."""
    sizes = {"all": 1000, "gpu": 100, "debug": 4}
    chosen = BreakerConfig()
    assert quota(chosen, sizes, "all", ("gpu",)) == 50
    assert quota(chosen, sizes, "", ("gpu", "all")) == 5
    assert quota(chosen, sizes, "unheard", ("debug", "all")) == 3
    assert quota(chosen, {}, "all", ("gpu",)) == 3


def test_a_memory_of_somebody_else_is_none(tmp_path: Path) -> None:
    """A stranger who could write it could have nodes resumed; damaged ones are none either."""
    mine = DrainRecord(check="gpu.throttle", reason=ECC, time_s=1.0, heals=True)
    assert write_record(tmp_path, mine) == ""
    assert read_record(tmp_path) == mine
    (tmp_path / NAME).chmod(0o666)
    assert read_record(tmp_path) is None
    (tmp_path / NAME).chmod(0o600)
    (tmp_path / NAME).write_text("{")
    assert read_record(tmp_path) is None
