"""`preflight blame` names who was to blame that night, or says in one line why it cannot tell."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from preflight.fabric.observed import observe
from preflight.fabric.samples import End
from preflight.fabric.stored import encode_observed, encode_sweep
from preflight.run.measured import Measured
from tests.stories.blaming import Blamed, blame
from tests.unit.fabric.synthetic import hosts, sweep
from tests.unit.report.fabrics import fabric

SLOW = sweep(hosts(5), lambda a, b: 0.05 if "h3" in (a, b) else 1.0)
HEALTHY = sweep(hosts(5), lambda _a, _b: 1.0)


def stored(folder: Path, content: bytes) -> Path:
    """A file of samples."""
    path = folder / "night.json"
    path.write_bytes(content)
    return path


def refused(told: Blamed) -> str:
    """The one line of a refusal: exit 4, no traceback, nothing on standard output."""
    assert (told.exit, told.out) == (4, "")
    (line,) = told.err.splitlines()
    assert line.startswith(("preflight: ", "preflight blame: "))
    return line


def test_a_slow_node_is_named_again(tmp_path: Path) -> None:
    """The terminal shows one finding with what to do and whom to exclude; exit 1."""
    told = blame(stored(tmp_path, encode_sweep(SLOW)), as_json=False)
    assert told.exit == 1, told.err
    assert told.out.startswith(f"samples    {tmp_path}/night.json:")
    assert "5 nodes, 10 pairs tried (1 rail, 5 rounds), gloo" in " ".join(told.out.split())
    assert told.out.count("FAIL   h3  fabric.allreduce\n") == 1
    assert "do: check link rate" in told.out
    assert "not ready  h3  --exclude=h3\n1 blamed    exit 1\n" in told.out
    assert told.err == ""


def test_a_node_that_could_not_reach_the_store_is_no_reason_against_the_others(
    tmp_path: Path,
) -> None:
    """Its pairs are unknown on account of one path: two nodes stay apart, nobody is not ready."""
    cut = replace(HEALTHY, left_out={"h6": "it cannot connect to h1"}, cut_off={"h6": "h1"})
    told = blame(stored(tmp_path, encode_sweep(cut)))
    assert (told.exit, told.found) == (1, ["pair h1-h6"]), told.err
    assert (told.document["not_ready"], told.document["apart"]) == ([], [["h1", "h6"]])


def test_the_short_form_names_the_part(tmp_path: Path) -> None:
    """Digests alone: one rail of a node, with the numbers, and a page on which it is framed."""
    observed = fabric(
        8, lambda a, b, rail: 1.4 if "n0003" in (a, b) and rail == 1 else 1.0, rails=2
    )
    samples = stored(tmp_path, encode_observed(replace(observed, backend="nccl")))
    told = blame(samples, "--picture", str(tmp_path / "fabric.html"))
    assert (told.exit, told.found) == (1, ["n0003"])
    (found,) = told.document["blames"]
    assert (found["kind"], found["component"], found["rail"]) == ("endpoint", "n0003", 1)
    assert "0.75 GB/s at 16 MiB with n0" in found["sentence"]
    assert "29 % less than its peers' median 1.05 GB/s; rail 1 of n0003" in found["sentence"]
    assert told.document["not_ready"] == ["n0003"]
    assert "Blamed: n0003 rail 1<" in (tmp_path / "fabric.html").read_text()


def test_the_short_form_of_a_bad_path_keeps_two_nodes_apart(tmp_path: Path) -> None:
    """Both ends are fine with others: neither is excluded."""
    observed = fabric(6, lambda a, b, _rail: "hung" if (a, b) == ("n0001", "n0004") else 1.0)
    told = blame(stored(tmp_path, encode_observed(observed)))
    assert (told.exit, told.found) == (1, ["pair n0001-n0004"])
    assert told.document["not_ready"] == []
    assert told.document["apart"] == [["n0001", "n0004"]]


def test_long_names_of_nodes_fit_the_terminal(tmp_path: Path) -> None:
    """A pair's finding, and which two must not be in one job: in 80 columns, as other lines."""
    named = [replace(one, name=f"{one.name}-of-the-second-hall.cluster.org") for one in hosts(5)]
    bad = {named[0].name, named[4].name}
    swept = sweep(named, lambda a, b: 0.05 if {a, b} == bad else 1.0)
    lines = blame(stored(tmp_path, encode_sweep(swept)), as_json=False).out.splitlines()[1:]
    assert any(line.startswith("apart ") for line in lines), lines
    assert max(map(len, lines)) <= 80


def test_a_healthy_short_form_blames_nobody_unless_somebody_fell_silent(tmp_path: Path) -> None:
    """Exit 0; a node whose agent fell silent is not passed over, even if its pairs are fine."""
    observed = fabric(6)
    assert blame(stored(tmp_path, encode_observed(observed))).exit == 0
    told = blame(stored(tmp_path, encode_observed(replace(observed, silent={"n0002": "killed"}))))
    assert (told.exit, told.found) == (1, ["n0002"])
    assert "n0002 fell out of the sweep: killed" in told.out


def test_a_topology_tells_a_leaf_from_its_nodes(tmp_path: Path) -> None:
    """One rail slow under one leaf: with the switches known it is the leaf's, and drawn so."""
    under = {f"n{number:04}" for number in range(8, 16)}
    observed = fabric(
        32, lambda a, b, rail: 1.5 if rail == 1 and {a, b} & under else 1.0, rails=2, rounds=9
    )
    samples = stored(tmp_path, encode_observed(replace(observed, backend="nccl")))
    conf = tmp_path / "topology.conf"
    conf.write_text(
        "SwitchName=spine Switches=leaf[0-3]\n"
        + "".join(f"SwitchName=leaf{at} Nodes=n[{at * 8:04}-{at * 8 + 7:04}]\n" for at in range(4))
    )
    told = blame(samples, "--topology", str(conf), "--picture", str(tmp_path / "fabric.html"))
    assert told.document["leaves"] == 4
    assert [one["component"] for one in told.document["blames"]] == ["leaf1 rail 1"]
    assert "sorted by 4 leaf switches" in (tmp_path / "fabric.html").read_text()
    toml = tmp_path / "fleet.toml"
    toml.write_text(
        "".join(
            f'[group.rack{at}]\nnodes = "n[{at * 8:04}-{at * 8 + 7:04}]"\nleaf = "leaf{at}"\n'
            for at in range(4)
        )
    )
    again = blame(samples, "--topology", str(toml)).document
    assert again["blames"] == told.document["blames"]


def test_a_topology_that_is_no_use_is_one_line(tmp_path: Path) -> None:
    """One of another fleet, a broken one, none at all."""
    samples = stored(tmp_path, encode_sweep(SLOW))
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=leaf1 Nodes=gpu[1-8]\n")
    assert "names no leaf of h[1-5]" in refused(blame(samples, "--topology", str(conf)))
    conf.write_text("SwitchName=leaf1 Nodes=gpu[1-99999999]\n")
    assert "line 1" in refused(blame(samples, "--topology", str(conf)))
    assert "cannot read" in refused(blame(samples, "--topology", str(tmp_path / "none.toml")))


def test_the_fabric_of_that_night_can_be_drawn(tmp_path: Path) -> None:
    """The page of a run, from stored samples; a place that cannot be written to is one line."""
    samples = stored(tmp_path, encode_sweep(SLOW))
    drawn = tmp_path / "fabric.html"
    assert blame(samples, "--picture", str(drawn)).exit == 1
    page = drawn.read_text()
    assert "Blamed: h3<" in page
    assert "night.json" in page
    assert "cannot write" in refused(blame(samples, "--picture", str(samples / "fabric.html")))
    missing = tmp_path / "new" / "fabric.html"
    refusal = refused(blame(samples, "--picture", str(missing)))
    assert f"there is no folder {missing.parent}; make it, or give another file" in refusal
    assert "/proc takes no new file; give" in refused(blame(samples, "--picture", "/proc/x.html"))
    os.mkfifo(tmp_path / "pipe")
    refusal = refused(blame(samples, "--picture", str(tmp_path / "pipe")))
    assert "pipe: it is a pipe, which is not replaced; give another file" in refusal
    (tmp_path / "link").symlink_to(drawn)
    refusal = refused(blame(samples, "--picture", str(tmp_path / "link")))
    assert "link: it is a symbolic link, which is not replaced" in refusal
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "fabric.html", "link", samples.name, "pipe",
    ]  # fmt: skip


def test_a_missing_account_blames_no_node(tmp_path: Path) -> None:
    """One end measured all of it: the pair is not judged, the others are; both forms say so."""
    first, *rest = HEALTHY.pairs
    lost = replace(HEALTHY, pairs=(replace(first, second=None), *rest))
    said = f"not judged: {first.a}-{first.b}: {first.b}'s account of it is missing"
    for content in (encode_sweep(lost), encode_observed(observe(lost))):
        told = blame(stored(tmp_path, content))
        assert (told.exit, told.found) == (3, []), told.out
        assert (told.document["not_ready"], told.document["apart"]) == ([], [])
        assert [note for note in told.document["notes"] if note.startswith(said)]
    slow = replace(SLOW, pairs=tuple(replace(one, second=None) for one in SLOW.pairs))
    in_vain = replace(
        HEALTHY, pairs=(replace(first, first=End(first.a, "hung"), second=None), *rest)
    )
    assert blame(stored(tmp_path, encode_sweep(slow))).found == []
    assert blame(stored(tmp_path, encode_sweep(in_vain))).found == [f"pair {first.a}-{first.b}"]


def test_a_healthy_night_blames_nobody(tmp_path: Path) -> None:
    """Exit 0, from a run's folder whose measurements are gzipped."""
    measured = Measured(nonce="ab" * 16, sweep=HEALTHY)
    (tmp_path / "measured.json.gz").write_bytes(gzip.compress(measured.encode()))
    told = blame(tmp_path)
    assert (told.exit, told.found) == (0, [])
    assert told.document["run"] == "ab" * 16
    assert "nothing is blamed    exit 0" in blame(tmp_path, as_json=False).out


def test_two_nccl_nodes_with_nothing_to_hold_them_against_are_not_excluded(tmp_path: Path) -> None:
    """Nobody is blamed and nothing judged: exit 3, whichever form it is; and what was missed."""
    alone = sweep(hosts(2), lambda *_: 46.0, backend="nccl")
    for samples in (encode_sweep(alone), encode_observed(observe(alone))):
        path = stored(tmp_path, samples)
        told = blame(path)
        assert (told.exit, told.found) == (3, ["h1-h2"])
        assert (told.document["not_ready"], told.document["exclude"]) == ([], "")
        assert told.document["missed"].startswith("too few healthy pairs to compare with")
        said = blame(path, as_json=False).out
        assert "UNKN   h1-h2  fabric.allreduce\n" in said
        assert "missed     too few healthy pairs to compare with" in said
        assert said.endswith("nothing is blamed    exit 3\n")


def test_the_examples_of_the_page_say_what_the_page_says(tmp_path: Path) -> None:
    """docs/reference/samples.md: either form, in a terminal of 100 columns, word for word."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "samples.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (told,) = re.findall(r"```\n(UNKN .*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        out = blame(stored(tmp_path, example.encode()), as_json=False)
        assert out.exit == 3
        assert " ".join(out.out.split()).endswith(" ".join(told.split()))


def test_a_sweep_that_was_interrupted_clears_nobody(tmp_path: Path) -> None:
    """What had no turn is not judged: exit 3, and the reason is said."""
    left = replace(HEALTHY, pairs=HEALTHY.pairs[:4], unfinished="stopped by Ctrl-C")
    rest = [
        replace(
            pair,
            first=End(pair.a, "not_run", error="stopped by Ctrl-C"),
            second=End(pair.b, "not_run", error="stopped by Ctrl-C"),
        )
        for pair in HEALTHY.pairs[4:]
    ]
    told = blame(stored(tmp_path, encode_sweep(replace(left, pairs=(*left.pairs, *rest)))))
    assert (told.exit, told.found) == (3, [])
    assert told.document["notes"] == ["the sweep ended early: stopped by Ctrl-C"]


def test_a_run_that_swept_nothing_has_nobody_to_blame(tmp_path: Path) -> None:
    """Exit 5, as everywhere where there is nothing to check; the line fits 80 columns."""
    folder = tmp_path / "a night of last week"
    folder.mkdir()
    (folder / "measured.json").write_bytes(Measured(nonce="ab").encode())
    told = blame(folder, as_json=False)
    assert told.exit == 5
    assert "no pair was tried" in " ".join(told.out.split())
    assert len(told.out.splitlines()) > 1


def test_pairs_without_times_clear_nobody(tmp_path: Path) -> None:
    """A short form without any digest has nothing to judge; one pair without is not judged."""
    observed = observe(HEALTHY)
    none = stored(tmp_path, encode_observed(replace(observed, digests=())))
    told = blame(none, as_json=False)
    assert told.exit == 5
    assert "of 10 pairs none has times, there is nothing to judge" in " ".join(told.out.split())
    lacking = [one for one in observed.digests if (one.a, one.b) != ("h1", "h5")]
    some = stored(tmp_path, encode_observed(replace(observed, digests=tuple(lacking))))
    assert blame(some).exit == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encode_sweep(SLOW)[:-2000], "it ends in the middle"),
        (gzip.compress(encode_sweep(SLOW))[:-50], "damaged gzip"),
        (encode_sweep(SLOW).replace(b"200.0", b"-200.0", 1), "at pairs[0].first.timings[0]"),
        (encode_sweep(SLOW).replace(b'"round":0', b'"round":3', 1), "ranks disagree"),
        (b"\x00\xff\x1b[31m", "not JSON at byte 0"),
    ],
    ids=["truncated", "damaged", "negative", "rounds", "binary"],
)
def test_samples_that_cannot_be_are_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    """Exit 4: the file, the place, and what to do; no traceback and no control character."""
    line = refused(blame(stored(tmp_path, content)))
    assert said in line
    assert str(tmp_path / "night.json") in line
    assert line.isprintable()


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """Neither a missing file nor a missing word is a traceback."""
    assert "cannot read" in refused(blame(tmp_path / "none.json"))
    assert "holds no measured.json" in refused(blame(tmp_path))
    assert "see: preflight blame --help" in refused(blame(tmp_path, "--frobnicate"))


def test_a_huge_file_with_a_hostile_name_is_one_line(tmp_path: Path) -> None:
    """It is refused by its size, unread, and its name reaches the terminal without its escapes."""
    path = tmp_path / "night\x1b[31m.json"
    path.touch()
    os.truncate(path, 1 << 40)
    line = refused(blame(path))
    assert "it is larger than 1024 MiB" in line
    assert line.isprintable()
