"""Samples of past nights: both forms round trip, and what cannot be is refused with its place."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fabric.digest import Digest, Standout
from preflight.fabric.observed import Observed, Tried, observe
from preflight.fabric.samples import (
    End,
    InsideSamples,
    Ladder,
    Moved,
    PairSamples,
    Sweep,
    Timing,
)
from preflight.fabric.stored import encode_observed, encode_sweep, opening, read_stored
from preflight.report.offline import Told, json_schema
from preflight.stages.measured import Measured
from tests.unit.fabric.synthetic import hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "samples.md").read_text()
SWEPT = sweep(hosts(4), lambda a, b: 0.05 if "h3" in (a, b) else 1.0)

Change = "Callable[[dict[str, Any]], Any]"


def long_form(change: Callable[[dict[str, Any]], Any] = lambda _document: None) -> bytes:
    """The sweep of four nodes as a document, changed."""
    document = json.loads(encode_sweep(SWEPT))
    change(document)
    return json.dumps(document).encode()


def short_form(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The same, condensed."""
    document = json.loads(encode_observed(observe(SWEPT)))
    change(document)
    return json.dumps(document).encode()


def refused(folder: Path, content: bytes) -> str:
    """What the reader says of a file; that it is one line that names it, and no more."""
    path = folder / "samples.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_stored(path)
    said = str(caught.value)
    assert said.startswith((f"{path}", f"cannot read {path}"))
    assert len(said.splitlines()) == 1
    assert len(said) < len(str(path)) + 400
    return said.removeprefix(f"{path}").removeprefix(": ")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_both_forms_round_trip(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """What is written is what is read, plain or gzip, and both forms give blame the same."""
    path = tmp_path / "samples"
    path.write_bytes(pack(encode_sweep(SWEPT)))
    long = read_stored(path)
    path.write_bytes(pack(encode_observed(observe(SWEPT))))
    short = read_stored(path)
    assert (long.form, long.sweep) == ("long", SWEPT)
    assert (short.form, short.sweep) == ("short", None)
    assert long.observed == short.observed == observe(SWEPT)


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ([("h1", "h2")], "inside[0] ('h1').rails[0]: it is the account of 'h2', not of h1"),
        ([("h1", "h1"), ("h1", "h1")], "inside[1] ('h1'): it stands twice there"),
        ([("-x", "-x")], "inside: '-x' is no host name"),
    ],
)
def test_what_goes_on_inside_of_nodes_is_read_and_held_to_itself(
    tmp_path: Path, inside: list[tuple[str, str]], said: str
) -> None:
    """A node's own rails round trip; accounts of another node, or twice, are refused."""
    rails = [InsideSamples(node, "gloo", (End(of, "measured"), None)) for node, of in inside]
    whole = replace(SWEPT, inside=(InsideSamples("h1", "gloo", (End("h1", "measured"), None)),))
    (tmp_path / "whole.json").write_bytes(encode_sweep(whole))
    assert read_stored(tmp_path / "whole.json").sweep == whole
    wrong = encode_sweep(replace(SWEPT, inside=tuple(rails)))
    assert refused(tmp_path, wrong).startswith(said)


def test_a_runs_folder_is_read(tmp_path: Path) -> None:
    """The measured.json of a run, also gzipped; a run that swept nothing has nothing to judge."""
    measured = Measured(nonce="ab" * 16, sweep=SWEPT)
    (tmp_path / "measured.json.gz").write_bytes(gzip.compress(measured.encode()))
    stored = read_stored(tmp_path)
    assert (stored.form, stored.run, stored.sweep) == ("run", "ab" * 16, SWEPT)
    (tmp_path / "measured.json").write_bytes(Measured(nonce="cd").encode())
    assert read_stored(tmp_path).observed.tried == ()


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    """Both documents of docs/samples.md are sound, and their fields are where it says."""
    path = tmp_path / "example.json"
    forms = []
    for example in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL):
        path.write_text(example)
        stored = read_stored(path)
        forms.append(stored.form)
        assert stored.observed.nodes == ("h1", "h2")
        assert stored.observed.tried[0].net == "tcp eth0"
        assert stored.observed.digests[0].size_bytes == 8
    assert forms == ["long", "short"]


def test_every_field_is_explained() -> None:
    """docs/samples.md has each field of both forms and of the document of --json."""
    named = set(re.findall(r"`([a-z0-9_]+)(?:\[\])?`", PAGE))
    listed = re.search(r"`\[(.*?)\]`", PAGE)
    assert listed
    assert tuple(listed[1].split(", ")) == Standout.__struct_fields__
    kinds: tuple[type[msgspec.Struct], ...] = (
        Sweep, Ladder, PairSamples, End, Timing, Moved, Observed, Tried, Digest, Told,
    )  # fmt: skip
    missing = {
        (kind.__name__, n) for kind in kinds for n in kind.__struct_fields__ if n not in named
    }
    assert not missing, "explain it in docs/samples.md"


def test_the_schema_file_is_the_one_we_write() -> None:
    """docs/blame.schema.json describes the document as the code has it."""
    assert json.loads((DOCS / "blame.schema.json").read_text()) == json_schema()


LONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "negative time": (
        lambda d: d["pairs"][2]["first"]["timings"][0]["times_us"].__setitem__(3, -1.0),
        "expected a number >= 0.0, at pairs[2].first.timings[0].times_us[3]",
    ),
    "text for a number": (
        lambda d: d["pairs"][0].update(rail="one"),
        "expected a whole number, got text, at pairs[0].rail",
    ),
    "a state of its own": (
        lambda d: d["pairs"][0]["first"].update(state="excellent"),
        "invalid enum value 'excellent', at pairs[0].first.state",
    ),
    "a pair with itself": (
        lambda d: d["pairs"][1].update(b=d["pairs"][1]["a"]),
        "is paired with itself",
    ),
    "a pair that stands twice": (
        lambda d: d["pairs"].append(d["pairs"][0]),
        "pairs[6] ('h1-h4'): h1-h4 stands twice there",
    ),
    "an unknown node": (
        lambda d: d["pairs"][0].update(a="h9"),
        "pairs[0] ('h9-h4'): 'h9' is none of the nodes",
    ),
    "ranks that disagree about rounds": (
        lambda d: d["pairs"][0].update(round=1),
        "pairs[0] ('h1-h4'): h1-h4 is not in rounds[1]; correct the rounds: ranks disagree",
    ),
    "a round that is not there": (
        lambda d: d["pairs"][0].update(round=77),
        "h1-h4 is not in rounds[77]",
    ),
    "a rail beyond all": (lambda d: d["pairs"][0].update(rail=10**9), "rail 1000000000"),
    "a round with a node twice": (
        lambda d: d["rounds"][0].append(["h1", "h9"]),
        "rounds[0]: 'h1' stands twice",
    ),
    "somebody else's account": (
        lambda d: d["pairs"][0]["first"].update(node="h2"),
        "it is the account of 'h2', not of h1",
    ),
    "gaps that are missing": (
        lambda d: d["pairs"][0]["second"]["timings"][1]["gaps_us"].pop(),
        "second.timings[1]: 10 times and 9 gaps",
    ),
    "a timing without times": (
        lambda d: d["pairs"][0]["first"]["timings"][1].update(times_us=[], gaps_us=[]),
        "pairs[0] ('h1-h4').first.timings[1]: it has no times; leave the timing out",
    ),
    "times of nothing": (
        lambda d: d["pairs"][0]["first"]["timings"][1].update(times_us=[0, 0, 1], gaps_us=[1] * 3),
        "first.timings[1]: most of its times are 0 us",
    ),
    "the partner's account": (
        lambda d: d["pairs"][0]["first"].update(node="h4"),
        "it is the account of 'h4', not of h1; swap them",
    ),
    "a stranger's account": (
        lambda d: d["pairs"][0]["first"].update(node="h9"),
        "it is the account of 'h9', not of h1; correct node",
    ),
    "a start before all clocks": (
        lambda d: d["pairs"][0]["first"].update(started_s=-1.5),
        "first: it started at -1.5 s; correct started_s",
    ),
    "a start after all clocks": (
        lambda d: d["pairs"][0]["first"].update(started_s=1e15),
        "first: it started at 1e+15 s",
    ),
    "retests from before the start": (lambda d: d.update(retested=-1), "sweep: retested -1"),
    "retests after the end": (lambda d: d.update(retested=99), "sweep: retested 99"),
    "a leaf of a hostile name": (lambda d: d.update(leaves={"-x": "1"}), "leaves: '-x' is no host"),
    "a size twice": (
        lambda d: d["pairs"][0]["first"]["timings"].append(d["pairs"][0]["first"]["timings"][0]),
        "first.timings: a size stands twice",
    ),
    "mixed backends": (lambda d: d["pairs"][0].update(backend="nccl"), "backends are mixed"),
    "a hostile name": (
        lambda d: d["left_out"].update({"<b>\x1b[31m": "x"}),
        "left_out: '<b>\\x1b[31m' is no host name",
    ),
    "a backend that is none": (
        lambda d: [pair.update(backend="mpi") for pair in d["pairs"]],
        "pairs[0] ('h1-h4'): its backend is 'mpi'; it is gloo or nccl",
    ),
    "a node that is cut off and was not left out": (
        lambda d: d.update(cut_off={"h4": "h1"}),
        "cut_off ('h4'): it does not stand in left_out; add it there",
    ),
    "a node that is cut off from a stranger": (
        lambda d: d.update(cut_off={"h5": "h9"}, left_out={"h5": "cut off"}),
        "cut_off ('h5'): from 'h9', which took no part; name the host",
    ),
    "a node that is cut off from itself": (
        lambda d: d.update(cut_off={"h5": "h5"}, left_out={"h5": "cut off"}),
        "cut_off ('h5'): from 'h5', which took no part",
    ),
    "a node that was left out and measured": (
        lambda d: d.update(left_out={"h4": "no torch"}),
        "pairs[0] ('h1-h4'): h4 has an account of it and stands in left_out",
    ),
    "the inside of a node that was left out": (
        lambda d: d.update(
            left_out={"h5": "x"}, inside=[{"node": "h5", "backend": "gloo", "rails": [None]}]
        ),
        "inside[0] ('h5'): it stands in left_out too",
    ),
    "a size of nothing": (
        lambda d: d["ladder"][0].update(size_bytes=0),
        "ladder[0]: a size of 0 bytes; correct size_bytes",
    ),
    "no iterations": (lambda d: d["ladder"][1].update(iterations=0), "and 0 iterations"),
    "a time that no clock tells": (
        lambda d: d["pairs"][0]["first"]["timings"][0]["times_us"].__setitem__(3, 1e-300),
        "first.timings[0]: a time is under 0.1 ns",
    ),
    "a later version": (
        lambda d: d.update(version=2),
        "its samples are of version 2, this preflight reads 1",
    ),
    "another document": (lambda d: [d.pop(key) for key in list(d)], "neither samples nor a run"),
}


@pytest.mark.parametrize("what", LONG)
def test_an_absurd_long_form_is_refused_with_its_place(tmp_path: Path, what: str) -> None:
    """One sentence says which entry contradicts what, and what to do."""
    change, expected = LONG[what]
    assert expected in refused(tmp_path, long_form(change))


SHORT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no operations": (lambda d: d["digests"][0].update(operations=0), "0 operations"),
    "times that fall": (
        lambda d: d["digests"][3].update(p50_us=1e9),
        "its times do not ascend from best_us over the percentiles to most_us",
    ),
    "a negative time": (lambda d: d["digests"][0].update(best_us=-1), "do not ascend"),
    "a cut below nothing": (lambda d: d["digests"][0].update(cut_us=-1), "is negative"),
    "a digest of nobody": (
        lambda d: d["digests"][0].update(round=5),
        "digests[0] ('h1-h4'): it is of no pair that was tried",
    ),
    "a digest twice": (lambda d: d["digests"].append(d["digests"][0]), "stands twice"),
    "a node twice": (lambda d: d["nodes"].append("h1"), "nodes: a node stands twice"),
    "two partners at once": (
        lambda d: d["tried"][1].update(a="h1"),
        "is with h4 and with",
    ),
    "more standouts than operations": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, 1, 1, 1, 1]] * 11),
        "11 standouts of 10 operations",
    ),
    "a standout after the last operation": (
        lambda d: d["digests"][0].update(standouts=[[0, 10, 1, 1, 1, 1]]),
        "standouts[0]: operation 10 of 10",
    ),
    "more standouts than are kept": (
        lambda d: d["digests"][0].update(
            operations=1000, standouts=[[0, at, 1, 1, 1, 1] for at in range(300)]
        ),
        "300 standouts; keep the longest 256",
    ),
    "an operation that stands out twice": (
        lambda d: d["digests"][0].update(standouts=[[0, 3, 1, 1, 1, 1]] * 2),
        "standouts[1]: operation 3 stands twice",
    ),
    "a standout beyond the longest": (
        lambda d: d["digests"][0].update(standouts=[[0, 3, 1e9, 1e9, 1, 1]]),
        "standouts[0]: 1e+09 us at both ends, and most_us is 200; correct either",
    ),
    "a best time that no clock tells": (
        lambda d: d["digests"][0].update(best_us=1e-300),
        "a time is under 0.1 ns; store times as they were measured",
    ),
    "a backend that is none": (
        lambda d: d.update(backend="mpi"),
        "fabric: its backend is 'mpi'; it is gloo or nccl",
    ),
    "no backend": (lambda d: d.update(backend=""), "fabric: its backend is ''"),
    "a standout before all clocks": (
        lambda d: d["digests"][0].update(standouts=[[-5, 1, 1, 1, 1, 1]]),
        "standouts[0]: at -5 s; correct at_s",
    ),
    "a median of nothing": (
        lambda d: d["digests"][0].update(best_us=0, p50_us=0),
        "its median is 0 us",
    ),
    "a stranger that stood still": (
        lambda d: d["tried"][0].update(stood_still="h9"),
        "tried[0] ('h1-h4'): stood_still is 'h9'; it is h1, h4, or empty",
    ),
    "retests from before the start": (lambda d: d.update(retested=-1), "fabric: retested -1"),
    "a silent node of no name": (lambda d: d.update(silent={"": "x"}), "silent: '' is no host"),
    "a negative standout": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, -1, 1, 1, 1]]),
        "standouts[0]: a time is negative",
    ),
    "a negative stall": (
        lambda d: d["digests"][0].update(standouts=[[0, 0, 1, 1, 1, 1, 0, -1]]),
        "standouts[0]: a time is negative",
    ),
}


@pytest.mark.parametrize("what", SHORT)
def test_an_absurd_short_form_is_refused_with_its_place(tmp_path: Path, what: str) -> None:
    """As above."""
    change, expected = SHORT[what]
    assert expected in refused(tmp_path, short_form(change))


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    """NaN is no JSON, infinity no number: the byte is named, and what is whole before it."""
    content = encode_sweep(SWEPT)
    at = content.index(b"1.0", content.index(b'"gaps_us"', len(content) // 2))
    said = refused(tmp_path, content[:at] + b"NaN" + content[at + 3 :])
    assert re.search(r"no JSON at byte [\d,]+, near b'.*NaN", said)
    assert re.search(r"[23] of its pairs before that are whole, the last 'h\d-h\d'", said)
    assert "ut of range" in refused(tmp_path, content[:at] + b"1e999" + content[at + 3 :])


def test_a_file_that_was_cut_off_says_how_far_it_was_whole(tmp_path: Path) -> None:
    """Truncated JSON, and truncated or damaged gzip."""
    content = encode_sweep(SWEPT)
    said = refused(tmp_path, content[: len(content) * 3 // 4])
    assert "it ends in the middle" in said
    assert "4 of its pairs before that are whole, the last 'h" in said
    packed = gzip.compress(content)
    assert "damaged gzip (it ends early" in refused(tmp_path, packed[: len(packed) // 2])
    assert "damaged gzip" in refused(tmp_path, packed[:20] + b"\xff\xff" + packed[22:])
    assert f"about {len(content):,} bytes could be" in refused(tmp_path, packed + b"garbage")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["tight", "spaced"])
def test_a_file_that_was_cut_off_anywhere_is_told_to_be_copied_again(
    tmp_path: Path, separators: tuple[str, str]
) -> None:
    """Inside a number, a word or a name, however its writer spaced it: whole pairs are counted."""
    content = json.dumps(json.loads(encode_sweep(SWEPT)), separators=separators).encode()
    at = content.index(b"200.0", len(content) // 2)
    null = json.dumps({"ladder": [], "pairs": [{"a": "h1", "b": "h2"}, None]})
    for cut in (content[: at + 3], content[: at + 4], content[: at - 1]):
        said = refused(tmp_path, cut)
        assert "it ends in the middle" in said
        assert re.search(r"[23] of its pairs before that are whole, the last 'h\d-h\d'", said)
        assert "copy it again" in said
    assert "1 of its pairs before that are whole" in refused(tmp_path, null[:-4].encode())


def test_what_is_no_file_of_samples_is_refused(tmp_path: Path) -> None:
    """An empty file, no file, a folder without a run, a device: each is one line."""
    assert "is empty" in refused(tmp_path, b" \n")
    assert "nested too deep" in refused(tmp_path, b'{"ladder":' + b"[" * 100_000)
    for path in (tmp_path / "none.json", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(UsageError, match="cannot read"):
            read_stored(path)
    with pytest.raises(UsageError, match=r"holds no measured\.json"):
        read_stored(tmp_path)


def test_a_bomb_does_not_go_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small gzip of a huge document, and one of a billion entries, are refused unread."""
    monkeypatch.setattr(opening, "LARGEST", 1 << 20)
    assert "holds more than 1 MiB" in refused(tmp_path, gzip.compress(b" " * (9 << 20)))
    assert "larger than 1 MiB" in refused(tmp_path, b" " * (2 << 20))
    monkeypatch.setattr(opening, "MOST_NUMBERS", 1000)
    assert "more than 1,000 entries" in refused(tmp_path, b"[" + b"0," * 1001 + b"0]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["pairs", "rounds", "ladder", "tried", "digests", "nodes", "a", "b"]),
            inner,
        )
    ),
    max_leaves=20,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.binary(max_size=200), JSON))
def test_whatever_a_file_holds_is_read_or_refused(tmp_path: Path, content: Any) -> None:
    """Random bytes and random JSON never crash the reader."""
    _read_or_refuse(tmp_path, content if isinstance(content, bytes) else _dumped(content))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_whatever_is_changed_in_samples_they_are_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Any one value replaced by any other leaves samples that are sound, or a sentence."""
    document = json.loads(encode_sweep(SWEPT) if data.draw(st.booleans()) else SHORTENED)
    inner: Any = document
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.integers(0, 3)) == 0 or not isinstance(inner[key], dict | list):
            inner[key] = data.draw(JSON)
            break
        inner = inner[key]
    _read_or_refuse(tmp_path, _dumped(document))


SHORTENED = encode_observed(observe(SWEPT))


def _dumped(content: Any) -> bytes:
    return json.dumps(content).encode("utf-8", "surrogatepass")


def _read_or_refuse(folder: Path, content: bytes) -> None:
    path = folder / "any.json"
    path.write_bytes(content)
    try:
        stored = read_stored(path)
    except UsageError as error:
        said = str(error)
    else:
        said = f"{path} is sound"
        assert isinstance(stored.observed, Observed)
    assert str(path) in said
