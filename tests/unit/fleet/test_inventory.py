"""The inventory: the nearest layer wins, and a misspelled expectation is never ignored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from preflight.errors import UsageError
from preflight.fleet.inventory import open_inventory, read_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOML = """
[defaults]
user = "ops"
python = "/opt/venv/bin/python"
gpus = 4

[group.train]
nodes = "gpu[1-2]"
gpus = 8
identity_file = "keys/id"

[group.debug]
nodes = "dev1"

[node.gpu2]
address = "10.0.0.2"
gpus = 7
"""

YAML = """
group:
  train:
    nodes: "gpu[1-2]"
    gpus: 8
"""


def _write(folder: Path, text: str, name: str = "fleet.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_nearest_layer_wins(tmp_path: Path) -> None:
    """A node's own value beats its group's, which beats the defaults."""
    inventory = read_inventory(_write(tmp_path, TOML))
    assert inventory.names == ("gpu1", "gpu2", "dev1")
    assert [inventory.host(n).expected.gpus for n in inventory.names] == [8, 7, 4]
    assert inventory.host("gpu2").address == "10.0.0.2"
    assert inventory.host("gpu1").identity_file == str(tmp_path / "keys/id")
    assert inventory.host("dev1").python == ("/opt/venv/bin/python",)


def test_a_promise_says_where_it_comes_from(tmp_path: Path) -> None:
    """A sentence can name the file and the table behind a number."""
    path = _write(tmp_path, TOML)
    assert read_inventory(path).host("gpu1").expected.origin == f"{path} [group.train]"


def test_the_device_of_each_rail_can_be_promised(tmp_path: Path) -> None:
    """A list of names in the order of the GPUs; a node's own replaces its group's."""
    text = TOML + 'hcas = ["mlx5_4"]\n[node.gpu1]\nhcas = ["mlx5_0", "mlx5_1"]\n'
    inventory = read_inventory(_write(tmp_path, text))
    assert inventory.host("gpu1").expected.hcas == ("mlx5_0", "mlx5_1")
    assert inventory.host("gpu2").expected.hcas == ("mlx5_4",)
    assert inventory.host("dev1").expected.hcas is None


def test_yaml_says_the_same(tmp_path: Path) -> None:
    """A YAML inventory goes through the same model."""
    inventory = read_inventory(_write(tmp_path, YAML, "fleet.yaml"))
    assert inventory.host("gpu2").expected.gpus == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[group.t]\nnodes = "h1"\ngpu = 8', r"unknown key 'gpu' in \[group.t\].*'gpus'"),
        ('[grop.t]\nnodes = "h1"', "unknown key 'grop'.*did you mean 'group'"),
        ("[job]\nmaster_prt = 1", r"unknown key 'master_prt' in \[job\].*'master_port'"),
        ("[job]\nmaster_port = 99999", "master_port"),
        ('[group.t]\nnodes = "h1"\ngpus = "8"', r"group\.t.*gpus|gpus"),
        ('[group.t]\nnodes = "h[1-100000000]"', "more than 65536"),
        ('[group.t]\nnodes = ""', "empty"),
        ('[group.t]\nnodes = "h1"\nhcas = ["mlx5 0"]', "hcas"),
        ('[group.t]\nnodes = "h1"\n[node.h2]\ngpus = 1', r"\[node.h2\] is in no group"),
        ('[node.h1]\naddress = "-oProxyCommand=reboot"', "not a host name"),
        ("[defaults]\nknown_hosts = '/a\"b'", "known_hosts in .*defaults.* holds a quote"),
        ("[defaults]\nidentity_file = '/a\\'", "identity_file in .*defaults.* a backslash"),
        ("[defaults]\nssh_config = '/${HOME}/a'", "ssh_config in .*defaults.* ssh would read"),
        ('[defaults]\nuser = "-oProxyCommand=reboot"', "user"),
        ('[defaults]\npython = "a \'b"', "quote"),
        ("group = [", "not TOML"),
        ('[group.t]\nnodes = "h1"\ntransport = "paramko"', "transport.*did you mean 'paramiko'"),
        ('[defaults]\nuser = "ops\\u0000"', "control character"),
        ('[defaults]\npython = ["/bin/p\\u001b[31m"]', "control character"),
        ('[defaults]\nidentity_file = "k\\u0000"', "control character"),
        ('[group.a]\nnodes = "h[1-3]"\n[group.b]\nnodes = "h3"', r"h3 is in \[group.a\].*group.b"),
        ('[node."../../etc/cron.d/x"]\ngpus = 1', "not a host name"),
        ('[group.t]\nnodes = "/etc/passwd"', "not a host name"),
        ('[group.t]\nnodes = "-oProxyCommand=reboot"', "not a host name"),
        ('[node."-lroot"]\ngpus = 1', "not a host name"),
        ('[node.h1]\naddress = "h1 -oProxyCommand=reboot"', "not a host name"),
        ('[node.h1]\naddress = "h1/../h2"', "not a host name"),
        ('[node.h1]\naddress = "$(reboot)"', "not a host name"),
        ('[defaults]\nuser = "-lroot"', "user"),
        ('[defaults]\nuser = "ops -oProxyCommand=reboot"', "user"),
        ('[group.t]\nnodes = "h[1-9][1-9999][1-9999]"', "more than 65536"),
        ("[defaults]\ngpus = 99999999999999999999999", "gpus|not TOML|number"),
        ("[defaults]\ngpus = -1", "gpus"),
        ("[defaults]\nallreduce_min_gbs = inf", "give a number of GB/s"),
        ("[defaults]\nallreduce_min_gbs = nan", "allreduce_min_gbs"),
        ('[group.a]\nnodes = "a[1-40000]"\n[group.b]\nnodes = "b[1-40000]"', "more than 65536"),
        ('[job]\nmaster_port = "x"', r"a whole number, got text, at master_port in \[job\]"),
        (
            '[group.a]\nnodes = "h1"\ngpus = "8"\n[group.b]\nnodes = "h2"',
            r"expected a whole number, got text, at gpus in \[group.a\]: correct it",
        ),
        ('[group.a]\nnodes = "h1"\n[group.b]\ngpus = 8', r"field nodes, at \[group.b\]"),
        ('[node.h1]\nport = "22"\n[node.h2]\nport = 22', r"text, at port in \[node.h1\]"),
        (
            '[group.a]\nnodes = "h1"\n[group.a.checks."gpu.ecc"]\nenabled = 1',
            r'at enabled in \[group.a.checks."gpu.ecc"\]',
        ),
        (
            '[[waive]]\ncheck = "gpu.ecc"\nnodes = "h1"\nreason = "old"\nuntil = "24.12.2026"',
            "expected a date such as 2026-12-24, at waive",
        ),
        (
            '[group.a]\nnodes = "h1"\nlearned = 2026',
            r"a date such as 2026-12-24, got a whole number, at learned in \[group.a\]",
        ),
        ("a = " + "[" * 5000, "not TOML of an inventory: nested too deep; correct the file"),
    ],
)
def test_faults_are_one_line_with_the_file_and_the_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    """Every fault of an inventory names the file and what to change, in one line."""
    path = _write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_inventory(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_gets_its_own_message(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are not text get other messages than bad syntax."""
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(UsageError, match="cannot read the inventory"):
            read_inventory(path)


def test_an_inventory_cannot_eat_all_memory(tmp_path: Path) -> None:
    """YAML aliases that stand for gigabytes, and endless files, are refused as they are read."""
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(UsageError, match="aliases"):
        read_inventory(_write(tmp_path, bomb, "bomb.yaml"))
    with pytest.raises(UsageError, match="larger than"):
        read_inventory(_write(tmp_path, "#" * (5 << 20)))
    with pytest.raises(UsageError, match="not YAML"):
        read_inventory(_write(tmp_path, "[" * 500_000, "deep.yaml"))
    with pytest.raises(UsageError, match="not TOML"):
        read_inventory(_write(tmp_path, "x = " + "[" * 5000))


def test_a_repeated_key_of_yaml_is_refused(tmp_path: Path) -> None:
    """Of two expectations for one group YAML would keep the last without a word."""
    text = YAML + "    gpus: 4\n"
    with pytest.raises(UsageError, match="line 6 repeats the key 'gpus'"):
        read_inventory(_write(tmp_path, text, "fleet.yaml"))


_TAGGED = (
    "!!python/object/apply:os.system [reboot]", "!!python/name:os", "!!int ''", "!!bool x",
    "!!map [1]", "!!timestamp x", "! x",
)  # fmt: skip


@pytest.mark.parametrize("value", _TAGGED)
def test_a_tag_of_yaml_makes_no_object(tmp_path: Path, value: str) -> None:
    """YAML that asks for a type, be it a Python object, is refused as it is read."""
    with pytest.raises(UsageError, match="uses YAML tags"):
        read_inventory(_write(tmp_path, f"defaults:\n  python: {value}\n", "fleet.yaml"))


@pytest.mark.parametrize("number", ["1" + ":1" * 200_000, "1" + ":1" * 200 + ".5", "9" * 5000])
def test_a_number_without_end_in_yaml_is_refused(tmp_path: Path, number: str) -> None:
    """1:1:1... counts by sixties, which takes the square of its length in time."""
    with pytest.raises(UsageError, match=r"not YAML|longer than"):
        read_inventory(_write(tmp_path, f"defaults:\n  gpus: {number}\n", "fleet.yaml"))


@pytest.mark.parametrize("read", [open_inventory, read_inventory])
@pytest.mark.parametrize("text", [
    "{a: " * 20_000, "[" * 20_000, "? " * 20_000, "".join(f"%TAG !{n}! x\n" for n in range(20_000)),
], ids=["maps", "lists", "keys", "tags"])  # fmt: skip
def test_no_more_of_yaml_is_read_than_its_bounds_allow(
    tmp_path: Path, text: str, read: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only its layout is examined: libyaml takes the square of the depth in time.

    From libyaml 0.2.6 on it refuses a part of them itself.
    """
    refused = r"fleet.yaml: .*(nested too deep|maximum nesting depth|%TAG)"
    events, real = 0, yaml.parse

    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        nonlocal events
        for event in real(*given, **named):
            events += 1
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    with pytest.raises(UsageError, match=refused):
        read(_write(tmp_path, text, "fleet.yaml"))
    assert events < 1000


def test_a_link_to_something_else_is_no_inventory(tmp_path: Path) -> None:
    """A link is followed to what it is: a pipe or a device behind it is refused unread."""
    pipe, link = tmp_path / "pipe", tmp_path / "fleet.toml"
    os.mkfifo(pipe)
    for target in (pipe, Path("/dev/zero"), tmp_path):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(UsageError, match="cannot read the inventory"):
            read_inventory(link)


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    """A pipe would hang for ever and a device never end: both are refused unread."""
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(UsageError, match=r"not a regular file|NUL byte"):
            read_inventory(path)


def test_an_inventory_that_cannot_be_reached_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says why, as where no other user may search its folder or the path is long."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    too_long = tmp_path.joinpath(*["folder"] * 1000)
    for name in ("hosts", "fleet.yaml", "list.json", "fleet.toml"):
        with pytest.raises(UsageError, match=r"cannot read the inventory .*: File name too long; "):
            open_inventory(too_long / name)


@pytest.mark.slow
def test_a_large_yaml_inventory_is_read(tmp_path: Path) -> None:
    """Tens of thousands of nodes with a table each are read by libyaml."""
    lines = "".join(f"  n{number}: {{gpus: 8}}\n" for number in range(20_000))
    assert len(read_inventory(_write(tmp_path, f"node:\n{lines}", "big.yaml")).names) == 20_000


@pytest.mark.parametrize(
    "text",
    [
        "{}=1\n",
        "[{}]\n",
        'x = {{ y = """a"""", {} = 1 }}\n',
        'x = "\\"" # "\n{}=1\n',
        "x = '''\n\"\"\"\n'''\n{}=1\n",
    ],
)
def test_a_key_of_many_parts_is_refused_unparsed(tmp_path: Path, text: str) -> None:
    """20 KB of dots made 420 MB, and 100 KB took most of a minute."""
    path = tmp_path / "fleet.toml"
    for part in ("a", '"a"', "'a' "):
        path.write_text(text.format(".".join([part] * 10_000)))
        with pytest.raises(UsageError, match="has more than 64 dots outside of quotes") as error:
            read_inventory(path)
        line = path.read_text().count("\n", 0, path.read_text().index(part)) + 1
        assert f"not TOML: line {line} has" in str(error.value)


@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_dots_in_quotes_and_comments_are_no_parts(tmp_path: Path, quote: str) -> None:
    """A list of full names is as long as it likes."""
    names = ",".join(f"gpu{number}.example.org" for number in range(100))
    path = tmp_path / "fleet.toml"
    path.write_text(f"[group.train] # {names} \" '\nnodes = {quote}{names}{quote}\n")
    assert len(read_inventory(path).names) == 100
