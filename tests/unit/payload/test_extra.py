"""A site's own section may hang, flood, raise or leave: its node's other facts do not notice."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.fleet.model import Host
from preflight.run.probe_stage import probe_fleet
from preflight.run.site_sections import LoadedSection
from preflight.transport.ways import Ways
from tests.unit.facts.builders import facts as made_up

if TYPE_CHECKING:
    from preflight.facts import Facts

pytestmark = pytest.mark.slow

NONCE = "0123456789abcdef"
HANG = "while True: time.sleep(9)"
FAULTS = {
    "raises": ("raise ValueError('bent\x1b[31m')", "ValueError: bent"),
    "exits": ("sys.exit(0)", "Exited: sys.exit(0)"),
    "dies": ("os.kill(os.getpid(), 9)", "its process ended without an answer"),
    "hangs": (HANG, "no answer in 2 s"),
    "deaf": ("signal.signal(15, signal.SIG_IGN)\n    " + HANG, "no answer in 2 s"),
    "large": ("return 'x' * (1 << 16)", "its answer exceeds 60 KiB"),
    "floods": ("return 'x' * (100 << 20)", " "),
    "prints": ("sys.stdout.write('x' * (8 << 20)); os.write(1, b'@preflight'); return 1", ""),
    "object": ("return object()", "TypeError: Object of type object is not JSON serializable"),
    "nan": ("return [float('nan')]", "a number beyond 64 bits, or none at all (NaN)"),
    "huge": ("return 10 ** 40", "a number beyond 64 bits"),
    "half": ("return {'\\ud800': 1}", "half a surrogate pair"),
    "deep": ("x = []\n    for _ in range(500): x = [x]\n    return x", "nested deeper than 16"),
    "lacks": ("import nosuch", "No module named 'nosuch'"),
    "hostile": (
        "[os.write(fd, b'[' * 60000) for fd in range(3, 9) if _pipe(fd)]; os._exit(0)",
        "its process ended without an answer",
    ),
}
START = """import os, signal, stat, subprocess, sys, time
def _pipe(fd):
    try: return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError: return False
def collect(request):
    """


def test_a_date_that_is_set_here_meanwhile_makes_no_nodes_clock_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All clocks are compared by one date of this machine."""
    jumps_s = itertools.count(time.time(), 3600.0)
    monkeypatch.setattr(time, "time", lambda: next(jumps_s))
    python = (sys.executable,)
    hosts = [Host(name=n, address=n, transport="local", python=python) for n in ("n1", "n2")]
    ways = Ways(hosts)
    got = probe_fleet(hosts, ways, NONCE, deadline_s=60, at_most=1, progress=lambda *_: None)
    ways.close()
    clocks = [one.reach.clock for one in got.values()]
    assert [round(clock.ahead_s / 3600) for clock in clocks if clock] == [0, 0]


def _probe(**bodies: str) -> Facts:
    sections = [
        LoadedSection(f"site.{name}", (START + body + "\n").encode(), 2.0)
        for name, body in bodies.items()
    ]
    host = Host(name="n1", address="n1", transport="local", python=(sys.executable,))
    ways = Ways((host,))
    reached = probe_fleet(
        [host],
        ways,
        NONCE,
        deadline_s=60,
        at_most=1,
        progress=lambda *_: None,
        sections=sections,
    )["n1"]
    ways.close()
    assert reached.facts is not None, reached.reach
    return reached.facts


def test_what_a_section_says_arrives() -> None:
    """Its answer is data under its id; it gets its own id, its node and its time."""
    facts = _probe(a="return {'request': request, 'list': [1, 2.5, None, True, 'x']}", b="pass")
    request = {"id": "site.a", "name": "n1", "deadline_s": 2.0}
    section = facts.section("site.a")
    assert section.data == {"request": request, "list": [1, 2.5, None, True, "x"]}
    assert (section.error, facts.section("site.b").error) == ("", "")
    assert facts.problems == ()


def test_a_faulty_section_harms_nothing_else() -> None:
    """Each fault is reported; the neighbours' answers and the node's own facts are whole."""
    bodies = {name: body for name, (body, _) in FAULTS.items()}
    facts = _probe(first="return 1", **bodies, z="return 2")
    for name, (_, error) in FAULTS.items():
        section = facts.section(f"site.{name}")
        assert error in section.error, name
        assert (section.data is None) == bool(error), name
        assert not error or any(p.startswith(f"site.{name}: ") for p in facts.problems)
        assert section.error.isprintable()
    assert (facts.section("site.first").data, facts.section("site.z").data) == (1, 2)
    assert facts.processes is not None
    assert facts.driver.state in ("absent", "answered", "error")


def test_what_a_section_leaves_running_ends_with_the_probe() -> None:
    """A process that it started and forgot, even one with a session of its own, is ended."""
    body = (
        "return subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True).pid"
    )
    pid = _probe(a=body).section("site.a").data
    ends = time.monotonic() + 20
    while _alive(pid):
        assert time.monotonic() < ends, "it is still there"
        time.sleep(0.05)


def test_a_request_cannot_load_what_the_node_has() -> None:
    """An installed payload runs nothing for its controller: only what travelled is imported."""
    from probe import main

    with pytest.raises(main.WrongError, match="no module of the node's own"):
        main._collect({"id": "site.a", "module": "antigravity", "deadline_s": 1}, "n1")
    assert "antigravity" not in sys.modules


def test_a_section_that_was_not_asked_is_unknown() -> None:
    """A check that reads it gets a reason, not an exception."""
    section = made_up("n1").section("site.nosuch")
    assert section.data is None
    assert section.error.startswith("no probe section site.nosuch in this run")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
