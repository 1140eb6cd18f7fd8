"""A public report of whatever folder: nobody in it is named, or it is refused."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.commands.report import run
from preflight.errors import UsageError
from preflight.facts.node import Reach
from preflight.facts.node_network import Resolved
from preflight.report.document import encode
from preflight.report.events import Began, Events, reread
from preflight.report.hide import Hider
from preflight.report.secret_names import secrets
from preflight.report.since import report_findings, summary_of
from preflight.run.measured import Measured
from preflight.verdict import fail, not_run
from tests.cases import draws
from tests.unit.fabric.test_forms import _nccl as small
from tests.unit.facts.builders import facts, network
from tests.unit.facts.machines import machine
from tests.unit.report.nights import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.document import Report

NAMES = ["gpu041", "gpu042", "gpu043", "gpu044"]


@dataclass(frozen=True)
class Who:
    """A node, and what it says of itself."""

    name: str
    user: str
    serial: str
    address: str
    host: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """Nothing of this may be told."""
        return (self.name, self.user, self.serial, self.address, self.host)


def whose(names: Sequence[str]) -> list[Who]:
    """Plain people on these nodes."""
    return [
        Who(name, f"dora{at}x", f"SN{at}77QX", f"10.77.0.{at + 11}", f"{name}.corp.example")
        for at, name in enumerate(names)
    ]


def told(people: Sequence[Who]) -> Report:
    """A report whose sentences repeat, without any form, what nodes said of themselves."""
    said = {
        ("gpu.count", one.name): fail(
            f"{one.user} left it on {one.host}: board {one.serial}, {one.address}",
            advice=f"ask {one.user} about {one.name} ({one.host.partition('.')[0]})",
        )
        for one in people
    }
    return report([one.name for one in people], said)


def measured(people: Sequence[Who]) -> bytes:
    """What these nodes said of themselves."""
    return Measured(
        nonce="n",
        reach={one.name: Reach("ssh") for one in people},
        facts={
            one.name: facts(
                one.host,
                user=one.user,
                gpus=None,
                gpu_pairs=None,
                nics=None,
                machine=machine(serial=one.serial),
                network=network(own_name=Resolved(one.host, (one.address,))),
            )
            for one in people
        },
    ).encode()


def outputs(folder: Path) -> str:
    """Every output of `preflight report --public`, one after the other."""
    files = [folder / "public.html", folder / "public.xml", folder / "public.prom"]
    said = argparse.Namespace(
        folder=folder, public=True, html=files[0], junit=files[1], prometheus=files[2],
        json=True, text=True,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(said) == 0
    return "\n".join([printed.getvalue(), *(file.read_text() for file in files)])


def leaked(text: str, secrets: Sequence[str]) -> list[str]:
    """Those that stand in it, in whatever letters; a short one by itself, not within a word."""
    found = []
    for secret in secrets:
        inside = len(secret) > 3 and any(map(str.isdigit, secret)) and ":" not in secret
        before, after = ("", "(?![0-9])") if inside else ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")
        if re.search(f"{before}{re.escape(secret)}{after}", text, re.IGNORECASE):
            found.append(secret)
    return found


def swept(folder: Path, waves: Sequence[Sequence[Who]]) -> None:
    """A sweep's folder: one report, and what was measured in the folders of its waves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(encode(told([one for wave in waves for one in wave])))
    for number, wave in enumerate(waves, 1):
        (folder / f"wave-{number:03}").mkdir()
        (folder / f"wave-{number:03}" / "measured.json").write_bytes(measured(wave))


def test_a_sweep_names_nobody_of_any_wave(tmp_path: Path) -> None:
    """What nodes said of themselves lies in the folders of the waves."""
    people = whose(NAMES)
    swept(tmp_path, (people[:2], people[2:]))
    everything = outputs(tmp_path)
    assert leaked(everything, [name for one in people for name in one.secrets]) == []
    assert re.search(r"user-\d+ left it on node-4: board serial-\d+, address-\d+", everything)


def test_a_sweep_whose_waves_are_gone_is_refused(tmp_path: Path) -> None:
    """Old sweeps lose the folders of their waves: then names in sentences cannot be known."""
    people = whose(NAMES)
    swept(tmp_path, (people[:2], people[2:]))
    (tmp_path / "wave-002" / "measured.json").unlink()
    with pytest.raises(UsageError, match=r"--public .* of gpu\[043-044\] .*wave-001 --public"):
        outputs(tmp_path)


def test_the_page_of_a_sweep_draws_all_of_its_waves(tmp_path: Path) -> None:
    """One heat map of the whole fleet, and the way to each wave; a public page leads nowhere."""
    swept(tmp_path, (whose(NAMES[:2]), whose(NAMES[2:])))
    sweep = small()
    for number, letter in ((1, b"h"), (2, b"k")):
        kept = msgspec.json.encode(replace(Measured.decode(measured(whose(NAMES))), sweep=sweep))
        wave = tmp_path / f"wave-{number:03}" / "measured.json"
        wave.write_bytes(re.sub(rb'"h(\d)', rb'"%b\1' % letter, kept))
    for public in (False, True):
        file = tmp_path / "again.html"
        said = argparse.Namespace(
            folder=tmp_path, public=public, html=file, junit=None, prometheus=None, json=False,
            text=False,
        )  # fmt: skip
        assert run(said) == 0
        assert ('href="wave-002/report.html#fabric"' in file.read_text()) is not public
        assert "16 nodes · 56 pairs · 1 rail" in file.read_text()
        assert "Every pair against its peers" in file.read_text()


def test_a_killed_run_is_refused(tmp_path: Path) -> None:
    """It leaves verdicts and no measured.json; one that judged nobody tells nothing either."""
    one = told(whose(NAMES))
    events = Events(tmp_path / "events.jsonl")
    events.begin(
        Began(
            preflight="0", run="r", started=one.started, tier="quick", nodes=one.fleet.nodes,
            origin="fleet.toml", expected={"gpu.count": ("*",)},
        )
    )  # fmt: skip
    assert reread(tmp_path).fleet.unjudged == one.fleet.nodes
    assert leaked(outputs(tmp_path), NAMES) == []
    events.verdict("gpu.count", ("gpu041",), fail("alice did it", advice="ask alice"))
    with pytest.raises(UsageError, match=r"of gpu041 .*measured\.json"):
        outputs(tmp_path)


def test_nodes_of_earlier_nights_are_not_named(tmp_path: Path) -> None:
    """A night before had a node that is not in the fleet any more: its page would list it."""
    people = whose(NAMES)
    for at, fleet in enumerate((whose([*NAMES, "oldnode"]), people)):
        folder = tmp_path / f"2026112{at}-020000"
        swept(folder, (fleet,))
        one = reread(folder)
        events = Events(folder / "events.jsonl")
        events.begin(
            Began(
                preflight="0", run="r", started=one.started, tier="quick", nodes=one.fleet.nodes,
                origin="", expected={},
            )
        )  # fmt: skip
        events.end((), summary_of(one, report_findings(one)))
    everything = outputs(tmp_path / "20261121-020000")
    assert "Compared with the run of" in everything
    assert leaked(everything, ["oldnode", *NAMES]) == []


def test_what_people_wrote_is_left_out(tmp_path: Path) -> None:
    """A drain reason is a person's words: it may name anybody, so only the state is told."""
    one = report(NAMES, {("gpu.count", "gpu041"): not_run("left out")})
    fleet = replace(one.fleet, left_out={"gpu041": "drained: zoe looks at it"})
    (tmp_path / "report.json").write_bytes(encode(replace(one, fleet=fleet)))
    (tmp_path / "measured.json").write_bytes(measured(whose(NAMES)))
    everything = outputs(tmp_path)
    assert "not checked: drained: reason-1" in everything
    assert leaked(everything, ["zoe", *NAMES]) == []


LABEL = st.from_regex(r"[a-z]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True)
DOMAIN = st.lists(st.from_regex(r"[a-z][a-z0-9]{1,6}", fullmatch=True), min_size=1, max_size=3)
ADDRESS = st.ip_addresses().filter(lambda one: not (one.is_loopback or one.is_unspecified))
NAME = st.one_of(
    LABEL,
    st.builds(lambda name, domain: ".".join([name, *domain]), LABEL, DOMAIN),
    ADDRESS.map(str),
    st.sampled_from(["node", "read", "re", "out", "gpu", "all", "host-1", "fail-2", "e"]),
)
USER = st.from_regex(r"[a-z][a-z0-9_]{2,9}", fullmatch=True)
SERIAL = st.from_regex(r"[A-Z]{2}[A-Z0-9]{4,10}", fullmatch=True)
HOST = NAME.filter(lambda name: len(name) > 1)  # a letter alone names nobody
PERSON = st.builds(Who, name=NAME, user=USER, serial=SERIAL, address=ADDRESS.map(str), host=HOST)


def _words_of_ours() -> str:
    """What stands in a report whatever nodes are called."""
    people = [Who("zz-0-qq", "§2", "§3", "§4", "§5"), Who("zz-1-qq", "§7", "§8", "§9", "§0")]
    with tempfile.TemporaryDirectory() as folder:
        swept(Path(folder), [[one] for one in people])
        return outputs(Path(folder))


OURS = _words_of_ours()


@draws(
    5, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # fmt: skip
@given(st.lists(PERSON, min_size=2, max_size=4, unique_by=lambda one: one.name.lower()))
def test_whatever_they_are_called(people: list[Who]) -> None:
    """Names, domain names, IPv4, IPv6, words of ours: in none of the outputs."""
    secrets = {
        secret.lower() for one in people for secret in one.secrets if not leaked(OURS, [secret])
    }
    # Ours: numbers that are given in their place.
    ours = re.compile(r"(some-)?(node|host|domain|user|serial|uuid|address|leaf)(-[0-9]+)?")
    secrets = {one for one in secrets if not ours.fullmatch(one)}
    assume(secrets)
    with tempfile.TemporaryDirectory() as folder:
        swept(Path(folder), [[one] for one in people])
        everything = outputs(Path(folder))
    given = re.compile(r"\b(some-)?(node|host|domain|user|serial|uuid|address|leaf)-[0-9]+\b")
    assert leaked(given.sub("#", everything), sorted(secrets)) == []


@pytest.mark.parametrize(
    "text",
    [
        "::ffff:10.77.0.41", "1:2:3:4:5:6:7::", "fe80::1%eth0", "[2001:db8::7]:22", "10.77.0.41:22",
        "at:fe80::7: gone", "gpu[041-042].corp.example", "GPU041.Corp.Example", "10.77.0.41/24",
        "(gpu041)", "gpu041_ib0",
    ],
)  # fmt: skip
def test_forms_of_addresses_and_names(text: str) -> None:
    """Mapped, abbreviated, with a zone, a port, a domain, folded: nothing of it stays."""
    hidden = Hider(secrets(told(whose(NAMES)))).words(f"seen: {text}, twice")
    for part in ("10.77", ".0.41", "5:6", "fe80", "::7", "db8", "041", "corp", "example"):
        assert part not in hidden.lower(), hidden


def test_a_fleet_of_full_names_has_short_ones(tmp_path: Path) -> None:
    """A sentence may say gpu041 of what the inventory calls gpu041.corp.example."""
    people = [
        replace_host(one, name=f"{one.name}.corp.example", host=one.name) for one in whose(NAMES)
    ]
    swept(tmp_path, (people,))
    everything = outputs(tmp_path)
    assert leaked(everything, [*NAMES, "corp.example"]) == []
    assert re.search(r"user-\d+ left it on node-4:", everything)


def replace_host(one: Who, *, name: str, host: str) -> Who:
    """The same person on a node of another name."""
    return Who(name, one.user, one.serial, one.address, host)
