"""nvidia-smi's matrix is read whole or refused, however it was pasted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.facts.topo_matrix import Topology, TopologyError, parse_topo

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "topo"
CASES = sorted(CORPUS.glob("*.json"))

PLAIN = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPIX\t0-31,64-95\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
"""

P2P = """\
\tGPU0\tGPU1
GPU0\t X \tOK
GPU1\tCNS\t X

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""


def same(one: Topology, other: Topology) -> bool:
    """Whether two matrices say the same of every pair and GPU."""
    names = one.gpus + one.nics
    return (one.gpus, one.nics) == (other.gpus, other.nics) and all(
        one.link(a, b) == other.link(a, b) for a in names for b in names
    )


def read(text: str) -> tuple[Topology | None, str]:
    """The matrix, or why it was refused."""
    try:
        return parse_topo(text), ""
    except TopologyError as error:
        return None, str(error)


@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus of real outputs is not beside the project")
@pytest.mark.parametrize("label_file", CASES, ids=[case.stem for case in CASES])
def test_real_outputs_read_as_labelled_or_are_refused_for_their_damage(label_file: Path) -> None:
    """A real output gives the labelled cells; only one marked as damaged may be refused."""
    label: dict[str, Any] = json.loads(label_file.read_text())
    text = label_file.with_suffix(".txt").read_bytes().decode()
    topology, refusal = read(text)
    if topology is None:
        assert "cut" in (label["damage"] or ""), refusal
        return
    assert list(topology.gpus) == label["gpus"]
    assert list(topology.nics) == [nic["column"] for nic in label["nics"]]
    for matrix in ("gpu_matrix", "gpu_nic_matrix"):
        for gpu, row in label[matrix].items():
            assert {other: topology.link(gpu, other) for other in row} == row
    for nic in label["nics"]:
        assert nic["device"] in (None, topology.nic_device(nic["column"]))


def test_everything_printed_can_be_asked_for() -> None:
    """Codes and NIC names come back as printed; what was not printed is None."""
    topology = parse_topo(PLAIN)
    assert topology.gpus == ("GPU0", "GPU1")
    assert topology.nics == ("NIC0",)
    assert topology.link("GPU0", "GPU1") == "NV12"
    assert topology.link("NIC0", "NIC0") == "X"
    assert topology.nic_device("NIC0") == "mlx5_0"
    old = parse_topo("\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\t0-13\nmlx5_0\tSOC\t X \t\n")
    assert old.nic_device("mlx5_0") == "mlx5_0"


@pytest.mark.parametrize(
    "mangled",
    [
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\n\n"),
        PLAIN.expandtabs(8),
        PLAIN.lstrip(),
        PLAIN.expandtabs(8).lstrip(),
        "\n".join("    " + line for line in PLAIN.splitlines()),
        "\n".join("> " + line for line in PLAIN.splitlines()),
        "\n".join("gpu-07: " + line for line in PLAIN.splitlines()),
        "\n".join(f"| {line.replace(chr(9), ' | ')} |" for line in PLAIN.splitlines()),
        f"```\nroot@gpu7:~# nvidia-smi topo -m\n{PLAIN}```\nGPU0 and GPU1 look fine to me",
        PLAIN.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1").replace("NUMA ID", "NUMA ID\x1b[0m"),
        PLAIN.replace("\tGPU0\tGPU1", "\t[4mGPU0\tGPU1").replace("NUMA ID", "NUMA ID[0m"),
        PLAIN.replace("GPU1\tNV12", "WARNING: infoROM is corrupted\nGPU1\tNV12"),
        PLAIN.replace("\tGPU NUMA ID", "\tGPU NU"),
        PLAIN + PLAIN,
        PLAIN + P2P,
    ],
    ids=[
        *("windows", "double-spaced", "spaces", "header-shifted", "header-shifted-spaces"),
        *("indented", "quoted", "pdsh", "table", "fenced", "colours", "colours-half-lost"),
        *("warning-between", "title-cut", "twice", "p2p-behind"),
    ],
)
def test_pasting_does_not_change_what_is_read(mangled: str) -> None:
    """Terminals, tickets and log collectors may mangle the text around an intact matrix."""
    assert same(parse_topo(mangled), parse_topo(PLAIN))


def test_missing_nic_rows_cost_only_the_distances_between_nics() -> None:
    """People cut the NIC rows off: the GPU rows still hold every GPU-NIC distance."""
    gpu_rows = "\n".join(PLAIN.splitlines()[:3])
    topology = parse_topo(gpu_rows)
    assert topology.link("NIC0", "GPU1") == "SYS"
    with pytest.raises(TopologyError, match="does not join NIC0 and NIC0"):
        topology.link("NIC0", "NIC0")


def test_a_code_that_the_legend_explains_is_taken() -> None:
    """A newer driver may print a new code; its own legend vouches for it."""
    text = "\tGPU0\tGPU1\nGPU0\t X \tCXL\nGPU1\tCXL\t X \n\nLegend:\n\n  CXL  = by CXL\n"
    assert parse_topo(text).link("GPU0", "GPU1") == "CXL"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no topology matrix"),
        ("nvidia-smi: command not found", "no topology matrix"),
        (PLAIN.splitlines()[0], "no row"),
        (PLAIN[: PLAIN.index("SYS\t32")], "row of GPU1 has 2 of 3 cells"),
        (PLAIN[: PLAIN.index("NIC0\tPIX")].replace("GPU1\tNV12", "GPU9\tNV12"), "GPU1"),
        (PLAIN.replace("GPU1\tNV12\t X \tSYS", "GPU1\tNV12\t X \tSY"), "'SY', which is no link"),
        (PLAIN.replace("GPU1\tNV12\t X ", "GPU1\t X \tNV12"), "columns are shifted"),
        (PLAIN.replace("PIX\t0-31", "PIX\tPIX\t0-31"), "more than the 3 cells"),
        (PLAIN.replace("NIC0\tPIX\tSYS\t X ", "NIC0\tPIX"), "row of NIC0 has 1 of 3 cells"),
        ("\tGPU0\tGPU1\nGPU0\t X \tOK\nGPU1\tOK\t X \n", "'OK', which is no link code"),
        (P2P, "'OK', which is no link code"),
        (PLAIN + PLAIN.replace("NV12", "SYS"), "two different rows of GPU0"),
        (PLAIN + "\tGPU0\nGPU0\t X \n", "two different matrices"),
        (PLAIN.replace("NIC0\tPIX", "GPU1\tSYS\t X \tSYS\nNIC0\tPIX"), "different rows of GPU1"),
        (PLAIN.replace("NIC0\tPIX", "GPU2\tSYS\tSYS\tSYS\nNIC0\tPIX"), "a row of GPU2"),
        (PLAIN.replace("NV12", "NV0"), "'NV0', which is no link code"),
        (PLAIN.replace("NV12", "NV999999999"), "'NV999999999', which is no link code"),
        ("\tGPU0\tGPU0\nGPU0\t X \tSYS\n", "no topology matrix"),
    ],
)
def test_damage_is_refused_with_its_place(text: str, reason: str) -> None:
    """Half a matrix would make a healthy node differ, so it is refused, with the place."""
    with pytest.raises(TopologyError, match=reason) as raised:
        parse_topo(text)
    assert "nvidia-smi topo -m" in str(raised.value)


def test_a_device_that_is_not_there_is_named() -> None:
    """Asking for GPU9 of a two-GPU machine says what there is."""
    topology = parse_topo(PLAIN)
    with pytest.raises(TopologyError, match=r"no GPU9 in the matrix"):
        topology.nic_device("GPU9")
    with pytest.raises(TopologyError, match="GPU0, GPU1, NIC0"):
        topology.link("GPU0", "GPU9")


@given(st.text() | st.text(alphabet="GPUNIC01X \tSYSPIXV\n#=,-[m\x1b|"))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a node sends, nothing but TopologyError comes out."""
    topology, refusal = read(text)
    assert (topology is None) == bool(refusal)


@given(data=st.data(), tabs=st.booleans(), width=st.integers(1, 12), nics=st.integers(0, 6))
def test_a_generated_matrix_comes_back(
    *, data: st.DataObject, tabs: bool, width: int, nics: int
) -> None:
    """What is printed in nvidia-smi's manner is read back, cell by cell."""
    names = [f"GPU{n}" for n in range(width)] + [f"NIC{n}" for n in range(nics)]
    codes = st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    cells = {(a, b): "X" if a == b else data.draw(codes) for a in names for b in names}
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a in names:
        tail = "0-31,64-95\t0-1\t\tN/A" if a.startswith("GPU") else "\t\t\t"
        lines.append("\t".join([a, *(f" {cells[a, b]} " for b in names), tail]))
    text = "\n".join(lines)
    topology = parse_topo(text if tabs else text.expandtabs(16))
    assert {(a, b): topology.link(a, b) for a in names for b in names} == cells


@given(st.integers(0, len(PLAIN)))
def test_a_text_cut_anywhere_never_gives_a_wrong_cell(length: int) -> None:
    """A look-up that ends in the middle gives the true cells or a refusal, never other cells."""
    whole, (cut, _) = parse_topo(PLAIN), read(PLAIN[:length])
    if cut is None:
        return
    assert (cut.gpus, cut.nics) == (whole.gpus, whole.nics)
    assert all(cut.link(a, b) == whole.link(a, b) for a in cut.gpus for b in (*cut.gpus, *cut.nics))
