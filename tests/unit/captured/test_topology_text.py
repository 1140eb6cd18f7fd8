"""A pasted GPU matrix is judged as the live one is: by NVLinks, and by whether both ends agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from preflight.captured import environment
from preflight.commands.read import captured, judge_captured
from preflight.verdict import Outcome, Verdict

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "topo"
CASES = sorted(CORPUS.glob("*.json"))


def matrix(codes: dict[tuple[int, int], str], gpus: int, usual: str = "NV18") -> str:
    """What nvidia-smi prints of GPUs that are joined by `usual`, but for `codes`."""
    names = [f"GPU{at}" for at in range(gpus)]
    rows = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for a, name in enumerate(names):
        cells = [" X " if a == b else codes.get((a, b), usual) for b in range(gpus)]
        rows.append("\t".join([name, *cells, "0-31", "0"]))
    return "\n".join(rows) + "\n"


def verdict(text: str) -> Verdict:
    """What gpu.topology says of a text."""
    (entry,) = judge_captured({"node": captured(text)})
    assert entry.check == "gpu.topology"
    return entry.verdict


def both(a: int, b: int, code: str) -> dict[tuple[int, int], str]:
    """The code of two GPUs in both rows."""
    return {(a, b): code, (b, a): code}


@pytest.mark.proves("gpu.topology", passes="a pasted matrix of eight GPUs on NVSwitches")
def test_a_pasted_matrix_passes() -> None:
    """Eight GPUs behind switches are joined by NV18, and no link is counted per pair."""
    said = verdict(matrix({}, 8))
    assert (said.outcome, said.sentence) == (Outcome.OK, "8 GPUs joined by NV18, 0 NICs")


@pytest.mark.proves("gpu.topology", finds="a GPU with fewer NVLinks in a pasted matrix")
def test_a_gpu_with_fewer_links_than_its_peers() -> None:
    """One GPU of eight that every row joins by NV16 has lost two links."""
    torn = {key: code for at in range(8) if at != 3 for key, code in both(3, at, "NV16").items()}
    said = verdict(matrix(torn, 8))
    assert said.outcome is Outcome.FAIL
    assert "GPU3: 16 NVLinks up, 18 up on its peers" in said.sentence


@pytest.mark.proves("gpu.topology", finds="rows of a pasted matrix that contradict each other")
def test_rows_that_contradict_each_other() -> None:
    """What GPU0 says of GPU1 must be what GPU1 says of GPU0."""
    said = verdict(matrix({(0, 1): "SYS"}, 4, usual="PIX"))
    assert said.outcome is Outcome.FAIL
    assert "joins GPU0 to GPU1 by SYS, but GPU1 to GPU0 by PIX" in said.sentence


@pytest.mark.parametrize("code", ["NV17", "SYS"])
def test_a_cell_that_no_number_of_links_explains_is_named(code: str) -> None:
    """The damaged pair is told, and no sum over the cells of a row is called a number of links."""
    said = verdict(matrix(both(0, 1, code), 8))
    assert said.outcome is Outcome.FAIL
    assert said.sentence == f"GPU0-GPU1 is joined by {code}, 27 of 28 pairs by NV18"
    for one_end in ({(0, 1): code}, {(1, 0): code}):
        torn = verdict(matrix(one_end, 8))
        assert torn.outcome is Outcome.FAIL
        assert f"by {code}" in torn.sentence
        assert "by NV18" in torn.sentence
        assert "NVLinks up" not in torn.sentence
        assert "and 1 more" not in torn.sentence


@pytest.mark.proves("gpu.topology", unknown="a pasted matrix that was cut")
def test_a_matrix_that_was_cut() -> None:
    """Half a matrix proves nothing, and says what to capture."""
    said = verdict("\n".join(matrix({}, 8).splitlines()[:5]))
    assert said.outcome is Outcome.UNKNOWN
    assert "the rows of GPU4, GPU5, GPU6, GPU7 are missing" in said.sentence
    assert said.advice == "capture it again, whole and unedited"


def test_pairs_of_bridged_gpus_are_no_fault() -> None:
    """Where NVLink joins two and two, nobody has lost a link."""
    pairs = both(0, 1, "NV12") | both(2, 3, "NV12")
    assert verdict(matrix(pairs, 4, usual="SYS")).outcome is Outcome.OK


@pytest.mark.corpus
@pytest.mark.parametrize("label", CASES, ids=lambda path: path.stem)
def test_real_matrices(label: Path) -> None:
    """No healthy machine is condemned, and no text that cannot be read whole passes."""
    said = json.loads(label.read_text())
    found = verdict(label.with_suffix(".txt").read_text())
    if said["label"] == "healthy":
        assert found.outcome in (Outcome.OK, Outcome.UNKNOWN)
    if not said["damaged"]:
        assert found.outcome is Outcome.OK


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("utf-8", "replace"))))
@example("RANK=")
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is given, there is a verdict or it is of no kind that is known; nothing passes.

    But for an environment: RANK= is a whole one, in which no two settings clash.
    """
    assume(environment.read(text) is None)
    entries = judge_captured({"it": captured(f"GPU0 GPU1\n{text}"), "other": captured(text)})
    assert all(entry.verdict.outcome is not Outcome.OK for entry in entries)
