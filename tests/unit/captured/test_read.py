"""`preflight read` judges captured texts and says by its exit code how sure that is."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.commands.cli import main
from tests.unit.captured.test_topology_text import both, matrix

pytestmark = pytest.mark.slow


def read(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run it as a user does, in a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "preflight", "read", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A whole matrix, a torn one, one that was cut, and a file of another kind."""
    torn = {key: code for at in range(7) for key, code in both(7, at, "NV17").items()}
    (tmp_path / "whole.txt").write_text(matrix({}, 8))
    (tmp_path / "torn.txt").write_text(matrix(torn, 8))
    (tmp_path / "cut.txt").write_text(matrix({}, 8)[:150])
    (tmp_path / "other.bin").write_bytes(bytes(range(256)))
    return tmp_path


@pytest.mark.parametrize("saved_as", ["utf-8-sig", "utf-16", "gzip"])
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("NCCL_IB_TIMEOUT=1000\nNCCL_DEBUG=INFO\n", "NCCL_IB_TIMEOUT: use 20"),
        ("[   61.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", "gpu.xid"),
        (matrix(both(0, 7, "NV17"), 8), "gpu.topology"),
    ],
)
def test_how_a_text_was_saved_hides_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], saved_as: str, text: str, fault: str
) -> None:
    """A byte-order mark, two bytes a character, or gzip: the first line is read as any other."""
    file = tmp_path / "text"
    packed = gzip.compress(text.encode()) if saved_as == "gzip" else text.encode(saved_as)
    file.write_bytes(packed)
    assert main(["read", str(file)]) == 1
    assert fault in capsys.readouterr().out


def test_a_path_is_shown_once(texts: Path) -> None:
    """Findings stand below their file, files with findings last; one of two files names both."""
    whole, torn = str(texts / "whole.txt"), str(texts / "torn.txt")
    shown = read(torn, whole).stdout
    assert (shown.count(torn), shown.count(whole)) == (1, 1)
    assert shown.index("\nok     gpu.topology: ") < shown.index("\nFAIL   gpu.topology\n")
    (texts / "twin.txt").write_text((texts / "torn.txt").read_text())
    both = read(torn, str(texts / "twin.txt")).stdout
    assert [both.count(torn), both.count("gpu.topology")] == [2, 1]


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    """Its tool is not the question: exit 5, and 3 beside a file that was checked."""
    (tmp_path / "whole.txt").write_text(matrix({}, 8))
    (tmp_path / "empty.txt").write_text(" \n")
    alone, both = (read(*map(str, files)) for files in
                   ((tmp_path / "empty.txt",), sorted(tmp_path.iterdir())))  # fmt: skip
    assert (alone.returncode, both.returncode) == (5, 3)
    assert "the file is empty" in alone.stdout
    assert "unknown kind" not in alone.stdout


def test_an_environment_without_a_known_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one all the same: nothing to judge, exit 5, and the sentence says why."""
    file = tmp_path / "env.txt"
    file.write_text("HOME=/root\nLANG=C.UTF-8\nSHELL=/bin/bash\n")
    assert main(["read", str(file)]) == 5
    out = capsys.readouterr().out
    assert "an environment without a variable that preflight judges" in out
    assert "unknown kind" not in out


def test_each_exit_code(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 fine, 1 a fault, 3 not all judged, 4 cannot be opened, 5 of no known kind."""

    def code(*files: str) -> int:
        return main(["read", *files])

    whole, torn, cut, other = (
        str(texts / name) for name in ("whole.txt", "torn.txt", "cut.txt", "other.bin")
    )
    assert read(whole).returncode == code(whole) == 0
    assert code(torn, cut, other) == 1
    assert code(whole, cut) == code(whole, other) == 3
    assert code(other) == 5
    capsys.readouterr()
    assert code(str(texts / "absent")) == 4
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert code(str(texts)) == 4
    assert f"it is a folder; type: preflight read {texts}/*" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="4"):
        code("")
    assert "it is empty; give a path" in capsys.readouterr().err
    assert code("~nobody-is-called-so") == 4
    said += capsys.readouterr().err
    assert "Traceback" not in said


def test_what_is_shown(texts: Path) -> None:
    """Each file has its kind; the fault its number, the peers' number and what to do."""
    told = read(str(texts / "torn.txt")).stdout
    assert "nvidia-smi topo -m" in told
    assert "FAIL" in told
    assert "17 NVLinks up, 18 up on its peers" in told.replace("\n       ", " ")
    assert "do: drain" in told
    assert told.endswith("1 fail    exit 1\n")


def test_standard_input_and_json(texts: Path) -> None:
    """- is standard input; --json is one document with a row per file and its verdicts."""
    said = read("-", "--json", stdin=(texts / "whole.txt").read_text())
    document = json.loads(said.stdout)
    assert (said.returncode, document["exit"]) == (0, 0)
    (row,) = document["files"]
    assert (row["file"], row["kind"]) == ("-", "nvidia-smi topo -m")
    assert [one["outcome"] for one in row["verdicts"]] == ["ok"]


@pytest.mark.parametrize(
    "text",
    [
        f"NIC statistics:\n  rx_crc_errors: {'9' * 5000}\n  rx_packets: 1\n",
        (
            "| NVIDIA-SMI 535.1   Driver Version: 535.1    CUDA Version: 12.2 |\n| MIG devices: |\n"
            f"|  0    7   0   0  |  10MiB / 9856MiB | 16   {'9' * 5000} |  1 0 |\n| Processes: |\n"
        ),
    ],
    ids=["ethtool -S", "nvidia-smi"],
)
def test_a_number_without_end_silences_no_other_file(
    texts: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """What no float holds is left out of its line; the other files are judged."""
    (texts / "endless.txt").write_text(text)
    assert main(["read", str(texts / "endless.txt"), str(texts / "torn.txt")]) == 1
    assert "17 NVLinks up" in capsys.readouterr().out


def test_what_is_too_much_for_a_node_is_refused(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thousand ports and interfaces are more than a node has; a script starts ranks once."""
    (texts / "ports.txt").write_text(
        "".join(f"link mlx5_{at}/1 state ACTIVE netdev ib{at}\n" for at in range(1025))
    )
    (texts / "launches.sh").write_text("export NCCL_DEBUG=INFO\n" + "torchrun a.py\n" * 65)
    assert main(["read", str(texts / "ports.txt"), str(texts / "launches.sh")]) == 3
    told = " ".join(capsys.readouterr().out.split())
    assert "it lists 1025 ports, a node has at most 1024 do: give each node's own text" in told
    assert "it starts ranks over 64 times do: give each script separately" in told


@pytest.mark.parametrize("line", [
    "export NCCL_DEBUG=$NCCL_DEBUG$NCCL_DEBUG",
    "export A{0}=$A{1}$A{1} NCCL_DEBUG=$A{0}",
    "export NCCL_A{0}=$NCCL_DEBUG{2}",
])  # fmt: skip
def test_a_value_that_grows_in_each_line_takes_no_memory(tmp_path: Path, line: str) -> None:
    """A script that doubles a value, or fills in a long one again and again, is read in 2 GB."""
    long = "x" * 200_000 if "{2}" in line else "x"
    lines = (line.format(at + 1, at, "$NCCL_DEBUG" * 300) for at in range(60))
    script = tmp_path / "launch.sh"
    script.write_text(f"export NCCL_DEBUG={long} A0=x\n" + "\n".join(lines) + "\n")
    limited = f"ulimit -v 2000000; exec {sys.executable} -m preflight read {script}"
    told = subprocess.run(["/bin/sh", "-c", limited], capture_output=True, text=True, check=False)
    assert told.stderr == ""
    assert told.returncode in (0, 1, 3)


def test_what_is_filled_in_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that an earlier line sets is known in later ones, and in defaults."""
    (tmp_path / "launch.sh").write_text("A=INF\nexport NCCL_DEBUG=${A}X\ntorchrun a.py\n")
    main(["read", str(tmp_path / "launch.sh")])
    assert "NCCL_DEBUG=INFX" in capsys.readouterr().out


def test_hosts_with_other_gpus_are_no_peers(tmp_path: Path) -> None:
    """Three H100 hosts say nothing of what a TITAN may draw."""
    row = "{}, {}, 00000000:1B:00.0, {}.00 W, {}.00 W\n"
    head = "index, name, pci.bus_id, enforced.power.limit [W], power.default_limit [W]\n"
    for at in range(3):
        (tmp_path / f"h{at}").write_text(head + row.format(0, "NVIDIA H100 80GB HBM3", 700, 700))
    (tmp_path / "desk").write_text(head + row.format(0, "NVIDIA TITAN V", 250, 250))
    done = read(*map(str, sorted(tmp_path.iterdir())), "--json")
    files = {Path(one["file"]).name: one for one in json.loads(done.stdout)["files"]}
    said = {one["check"]: one for one in files["desk"]["verdicts"]}
    assert (said["gpu.power"]["outcome"], said["gpu.model"]["outcome"]) == ("ok", "ok")
