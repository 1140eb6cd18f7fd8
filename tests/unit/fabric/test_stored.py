"""Samples of past nights: both forms round trip, and the page that explains them is true."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.commands.blame import SCHEMA, BlameDocument
from preflight.fabric.observed import (
    Digest,
    EndResult,
    Observed,
    PairResult,
    StallTotal,
    Standout,
    observe,
)
from preflight.fabric.pair_summary import lost_sentence
from preflight.fabric.samples import End, InsideSamples, Moved, PairSamples, Rung, Sweep, Timing
from preflight.fabric.stored import encode_observed, encode_sweep, read_stored
from preflight.run.measured import Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec
from tests.unit.fabric.stored_files import SWEPT, refused
from tests.unit.report.json_schemas import schema_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference" / "samples.md").read_text()


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
    ("inside", "message"),
    [
        ([("h1", "h2")], "inside[0] ('h1').rails[0]: it is the account of 'h2', not of h1"),
        ([("h1", "h1"), ("h1", "h1")], "inside[1] ('h1'): it stands twice there"),
        ([("-x", "-x")], "inside: '-x' is not a host name"),
    ],
)
def test_what_goes_on_inside_of_nodes_is_read_and_held_to_itself(
    tmp_path: Path, inside: list[tuple[str, str]], message: str
) -> None:
    """A node's own rails round trip; accounts of another node, or twice, are refused."""
    rails = [InsideSamples(node, "gloo", (End(of, "measured"), None)) for node, of in inside]
    whole = replace(SWEPT, inside=(InsideSamples("h1", "gloo", (End("h1", "measured"), None)),))
    (tmp_path / "whole.json").write_bytes(encode_sweep(whole))
    assert read_stored(tmp_path / "whole.json").sweep == whole
    wrong = encode_sweep(replace(SWEPT, inside=tuple(rails)))
    assert refused(tmp_path, wrong).startswith(message)


def test_a_runs_folder_is_read(tmp_path: Path) -> None:
    """The measured.json of a run, also gzipped; a run that swept nothing has nothing to judge."""
    measured = Measured(nonce="ab" * 16, sweep=SWEPT)
    (tmp_path / "measured.json.gz").write_bytes(gzip.compress(measured.encode()))
    stored = read_stored(tmp_path)
    assert (stored.form, stored.run, stored.sweep) == ("run", "ab" * 16, SWEPT)
    (tmp_path / "measured.json").write_bytes(Measured(nonce="cd").encode())
    assert read_stored(tmp_path).observed.tried == ()


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    """Both documents of docs/reference/samples.md are sound, and their fields are where it says."""
    path = tmp_path / "example.json"
    forms = []
    for example in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL):
        path.write_text(example)
        stored = read_stored(path)
        forms.append(stored.form)
        assert stored.observed.nodes == ("h1", "h2")
        assert stored.observed.tried[0].first.net == "tcp eth0"
        assert stored.observed.digests[0].size_bytes == 8
    assert forms == ["long", "short"]


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        (
            {"error": "h1: it hung; h2: peer left", "net": "NET/IB mlx5_3 / NET/Socket"},
            {"first": EndResult("it hung", net="NET/IB mlx5_3"),
             "second": EndResult("peer left", net="NET/Socket")},
        ),
        (
            {"error": "h2: it hung", "net": "tcp eth0",
             "moved_b": [{"name": "tcp resets", "by": 2}]},
            {"first": EndResult(net="tcp eth0"),
             "second": EndResult("it hung", (Moved("tcp resets", 2),), "tcp eth0")},
        ),
        (
            {"state": "not_run", "error": lost_sentence(("h2",)), "stood_a": [["host", 2, 40.0]]},
            {"lost": ("h2",), "first": EndResult(stood=(StallTotal("host", 2, 40.0),)),
             "second": EndResult()},
        ),
    ],
)  # fmt: skip
def test_the_short_form_of_earlier_versions_is_read(
    tmp_path: Path, earlier: dict[str, Any], now: dict[str, Any]
) -> None:
    """It has both ends' errors in one text; it is read as if each had its own."""
    tried = {"a": "h1", "b": "h2", "rail": 0, "round": 0, "state": "hung", **earlier}
    document = {"nodes": ["h1", "h2"], "backend": "nccl", "tried": [tried], "digests": []}
    path = tmp_path / "short.json"
    path.write_text(json.dumps(document))
    (read,) = read_stored(path).observed.tried
    assert {name: getattr(read, name) for name in now} == now
    path.write_bytes(encode_observed(read_stored(path).observed))
    assert read_stored(path).observed.tried == (read,)


def test_every_field_is_explained() -> None:
    """docs/reference/samples.md has each field of both forms and of the document of --json."""
    named = set(re.findall(r"`([a-z0-9_]+)(?:\[\])?`", PAGE))
    listed = re.search(r"`\[(.*?)\]`", PAGE)
    assert listed
    assert tuple(listed[1].split(", ")) == Standout.__struct_fields__
    kinds: tuple[type[msgspec.Struct], ...] = (
        Sweep, Rung, PairSamples, End, Timing, Moved,
        Observed, PairResult, EndResult, Digest, BlameDocument,
    )  # fmt: skip
    missing = {
        (kind.__name__, n)
        for kind in kinds
        for n in kind.__struct_encode_fields__
        if n not in named
    }
    assert not missing, "explain it in docs/reference/samples.md"


def test_the_schema_file_is_the_one_we_write() -> None:
    """docs/reference/blame.schema.json describes the document as the code has it."""
    ours = schema_of(BlameDocument, f"preflight blame --json, schema {SCHEMA}")
    assert json.loads((DOCS / "reference" / "blame.schema.json").read_text()) == ours
