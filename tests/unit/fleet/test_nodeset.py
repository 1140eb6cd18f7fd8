"""Node lists: read as the scheduler writes them, and never a way to exhaust or to inject."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fleet.model import Host
from preflight.fleet.nodeset import MOST_NODES, check_host_name, check_names, expand, fold
from tests.cases import MANY

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[001-003]", ("gpu001", "gpu002", "gpu003")),
        ("a,b c", ("a", "b", "c")),
        ("rack[1-2]n[01-02]", ("rack1n01", "rack1n02", "rack2n01", "rack2n02")),
        ("a[1-2],b[3,5]", ("a1", "a2", "b3", "b5")),
        ("n1.cluster.example", ("n1.cluster.example",)),
        ("10.0.0.[1-2]", ("10.0.0.1", "10.0.0.2")),
        ("2001:db8::1,[2001:db8::2]", ("2001:db8::1", "2001:db8::2")),
        ("fe80::1%eth0.100,[fe80::2%3]", ("fe80::1%eth0.100", "fe80::2%3")),
        ("a,a,a", ("a",)),
        # As `scontrol show hostnames` has them, but for the one with a step.
        ("a5[8-11]", ("a58", "a59", "a510", "a511")),
        ("a0[01-03]", ("a001", "a002", "a003")),
        ("a5[98-101]", ("a598", "a599", "a5100", "a5101")),
        ("a5[098-101]", ("a5098", "a5099", "a5100", "a5101")),
        ("a5[1-2]b7[9-10]", ("a51b79", "a51b710", "a52b79", "a52b710")),
        ("a5[1-010/4]", ("a51", "a55", "a59")),
        ("a65536[1-2],a[8-11]0", ("a80", "a90", "a100", "a110", "a655361", "a655362")),
        ("a[1-300]!a[2-300]", ("a1",)),
        ("10.0.0.1[9-10]", ("10.0.0.19", "10.0.0.110")),
    ],
)
def test_expands_what_schedulers_write(text: str, names: tuple[str, ...]) -> None:
    """A node list expands to its names, each once."""
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "node[1-100000000]",
        "n[1-1000]m[1-1000]",
        "gpu[1-8] ! gpu3",
        "gpu[1-8] !gpu3",
        "gpu[1-4] & gpu[3-8]",
        "gpu[1-8]!",
        "gpu[1-4]^",
        "!gpu3",
        "a!!b",
        "!",
        "n[1-",
        "n[3-1]",
        "-oProxyCommand=reboot",
        "a b;reboot",
        "$(reboot)",
        "a\x1b[31m",
        "h\x1b[31m1",
        "h[1-\x1b[31m]",
        "@gpu",
        "x" * 300,
        "a/../b",
        "fe80::1%$(id)",
        "fe80::1%eth0;h2",
        "fe80::1%\x1b[31m",
        "fe80::1%",
        "[[fe80::1]]",
        "[1-3]",
        "gpu1,7",
        "127.1",
        "0x7f.1",
        "010.0.0.1",
        "10.0.0.1.",
        "256.0.0.1",
        f"n[1-{'9' * 5000}]",
        "a99999999999999999[1-200]",
        "a[1-200]99999999999",
        "a65536[1-200,x]",
        "a65536[1-200/0]",
        "a65536[200-1]",
        "a65536[]",
        "vm[1-\u0665]",
        "n" + "9" * 5000,
        "a1" * 100 + "b[1-65536]",
        "a" * 254 + "[1-65536]",
        "^".join(f"a{at}" for at in range(65537)),
        "&".join(["a[1-60000]"] * 1000),
    ],
)
def test_refuses_in_one_line_that_says_what_to_type(text: str) -> None:
    """What is no node list ends in one line with an example, quickly and without memory."""
    with pytest.raises(UsageError, match="type for example") as caught:
        expand(text)
    assert str(caught.value).isprintable()


@given(st.text(alphabet=string.printable, max_size=60))
@MANY
def test_any_text_gives_names_or_a_usage_error(text: str) -> None:
    """No text raises anything else, or expands beyond the cap."""
    try:
        names = expand(text)
    except UsageError:
        return
    assert 0 < len(names) <= MOST_NODES
    assert all(not name.startswith("-") and " " not in name for name in names)


@given(st.sets(st.integers(0, 9999), min_size=1, max_size=40))
def test_folding_and_expanding_are_inverse(numbers: set[int]) -> None:
    """What we print can be pasted back."""
    names = {f"gpu{number:04d}" for number in numbers}
    assert set(expand(fold(names))) == names


@pytest.mark.slow
@given(
    st.integers(0, 99999), st.sampled_from(["", "0", "00"]), st.integers(0, 250),
    st.integers(0, 250), st.sampled_from(["", "b", "7"]),
)  # fmt: skip
@MANY
def test_digits_before_a_bracket_are_those_of_each_name(
    before: int, padding: str, first: int, more: int, after: str
) -> None:
    """As Slurm prints them, at least as many digits as the first number has; also once folded."""
    start = f"{padding}{first}"
    names = expand(f"a{before}[{start}-{first + more}]{after}")
    numbers = range(first, first + more + 1)
    assert set(names) == {f"a{before}{number:0{len(start)}}{after}" for number in numbers}
    assert len(names) == more + 1
    assert set(expand(fold(names))) == set(names)


@example("%a\nh2", "fe80::1{}")
@given(
    st.text(max_size=30),
    st.sampled_from(["fe80::1%{}", "[fe80::1%{}]", "h1{}", "{}", "10.0.0.1{}"]),
)
@MANY
def test_a_name_holds_nothing_that_a_shell_or_a_terminal_reads(text: str, around: str) -> None:
    """Of names and addresses from anywhere only letters, digits and . : % _ - [ ] are left."""
    name = around.format(text)
    try:
        check_host_name(name)
    except UsageError:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + ".:%_-[]")
    assert not name.startswith("-")


def _is_name(text: str) -> bool:
    try:
        check_host_name(text)
    except UsageError:
        return False
    return True


@given(st.text(st.sampled_from("ah.0129x:%-_$ /\x1b'"), max_size=9))
@example("-oProxyCommand=touch /tmp/x")
@example("0x7f000001")
@example("010.1")
@example("$(id)")
def test_no_host_has_a_name_or_an_address_that_is_none(text: str) -> None:
    """Whoever makes one: a hook of the site, an inventory, a change of one, what was decoded."""
    sound = Host(name="h1", address="h1", user="ann", port=22)
    makers: tuple[Callable[[], Host], ...] = (
        lambda: Host(name="h1", address=text),
        lambda: msgspec.convert({"name": "h1", "address": text}, Host),
        lambda: msgspec.json.decode(
            msgspec.json.encode({"name": text, "address": text}), type=Host
        ),
        lambda: replace(sound, address=text),
    )
    for make in makers:
        if _is_name(text):
            assert make()
        else:
            with pytest.raises((UsageError, msgspec.ValidationError)):
                make()
    if not _is_name(text):
        with pytest.raises(ValueError, match="is not a node name"):
            check_names(["h1", text])


def test_only_one_place_loads_clustershell() -> None:
    """It reads a defaults.conf as it is loaded, which may be anybody's, or damaged."""
    root = Path(__file__).parents[3]
    loads = re.compile(
        r"^\s*(?:from|import) ClusterShell|import_module\(f?\"ClusterShell", re.MULTILINE
    )
    files = [*root.glob("preflight/**/*.py"), *root.glob("checks/**/*.py")]
    assert [path.name for path in files if loads.search(path.read_text())] == ["nodeset.py"]


@pytest.mark.parametrize(
    "text", ["[nodeset]\nfold_axis = abc\n", "no ini\n", "[nodeset]\nfold_axis = 1\n"]
)
def test_no_defaults_of_clustershell_are_read(tmp_path: Path, text: str) -> None:
    """Neither its CLUSTERSHELL_CFGDIR nor that of XDG changes how nodes are read and folded."""
    for folder in (tmp_path, tmp_path / "clustershell"):
        folder.mkdir(exist_ok=True)
        (folder / "defaults.conf").write_text(text)
    code = "from preflight.fleet.nodeset import expand, fold; print(fold(expand('n[1-2]m[1-2]')))"
    folded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"CLUSTERSHELL_CFGDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (folded.stdout, folded.stderr) == ("n[1-2]m[1-2]\n", "")
