"""As root an inventory, and what it names, must be root's: it decides what is run, and where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.core.files import open_folder
from preflight.core.trust import (
    path_without_dots,
    safe_paths_for_root,
    who_may_change,
    who_may_plant,
)
from preflight.errors import UsageError
from preflight.fleet.sources import FleetRequest, resolve
from tests.lab import strangers_mount
from tests.unit.core.access_lists import let_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STRANGER = 65534
needs_ansible = pytest.mark.skipif(
    shutil.which("ansible-inventory") is None, reason="needs ansible-core"
)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

LISTED = {"gpu": {"hosts": ["gpu1"]}, "_meta": {"hostvars": {}}}
KINDS = {
    "fleet.toml": '[group.gpu]\nnodes = "gpu1"\n',
    "fleet.yaml": "group: {gpu: {nodes: gpu1}}\n",
    "fleet.json": json.dumps(LISTED),
    "hosts.ini": "[gpu]\ngpu1\n",
    "hosts.yaml": "all: {hosts: {gpu1: {}}}\n",
    "hosts": f"#!/bin/sh\ntouch sprung\necho '{json.dumps(LISTED)}'\n",
}


def give_away(path: Path) -> None:
    """Make it a stranger's."""
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def written(path: Path, text: str = "") -> Path:
    """Write a file of root's that can be run."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def refused(path: Path, named: Path | None = None) -> str:
    """Why root does not take the inventory; it says which file it is about."""
    with pytest.raises(UsageError) as error:
        resolve(FleetRequest(inventory=str(path)))
    message = str(error.value)
    assert message.startswith(f"{named or path} is not used: ")
    assert "chown root: and chmod go-w" in message
    assert "\n" not in message
    return message


def open_to_group(path: Path) -> None:
    """Leave it to root and a group."""
    os.chown(path, 0, STRANGER)
    path.chmod(0o664)


SPOILED: dict[str, Callable[[Path], object]] = {
    "belongs to nobody": give_away,
    "every user may write to": lambda path: path.chmod(0o666),
    "its group may write to": open_to_group,
    "user nobody may write to": let_write,
    "group 65534 may write to": lambda path: let_write(path, group=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", SPOILED)
def test_an_inventory_of_another_user_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: str
) -> None:
    """Whatever its notation, and whether it is his, everybody's or a group's; no script is run."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / kind, KINDS[kind])
    SPOILED[fault](path)
    assert fault in refused(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("named", ["user", "group"])
@pytest.mark.parametrize("way", ["mask", "root", "owning group"])
def test_an_access_list_that_opens_a_file_to_nobody(tmp_path: Path, way: str, named: str) -> None:
    """It names root, its mask has no write, or the bits that look like the group's are the mask."""
    path = written(tmp_path / "fleet.toml", KINDS["fleet.toml"])
    if way == "mask":
        let_write(path, group=named == "group", mask=5)
    else:
        let_write(path, group=named == "group", number=0)
    if way == "owning group":
        os.chown(path, 0, STRANGER)
    assert resolve(FleetRequest(inventory=str(path))).hosts


@pytest.mark.parametrize("folder", ["access", "default"])
def test_a_folder_whose_access_list_lets_another_write(tmp_path: Path, folder: str) -> None:
    """Also where he may write to what is yet to be made in it, and where it is there already."""
    his = tmp_path / "his"
    his.mkdir()
    let_write(his, kind=folder)
    assert "user nobody may write to" in who_may_change(his)
    assert "user nobody may write to" in refused(his / "soon.toml")
    path = written(his / "fleet.toml", KINDS["fleet.toml"])
    path.chmod(0o644)
    if folder == "default":
        assert resolve(FleetRequest(inventory=str(path))).hosts
    else:
        refused(path)


@pytest.mark.parametrize("place", ["/dev/null", "a loop of links", "/tmp", "pipe"])
def test_no_advice_would_break_the_machine(tmp_path: Path, place: str) -> None:
    """`chmod go-w /dev/null` ends every program that writes there, and no chmod mends a loop."""
    path = Path(place) if place.startswith("/") else tmp_path / "fleet.toml"
    if place == "a loop of links":
        path.symlink_to("fleet.toml")
    elif place == "pipe":
        os.mkfifo(path)
        path.chmod(0o666)
    with pytest.raises(UsageError) as error:
        resolve(FleetRequest(inventory=str(path)))
    message = str(error.value)
    assert message.startswith(f"{path} is not used: ")
    assert message.endswith("; give a regular file of root's")
    assert "chmod" not in message


@pytest.mark.parametrize("place", ["folder", "link", "missing"])
def test_the_way_to_an_inventory_counts_too(tmp_path: Path, place: str) -> None:
    """In his folder, by his link, or not there yet where he could put it: refused."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = written(folder / "fleet.toml", KINDS["fleet.toml"])
    if place == "folder":
        give_away(folder)
    elif place == "link":
        path = folder / "link.toml"
        path.symlink_to("fleet.toml")
        give_away(path)
    else:
        folder.chmod(0o1777)
        assert "it is missing, and every user may" in refused(folder / "soon.toml")
        return
    refused(path)


@pytest.mark.parametrize("key", ["ssh_config", "known_hosts", "python"])
@pytest.mark.parametrize("table", ["defaults", "group.gpu", "node.gpu1"])
def test_a_file_that_the_inventory_names_is_refused_likewise(
    tmp_path: Path, key: str, table: str
) -> None:
    """Root's own inventory may name another user's file by mistake."""
    his = written(tmp_path / "his")
    value = f'["{his}", "-X", "dev"]\ntransport = "local"' if key == "python" else '"his"'
    tables = {"group.gpu": 'nodes = "gpu1"\n'}
    tables[table] = f"{tables.get(table, '')}{key} = {value}\n"
    path = written(
        tmp_path / "fleet.toml", "".join(f"[{name}]\n{text}" for name, text in tables.items())
    )
    resolve(FleetRequest(inventory=str(path)))
    give_away(his)
    refused(path, his)
    resolve(FleetRequest(inventory=str(path), nodes="other")) if table != "defaults" else None


def test_files_that_are_neither_code_nor_trust_hosts_may_be_another_users(tmp_path: Path) -> None:
    """A user's key, /dev/null for known hosts, and the Python of another machine."""
    his = written(tmp_path / "his")
    give_away(his)
    path = written(
        tmp_path / "fleet.toml",
        f'[defaults]\nidentity_file = "{his}"\nknown_hosts = "/dev/null"\npython = "{his}"\n'
        '[group.gpu]\nnodes = "gpu1"\n',
    )
    (host,) = resolve(FleetRequest(inventory=str(path))).hosts
    assert host.identity_file == str(his)


@pytest.mark.parametrize("python", ["{his}/python", "env A=1 {his}/python", "python"])
def test_a_python_that_was_typed_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """By its path, behind another command, or found in PATH: root runs none of a stranger's."""
    folder = tmp_path / "his"
    folder.mkdir()
    written(folder / "python")
    give_away(folder / "python")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    request = FleetRequest(nodes="gpu1", transport="local", python=python.format(his=folder))
    with pytest.raises(UsageError, match=f"{folder}/python is not used"):
        resolve(request)
    resolve(FleetRequest(nodes="gpu1", transport="openssh", python=str(folder / "python")))


@pytest.mark.parametrize(
    ("python", "named"),
    [
        ("env LD_PRELOAD={his}/p.so python3", "{his}/p.so"),
        ("env PYTHONPATH=/usr:{his} python3", "{his}"),
        ("env --chdir={his} python3 rel.py", "{his}"),
        ("env -C{his} python3 rel.py", "{his}"),
        ("env -C {own} python own.py", "{own}/own.py"),
        ("env PYTHONPATH=. python3", "."),
        ("./python3", "python3"),
        ("python3 rel.py", "rel.py"),
        ("sh -c '. {his}/rel.py; exec python3'", "{his}/rel.py"),
    ],
)
def test_what_stands_inside_of_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, named: str
) -> None:
    """A library, a folder to go to, and what lies in the working folder are run all the same."""
    his, own = tmp_path / "his", tmp_path / "own"
    for folder, name in ((his, "rel.py"), (own, "own.py")):
        folder.mkdir()
        give_away(written(folder / name))
    written(his / "python3")
    give_away(his)
    monkeypatch.chdir(his)
    names = {"his": his, "own": own}
    with pytest.raises(UsageError) as error:
        resolve(FleetRequest(nodes="gpu1", transport="local", python=python.format(**names)))
    assert str(error.value).startswith(f"{named.format(**names)} is not used")


@pytest.mark.parametrize("typed", ["bin/python3", "link", "env A=1 bin/python3", "sh wrap.py"])
@pytest.mark.parametrize("open_to_all", ["bin", "."])
def test_executed_files_lie_where_no_one_else_can_add_files(
    tmp_path: Path, typed: str, open_to_all: str
) -> None:
    """In a sticky folder, as /tmp is, anybody may add a module or a pyvenv.cfg, also one above."""
    top = tmp_path / "top"
    (top / "bin").mkdir(parents=True)
    written(top / "bin" / "python3")
    written(top / "bin" / "wrap.py")
    (tmp_path / "link").symlink_to(top / "bin" / "python3")
    python = typed.replace("bin/", f"{top}/bin/").replace("wrap", f"{top}/bin/wrap")
    request = FleetRequest(
        nodes="gpu1", transport="local", python=python.replace("link", f"{tmp_path}/link")
    )
    resolve(request)
    (top / open_to_all).chmod(0o1777)
    with pytest.raises(UsageError, match=f"every user may write to {top / open_to_all};"):
        resolve(request)


@pytest.mark.parametrize(
    "name", ["bin/pyvenv.cfg", "pyvenv.cfg", "bin/colors.py", "lib/python3.11/site-packages/a.pth"]
)
def test_what_a_python_loads_by_itself_is_roots(tmp_path: Path, name: str) -> None:
    """A file of a stranger's that was left in root's own folder."""
    (tmp_path / "bin").mkdir()
    python = written(tmp_path / "bin" / "python3")
    his = tmp_path / name
    his.parent.mkdir(parents=True, exist_ok=True)
    written(his)
    request = FleetRequest(nodes="gpu1", transport="local", python=str(python))
    resolve(request)
    give_away(his)
    with pytest.raises(UsageError, match=f"{python} is not used: {his} belongs to nobody"):
        resolve(request)


def test_a_command_of_roots_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words, folders and lists of paths are root's, and so are files that bear their names."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "rel.py")
    python = f"env LD_LIBRARY_PATH=/usr/lib:{tmp_path} --chdir={tmp_path} python3 -X dev rel.py"
    resolve(FleetRequest(nodes="gpu1", transport="local", python=python))


def test_the_python_that_runs_us_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preflight in another user's environment already runs that user's code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    give_away(folder)
    monkeypatch.setattr("sys.executable", str(written(folder / "python")))
    resolve(FleetRequest())
    resolve(FleetRequest(nodes="gpu1", transport="local", python=str(written(folder / "python3"))))


@needs_ansible
@pytest.mark.parametrize("place", ["inventory/sub/all", "group_vars/all.yml", "host_vars/gpu1"])
def test_all_that_ansible_reads_with_an_inventory(tmp_path: Path, place: str) -> None:
    """Every file of a folder, and the variables beside it."""
    path = tmp_path / "inventory"
    path.mkdir()
    written(path / "hosts", KINDS["hosts.ini"])
    his = tmp_path / place
    his.parent.mkdir(parents=True, exist_ok=True)
    written(his, "---\n").chmod(0o644)
    give_away(his)
    refused(path, his)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_folder_that_changes_while_it_is_looked_at_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """What is gone before it was looked at is refused, and never a traceback."""
    path, gone = tmp_path / "inventory", tmp_path / "inventory" / "gone"
    gone.mkdir(parents=True)
    written(path / "hosts", KINDS["hosts.ini"])
    real = os.scandir

    def scandir(folder: Any) -> Any:
        if Path(folder) == gone and when == "before":
            gone.rmdir()
        found = real(folder)
        if Path(folder) == gone and when == "after":
            gone.rmdir()
        return found

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UsageError) if when == "before" else suppress(UsageError):
        resolve(FleetRequest(inventory=str(path)))
    assert not gone.exists()


def test_a_folder_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /proc, or one that links lead from into all the machine."""
    monkeypatch.setattr("preflight.core.trust.MOST_BELOW", 10)
    path = tmp_path / "inventory" / "below"
    path.mkdir(parents=True)
    for number in range(11):
        written(path / f"hosts{number}", KINDS["hosts.ini"])
    with pytest.raises(UsageError, match="more than 10 files"):
        resolve(FleetRequest(inventory=str(path.parent)))


@needs_ansible
@pytest.mark.slow
@needs_ansible
def test_ansible_reads_the_inventory_that_was_checked(tmp_path: Path) -> None:
    """It folds `..` as text, also behind a link, and finds a script of a stranger's there."""
    (tmp_path / "own" / "below").mkdir(parents=True)
    written(tmp_path / "own" / "hosts.ini", KINDS["hosts.ini"]).chmod(0o644)
    (tmp_path / "open").mkdir(mode=0o1777)
    (tmp_path / "open" / "link").symlink_to(tmp_path / "own" / "below")
    give_away(written(tmp_path / "open" / "hosts.ini", KINDS["hosts"].replace("gpu1", "evil")))
    (host,) = resolve(FleetRequest(inventory=f"{tmp_path}/open/link/../hosts.ini")).hosts
    assert host.name == "gpu1"


@given(st.lists(st.sampled_from(("..", "link", "below", "top", "x.ini")), max_size=6))
def test_a_path_is_the_same_to_who_folds_it(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """Whatever stands before a `..`: the path that is handed on holds none."""
    top = tmp_path_factory.getbasetemp() / "straight"
    (top / "a" / "below").mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (top / "link").symlink_to("a/below")
    typed = top.joinpath(*names)
    handed = path_without_dots(typed)
    assert os.path.normpath(handed) == str(handed)
    assert typed.resolve() == handed.resolve()


def test_a_path_that_others_would_fill_in_is_not_used(tmp_path: Path) -> None:
    """Ansible and shells fill in $NAME: that is not the file that was checked."""
    refused(written(tmp_path / "$HOME.ini", KINDS["hosts.ini"]))


@pytest.mark.parametrize("place", ["beside", "link", "in a folder", "sticky"])
def test_an_inventory_that_is_run_has_nothing_of_a_stranger_beside_it(
    tmp_path: Path, place: str
) -> None:
    """Python takes modules from a script's folder, and from that of the file it is a link to."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    path = written(folder / "inv.py", "#!/usr/bin/python3\nimport json\n")
    his = written(folder / "json.py", f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    give_away(his)
    typed, fault = path, "json.py belongs to nobody"
    if place == "sticky":
        his.unlink()
        folder.chmod(0o1777)
        fault = "every user may write to"
    if place != "beside":
        (tmp_path / "own").mkdir()
        typed = tmp_path / "own" / "inv.py"
        typed.symlink_to(path)
    if place == "in a folder":
        assert fault in refused(typed.parent, typed)
    else:
        assert fault in refused(typed)
    assert not (tmp_path / "sprung").exists()


def _with_command(path: Path, sprung: Path) -> Path:
    """Variables of a group that have a command run as a node's Python."""
    command = f'["/bin/sh", "-c", "touch {sprung}"]'
    return written(path, f"preflight_transport: local\npreflight_python: {command}\n")


@pytest.mark.slow
@needs_ansible
def test_ansible_takes_no_variables_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's own folder may hold another user's file: it is ignored."""
    (tmp_path / "here" / "group_vars").mkdir(parents=True)
    give_away(_with_command(tmp_path / "here" / "group_vars" / "all.yml", tmp_path / "sprung"))
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "inventory").mkdir()
    path = written(tmp_path / "inventory" / "hosts.ini", KINDS["hosts.ini"])
    (host,) = resolve(FleetRequest(inventory=str(path))).hosts
    assert (host.transport, host.python) == ("ssh", ("python3",))


@pytest.mark.slow
@needs_ansible
@pytest.mark.parametrize("place", ["beside", "plugin", "home", "log"])
def test_what_ansible_is_set_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Root's own ansible.cfg, or HOME, may name another user's plugins."""
    his = tmp_path / "his"
    (his / ".ansible" / "plugins" / "vars").mkdir(parents=True)
    spring = f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    own = "from ansible.plugins.vars.host_group_vars import *\n"
    plugin = written(his / ".ansible" / "plugins" / "vars" / "evil.py", spring + own)
    config = tmp_path / "ansible.cfg"
    config.write_text(f"[defaults]\nvars_plugins = {plugin.parent}\n")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "hosts.ini", KINDS["hosts.ini"])
    if place == "beside":
        resolve(FleetRequest(inventory=str(path)))
        assert not (tmp_path / "sprung").exists()
    monkeypatch.setenv("ANSIBLE_CONFIG", str(config))
    if place == "home":
        monkeypatch.delenv("ANSIBLE_CONFIG")
        monkeypatch.setenv("HOME", str(his))
    elif place == "log":
        (his / "log").symlink_to(written(tmp_path / "victim", "precious"))
        config.write_text(f"[defaults]\nlog_path = {his / 'log'}\n")
        resolve(FleetRequest(inventory=str(path)))
        assert (tmp_path / "victim").read_text() == "precious"
        return
    resolve(FleetRequest(inventory=str(path)))
    assert (tmp_path / "sprung").exists(), "the trap itself is broken"
    (tmp_path / "sprung").unlink()
    give_away(plugin)
    refused(path, plugin)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("file", ["groups.conf", "groups.d/racks.yaml", "groups.conf.d/db.conf"])
def test_groups_of_another_user_start_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Groups name nodes and commands: what ClusterShell reads of them must be root's."""
    folder = tmp_path / "clustershell"
    (folder / file).parent.mkdir(parents=True)
    upcall = f"[db]\nmap: touch {tmp_path / 'sprung'}; echo gpu1\n"
    written(folder / "groups.conf", f"[Main]\nconfdir: $CFGDIR/groups.conf.d\n{upcall}")
    his = folder / file
    if not his.exists():
        written(his)
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(folder))
    request = FleetRequest(nodes="@db:all")
    assert resolve(request).hosts[0].name == "gpu1"
    (tmp_path / "sprung").unlink()
    give_away(his)
    with pytest.raises(UsageError, match=f"{his} is not used: {his} belongs to nobody"):
        resolve(request)
    assert not (tmp_path / "sprung").exists()


def test_who_cannot_tell_what_ansible_loads_does_not_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `ansible-config` is missing, or says nothing that can be read."""
    fake = written(tmp_path / "ansible-inventory", f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    path = written(tmp_path / "hosts.ini", KINDS["hosts.ini"])
    for text in (None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho {}\n"):
        written(tmp_path / "ansible-config", text) if text else None
        with pytest.raises(UsageError, match="see: ansible-config dump"):
            resolve(FleetRequest(inventory=str(path)))
    written(tmp_path / "ansible-config", "#!/bin/sh\necho '[]'\n")
    with pytest.raises(UsageError, match="not JSON"):
        resolve(FleetRequest(inventory=str(path)))
    assert (tmp_path / "sprung").exists()


def test_a_checkout_of_another_user_names_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose preflight root runs, his inventories count; nothing that lies elsewhere does."""
    checkout = tmp_path / "preflight"
    for folder in ("preflight", "checks", "inventory"):
        (checkout / folder).mkdir(parents=True)
    own = written(checkout / "inventory" / "fleet.toml", KINDS["fleet.toml"])
    elsewhere = written(tmp_path / "elsewhere.toml", KINDS["fleet.toml"])
    led = checkout / "inventory" / "led.toml"
    led.symlink_to(elsewhere)
    for path in (checkout, *checkout.rglob("*"), elsewhere):
        give_away(path)
    monkeypatch.setattr("preflight.core.trust.__file__", str(checkout / "preflight" / "trust.py"))
    written(checkout / "preflight" / "__init__.py")
    resolve(FleetRequest(inventory=str(own)))
    assert who_may_plant(checkout / "soon.toml") == ""
    assert "belongs to" in who_may_change(own)
    refused(elsewhere)
    refused(led)


def test_who_is_not_root_takes_what_he_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is root's alone."""
    path = written(tmp_path / "fleet.toml", KINDS["fleet.toml"])
    give_away(path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert resolve(FleetRequest(inventory=str(path))).hosts[0].name == "gpu1"


def test_a_run_that_is_judged_again_logs_in_nowhere(tmp_path: Path) -> None:
    """What led to its nodes may be anybody's, or be gone; the inventory may not."""
    his = written(tmp_path / "his")
    give_away(his)
    path = written(tmp_path / "fleet.toml", '[defaults]\nssh_config = "his"\n[node.gpu1]\n')
    assert resolve(FleetRequest(inventory=str(path), logs_in=False)).hosts[0].ssh_config == str(his)
    give_away(path)
    with pytest.raises(UsageError, match="is not used"):
        resolve(FleetRequest(inventory=str(path), logs_in=False))


@contextmanager
def _elsewhere(folder: Path) -> Iterator[int]:
    """Yield a process of root's whose folder of this name is another one: a mount of its own."""
    script = (
        'mount -t tmpfs none "$1" && cd "$1" && cp /bin/true ssh && echo evil >fleet.toml && '
        "exec 7<fleet.toml && echo there && exec sleep 600"
    )
    folder.mkdir()
    (folder / "fleet.toml").write_text(KINDS["fleet.toml"])
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            if process.stdout.readline() != "there\n":
                pytest.skip("this machine lets nobody mount")
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("way", ["cwd", "root{folder}", "task/{pid}/cwd"])
def test_no_link_of_another_process_is_followed_by_its_text(tmp_path: Path, way: str) -> None:
    """The kernel goes to the process's own folder, which is not the one that the text names."""
    with _elsewhere(tmp_path / "bin") as pid:
        place = Path(f"/proc/{pid}/{way.format(folder=tmp_path / 'bin', pid=pid)}")
        assert (place / "fleet.toml").read_text() == "evil\n"
        assert f"/proc/{pid} is of another process" in refused(place / "fleet.toml")
        link = tmp_path / "link"
        link.symlink_to(place)
        for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR"):
            for each in (place, link):
                kept, why = safe_paths_for_root(name, str(each))
                assert not kept
                assert len(why) == 1
        with pytest.raises(OSError, match="is of another process"), open_folder(place, make=True):
            pass


def test_a_working_folder_is_the_one_that_its_path_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not after `cd /proc/PID/cwd`; a relative path is then opened in the stranger's."""
    with _elsewhere(tmp_path / "bin") as pid:
        monkeypatch.chdir(tmp_path / "bin")
        assert who_may_change(Path("fleet.toml")) == ""
        monkeypatch.chdir(f"/proc/{pid}/cwd")
        assert "its path leads to another one" in who_may_change(Path("fleet.toml"))


@pytest.mark.parametrize("file", ["fd/7", "environ", "cmdline", "missing"])
def test_what_another_process_shows_is_not_roots(tmp_path: Path, file: str) -> None:
    """Its user wrote it, though the file belongs to root; nor what a process may yet show."""
    with _elsewhere(tmp_path / "bin") as pid:
        shown = Path(f"/proc/{pid}/{file}")
        assert f"/proc/{pid} is of another process" in who_may_change(shown)
    assert f"/proc/{pid} is of another process" in who_may_change(shown)


def test_an_open_file_of_our_own_is_the_one_that_its_link_names(tmp_path: Path) -> None:
    """As /dev/stdin is; a file that another one has replaced since is not."""
    path = written(tmp_path / "fleet.toml", KINDS["fleet.toml"])
    with path.open() as file:
        for process in ("dev", "proc/self", f"proc/{os.getpid()}", "proc/thread-self"):
            assert who_may_change(Path(f"/{process}/fd/{file.fileno()}")) == ""
        assert safe_paths_for_root("TMPDIR", f"/proc/self/fd/{file.fileno()}")[0] == ""
        for place in ("/proc/self/cwd", "/./proc/self/cwd", "//proc/self/root", "/dev/fd/0"):
            assert safe_paths_for_root("PATH", place)[0] == ""
        (tmp_path / "new").write_text("")
        (tmp_path / "new").rename(path)
        assert "leads to another file" in who_may_change(Path(f"/dev/fd/{file.fileno()}"))
    assert who_may_change(Path("/proc/mounts")) == ""
    assert who_may_change(Path("/proc/net/dev")) == ""


def test_a_device_number_is_not_remembered(tmp_path: Path) -> None:
    """The kernel gives it to another file system after an unmount."""
    place = tmp_path / "his"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(place)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        device = place.stat().st_dev
        assert who_may_change(place) == ""
    finally:
        subprocess.run(["umount", place], check=True)
    place.rmdir()
    with strangers_mount.mounted(place, STRANGER):
        if os.lstat(place).st_dev != device:
            pytest.skip("the kernel did not use this number again")
        assert "nobody mounted (FUSE)" in who_may_change(place)
