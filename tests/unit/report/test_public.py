"""A report for strangers names nobody, and calls everybody the same name wherever he stands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.captured.archive import Part
from preflight.commands.capture import ArchiveParts, hide_names
from preflight.report import hide
from preflight.report.document import encode
from preflight.report.exports import junit, metrics
from preflight.report.hide import Hider, longest_of
from preflight.report.page import page
from preflight.report.secret_names import secrets, secrets_of
from preflight.report.since import report_findings
from preflight.report.terminal import summary
from preflight.verdict import fail
from tests.cases import draws
from tests.unit.facts.builders import facts
from tests.unit.report.nights import BENT, report

if TYPE_CHECKING:
    from preflight.report.document import Report

NODES = [f"gpu{n:03}" for n in range(38, 48)]
UUID = "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427"
SECRETS = (
    *NODES, UUID, "10.77.0.41", "fe80::a00:27ff:fe4e:66a1", "b8:59:9f:0c:11:22", "alice", "bob",
    "corp.example", "1650523012345", "nfs-east", "sw-a12", "0x506b4b0300a1b2c3", "carol",
    "lab.example", "dave", "erin", "root-admin", "hf_Zx9kQ27vLm3Tp8Rw", "Zx9kQ27v",
)  # fmt: skip


def night() -> Report:
    """A report whose sentences, evidence and leaves tell all of it."""
    said = fail(
        f"alice@gpu041.corp.example: {UUID} of gpu[040-042], serial 1650523012345, pid 7 of user "
        "bob, in /home/bob/train; gpu041-gpu042 via 10.77.0.41 and fe80::a00:27ff:fe4e:66a1",
        advice="ask alice; nfs-east:/export/alice; b8:59:9f:0c:11:22; 0x506b4b0300a1b2c3; "
        "mail carol@lab.example about GPU041, in /scratch/erin/x; pid 8 of user ACME\\dave, "
        "pid 9 of user root-admin, with --x=hf_Zx9kQ27vLm3Tp8Rw",
        user="alice",
        serial="1650523012345",
        seen={"gpu041": {"uuid": UUID, "path": "/data/alice/x", "near": ["gpu042", "bob"]}},
    )
    return report(
        NODES,
        {("gpu.count", "gpu041"): said, ("gpu.ecc", "gpu042"): BENT},
        leaves=dict.fromkeys(NODES, "sw-a12"),
    )


def written(one: Report) -> dict[str, str]:
    """Every output that `preflight report` can write."""
    found = report_findings(one)
    return {
        "json": encode(one).decode(),
        "html": page(one, found, drains=["gpu.count"]),
        "junit": junit(one).decode(),
        "prometheus": metrics(one, found).decode(),
        "text": "\n".join(summary(one, found, where="", hint="", width=80)),
    }


def told(text: str, secret: str) -> bool:
    """Whether a text tells it, in whatever letters, and not as part of a longer number."""
    return re.search(rf"{re.escape(secret)}(?![0-9])", text, re.IGNORECASE) is not None


def test_no_output_tells_a_secret() -> None:
    """Names, users, serials, UUIDs, addresses, domains: in none of the five."""
    one = night()
    hidden = Hider(secrets(one)).hide(one)
    for output, text in written(hidden).items():
        assert [secret for secret in SECRETS if told(text, secret)] == [], output


def test_a_node_has_one_name_everywhere() -> None:
    """In lists, sentences, folded patterns and keys of evidence, in small and in large letters."""
    one = night()
    hidden = Hider(secrets(one)).hide(one)
    (row,) = (r for r in hidden.verdicts if r.check == "gpu.count" and r.outcome == "fail")
    assert row.subject == "node-4"
    assert hidden.fleet.not_ready == ("node-4", "node-5")
    assert hidden.fleet.exclude == "node-[4-5]"
    assert "of node-[3-5]," in row.sentence
    assert "node-4-node-5 via address-" in row.sentence
    assert "about node-4" in row.advice
    assert set(row.evidence["seen"]) == {"node-4"}
    assert row.evidence["seen"]["node-4"]["near"][0] == "node-5"
    user = row.evidence["user"]
    assert user == row.evidence["seen"]["node-4"]["path"].split("/")[2]
    assert f"ask {user};" in row.advice


def test_what_is_no_secret_stays_readable() -> None:
    """Counts, versions, bus ids, times, paths and check ids are what the report is about."""
    kept = "7 of 8 GPUs; driver 535.104.05; 00000000:8B:00.0; 12:34:56; /dev/shm; rail[0-7]; root"
    hidden = Hider(secrets(night())).words(kept)
    assert hidden == kept
    one = replace(night(), tier="deep")
    assert Hider(secrets(one)).hide(one).tier == "deep"


def test_real_names_that_look_like_ours_are_not_mixed_up() -> None:
    """Nodes that are called node-1 and node-2 get other names, not each other's."""
    one = report(["node-2", "node-1"], {("gpu.count", "node-1"): BENT})
    hidden = Hider(secrets(one)).hide(one)
    assert hidden.fleet.not_ready == ("some-node-2",)


def test_what_nodes_said_of_themselves_is_known_in_sentences() -> None:
    """A user and a host name that stand in facts only are hidden in a bare sentence too."""
    own = facts("gpu041", user="dorothea")
    one = report(NODES, {("gpu.count", "gpu041"): fail("left by dorothea", advice="ask")})
    hidden = Hider(secrets(one, {"gpu041": own})).hide(one)
    assert "dorothea" not in encode(hidden).decode()


NAME = st.from_regex(r"[a-z][a-z0-9]{1,8}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)
ADDRESS = st.ip_addresses().filter(lambda one: not (one.is_loopback or one.is_unspecified))


@draws(60)
@given(
    st.lists(NAME, min_size=1, max_size=6, unique=True),
    st.from_regex(r"[a-z][a-z0-9_]{3,9}", fullmatch=True),
    ADDRESS.map(str),
    st.uuids().map(str),
    st.from_regex(r"[A-Z0-9]{6,12}", fullmatch=True).filter(lambda s: not s.isdecimal()),
)
@pytest.mark.slow
def test_whatever_they_are_called(
    names: list[str], user: str, address: str, uuid: str, serial: str
) -> None:
    """Secrets of any form, alone and beside punctuation, are in no string of the document."""
    sentence = f"{names[0]}: ({address}), {user}@{names[-1]} has {uuid}; {serial}. '{names[0]}'"
    bad = fail(
        sentence, advice=sentence, user=user, serial=serial, at=[sentence], key={names[0]: 1}
    )
    one = report(names, {("gpu.count", names[0]): bad})
    hidden = Hider(secrets(one)).hide(one)
    row = next(r for r in hidden.verdicts if r.outcome == "fail")
    text = " ".join(
        (row.subject, row.sentence, row.advice, str(row.evidence), hidden.fleet.exclude)
    )
    ours = re.compile(r"\b(?:some-)?(?:node|host|user|serial|uuid|address|leaf)-\d+\b")
    left = ours.sub("#", text).lower()
    for secret in (*names, user, address, uuid, serial):
        bounded = rf"(?<![a-z0-9]){re.escape(secret.lower())}(?![a-z0-9])"
        words = {"has", "user", "serial", "at", "key", "root", "nobody", "unknown", "localhost"}
        assert secret in words or re.search(bounded, left) is None, (secret, left)


@given(st.lists(st.text(alphabet="ab.[1", min_size=1, max_size=5), max_size=8), st.data())
def test_one_pattern_finds_the_longest_of_many_words(words: list[str], data: st.DataObject) -> None:
    """It matches each of them whole, and nothing where there are none."""
    pattern = re.compile(longest_of(words))
    if not words:
        assert pattern.search("anything") is None
        return
    word = data.draw(st.sampled_from(words))
    found = pattern.match(word)
    assert found is not None
    assert found[0] == max((w for w in words if word.startswith(w)), key=len)


@pytest.mark.parametrize("text", ["[", "gpu[1-", "gpu[1-99999999]", "x[9-1]y", "a" * 5000, "@@::/"])
def test_broken_patterns_are_no_trouble(text: str) -> None:
    """What is no node set is read as words."""
    assert isinstance(Hider(secrets(night())).words(text), str)


@draws(60)
@given(
    host=st.from_regex(r"[a-z]{2,6}-?[a-z]{1,4}[0-9]{1,4}", fullmatch=True),
    user=st.from_regex(r"[a-z]{5,9}q", fullmatch=True),
    mac=st.binary(min_size=6, max_size=6),
    guid=st.binary(min_size=8, max_size=8),
    ip=st.ip_addresses(v=4).filter(lambda one: not one.is_loopback and not one.is_unspecified),
)
@pytest.mark.slow
def test_texts_of_tools_name_nobody(
    host: str, user: str, mac: bytes, guid: bytes, ip: object
) -> None:
    """What NCCL logs and what tools print: known names anywhere, addresses by their form."""
    seen = {"uuid": f"0x{guid.hex()}", "mac": mac.hex(":"), "ip": str(ip)}
    text = (
        f"{host}:4711:4800 [3] NCCL INFO Bootstrap: Using eth0:{ip}<0>\n"
        f"{host}.corp.example:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:{ip}<0>\n"
        f"NCCL_TOPO_FILE=/home/{user}/topo.xml set by environment, /data/{user}/x\n"
        f"\tNode GUID: 0x{guid.hex()}\n[  1.0] {host} kernel: mlx5_core 0000:18:00.0: "
        f"{mac.hex(':')}\n    Serial Number   : 1650523012345\n"
        f"    GPU UUID        : {UUID}\n"
    )
    hidden = Hider(secrets_of([host], {"host": f"{host}.corp.example", "user": user}, text))
    shown = hidden.words(text)
    for secret in (host, user, *seen.values(), "1650523012345", UUID, "corp.example"):
        assert not told(shown, secret), (secret, shown)
    for kept in ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", "0000:18:00.0", "GPU UUID"):
        assert kept in shown


def test_names_that_begin_with_each_other() -> None:
    """Hundreds of them end in no error, none is told, and what is shorter keeps its own number."""
    names = ["a" * length for length in range(2, 512)]
    hider = Hider(secrets_of(["n1"], {"notable": [{"user": name} for name in names]}))
    hidden = hider.words(f"aaaaab n1: {' '.join(names)} {names[-1]}.example")
    assert hidden.startswith("aaaaab node-1: user-1 user-2 user-3 ")
    assert "aaa" not in hidden[6:]
    listed = ", ".join(names[:40])
    assert Hider({listed: "user"}).words(f"of {listed}: two\nthree") == "of other-1\nthree"
    assert Hider({listed: "user"}).words(listed) == "user-1"
    with_number = Hider({f"{name}1{name}": "user" for name in names})
    assert "a" not in with_number.words(f"{names[30]}1{names[30]}, {names[99]}1{names[99]}")


def test_node_sets_with_digits_before_their_brackets() -> None:
    """They are the names that Slurm prints, and a huge number takes no time."""
    hider = Hider({"a51": "node", "a510": "node", "bob": "user"})
    assert hider.words("a5[1,10] a65536[1-200] bob") == "node-[1-2] a65536[1-200] user-1"
    assert hider.words("a99999999999999999[1-200], bob") == "a99999999999999999[1-200], user-1"
    assert hider.words("-a5[1,10],x.a5[1]") == "-node-[1-2],x.a5[1]"


def test_node_sets_of_more_names_than_any_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes each, and 60,000 names: past a bound each set is hidden as one name."""
    monkeypatch.setattr(hide, "_MOST_UNFOLDED", 100)
    hider = Hider({"a1": "node", "a2": "node"})
    sets = [f"b{at}[1-90]" for at in range(4)]
    assert hider.words(f"a[1-2] {' '.join(sets)} a[1-2] a[1-3]") == (
        "node-[1-2] b0[1-90] b1[1-90] host-1 host-2 node-[1-2] host-3"
    )


@pytest.mark.parametrize("told", [b"", b'{"no": "facts"}'])
def test_a_public_archive_has_no_text_of_a_node_without_facts(told: bytes) -> None:
    """Its log names it as nobody else does; of another node, whose facts came, all is there."""
    log = b"[    1.234567] secretbox kernel: mlx5_core 0000:1a:00.0: firmware version: 28.39.1002\n"
    taken = ArchiveParts()
    for node, document in (("10.0.0.5", told), ("h2", msgspec.json.encode(facts()))):
        for name, content in (("facts.json", document), ("journalctl.txt", log)):
            part = Part(name=f"nodes/{node}/{name}", node=node, error="" if content else "late")
            taken.add(part, content)
    hidden, (first, second) = hide_names(taken, ["10.0.0.5", "h2"])
    assert set(hidden.files) == {f"nodes/{second}/facts.json", f"nodes/{second}/journalctl.txt"}
    errors = {part.name: part.error for part in hidden.parts}
    assert "capture again without --public" in errors[f"nodes/{first}/journalctl.txt"]
