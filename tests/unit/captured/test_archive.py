"""An archive of `preflight capture`: what goes in comes out; what is damaged is refused."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.captured import archive
from preflight.captured.archive import MANIFEST, Manifest, Part, pack, unpack
from preflight.commands.cli import main
from preflight.errors import UsageError
from preflight.run.measured import Measured
from tests.cases import draws
from tests.unit.captured.test_topology_text import both, matrix
from tests.unit.fabric.test_forms import _gloo
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from pathlib import Path

TORN = matrix({key: code for at in range(7) for key, code in both(7, at, "NV17").items()}, 8)
FACTS = msgspec.json.encode(facts())


def manifest(*parts: Part) -> Manifest:
    """A manifest of these parts."""
    return Manifest(
        preflight="0.1.0", captured="2026-11-22T21:00:00Z", public=False, tier="quick", run_exit=0,
        parts=parts,
    )  # fmt: skip


def packed(files: dict[str, bytes]) -> bytes:
    """An archive of these files, all of node h1."""
    return pack(manifest(*(Part(name=name, node="h1", command="env") for name in files)), files)


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive that a hostile hand packed: a fitting manifest, then these members."""
    file = io.BytesIO()
    names = [member.name for member, _ in members]
    said = msgspec.json.encode(manifest(*(Part(name=name) for name in names)))
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member, content in ((tarfile.TarInfo(MANIFEST), said), *members):
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), 1)


def without_name(kind: bytes) -> bytes:
    """An archive with a member whose name is empty."""
    whole = gzip.decompress(tarred((member("run/a.txt", kind), b"1 hdrcharset")))
    begin = whole.index(b"run/a.txt\0")
    header = bytearray(whole[begin : begin + 512])
    header[:9] = bytes(9)
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return gzip.compress(whole[:begin] + header + whole[begin + 512 :])


def naming(name: str) -> bytes:
    """An archive whose manifest alone names a part."""
    return pack(manifest(Part(name=name, error="it did not answer")), {})


def repacked(name: str) -> bytes:
    """An archive with one file, as tar makes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """One member of such an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_parts_are_judged_as_facts_and_texts_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torn matrix is a fault; facts have all their checks; a log and a report are only listed."""
    lost = msgspec.json.encode(replace(facts("h2"), gpus=facts().gpus[:7]))  # type: ignore[index]
    files = {
        "nodes/h1/facts.json": FACTS,
        "nodes/h1/nvidia-smi-topo-m.txt": TORN.encode(),
        "nodes/h1/ibdev2netdev.txt": b"mlx5_0 port 1 ==> ib0 (Up)\n",
        "nodes/h1/nccl-rail-0.log": b"gpu041:4711:4800 [3] NCCL INFO Using network IB\n",
        "nodes/h2/facts.json": lost,
        "run/report.json": b"{}",
    }
    path = tmp_path / "capture.tar.gz"
    path.write_bytes(packed(files))
    assert main(["read", str(path)]) == 1
    out = capsys.readouterr().out
    assert "nodes/h1/nvidia-smi-topo-m.txt\n       nvidia-smi topo -m\nFAIL   gpu.topology\n" in out
    assert "gpu.count" in out
    assert "ok     gpu.ecc: " in out
    assert "NCCL log" in out
    assert "give the output of env in the job as a file" in " ".join(out.split())
    assert "--preflight" not in out
    assert main(["read", "--json", str(path), str(path)]) == 1
    assert f'"{path}: nodes/h1/facts.json"' in capsys.readouterr().out


def test_a_node_that_gave_nothing_is_not_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest names it: exit 3 and why, also where no measurements came."""
    path = tmp_path / "a.tar.gz"
    silent = Part(name="nodes/h2/facts.json", node="h2", error="it did not answer")
    for more in (silent, Part(name="run/measured.json", error="the run left none")):
        whole = Part(name="nodes/h1/facts.json", node="h1")
        path.write_bytes(pack(manifest(whole, more), {whole.name: FACTS}))
        code = main(["read", str(path)])
        out = " ".join(capsys.readouterr().out.split())
        assert (code, more.error in out) == (3, True), out


def test_a_slow_link_in_the_samples_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `preflight blame` names it, and once."""
    swept = Measured(nonce="n", sweep=_gloo("h3")).encode()
    path = tmp_path / "capture.tar.gz"
    path.write_bytes(packed({"run/measured.json": swept}))
    assert main(["read", str(path)]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "h3 is slow with each of its 7 partners" in out


def test_facts_of_another_version_prove_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3 and the reason, no traceback."""
    path = tmp_path / "capture.tar.gz"
    path.write_bytes(packed({"nodes/h1/facts.json": FACTS.replace(b'"wire":1', b'"wire":9')}))
    assert main(["read", str(path)]) == 3
    assert "version 9" in capsys.readouterr().out
    path.write_bytes(packed({"nodes/h1/facts.json": b'{"wire":1}'}))
    assert main(["read", str(path)]) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed({"nodes/h1/env.txt": b"x" * 9999})[:-40], "it ends early"),
        (gzip.compress(b"no tar"), "no complete archive"),
        (gzip.compress(b""), "no complete archive"),
        (repacked("run/report.json"), "it does not begin with manifest.json"),
        (repacked("./nodes/h1/facts.json"), "it does not begin with manifest.json"),
        (tarred((member("../../etc/cron.d/x"), b"x")), "no capture has a file"),
        (tarred((member("/etc/passwd"), b"x")), "no capture has a file"),
        (tarred((member("nodes/../run/x.txt"), b"x")), "no capture has a file"),
        (tarred((member("nodes/h1/env.txt", tarfile.SYMTYPE, "/etc"), b"")), "than plain files"),
        (tarred((member("nodes/h1/env.txt", tarfile.LNKTYPE, MANIFEST), b"")), "than plain files"),
        (tarred((member("nodes/h1/env.txt", tarfile.FIFOTYPE), b"")), "than plain files"),
        (tarred((member("x", tarfile.XHDTYPE), b"1" * 9_000_000)), "than plain files"),
        (without_name(tarfile.XHDTYPE), "than plain files"),
        (without_name(tarfile.XGLTYPE), "than plain files"),
        (without_name(tarfile.REGTYPE), "no capture has a file ''"),
        (naming("\x1b[31mX\x9b\u202e\r\nOK/facts.json"), "as no capture does: capture again"),
        (naming("x/facts.json"), "as no capture does: capture again"),
        (tarred((member("run/a.txt"), b"1"), (member("run/a.txt"), b"2")), "run/a.txt twice"),
        (tarred((member(MANIFEST), b"{}")), "manifest.json twice"),
        (gzip.compress(bytes(64 << 20), 1), " MiB once it is unpacked"),
        (pack(manifest(), {"run/report.json": b"{}"}), "which its manifest does not name"),
        (pack(manifest(Part(name="run/report.json")), {}), "which it lacks"),
        (pack(msgspec.structs.replace(manifest(), schema=2), {}), "its schema is 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.slow
def test_a_damaged_or_hostile_archive_is_one_line(
    tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 4 with the file's name and what to do; nothing is written anywhere."""
    path = tmp_path / "capture.tar.gz"
    path.write_bytes(content)
    assert main(["read", str(path)]) == 4
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err
    assert re.search("capture again|copy the archive again|use the one that wrote it", err)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


@given(st.data())
@draws(60)
def test_no_byte_of_it_can_crash_the_reader(data: st.DataObject) -> None:
    """Damage anywhere, before or after compression, is refused or harmless."""
    whole = gzip.decompress(packed({"nodes/h1/facts.json": FACTS}))
    at = data.draw(st.integers(0, 4096))
    damaged = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + 4 :]
    for content in (gzip.compress(damaged), packed({"run/a.txt": b"x"})[: at % 300]):
        with suppress(UsageError):
            unpack(content)


def test_what_goes_in_comes_out() -> None:
    """And its members tell nothing of who packed them."""
    files = {"nodes/h1/facts.json": FACTS, "run/report.json": b"{}"}
    content = packed(files)
    assert unpack(content).files == files
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in tar} == {(0, 0, "", 0)}
    assert archive.SCHEMA == 1
