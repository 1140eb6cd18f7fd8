"""What a node calls its devices stands in commands that a tired person copies: it is no code."""

from __future__ import annotations

import pytest
from msgspec import ValidationError, convert

from preflight.checks.env.variables import unread
from preflight.facts.gpu_users import kill_command
from preflight.facts.model import Nic, NicPort
from preflight.facts.node_network import Interface, Resolved

CODE = (
    "eth0$(id)",
    "eth0`id`",
    "e;reboot",
    "e|sh",
    "e&",
    "e>f",
    "e'",
    'e"',
    "e\\",
    "e\n",
    "e\x9b31m",
    "x" * 65,
)


@pytest.mark.parametrize("name", CODE)
def test_a_device_with_such_a_name_is_no_answer(name: str) -> None:
    """Interfaces, RDMA devices and the names of hosts: the whole answer is refused."""
    for kind, field in ((Interface, "name"), (Nic, "name"), (Interface, "master")):
        with pytest.raises(ValidationError):
            convert({"name": "eth0", field: name}, kind)
    with pytest.raises(ValidationError):
        convert({"port": 1, "netdev": name}, NicPort)
    if len(name) < 65:
        with pytest.raises(ValidationError):
            convert({"name": name}, Resolved)


def test_names_that_machines_have_are_taken() -> None:
    """As kernels, vendors and containers give them."""
    for name in (
        "eth0",
        "bond0.100",
        "br-8a1f",
        "enp1s0f0np0",
        "mlx5_bond_0",
        "rocep27s0",
        "veth@if5",
    ):
        assert convert({"name": name}, Interface).name == name


def test_no_command_ends_the_first_process() -> None:
    """A node that says that its left-over rank is process 0 or 1."""
    assert kill_command([1, 0, 77]).startswith("kill 77;")


def test_a_variable_with_such_a_name_is_quoted() -> None:
    """A file of settings may hold any name; what is to be typed holds it as one word."""
    (remark,) = unread({"NCCL_X;reboot": "1"})
    assert "'NCCL_X;reboot'" in remark.advice
