"""A site's conftest.py names the nodes, asks more of them, and hears how it ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.stories.conftest import Told
    from tests.stories.here import Here

WORKERS = ("-n", "2")
IMPORTS = """
import json, os, sys
from pathlib import Path
from preflight.fleet.model import Host
from preflight.run.site_sections import Section

HERE = Path(__file__).parent

def host(name):
    return Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))

"""
NODES = """
def pytest_preflight_nodes(config):
    with open(HERE / "asked", "a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "controller"), file=file)
    return [host("a1"), host("a2")]
"""
IMAGE = "def collect(request):\n    return {'image': 'v7', 'on': request['name']}\n"
SECTION = """
def pytest_preflight_probe_sections(config):
    return [Section("site.image", HERE / "image.py")]
"""
SINK = """
def pytest_preflight_report(report, folder, config):
    there = sorted(path.name for path in folder.iterdir())
    with open(HERE / "told", "a") as file:
        print(report.exit, report.fleet.not_ready, "report.json" in there, file=file)
"""
READS = (
    "said = node.facts.section('site.image')\n    "
    "conclude(unknown(said.error, advice='look') if said.error else ok(str(said.data)))"
)


def _site(here: Here, *hooks: str) -> None:
    (here.folder / "conftest.py").write_text(IMPORTS + "".join(hooks))


def _judge(here: Here, *arguments: str, env: dict[str, str] | None = None) -> Told:
    return here.preflight("--preflight-checks=site.a", *arguments, env=env)


def test_the_three_hooks_at_work(here: Here) -> None:
    """Nodes by one, a fact by the second, the outcome to the third; each once, with -n too."""
    here.check("site.a", READS)
    (here.folder / "image.py").write_text(IMAGE)
    _site(here, NODES, SECTION, SINK)
    for options in ((), WORKERS):
        told = _judge(here, *options)
        assert told.exit == 0, told.out
        header = " ".join(told.out.split())
        assert "(from hook pytest_preflight_nodes of conftest.py)" in header
        assert {(v["subject"], v["sentence"]) for v in told.report["verdicts"]} == {
            (name, str({"image": "v7", "on": name})) for name in ("a1", "a2")
        }
    assert (here.folder / "asked").read_text() == "controller\n" * 2
    assert (here.folder / "told").read_text() == "0 () True\n" * 2


def test_who_outranks_the_hook(here: Here) -> None:
    """The operator's word of today does, the allocation does not; None leaves it to the next."""
    here.check("site.a", "conclude(ok('fine'))")
    _site(here, NODES)
    env = {"SLURM_JOB_NODELIST": "nosuch1"}
    assert "hook pytest_preflight_nodes" in _judge(here, "--co", env=env).out
    named = _judge(here, f"--preflight-inventory={here.inventory}")
    assert named.report["fleet"]["nodes"] == ["n1", "n2", "n3"]
    assert "(from PREFLIGHT_NODES)" in _judge(here, "--co", env={"PREFLIGHT_NODES": "x1"}).out
    assert (here.folder / "asked").read_text() == "controller\n"
    _site(here, "def pytest_preflight_nodes(config):\n    return None\n")
    assert "(from this machine)" in _judge(here, "--co").out
    _site(here, "def pytest_preflight_nodes(config):\n    return 'n[2-3]'\n")
    ini = here.folder / "pytest.ini"
    ini.write_text(f"{ini.read_text()}preflight_inventory = {here.inventory}\n")
    assert _judge(here).report["fleet"]["nodes"] == ["n2", "n3"]


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ("1 / 0", "raised ZeroDivisionError: division by zero; correct it, or give --preflight-no"),
        ("sys.exit(0)", "raised SystemExit: 0; correct it"),
        ("[]", "returned [], expected names or Hosts"),
        ("7", "returned 7, expected names or Hosts"),
        ("'n[1-'", "correct it, or give --preflight-nodes"),
        ("['n1', host('n2')]", "expected names or Hosts"),
        ("[host('n1'), host('n1')]", "returned two Hosts with the same name"),
        ("[host('-x')]", "correct it"),
        ("[Host(name='n1', address='n1', python='python3')]", "returned an invalid Host"),
        ("[Host(name='n1', address='n1', transport='shh')]", "correct it"),
    ],
)
def test_a_hook_that_names_nobody(here: Here, returns: str, said: str) -> None:
    """Exit 4, one line with the plugin's name, no traceback."""
    here.check("site.a", "conclude(ok('fine'))")
    _site(here, f"def pytest_preflight_nodes(config):\n    return {returns}\n")
    _is_one_line(_judge(here), "hook pytest_preflight_nodes of conftest.py ", said)


def test_sections_that_cannot_be_asked(here: Here) -> None:
    """What is wrong with a section is told before anybody is reached: exit 4, one line."""
    here.check("site.a", READS)
    (here.folder / "image.py").write_text(IMAGE)
    (here.folder / "bad.py").write_text("def collect(:\n")
    (here.folder / "empty.py").write_text("")
    one = "Section('site.image', HERE / 'image.py')"
    for returns, said in (
        ("7", "returned 7, expected a list of Sections"),
        ("['site.image']", "returned 'site.image', expected preflight.run.site_sections.Section"),
        (f"[{one}, {one}]", "names site.image a second time: rename one"),
        (one.replace("image.py", "nosuch.py"), "which is not a file: correct the path"),
        (one.replace("image.py", "bad.py"), "which cannot be read: "),
        (one.replace("image.py", "empty.py"), "which lacks collect(request): define it"),
        (one.replace("site.image", "../x"), "write one such as site.image"),
        (one.replace("')", "', 60)"), "gives site.image 60 s: give more than 0, at most 10"),
        ("open('/nonexistent')", "raised FileNotFoundError"),
    ):
        _site(here, f"def pytest_preflight_probe_sections(config):\n    return {returns}\n")
        _is_one_line(_judge(here), "hook pytest_preflight_probe_sections of conftest.py ", said)


def test_a_section_that_fails_is_unknown(here: Here) -> None:
    """No answer is no pass: the check says why it cannot judge."""
    here.check("site.a", READS)
    (here.folder / "image.py").write_text("def collect(request):\n    return open('/nosuch')\n")
    _site(here, NODES, SECTION)
    told = _judge(here)
    assert told.exit == 1
    assert "UNKN   a[1-2]  site.a\n       No such file or directory\n" in told.out


@pytest.mark.parametrize("fault", ["raise OSError('database is down')", "sys.exit(7)"])
def test_a_sink_that_fails_is_said_and_changes_nothing(here: Here, fault: str) -> None:
    """The last line names it; the exit code speaks of the fleet, and the other sinks still hear."""
    here.check("site.a", "conclude(ok('fine'))")
    _site(here, NODES, SINK.replace("    there", f"    {fault}\n    there"))
    told = _judge(here)
    assert told.exit == 0
    assert "Traceback" not in told.out + told.err
    said = " ".join(told.out.rpartition("sink   ")[2].split())
    assert said.startswith("hook pytest_preflight_report of conftest.py raised ")
    assert json.loads((told.folder / "report.json").read_text())["exit"] == 0


def test_nobody_is_told_of_nothing(here: Here) -> None:
    """Collecting only, or a selection that is empty, is no outcome."""
    here.check("site.a", "conclude(ok('fine'))")
    _site(here, NODES, SINK)
    for options in (("--co",), ("-k", "nosuch")):
        _judge(here, *options)
    assert not (here.folder / "told").exists()


def _is_one_line(told: Told, start: str, said: str) -> None:
    assert told.exit == 4, told.out
    assert start in told.err
    assert said in told.err
    assert "Traceback" not in told.err
    assert len(told.err.strip().splitlines()) == 1
