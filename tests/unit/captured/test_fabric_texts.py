"""ibnetdiscover and ibswinfo, as pasted: links of a fabric, fans and supplies of a switch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured import topology
from preflight.checks.rdma.ports import ports_of
from preflight.checks.rdma.test_devices import judge_switch
from preflight.commands.read import captured, judge_captured
from preflight.verdict import Outcome
from tests.unit.captured.sound import sound

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "ib"
CASES = [p for p in sorted(CORPUS.glob("*.json")) if "ibnet" in p.name or "ibswinfo" in p.name]
PEERLESS = "SW     2 40 0x000000000002a002 4x ???                                  'leaf2'"


def judged(text: str) -> dict[str, tuple[Outcome, str]]:
    """What the checks say of a text, by check."""
    entries = judge_captured({"fabric": captured(text)})
    return {one.check: (one.verdict.outcome, one.verdict.sentence) for one in entries}


def row(one: tuple[str, int, int, str], other: tuple[str, int, int, str], rate: str) -> str:
    """A link as one end tells it: (kind, LID, port, name)."""
    ends = [
        f"{kind} {lid:>5} {port:>2} 0x{lid:012x}a00{lid}" for kind, lid, port, _ in (one, other)
    ]
    return f"{ends[0]} {rate} - {ends[1]} ( '{one[3]}' - '{other[3]}' )"


def rows(*rates: str) -> str:
    """Nodes n1, n2, ... on leaf2, each link told from both ends."""
    found = []
    for at, rate in enumerate(rates, 1):
        ends = ("CA", 2 + at, 1, f"n{at} HCA-1"), ("SW", 2, at, "leaf2")
        found += [row(ends[0], ends[1], rate), row(ends[1], ends[0], rate)]
    return "\n".join(found)


def blocks(*rates: str) -> str:
    """The same, as ibnetdiscover prints it without -p."""
    links = [
        f'[{at}]\t"H-000000000000b0{at:02}"[1](b0{at:02}) \t\t# "n{at} HCA-1" lid {at} {rate}'
        for at, rate in enumerate(rates, 1)
    ]
    head = (
        'vendid=0x2c9\nswitchguid=0xa002(a002)\nSwitch\t36 "S-000000000000a002"\t\t# "leaf2" port 0'
    )
    found = ["\n".join([head, *links])]
    for at, rate in enumerate(rates, 1):
        found.append(
            f'caguid=0xb0{at:02}\nCa\t1 "H-000000000000b0{at:02}"\t\t# "n{at} HCA-1"\n'
            f'[1](b0{at:02}) \t"S-000000000000a002"[{at}]\t\t# lid {at} lmc 0 "leaf2" lid 2 {rate}'
        )
    return "\n\n".join(found)


@pytest.mark.proves("ib.rate", passes="a pasted ibnetdiscover in which all links are the same")
@pytest.mark.proves("ib.rate", finds="a link with fewer lanes in a pasted fabric")
@pytest.mark.parametrize("shown", [rows, blocks])
def test_rates_of_a_fabric(shown: Any) -> None:
    """Fewer lanes than most links are a fault; a slower speed may be an older machine's."""
    assert judged(shown(*["4x NDR" if shown is rows else "4xNDR"] * 4)) == {
        "ib.port": (Outcome.OK, "8 ports ACTIVE"),
        "ib.rate": (Outcome.OK, "8 ports at 400 Gb/s"),
    }
    word = "4x {}".format if shown is rows else "4x{}".format
    narrow = judged(shown(*[word("NDR")] * 3, word("NDR").replace("4x", "1x")))["ib.rate"]
    assert narrow[0] is Outcome.FAIL
    assert "runs at 100 Gb/sec (1X NDR), 400 on its peers" in narrow[1]
    older = judged(shown(*[word("NDR")] * 3, word("EDR")))["ib.rate"]
    assert older[0] is Outcome.WARN


@pytest.mark.proves("ib.port", finds="a port without a peer in a pasted fabric, as a warning")
def test_a_port_without_another_end() -> None:
    """Lost or never plugged in: the text cannot tell, and it is not passed over."""
    outcome, sentence = judged(f"{rows(*['4x NDR'] * 4)}\n{PEERLESS}\n")["ib.port"]
    assert outcome is Outcome.WARN
    assert sentence == "leaf2/40 is DOWN: no other end; its link is lost, or it has no cable"


def test_two_halves_on_one_line_are_no_whole_fabric() -> None:
    """Cut from one row into another, the line begins like the one and ends like the other."""
    text = f"{rows(*['4x NDR'] * 3)}\n{PEERLESS}\n"
    for at, end in (("SW     2 40", " 4x ???"), ("     2 40", "'leaf2'"), ("2 40", "x ???")):
        left = text[: text.rindex(at)] + text[text.rindex(end) :]
        assert judged(left)["ib.port"][0] is not Outcome.OK, left[-80:]


@pytest.mark.proves("ib.port", unknown="a pasted ibnetdiscover that was cut off")
@pytest.mark.parametrize("whole", [rows(*["4x NDR"] * 3), blocks(*["4xNDR"] * 3)])
def test_a_cut_fabric_never_passes(whole: str) -> None:
    """Each link is told twice, so wherever it is cut one half is missing."""
    for at in range(1, len(whole)):
        found = topology.read_ibnetdiscover(whole[:-at])
        if found is None:
            continue
        left = whole[:-at].rstrip()
        smaller = left in [rows(*["4x NDR"] * nodes) for nodes in (1, 2, 3)]
        assert found.damaged or left == whole or smaller, left[-60:]
    half = judged(rows(*["4x NDR"] * 3)[:-30])
    assert {outcome for outcome, _ in half.values()} == {Outcome.UNKNOWN}


def switch(*fans: str, chassis: str = "OK", supply: str = "OK", end: str = "-" * 49) -> str:
    """What ibswinfo prints of a switch with two supplies."""
    below = ["     DC power      | OK", "     fan status    | OK"]
    lines = [
        "=" * 49, "Quantum", "=" * 49, "part number        | MQM9790", "PSID               | MT_1",
        "GUID               | 0xa002", "firmware version   | 31.2012", "-" * 49,
        "uptime (d-h:m:s)   | 3d-10:38:53", "-" * 49, "PSU0 status        | OK", *below,
        f"PSU1 status        | {supply}", *below, "-" * 49, "temperature (C)    | 45", "-" * 49,
        f"fan status         | {chassis}",
        *(f"fan#{at} (rpm)        | {rpm}" for at, rpm in enumerate(fans, 1)), end,
    ]  # fmt: skip
    return "\n".join(lines)


@pytest.mark.proves("ib.switch", passes="an ibswinfo of a switch whose parts are OK")
@pytest.mark.proves("ib.switch", finds="a fan that does not turn, a supply that failed")
@pytest.mark.proves("ib.switch", unknown="an ibswinfo that was cut off, or has an unknown word")
@pytest.mark.parametrize(
    ("text", "outcome", "words"),
    [
        (switch("8493", "7349"), "ok", "switch 0xa002: 2 fans turning, 2 power supplies OK"),
        (switch("8493", "0"), "fail", "fan#2 stands still (0 rpm)"),
        (
            switch("8493", "7349").replace("fan#1", "fan#3"),
            "unknown",
            "it lists 2 of the fans 1 to 3",
        ),
        (switch("8493", chassis="ERROR"), "fail", "fan status says ERROR, OK is expected"),
        (switch("8493", supply="FAILED"), "fail", "PSU1 status says FAILED"),
        (switch("8493", supply="not present"), "warn", "PSU1 status says not present"),
        (switch("8493", supply="??"), "unknown", "PSU1 status says ??"),
        (switch("8493", end=""), "unknown", "it lacks the tool's last line"),
        (switch("8493")[:-120], "unknown", ""),
        (switch("8493", chassis="ERROR").replace("\nfan st", "\nf"), "unknown", "ERROR of 'fatus'"),
        (
            switch("8493", chassis="ERROR").replace("fan status         | ERROR\n", ""),
            "unknown",
            "it has no fan status",
        ),
        (
            switch("8493").replace("     DC power      | OK\n", "", 1),
            "unknown",
            "PSU0 has no DC power",
        ),
    ],
)
def test_a_pasted_switch(text: str, outcome: str, words: str) -> None:
    """By the tool's own words; a part that is left out may be so by intention."""
    seen, sentence = judged(text)["ib.switch"]
    assert (seen, words in sentence) == (outcome, True), sentence


def test_a_node_tells_of_no_switch() -> None:
    """Not run, and nothing of it is healthy."""
    assert judge_switch(None).outcome is Outcome.NOT_RUN
    assert judge_switch(()).outcome is Outcome.UNKNOWN


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin-1"))))
def test_no_text_breaks_a_reader(text: str) -> None:
    """Whatever it is, it is not of the kind, or its facts hold together and its words are clean."""
    for prefix in (
        "", "SW 1 1 0xa 4x EDR ", 'Switch 36 "S-a002" # "x"\n[1] ', "PSID | x\nGUID | y\nfan#1 | ",
    ):  # fmt: skip
        sound(topology.read_ibnetdiscover(prefix + text))
        sound(topology.read_ibswinfo(prefix + text))


@given(st.integers(1, 700))
def test_a_cut_switch_never_passes(at: int) -> None:
    """Its last line is a rule."""
    whole = switch("8493", "7349")
    found = topology.read_ibswinfo(whole[:-at])
    assert found is None or found.damaged or whole[:-at].rstrip().endswith("-" * 5)


@pytest.mark.corpus
@pytest.mark.parametrize("label", CASES, ids=lambda path: path.stem)
def test_every_label_is_met(label: Path) -> None:
    """A link without another end and a fan in error are told, and nothing else is."""
    told: dict[str, Any] = json.loads(label.read_text(encoding="utf-8"))
    text = (CORPUS.parent / told["file"]).read_text(encoding="utf-8", errors="replace")
    found = captured(text)
    assert found is not None
    assert not found.damaged
    said = judged(text)
    if "ibswinfo" in told["kind"]:
        bad = "ERROR" in told["label"]
        assert said["ib.switch"][0] is (Outcome.FAIL if bad else Outcome.OK)
        return
    assert said["ib.rate"][0] is Outcome.OK
    down = [port.name for port in ports_of(found.facts) if not port.active]
    assert said["ib.port"][0] is (Outcome.WARN if down else Outcome.OK)
    assert bool(down) == ("down" in told["label"])
    assert all(port.port.port in (37, 80) for port in ports_of(found.facts) if not port.active)
