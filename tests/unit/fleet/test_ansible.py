"""Ansible inventories: Ansible reads them, we take logins and expectations, and no password."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.fleet import ansible_list
from preflight.fleet.ansible_list import decode, members
from preflight.fleet.inventory import open_inventory
from preflight.fleet.sources import FleetRequest, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fleet.model import Host

needs_ansible = pytest.mark.skipif(
    shutil.which("ansible-inventory") is None, reason="ansible-core is not installed"
)

INI = """
[train]
gpu[001:002] preflight_gpus=8
gpu003 preflight_gpus=7 ansible_host=10.0.0.3 ansible_port=2222

[train:vars]
ansible_user=ops
preflight_gpus=4
preflight_known_hosts=known_hosts
ansible_ssh_common_args='-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'

[head]
login1 ansible_connection=local

[cluster:children]
train
head
"""

YAML = """
all:
  children:
    train:
      vars: &common {preflight_gpus: 8, secret: !vault "$ANSIBLE_VAULT;1.1;AES256\\n6162"}
      hosts: {gpu1: {}, gpu2: {preflight_python: [/opt/venv/bin/python, -X, dev]}}
    debug: {vars: *common, hosts: {dev1: {}}}
"""

SCRIPT = """#!/bin/sh
echo 'asking the cloud' >&2
echo '{"train": {"hosts": ["gpu1"], "vars": {"preflight_gpus": "8"}}, "_meta": {"hostvars": {}}}'
"""

LISTED: dict[str, Any] = {
    "_meta": {"hostvars": {"a": {"preflight_gpus": 8}, "b": {}}},
    "all": {"children": ["ungrouped", "site", "gpu"]},
    "ungrouped": {"hosts": ["c"]},
    "site": {"children": ["gpu"], "hosts": ["a", "b"]},
    "gpu": {"hosts": ["a"]},
}


def _hosts(path: Path, nodes: str | None = None) -> list[Host]:
    return list(resolve(FleetRequest(inventory=str(path), nodes=nodes)).hosts)


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _listed(folder: Path, **variables: object) -> Path:
    """The output of ansible-inventory --list for one host with these variables."""
    tables = {"_meta": {"hostvars": {"h1": variables}}, "gpu": {"hosts": ["h1"]}}
    return _written(folder, "inventory.json", json.dumps(tables))


@pytest.mark.slow
@needs_ansible
def test_an_ini_inventory(tmp_path: Path) -> None:
    """Way in and expectations come merged as Ansible merges them; a local host is not dialled."""
    path = _written(tmp_path, "hosts.ini", INI)
    hosts = {host.name: host for host in _hosts(path)}
    assert list(hosts) == ["gpu001", "gpu002", "gpu003", "login1"]
    third = hosts["gpu003"]
    assert (third.address, third.port, third.user) == ("10.0.0.3", 2222, "ops")
    assert third.known_hosts == str(tmp_path / "known_hosts")
    assert [host.expected.gpus for host in hosts.values()] == [8, 8, 7, None]
    assert third.expected.origin == f"{path} [train]"
    assert (hosts["login1"].transport, hosts["login1"].group) == ("local", "head")
    assert len(_hosts(path, nodes="@inventory:cluster!@inventory:head")) == 3


@pytest.mark.slow
@needs_ansible
def test_yaml_a_folder_and_a_script(tmp_path: Path) -> None:
    """YAML with anchors and vaults, a folder with host_vars, and a script are Ansible's to read."""
    hosts = _hosts(_written(tmp_path, "hosts.yml", YAML))
    assert [(host.name, host.group) for host in hosts] == [
        ("gpu1", "train"),
        ("gpu2", "train"),
        ("dev1", "debug"),
    ]
    assert hosts[1].python == ("/opt/venv/bin/python", "-X", "dev")
    (tmp_path / "site" / "host_vars").mkdir(parents=True)
    _written(tmp_path / "site", "hosts", "[gpu]\nh[1:2]\n")
    _written(tmp_path / "site" / "host_vars", "h2.yml", "preflight_identity_file: keys/id\n")
    assert _hosts(tmp_path / "site")[1].identity_file == str(tmp_path / "site" / "keys/id")
    script = _written(tmp_path, "cloud.sh", SCRIPT)
    script.chmod(0o755)
    assert _hosts(script)[0].expected.gpus == 8


@pytest.mark.slow
@needs_ansible
def test_what_ansible_cannot_read_is_no_smaller_fleet(tmp_path: Path) -> None:
    """A fault that Ansible only warns of is refused, and the line with the password not quoted."""
    text = "[gpu]\nh1\n[gpu:vars\nansible_password=hunter2\n"
    with pytest.raises(UsageError, match=r"ansible-inventory -i .* --list") as caught:
        open_inventory(_written(tmp_path, "hosts", text))
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'ERROR! no such plugin' >&2; exit 4", r"ends with 4 \(no such plugin\)"),
        ("echo 'Using /etc/ansible/ansible.cfg'; echo '{}'", "does not begin with {"),
        ("echo '[WARNING]: old' >&2; echo '{}'", "hostvars"),
        ('echo \'{"_meta": {"hostvars": {}}}\'', "names no hosts"),
        ("while :; do echo xxxxxxxxxxxxxxxx; done", "writes more than"),
        ("sleep 600", "no answer in 2 s"),
    ],
)
def test_a_strange_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    """One that fails, chatters, floods or hangs ends in a sentence that says what to run."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    _written(bin_, "ansible-inventory", f"#!/bin/sh\n{body}\n").chmod(0o755)
    _written(bin_, "ansible-config", "#!/bin/sh\necho '[]'\n").chmod(0o755)  # root asks it first
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setattr(ansible_list, "LIST_S", 2.0 if "sleep" in body else 30.0)
    monkeypatch.setattr(ansible_list, "LARGEST", 1 << 20)
    path = _written(tmp_path, "hosts.ini", "h1\n")
    with pytest.raises(UsageError, match=message) as caught:
        open_inventory(path)
    assert str(caught.value).startswith(str(path))
    assert "ansible-inventory" in str(caught.value) or "split" in str(caught.value)


def test_without_ansible_the_other_ways_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ansible-inventory is missing the sentence says so, and names JSON and TOML."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"not installed here.*FILE\.json.*TOML"):
        open_inventory(_written(tmp_path, "hosts.ini", "h1\n"))


def test_the_listed_json_needs_no_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deepest group names a node's group, the first of equals; children count as members."""
    monkeypatch.setenv("PATH", str(tmp_path))
    path = _written(tmp_path, "inventory.json", json.dumps(LISTED))
    hosts = {host.name: host.group for host in _hosts(path)}
    assert hosts == {"c": "all", "b": "site", "a": "gpu"}
    listing = decode(path.read_bytes())
    assert members(listing, "all") == ("c", "a", "b")
    assert [host.name for host in _hosts(path, nodes="z")] == ["z"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ansible_password": "hunter2"}, "h1 has ansible_password"),
        ({"ansible_ssh_pass": "hunter2"}, "h1 has ansible_ssh_pass"),
        ({"ansible_become_password": {"__ansible_vault": "hunter2"}}, "ansible_become_password"),
        ({"ansible_sudo_pass": "{{ hunter2 }}"}, "ansible_sudo_pass"),
        ({"ansible_ssh_private_key_passphrase": "hunter2"}, "passphrase"),
        ({"ansible_host": {"__ansible_vault": "hunter2"}}, r"ansible_host is encrypted \(vault\)"),
        ({"ansible_host": "{{ hunter2 }}"}, "ansible_host is a template"),
        ({"ansible_host": "-oProxyCommand=reboot"}, "address.*not a host name"),
        ({"ansible_host": 7}, "ansible_host: expected text"),
        ({"ansible_host": "a", "ansible_ssh_host": "hunter2"}, "differ"),
        ({"ansible_port": 99999}, "ansible_port"),
        ({"ansible_user": "-oProxyCommand=reboot"}, "ansible_user"),
        ({"ansible_user": "ops\x1b[31m"}, "ansible_user holds a control character"),
        ({"ansible_connection": "winrm"}, "ansible_connection 'winrm'.*--preflight-exclude"),
        ({"ansible_ssh_common_args": "-o ProxyJump=hunter2"}, "has 'ProxyJump'.*ssh/config"),
        ({"ansible_ssh_extra_args": "-J hunter2"}, "has '-J'"),
        ({"ansible_ssh_common_args": "-o 'ProxyCommand ssh hunter2'"}, "ProxyCommand"),
        ({"ansible_ssh_args": "-o UserKnownHostsFile=/hunter2"}, "UserKnownHostsFile"),
        ({"preflight_gpu": 8}, "'preflight_gpu'; did you mean 'preflight_gpus'"),
        ({"preflight_gpus": "eight"}, "preflight_gpus: expected a whole number"),
        ({"preflight_allreduce_min_gbs": "inf"}, "allreduce_min_gbs"),
        ({"preflight_transport": "paramko"}, "did you mean 'paramiko'"),
        ({"preflight_python": ""}, "preflight_python is empty"),
    ],
)
def test_refusals_name_host_and_variable_and_no_value(
    tmp_path: Path, variables: dict[str, object], message: str
) -> None:
    """What we cannot or must not use is refused by name; no value that may be secret is shown."""
    path = _listed(tmp_path, **variables)
    with pytest.raises(UsageError, match=message) as caught:
        _hosts(path)
    assert "h1" in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "hunter2" not in str(caught.value)


def test_only_chosen_hosts_are_looked_at(tmp_path: Path) -> None:
    """A Windows host of the same inventory does no harm while it is not in the fleet."""
    tables = {
        "_meta": {"hostvars": {"w1": {"ansible_connection": "winrm", "ansible_password": "x"}}},
        "gpu": {"hosts": ["h1"]},
        "win": {"hosts": ["w1"]},
    }
    path = _written(tmp_path, "inventory.json", json.dumps(tables))
    assert [host.name for host in _hosts(path, nodes="@inventory:gpu")] == ["h1"]


def test_a_node_may_be_put_in_a_group(tmp_path: Path) -> None:
    """Where Ansible's groups mean roles, preflight_group names the group a node is compared in."""
    host = _hosts(_listed(tmp_path, preflight_group="h100", preflight_gpu_model="H100"))[0]
    assert (host.group, host.expected.gpu_model) == ("h100", "H100")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"gpu": {"hosts": ["h1"]}}, "hostvars"),
        ({"_meta": {"hostvars": {"h9": {}}}}, "h9 has variables and is in no group"),
        ({"_meta": {"hostvars": {}}, "g": {"hosts": ["-oProxyCommand=x"]}}, "not a host name"),
        ({"_meta": {"hostvars": {}}, "g": {"hosts": {"h1": {}}}}, "not what ansible-inventory"),
        ({"_meta": {"hostvars": {}}, "g": {"hosts": ["h"], "vars": {"x": 1}}}, "without --export"),
        ({"_meta": {"hostvars": {}}, "g": {"children": ["g"]}}, "circle"),
        ({"_meta": {"hostvars": {}}, "a": {"children": ["b"]}, "b": {"children": ["a"]}}, "circle"),
        ({"_meta": {"hostvars": {}}, "g\x1b[31m": {}}, "not a group name"),
        ([], "not what ansible-inventory"),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, tables: object, message: str) -> None:
    """JSON that Ansible did not write, or wrote with another option, loses no host in silence."""
    path = _written(tmp_path, "inventory.json", json.dumps(tables))
    with pytest.raises(UsageError, match=message) as caught:
        open_inventory(path)
    assert str(caught.value).isprintable()


def test_a_deep_answer_is_refused(tmp_path: Path) -> None:
    """Nesting meant to exhaust the stack ends in a sentence."""
    with pytest.raises(UsageError, match=r"not JSON|not what"):
        open_inventory(_written(tmp_path, "inventory.json", '{"a":' * 200_000))


@pytest.mark.parametrize(
    "text",
    [
        "group: {t: {nodes: h1}}",
        "node: {h1: {gpus: 8}}",
        "defaults: {gpus: 8}\ngroup: {hosts: {nodes: h1}}",
    ],
)
def test_our_yaml_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A YAML file with our tables never needs Ansible."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_inventory(_written(tmp_path, "fleet.yaml", text)).names == ("h1",)


_words = st.sampled_from(["all", "gpu", "_meta", "hosts", "children", "hostvars", "h1", "h2", ""])
_json = st.recursive(
    st.none() | st.integers() | _words | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)  # a busy machine is no fault
@given(st.dictionaries(_words, _json, max_size=5) | _json)
def test_any_json_gives_a_listing_or_a_usage_error(tables: object) -> None:
    """No JSON raises anything else, and what comes out names each host once, in a known group."""
    try:
        listing = decode(json.dumps(tables).encode())
    except UsageError:
        return
    assert set(listing.group_of.values()) <= {*listing.hosts_of_group, "all"}
    assert set(listing.variables) <= set(listing.group_of)
    for name in listing.hosts_of_group:
        assert set(members(listing, name)) <= set(listing.group_of)
