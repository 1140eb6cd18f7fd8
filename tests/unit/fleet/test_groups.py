"""ClusterShell's groups: read where the operator wrote them, and nothing they start outlives us."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from preflight.errors import UsageError
from preflight.fleet import groups
from preflight.fleet.groups import expand_with_groups
from preflight.fleet.sources import FleetRequest, resolve

CONF = """
[Main]
default: racks
autodir: $CFGDIR/groups.d

[fails]
map: echo "cannot reach the database" >&2; exit 1

[hangs]
map: echo $$$$ > $CFGDIR/upcall.pid; sleep 600

[says]
map: echo $GROUP > $CFGDIR/upcall.ran; echo h[1-2]
"""

RACKS = """
racks:
  r1: "gpu[001-003]"
  r2: "gpu[004-006]"
  spare: ""
  bomb: "n[1-100000000]"
  circle: "@circle"
  hostile: "-oProxyCommand=reboot"
  all: "gpu[001-006]"
tiers:
  prod: "@racks:r1,x1"
"""

RACK_1 = ["gpu001", "gpu002", "gpu003"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's own groups, in the folder that $XDG_CONFIG_HOME makes his."""
    folder = tmp_path / "xdg" / "clustershell"
    (folder / "groups.d").mkdir(parents=True)
    (folder / "groups.conf").write_text(CONF)
    (folder / "groups.d" / "racks.yaml").write_text(RACKS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTERSHELL_CFGDIR", raising=False)
    return folder


def _names(fleet_of: FleetRequest) -> list[str]:
    return [host.name for host in resolve(fleet_of).hosts]


@pytest.mark.usefixtures("config")
@pytest.mark.slow
def test_groups_are_read_wherever_the_operator_writes(tmp_path: Path) -> None:
    """Option, PREFLIGHT_NODES, ini file and inventory take groups, and the origin shows them."""
    path = tmp_path / "fleet.toml"
    path.write_text('[group.train]\nnodes = "@r1"\ngpus = 8\n[group.other]\nnodes = "o1"\n')
    by_option = resolve(FleetRequest(nodes="@r1,x9"))
    assert [host.name for host in by_option.hosts] == [*RACK_1, "x9"]
    assert by_option.origin == "--preflight-nodes (@r1)"
    assert len(_names(FleetRequest(environ={"PREFLIGHT_NODES": "@*"}))) == 6
    assert _names(FleetRequest(ini_nodes="@tiers:prod!@r1")) == ["x1"]
    own = resolve(FleetRequest(inventory=str(path), nodes="@inventory:train"))
    assert {host.name: host.expected.gpus for host in own.hosts} == dict.fromkeys(RACK_1, 8)


@pytest.mark.usefixtures("config")
def test_groups_are_left_out() -> None:
    """A group may be excluded, with nodes of other fleets in it, and may be empty today."""
    assert _names(FleetRequest(nodes="gpu[003-005]", exclude="@r1")) == ["gpu004", "gpu005"]
    assert _names(FleetRequest(nodes="gpu001", exclude="@spare")) == ["gpu001"]
    with pytest.raises(UsageError, match="gpu9 is not in this fleet"):
        resolve(FleetRequest(nodes="gpu[001-004]", exclude="@r1,gpu9"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("@r3", "no group is called @racks:r3; known: .*r1, r2, spare: look at CONF"),
        ("@rakcs:r1", "no group source is called 'rakcs'; did you mean 'racks'.*look at CONF"),
        ("@spare", "group @racks:spare has no nodes: look at CONF"),
        ("@fails:x", "looks up @fails:x failed: look at CONF"),
        ("@bomb", "@bomb names more than 65536 nodes: look at CONF"),
        ("@circle", "cannot"),
        ("@hostile", "not a host name"),
        ("@r1!@r1", "comes out empty"),
        ("@r1[", "cannot read @r1"),
        ("@inventory:train", "no group source is called 'inventory'"),
        ("@r1\x1b[31m", "control character"),
    ],
)
def test_what_is_wrong_names_the_group_and_the_file(config: Path, nodes: str, message: str) -> None:
    """A group that is unknown, empty or unreadable ends in one line, never in a smaller fleet."""
    where = str(config / "groups.conf")
    with pytest.raises(UsageError, match=message.replace("CONF", where)) as caught:
        resolve(FleetRequest(nodes=nodes))
    assert str(caught.value).isprintable()


def test_without_a_configuration_the_message_says_where_to_write_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example groups that pip installs beside ClusterShell are not read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTERSHELL_CFGDIR", raising=False)
    with pytest.raises(UsageError, match=r"no groups are configured.*@gpu.*groups\.conf"):
        resolve(FleetRequest(nodes="@gpu"))


def test_the_configuration_may_be_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$CLUSTERSHELL_CFGDIR is ClusterShell's own way to another configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(config))
    assert expand_with_groups("@r2") == ("gpu004", "gpu005", "gpu006")


def test_others_cannot_start_a_command(config: Path) -> None:
    """A group in Slurm's variable is refused, and its command is not run."""
    with pytest.raises(UsageError, match="groups such as"):
        resolve(FleetRequest(environ={"SLURM_JOB_NODELIST": "@says:x"}))
    assert not (config / "upcall.ran").exists()
    assert _names(FleetRequest(nodes="@says:x")) == ["h1", "h2"]
    assert (config / "upcall.ran").exists()


@pytest.mark.slow
def test_a_command_that_hangs_is_ended(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the deadline the upcall is gone with everything it started."""
    started = config / "upcall.pid"
    for deadline_s in (3.0, 12.0, 48.0):  # a busy machine may need longer to come that far
        monkeypatch.setattr(groups, "UPCALL_S", deadline_s)
        with pytest.raises(UsageError, match=r"not resolved @hangs:x in .*nodeset -e '@hangs:x'"):
            resolve(FleetRequest(nodes="@hangs:x"))
        if started.exists() and started.read_text().strip():
            break
    pid = int(started.read_text())
    ends = time.monotonic() + 20
    while _lives(pid) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_digits_before_a_bracket_are_those_of_each_name(config: Path) -> None:
    """In a pattern with groups and in a group's own nodes, as in any node list."""
    added = '  digits: "a5[1,8-11],b"\n  wide: "a65536[1-200]"\n'
    (config / "groups.d" / "racks.yaml").write_text(RACKS.partition("tiers:")[0] + added)
    group = {"a51", "a58", "a59", "a510", "a511", "b"}
    assert set(expand_with_groups("@racks:digits")) == group
    assert set(expand_with_groups("@racks:digits,c7[9-10]")) == {*group, "c79", "c710"}
    assert len(expand_with_groups("@racks:wide")) == 200
    with pytest.raises(UsageError):
        expand_with_groups("@racks:r1,c[1-20]99999999999")
