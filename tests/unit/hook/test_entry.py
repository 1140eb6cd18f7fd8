"""Whatever breaks inside the hook, its exit code never says that the node is broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.commands import HOOK_PROGRAM
from preflight.hook.entry import parse_options
from tests.unit.burn.nodes import until
from tests.unit.hook.fake_slurm import FakeSlurm
from tests.unit.hook.processes import ended

pytestmark = pytest.mark.slow

REPOSITORY = str(Path(__file__).parents[3])
LONGEST_S = 60
_TOLD = "tell(budget_s=1.0, observing={observing}, log='stderr')"
_SITS = "\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(99)"
FAULTS = {
    "an exception": "raise RuntimeError('bent')",
    "a wrong option deep inside": "raise SystemExit(4)",
    "an interrupt": "raise KeyboardInterrupt",
    "no memory": "raise MemoryError",
    "endless recursion": "return work(options, began, tell)",
    "a crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "the kernel's killer": "os.kill(os.getpid(), signal.SIGKILL)",
    "an exit like a sick node's": "os._exit(1)",
    "a library that exits": "sys.exit(1)",
    "an unknown code": "return HookResult(7)",
    "a code that is no number": "return HookResult('1')",
    "no answer at all": "return None",
    "an answer that is none": "return HookResult(1, b'', None)",
    "a line too many": "os.write(PIPE, b'{\"end\": 1}\\n')",
    "half an answer": 'os.write(PIPE, b\'{"end": {"code": 1\'); os._exit(0)',
    "garbage": "os.write(PIPE, os.urandom(5000)); os._exit(0)",
    "deep nesting": "os.write(PIPE, b'[' * 100000 + b'\\n'); os._exit(0)",
    "standing still": "time.sleep(99)",
    "not hearing SIGTERM": _SITS,
    "noise to the scheduler's pipes": "print('x' * 10); os.write(2, b'noise'); os._exit(1)",
}


def _argv(body: str, *words: str, observing: bool = False) -> list[str]:
    """How to start the hook with a body in place of its work, as `preflight prolog` starts it."""
    code = f"""
def work(options, began, tell):
    global PIPE
    PIPE = tell.__closure__[0].cell_contents
    {_TOLD.format(observing=observing)}
    {body}
"""
    planted = f"""
import os, signal, sys, time, types
sys.path.insert(0, {REPOSITORY!r})
from preflight.hook.entry import HookResult
fake = types.ModuleType("preflight.hook.work")
vars(fake).update(os=os, signal=signal, sys=sys, time=time, HookResult=HookResult)
exec({code!r}, vars(fake))
sys.modules["preflight.hook.work"] = fake
"""
    return [sys.executable, "-I", "-B", "-c", planted + HOOK_PROGRAM, "prolog", *words]


def _run(body: str, *words: str, observing: bool = False) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    argv = _argv(body, *words, observing=observing)
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_ours_exits_0_and_is_loud(fault: str) -> None:
    """Exit 0 for the scheduler, one line that says so, and nothing of it on standard output."""
    done = _run(FAULTS[fault])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("preflight: prolog: ")
    assert line.endswith("this node was not checked: no reason to drain")


@pytest.mark.parametrize(
    ("words", "observing", "code"),
    [("--plain", False, 2), ("--fail-closed", False, 1), ("--fail-closed", True, 0)],
)
def test_a_caller_may_ask_for_another_exit(words: str, code: int, *, observing: bool) -> None:
    """--plain: 2, could not judge. --fail-closed keeps the job away, or logs that it would."""
    done = _run("raise RuntimeError", *words.split(), observing=observing)
    assert done.returncode == code
    assert ("keeps the job away" in done.stderr) is (code == 1)


def test_a_job_that_is_kept_away_has_its_document() -> None:
    """By it the script in prolog.d tells this exit from that of a Python which cannot start."""
    done = _run("raise RuntimeError", "--json", "--fail-closed")
    assert json.loads(done.stdout)["decision"]["exit_code"] == 1
    assert done.stdout.endswith("\n}\n")
    assert '"exit_code": 1' in done.stdout


def test_each_answer_has_its_document() -> None:
    """Without one, the script knows that its shell could start nothing."""
    for observing, words in ((False, ()), (True, ("--fail-closed",))):
        done = _run("raise RuntimeError", "--json", *words, observing=observing)
        assert done.returncode == json.loads(done.stdout)["decision"]["exit_code"] == 0


def test_a_good_end_is_passed_on() -> None:
    """What the work says is printed, logged and exited with, to the letter."""
    done = _run("return HookResult(1, 'shown\\n', 'gpu.ecc is bad')")
    assert (done.returncode, done.stdout) == (1, "shown\n")
    assert done.stderr == "preflight: gpu.ecc is bad\n"
    assert _run("return HookResult(0)").stderr == ""


def test_a_document_that_nobody_takes_changes_nothing() -> None:
    """A full disk behind standard output: what was done keeps its exit code, and is logged."""
    argv = _argv("return HookResult(1, 'x' * 100_000, 'drain gpu041')", "--json")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LONGEST_S, check=False
        )
    assert (done.returncode, done.stderr) == (1, "preflight: drain gpu041\n")


def test_time_that_is_up_is_up() -> None:
    """A child that stands still is left behind, and the scheduler's pipes are closed with us."""
    began = time.monotonic()
    _run(_SITS)
    assert time.monotonic() - began < LONGEST_S / 2


_ASKS = """
    from pathlib import Path
    from preflight.hook.slurm import run_program
    wrapper = "cd {folder}; sleep 99 & echo $! $$ $PPID >pids; mv pids on; wait"
    run_program(["/bin/sh", "-c", wrapper], {{"PATH": os.environ["PATH"]}}, time.monotonic() + 60)
    Path("{folder}/went on").touch()"""
_DEAF = """
    from pathlib import Path
    from preflight.hook.slurm import Slurm
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = os.getppid()
    Path("{folder}/on").write_text(f"{{os.getpid()}}\\n")
    while os.getppid() == parent:
        time.sleep(0.01)
    slurm = Slurm(Path("{folder}/bin"), time.monotonic() + 60)
    slurm.drain("gpu041", "pf:gpu.ecc 2 errors [node] job 1")"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("body", [_ASKS, _DEAF], ids=["while it asks", "though it is deaf"])
def test_nothing_outlives_the_hook(tmp_path: Path, body: str, number: signal.Signals) -> None:
    """A script's time-out, kill -9: the work ends with it, and so does what asks the scheduler.

    Else an orphan would drain the node without a log line.
    """
    slurm = FakeSlurm(tmp_path / "bin")
    argv = _argv(body.format(folder=tmp_path))
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as hook:
        assert until((tmp_path / "on").exists)
        hook.send_signal(number)
    pids = [int(pid) for pid in (tmp_path / "on").read_text().split()]
    assert until(lambda: all(map(ended, pids)))
    assert not (tmp_path / "went on").exists()
    assert slurm.seen == ("IDLE", "")
    assert not (slurm.folder / "calls").exists()


@pytest.mark.parametrize("module", ["preflight", "preflight.hook.entry", "preflight.hook.work"])
def test_a_preflight_that_cannot_be_loaded_drains_nobody(tmp_path: Path, module: str) -> None:
    """Half an upgrade, a damaged file: Python would exit 1 like a sick node; this exits 0."""
    place = tmp_path / "preflight" / "hook"
    place.mkdir(parents=True)
    for name in ("__init__.py", "hook/__init__.py"):
        (tmp_path / "preflight" / name).touch()
    source = Path(REPOSITORY, "preflight/hook")
    for name in ("entry.py", "work.py", "child.py"):
        (place / name).write_text((source / name).read_text())
    relative = module.replace(".", "/")
    broken = tmp_path / (f"{relative}/__init__.py" if module == "preflight" else f"{relative}.py")
    broken.write_text("def half(:\n")
    argv = [sys.executable, "-I", "-B", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})"]
    argv[-1] += HOOK_PROGRAM
    for words, code in ((["prolog"], 0), (["prolog", "--plain"], 2)):
        done = subprocess.run([*argv, *words], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "this node was not checked" in done.stderr


def test_a_wrong_option_drains_nobody() -> None:
    """A misspelt option in a prolog's script: exit 0 and two lines, instead of an empty fleet."""
    done = _run("return HookResult(1)", "--enforce")
    assert done.returncode == 0
    assert "unknown option '--enforce'" in done.stderr
    assert _run("return HookResult(1)", "--help").returncode == 0
    assert "argument --limit" in _run("return HookResult(1)", "--limit", "nan").stderr
    assert parse_options(["healthcheck", "--periodic", "--limit", "50"]).limit_s == 50


def test_the_child_has_none_of_our_descriptors() -> None:
    """A survivor must not keep slurmd's pipe open: it holds its own answer's pipe alone."""
    held = "held = [os.readlink('/proc/self/fd/%s' % n) for n in (0, 1, 2)]"
    done = _run(f"{held}; return HookResult(0, ' '.join(held))")
    assert done.stdout == " ".join([os.devnull] * 3)
