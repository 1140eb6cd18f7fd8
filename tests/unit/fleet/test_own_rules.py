"""Waivers, switches and numbers of an inventory: none can be misspelled, endless or hidden."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.fleet.inventory import read_inventory
from preflight.fleet.inventory_tables import refuse_unknown_checks
from preflight.fleet.model import Fleet, today
from preflight.report.header import override_lines

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fleet.inventory import Inventory

SOON = today() + timedelta(days=9)
WAIVE = f'[[waive]]\ncheck = "gpu.count"\nnodes = "h2"\nuntil = {SOON}\nreason = "away"\n'
FLEET = '[group.a]\nnodes = "h[1-2]"\n[group.b]\nnodes = "h3"\n'


def _read(folder: Path, text: str, name: str = "fleet.toml") -> Inventory:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_inventory(path)


def test_a_waiver_names_its_check_nodes_and_end(tmp_path: Path) -> None:
    """It holds through its last day, and names groups as any node list does."""
    inventory = _read(tmp_path, FLEET + WAIVE.replace('"h2"', '"h3,@inventory:a"'))
    (one,) = inventory.waivers
    assert (one.check, set(one.nodes), one.reason) == ("gpu.count", {"h1", "h2", "h3"}, "away")
    assert not one.expired(SOON)
    assert one.expired(SOON + timedelta(days=1))
    waive = f"waive: [{{check: c.d, nodes: h2, until: {SOON}, reason: old}}]"
    yaml = f"group: {{a: {{nodes: h2}}}}\n{waive}"
    assert _read(tmp_path, yaml, "fleet.yaml").waivers[0].until == SOON


@pytest.mark.slow
def test_many_waivers_of_every_node_are_refused(tmp_path: Path) -> None:
    """They would take gigabytes, from a file of some kilobytes."""
    every = "".join(WAIVE.replace('"h2"', f'"h[1-{60_000 - at}]"') for at in range(20))
    with pytest.raises(UsageError, match="name over 1,048,576 nodes together"):
        _read(tmp_path, f'[group.a]\nnodes = "h[1-60000]"\n{every}')


def test_an_old_waiver_is_read_though_it_has_no_effect(tmp_path: Path) -> None:
    """An inventory does not stop working overnight: the run reports expired waivers."""
    inventory = _read(tmp_path, FLEET + WAIVE.replace(str(SOON), "2020-01-31"))
    assert inventory.waivers[0].expired(date(2020, 2, 1))


def test_switches_are_joined_the_nearest_last(tmp_path: Path) -> None:
    """Off for all, on again for a group, off for one node of it; each says where."""
    text = (
        FLEET + '[checks."gpu.ecc"]\nenabled = false\n[group.a.checks."gpu.ecc"]\nenabled = true\n'
        '[node.h2.checks."net.ports"]\nenabled = false\n'
    )
    inventory = _read(tmp_path, text)
    assert inventory.host("h1").off == {}
    assert inventory.host("h2").off == {"net.ports": f"{tmp_path}/fleet.toml [node.h2]"}
    assert inventory.host("h3").off == {"gpu.ecc": f"{tmp_path}/fleet.toml [checks]"}
    assert dict(inventory.switched_checks()).keys() == {"gpu.ecc", "net.ports"}
    with pytest.raises(UsageError, match=r"no check 'net.ports'.*did you mean 'net.port'"):
        refuse_unknown_checks(inventory.switched_checks(), ["gpu.ecc", "net.port"])


def test_numbers_are_joined_name_by_name_and_say_where_they_are_from(tmp_path: Path) -> None:
    """A group's own threshold leaves the others as they are; a learned baseline tells its story."""
    text = (
        "[defaults.limits]\nzombie_age_s = 500\nstuck_s = 0.5\n[defaults.limits.nccl]\n"
        "peers_ratio = 0.5\n" + FLEET + "[group.a.limits]\nzombie_age_s = 600\ngemm_bf16 = 700\n"
        "[group.a.baselines]\np2p = 300\n[group.a.baselines.rail]\nvalue = 46.2\n"
        'learned = 2026-11-22\nof = "28 pairs"\n'
    )
    inventory = _read(tmp_path, text)
    limits = inventory.host("h1").expected.limits
    assert {name: limit.value for name, limit in limits.items()} == {
        "zombie_age_s": 600, "stuck_s": 0.5, "nccl.peers_ratio": 0.5, "gemm_bf16": 700,
    }  # fmt: skip
    assert limits["zombie_age_s"].where == f"{tmp_path}/fleet.toml [group.a]"
    assert inventory.host("h3").expected.limits["zombie_age_s"].value == 500
    rail = inventory.host("h2").expected.baselines["rail"]
    assert rail.where == f"{tmp_path}/fleet.toml [group.a], learned 2026-11-22, 28 pairs"


def test_numbers_of_a_burn_in_may_be_a_group_s_own(tmp_path: Path) -> None:
    """Each node is judged by its own there; only a sweep is decoded for all at once."""
    inventory = _read(tmp_path, FLEET + "[group.b.limits.cuda]\ngemm_tflops = 0.2\n")
    assert inventory.host("h3").expected.limits["cuda.gemm_tflops"].value == 0.2
    assert inventory.host("h1").expected.limits == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WAIVE.replace("until", "untl"), r"unknown key 'untl' in \[\[waive\]\].*'until'"),
        (WAIVE.replace(f"until = {SOON}\n", ""), "until"),
        (WAIVE.replace('reason = "away"\n', ""), "reason"),
        (WAIVE.replace('"away"', '" a "'), "the reason ' a ' says nothing: write why"),
        (WAIVE.replace('"away"', '"a"').replace(f"until = {SOON}\n", ""), "until"),
        (WAIVE.replace(str(SOON), '"soon"'), "until|date"),
        (WAIVE.replace(str(SOON), "9999-12-31"), "over a year away: write a nearer day"),
        (WAIVE.replace('"h2"', '"h[2-4]"'), "h4 is not in this inventory"),
        (WAIVE.replace("gpu.count", "burn.integrity"), "corrupted data are never waived"),
        (WAIVE.replace("gpu.count", "reach.route"), "leave it out with --preflight-exclude"),
        ('[checks."reach.login"]\nenabled = false', "leave it out with --preflight-exclude"),
        ('[checks."gpu.ecc"]\nenable = false', "unknown key 'enable'.*did you mean 'enabled'"),
        ('[checks."gpu.ecc"]\nenabled = 0', "true or false"),
        ("[defaults.limits]\nzombie_age = 1", "unknown limit 'zombie_age'.*'zombie_age_s'"),
        ("[defaults.limits]\nzombie_age_s = -1", "give a number, 0 or more"),
        ("[defaults.limits]\nzombie_age_s = nan", "give a number, 0 or more"),
        ("[defaults.limits.ncll]\npeers_ratio = 1", "unknown limit 'ncll.peers_ratio'.*'nccl"),
        ("[node.h1.limits.nccl]\npeers_ratio = 1", r"put it into \[defaults.limits\]"),
        ("[defaults.baselines]\ngemm = 700", "unknown baseline 'gemm'.*'gemm_bf16'"),
        ("[defaults.baselines]\ngemm_bf16 = 702000", "702000 TFLOP/s.*more than 2250; correct the"),
        ("[defaults.limits]\nhbm_copy = 1e300", "correct the unit or the decimal point"),
        ("[defaults.baselines.p2p]\nvalue = 1\nlearned = 2096-11-22", "a day in the future"),
        ("[defaults.baselines.p2p]\nvalue = 1\nlearnt = 1", "unknown key 'learnt'.*'learned'"),
    ],
)
def test_what_could_hide_something_or_do_nothing_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    """One line with the file, the place and the nearest word."""
    with pytest.raises(UsageError, match=message) as caught:
        _read(tmp_path, FLEET + text)
    assert str(caught.value).startswith(str(tmp_path))


def test_baselines_are_printed_like_every_number_of_the_site(tmp_path: Path) -> None:
    """A baseline so low that everything passes is at least in sight."""
    inventory = _read(tmp_path, FLEET + "[group.a.baselines]\nhbm_copy = 0.001\n")
    fleet = Fleet(hosts=tuple(map(inventory.host, ("h1", "h2", "h3"))), origin="fleet.toml")
    (line,) = override_lines(fleet, today())
    assert line.startswith("number   baseline hbm_copy")
    assert "0.001" in line
    assert "h[1-2]" in line
