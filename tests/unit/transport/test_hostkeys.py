"""known_hosts is read as OpenSSH reads it; ssh-keygen itself is the measure."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from preflight.core.remote_command import ReachError
from preflight.transport import host_keys
from preflight.transport.host_keys import has_authority, known_kinds, read_known_hosts, verify
from preflight.transport.ssh_config import Route
from tests.patterns.growth import steepness, work
from tests.unit.transport.sshd import new_key

if TYPE_CHECKING:
    from pathlib import Path

LINES = (
    "gpu017 {key}",
    "gpu017,10.0.0.17 {key}",
    "GPU017 {key}",
    "gpu0* {key}",
    "gpu01? {key} a comment with words",
    "g*u**1* {key}",
    "*u*?*017 {key}",
    "*p*p* {key}",
    "*,!gpu017 {key}",
    "!gpu017,* {key}",
    "[gpu017]:2222 {key}",
    "[gpu*]:2222 {key}",
    "[gpu017]:22 {key}",
    "gpu017x {key}",
    f"{'*' * 1022} {{key}}",
    f"{'*' * 1023} {{key}}",
    f"gpu017,!{'x' * 1022} {{key}}",
    f"gpu017,!{'x' * 1023} {{key}}",
    f"gpu017,{'x' * 1023} {{key}}",
    "g??0?7 {key}",
    "*u0*7? {key}",
    "*?0?7* {key}",
    "?*gpu017 {key}",
    "gpu*u017 {key}",
    "|1|AAAA|AAAA {key}",
    "gpu017,|1|AAAA|AAAA {key}",
    "# gpu017 {key}",
    "gpu017",
    "",
)
SIZE = 1 << 20
HASHED = f"|1|{'A' * 27}=|{'A' * 27}="


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Make a host key: its type and its base64."""
    path = new_key(tmp_path_factory.mktemp("key") / "host")
    kind, blob = path.with_suffix(".pub").read_text().split()[:2]
    return kind, blob


@pytest.mark.parametrize("name", ["gpu017", "[gpu017]:2222", "10.0.0.17", "gpu17"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.slow
def test_names_match_as_openssh_matches_them(
    tmp_path: Path, key: tuple[str, str], line: str, name: str, *, hashed: bool
) -> None:
    """For plain, hashed and wildcard names we find a line exactly when ssh-keygen -F does."""
    file = tmp_path / "known_hosts"
    file.write_text(line.format(key=" ".join(key)) + "\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-H", "-f", str(file)], capture_output=True, check=False)
    argv = ["ssh-keygen", "-F", name, "-f", str(file)]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert bool(read_known_hosts([str(file)], [name])) == (found.returncode == 0), found


@pytest.mark.parametrize("hashed", [False, True])
def test_case_does_not_matter(tmp_path: Path, key: tuple[str, str], *, hashed: bool) -> None:
    """`ssh GPU017` looks for gpu017."""
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu017 {' '.join(key)}\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-H", "-f", str(file)], capture_output=True, check=True)
    assert read_known_hosts([str(file)], ["GPU017"])


def test_a_broken_line_vouches_for_no_host(tmp_path: Path) -> None:
    """What is no key opens no door, and does not stop the reading either."""
    file = tmp_path / "known_hosts"
    file.write_text("h ssh-ed25519 not-base64!\nh ssh-ed25519 \xe9\nh ssh-ed25519\n\xff\n")
    assert read_known_hosts([str(file)], ["h"]) == ()


def _route(file: Path, port: int) -> Route:
    files = (str(file),)
    return Route(
        hostname="h", port=port, user="u", identity_files=(), use_agent=False, known_hosts=files
    )


def test_any_of_several_keys_will_do(tmp_path: Path, key: tuple[str, str]) -> None:
    """A host may have two keys of one type, as while one replaces the other."""
    other = new_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"h {' '.join(other)}\nh {' '.join(key)}\n")
    known = read_known_hosts([str(file)], ["h"])
    assert known_kinds(known) == ("ssh-ed25519",)
    for kind, blob in ((line.kind, line.blob) for line in known):
        verify(known, kind, blob, _route(file, 22))


def test_a_key_without_a_port_vouches_only_where_the_port_has_none(
    tmp_path: Path, key: tuple[str, str]
) -> None:
    """As in OpenSSH: the bare name is asked only when the name with the port is not there."""
    other = new_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    file, names = tmp_path / "known_hosts", ["[h]:2222", "h"]
    file.write_text(f"h {' '.join(key)}\n")
    known = read_known_hosts([str(file)], names)
    verify(known, known[0].kind, known[0].blob, _route(file, 2222))
    file.write_text(f"h {' '.join(key)}\n[h]:2222 {' '.join(other)}\n")
    known = read_known_hosts([str(file)], names)
    with pytest.raises(ReachError, match="changed"):
        verify(known, known[0].kind, known[0].blob, _route(file, 2222))


def test_another_key_under_the_bare_name_is_unknown_not_changed(
    tmp_path: Path, key: tuple[str, str]
) -> None:
    """The sshd on port 22 of the same machine says nothing about ours."""
    file, names = tmp_path / "known_hosts", ["[h]:2222", "h"]
    file.write_text(f"h {' '.join(key)}\n")
    known = read_known_hosts([str(file)], names)
    with pytest.raises(ReachError, match="unknown"):
        verify(known, "ssh-ed25519", b"another", _route(file, 2222))


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_comment_is_no_line_of_its_own(tmp_path: Path, key: tuple[str, str], end: str) -> None:
    """As in OpenSSH, only a newline ends a line: a node may have written the comment of its key."""
    file, whole = tmp_path / "known_hosts", " ".join(key)
    file.write_text(f"h {whole} root@h{end}* {whole}{end}@cert-authority * {whole}\n", newline="")
    assert len(read_known_hosts([str(file)], ["h"])) == 1
    assert read_known_hosts([str(file)], ["other"]) == ()
    assert not has_authority([str(file)], ["other"])


@pytest.mark.parametrize("line", ["@revoked * ssh-ed25519 broken!", "@vouched * {key}", "@revoked"])
def test_a_marker_that_cannot_be_read_stops_everything(
    tmp_path: Path, key: tuple[str, str], line: str
) -> None:
    """A line that may forbid a key is never passed over."""
    file = tmp_path / "known_hosts"
    file.write_text(line.format(key=" ".join(key)) + "\n")
    with pytest.raises(ReachError, match="line 1") as caught:
        read_known_hosts([str(file)], ["h"])
    assert caught.value.step == "hostkey"


def test_a_folder_is_no_known_hosts(tmp_path: Path) -> None:
    """A file that cannot be read is an error; a missing one holds nothing."""
    assert read_known_hosts([str(tmp_path / "none")], ["h"]) == ()
    with pytest.raises(ReachError, match="cannot be read"):
        read_known_hosts([str(tmp_path)], ["h"])


def test_a_pipe_or_a_device_is_no_known_hosts(tmp_path: Path) -> None:
    """It would hang every login or fill all memory; /dev/null has no keys, as for ssh."""
    pipe = tmp_path / "known_hosts"
    os.mkfifo(pipe)
    for file in (str(pipe), "/dev/zero"):
        with pytest.raises(ReachError, match="not a regular file") as caught:
            read_known_hosts([file], ["gpu017"])
        assert caught.value.step == "hostkey"
    assert read_known_hosts(["/dev/null"], ["gpu017"]) == ()


def _look_up(folder: Path, line: str, many: int) -> None:
    """Look up so many nodes in a file with a line for each of them."""
    file = folder / f"known_hosts{many}"
    file.write_text("".join(line.format(node=f"n{at}") for at in range(many)))
    for at in range(many):
        assert len(read_known_hosts([str(file)], [f"n{at}"])) == 1
        assert has_authority([str(file)], [f"n{at}"]) == line.startswith("@")


@pytest.mark.parametrize(
    "line", ["{node},x{node} ssh-ed25519 AAAA\n", "@cert-authority {node} ssh-ed25519 AAAA\n"]
)
def test_a_fleet_is_looked_up_in_linear_work(tmp_path: Path, line: str) -> None:
    """A file with a line for each node is not gone over for each node."""
    counts = [work(lambda so=so: _look_up(tmp_path, line, so)) for so in (100, 200, 400)]  # type: ignore[misc]
    assert steepness(counts) < 1.2, counts


@pytest.mark.parametrize("line", [f"{HASHED} ssh-rsa AAAA", "n? ssh-rsa AAAA", "n ssh-rsa AAAA"])
def test_comparisons_of_names_with_lines_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Hashed names and patterns are compared one by one, and so are many keys under one alias."""
    monkeypatch.setattr(host_keys, "MOST_COMPARED", 1000)
    file = tmp_path / "known_hosts"
    file.write_text(f"{line}\n" * (50 if line.startswith("n?") else 100))
    names = ["n"] * 30 if line.startswith("n ") else [f"n{at}" for at in range(30)]
    for name in names[:10]:
        read_known_hosts([str(file)], [name])
    with pytest.raises(ReachError, match="takes more than 1,000 comparisons") as caught:
        [read_known_hosts([str(file)], [name]) for name in names[10:]]
    assert caught.value.step == "hostkey"
    assert "plain names" in caught.value.advice


@pytest.mark.parametrize(
    "names",
    ["*a" * SIZE, f"!{'a' * SIZE},*", f"|1|{'A' * SIZE}|AAAA", f"n1,{'a,' * SIZE}", "*a" * 500],
    ids=["pattern", "negated", "salt", "list", "short"],
)
@pytest.mark.slow
def test_a_long_line_is_read_once_for_all_nodes(tmp_path: Path, names: str) -> None:
    """Comparing another node copies no part of it."""
    file = tmp_path / "known_hosts"
    file.write_text(f"{names} ssh-rsa AAAA\n" * (2000 if len(names) == 1000 else 1))
    read_known_hosts([str(file)], ["n0"])
    tracemalloc.start()
    try:
        for at in range(1, 40):
            for known in read_known_hosts([str(file)], [f"n{at}"]):
                assert known.is_about("n1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE, peak


def test_comparisons_under_one_alias_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them compares all patterns of the line to verify its key."""
    monkeypatch.setattr(host_keys, "MOST_COMPARED", 1000)
    file = tmp_path / "known_hosts"
    file.write_text(f"n,{'x*,' * 99}x* ssh-rsa AAAA\n")
    with pytest.raises(ReachError, match="takes more than 1,000 comparisons"):
        [read_known_hosts([str(file)], ["n"]) for _ in range(10)]
