"""The plugin where nothing is configured: inert until asked, and useful at once when asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.stories.conftest import Told
    from tests.stories.here import Here

LONGEST_S = 120
HEAVY = (
    *("paramiko", "cryptography", "torch", "pynvml", "ClusterShell", "msgspec", "yaml"),
    *("sqlalchemy", "prometheus_client", "jinja2"),
)


def _python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip


def test_unused_the_plugin_is_inert(tmp_path: Path) -> None:
    """Without --preflight another suite sees no items, no header, no fixtures, no modules."""
    (tmp_path / "test_own.py").write_text(
        "import sys\ndef test_own():\n"
        f"    assert not {set(HEAVY)!r} & set(sys.modules)\n"
        "    ours = {name for name in sys.modules if name.split('.')[0] == 'preflight'}\n"
        "    light = ('preflight', 'preflight.plugin', 'preflight.session',\n"
        "             'preflight.session.flags')\n"
        "    assert ours == set(light)\n"
    )
    told = _python("-m", "pytest", "-p", "no:cacheprovider", folder=tmp_path)
    assert told.returncode == 0, told.stdout
    assert "1 passed" in told.stdout
    assert "fleet  " not in told.stdout
    fixtures = _python(
        "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider", folder=tmp_path
    )
    assert "preflight" not in fixtures.stdout
    assert not (tmp_path / "preflight-runs").exists()


def test_help_shows_our_options() -> None:
    """The help lists every option under one heading, and the ini keys."""
    said = _python("-m", "pytest", "--help").stdout
    for option in ("--preflight-nodes=LIST", "--preflight-need=N", "--preflight-replay=RUN_DIR"):
        assert option in said
    assert "preflight_checks (paths)" in said
    assert "--preflight-even-if-busy" in said


def test_a_group_is_written_with_an_equals_sign(tmp_path: Path) -> None:
    """After a blank pytest takes @gpu for a file of arguments; help and pages show the `=`."""
    (tmp_path / "fleet.toml").write_text('[group.gpu]\nnodes = "n[1-2]"\n')
    asked = ("--preflight", "--preflight-inventory=fleet.toml", "--collect-only", "-q")
    told = _python("-m", "pytest", *asked, "--preflight-nodes=@inventory:gpu", folder=tmp_path)
    assert "reach.name[n2]" in told.stdout
    assert "write --option=value" in _python("-m", "pytest", "--help").stdout
    root = Path(__file__).parents[2]
    for page in [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("preflight/**/*.py")]:
        assert not re.search(r"--preflight-(nodes|exclude) +['\"]?@", page.read_text()), page


@pytest.mark.parametrize("room", ["plugin", "transport", "errors", "check"])
def test_heavy_libraries_are_loaded_on_use(room: str) -> None:
    """Every pytest run of an environment loads the plugin: it costs it pytest and no more."""
    program = (
        f"import sys, pytest\nbefore = set(sys.modules)\nimport preflight.{room}\n"
        f"print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)))"
    )
    assert _python("-c", program).stdout == "[]\n"


def test_a_bare_run_judges_this_machine(preflight: Callable[..., Told]) -> None:
    """Nothing configured: this machine, without SSH, with a report and the next command."""
    told = preflight("-m", "preflight_reach or preflight_facts", "-k", "not stale")
    assert told.exit == 0, told.out
    assert "(from this machine)" in told.out
    assert "reach    local processes" in told.out
    assert "next       to check a fleet: preflight check 'gpu[001-064]'" in told.out
    assert told.report["fleet"]["origin"] == "this machine"
    assert told.report["exit"] == 0


def test_several_local_nodes_each_with_its_own_python(here: Here) -> None:
    """Nodes that are one machine are each asked through their own command."""
    here.check("site.a", "conclude(ok(node.facts.python.executable))")
    nodes = ""
    for name in ("n1", "n2"):
        (here.folder / name).symlink_to(sys.executable)
        nodes += f'[node.{name}]\npython = "env A=1 {here.folder}/{name}"\n'
    here.inventory.write_text(f'[defaults]\ntransport = "local"\n{nodes}')
    told = here.judge()
    assert told.exit == 0, told.out
    ran = {v["subject"]: v["sentence"] for v in told.report["verdicts"]}
    assert ran == {name: f"{here.folder}/{name}" for name in ("n1", "n2")}


def test_an_inventory_never_becomes_shell_code(here: Here) -> None:
    """Words of an inventory reach the node as they stand, and the screen without control codes."""
    planted = here.folder / "planted"
    evil = f"$(touch {planted});`touch {planted}`|touch {planted}&"
    here.check("site.a", "conclude(ok('fine'))")
    here.inventory.write_text(
        f'[group."{evil}"]\nnodes = "n1"\n[defaults]\ntransport = "local"\n'
        f'python = ["{sys.executable}", "-X", "a={evil}"]\n'
    )
    for option in ("--preflight-items=group", "--preflight-items=node"):
        told = here.judge("-v", option)
        assert told.exit == 0, told.out + told.err
    evil += "\\n\\u001b[31m"
    for table in (f'address = "{evil}"', f'user = "{evil}"', f'transport = "{evil}"'):
        here.inventory.write_text(f'[defaults]\ntransport = "local"\n[node.n1]\n{table}\n')
        told = here.judge()
        assert told.exit in (1, 4)
        assert "\x1b" not in told.out + told.err
        assert "Traceback" not in told.out + told.err
    assert not planted.exists()


@pytest.mark.parametrize("place", ["fleet.toml/below", "fleet.toml", "/dev/full"])
def test_a_report_that_cannot_be_written(here: Here, place: str) -> None:
    """What cannot be a folder is refused before anything is measured, in one line."""
    here.check("site.a", "conclude(ok('fine'))")
    told = here.judge(f"--preflight-report={place}")
    assert told.exit == 4
    assert "is not a folder: give another one" in told.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["serial", "xdist"])
def test_stopping_a_run_that_waits(
    here: Here, workers: Sequence[str], number: signal.Signals
) -> None:
    """Ctrl-C while a node never answers: exit 2, nobody is called ready, no process stays."""
    token = f"9{os.getpid()}{number.value}{len(workers)}"
    never = here.folder / "never"
    never.write_text(f"#!/bin/sh\necho begun > {here.folder}/begun\nexec sleep {token}\n")
    never.chmod(0o755)
    here.inventory.write_text(f'[defaults]\ntransport = "local"\n[node.n1]\npython = "{never}"\n')
    os.mkfifo(here.folder / "begun")
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--preflight", "--preflight-inventory=fleet.toml",
         "--preflight-report=report", "-m", "preflight_reach", *workers],
        cwd=here.folder, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    reaper = threading.Timer(LONGEST_S, run.kill)
    reaper.start()
    try:
        assert (here.folder / "begun").read_text() == "begun\n"
        os.killpg(run.pid, number)
        out, _ = run.communicate()
    finally:
        reaper.cancel()
    assert run.returncode == 2, out
    assert "= interrupted =" in out
    assert "6 not run, 0 missing" in out
    assert "not judged n1" in out
    assert (here.folder / "report" / "ready.hosts").read_text() == ""
    assert token not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout  # noqa: PLW1510


def test_stopping_keeps_what_had_arrived(here: Here) -> None:
    """A node that had answered before Ctrl-C keeps its verdicts; only the straggler is open."""
    begun, token = here.folder / "begun", f"8{os.getpid()}"
    never = here.folder / "never"
    # By the time the first node's probe is through, the second has long begun to wait.
    never.write_text(f"#!/bin/sh\nsleep 4; echo begun > {begun}\nexec sleep {token}\n")
    never.chmod(0o755)
    here.inventory.write_text(
        '[defaults]\ntransport = "local"\n'
        f'[node.n1]\npython = "{sys.executable}"\n[node.n2]\npython = "{never}"\n'
    )
    os.mkfifo(begun)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--preflight", "--preflight-inventory=fleet.toml",
         "--preflight-report=report", "-m", "preflight_reach"],
        cwd=here.folder, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    reaper = threading.Timer(LONGEST_S, run.kill)
    reaper.start()
    try:
        begun.read_text()
        os.killpg(run.pid, signal.SIGINT)
        out, _ = run.communicate()
    finally:
        reaper.cancel()
    assert run.returncode == 2, out
    report = json.loads((here.folder / "report" / "report.json").read_text())
    known = {(v["check"], v["subject"]) for v in report["verdicts"] if v["outcome"] == "ok"}
    assert known == {("reach.python", "n1"), ("reach.answer", "n1")}
    assert report["fleet"]["unjudged"] == ["n2"]


def _preflight(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "preflight", *arguments)


def test_the_command_lists_and_explains_the_checks() -> None:
    """`preflight list-checks` lists ids with their stage; with an id it prints its page."""
    told = _preflight("list-checks")
    assert told.returncode == 0
    assert any(
        line.split()[:3] == ["gpu.count", "prolog", "facts"] for line in told.stdout.splitlines()
    )
    page = _preflight("list-checks", "gpu.count")
    assert page.returncode == 0
    assert "## Fix" in page.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list-checks", "gpu.cuont"), "did you mean 'gpu.count' or 'gpu.ecc'?"),
        (("list-checks", "ib.*"), "give one of ib."),
        (("list-checks", "gpu"), " gpu.count, "),
        (("chekcs",), "did you mean 'check'? See: preflight --help"),
        (("list-checks", "--nosuch"), "see: preflight list-checks --help"),
    ],
)
def test_a_slip_of_the_pen(arguments: tuple[str, ...], said: str) -> None:
    """Wrong usage of the command is one line with the remedy, and exit 4."""
    told = _preflight(*arguments)
    assert (told.returncode, told.stdout) == (4, "")
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_help_of_the_command_says_how_to_judge() -> None:
    """`preflight --help` leads to `preflight check`; a bare `preflight` shows the same, exit 0."""
    told = _preflight("--help")
    assert told.returncode == 0
    assert "Begin with: preflight check 'gpu[001-064]'" in told.stdout
    assert "4 wrong usage" in told.stdout
    bare = _preflight()
    assert (bare.returncode, bare.stdout) == (0, told.stdout)


def test_no_module_of_ours_is_rewritten_at_every_start(here: Here) -> None:
    """The asserts of plugins are: who may not write beside them would wait each time."""
    here.check(
        "site.loaded",
        "import sys\n    loaders = {type(sys.modules[name].__loader__).__name__"
        " for name in sys.modules if name.startswith('preflight.session.s')}\n"
        "    conclude(ok(' '.join(sorted(loaders))))",
    )
    told = here.judge(env={"PYTHONHASHSEED": "1"})
    assert {row["sentence"] for row in told.report["verdicts"]} == {"SourceFileLoader"}


@pytest.mark.parametrize("option", ["--rdzv-endpoint=n1:29500", "--master-addr=n1"])
def test_the_name_of_the_master_in_a_launch_line(here: Here, option: str) -> None:
    """Each node looks up the name itself, as torchrun will, and not the inventory's address."""
    told = here.judge_all(
        "--preflight-checks=net.master_name",
        f"--preflight-launch=torchrun --nnodes=3 --node-rank=0 {option} train.py",
    )
    assert told.exit == 1, told.out
    assert told.outcomes() == {("net.master_name", f"n{i}", "fail") for i in (1, 2, 3)}
    assert "the master's name n1 leads nowhere here" in told.out
