"""The tables of an inventory file, as types: what may be said where, and in which bounds."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from msgspec import Meta, Struct

from preflight.fleet.model import Promise
from preflight.fleet.own_numbers import Baselines, Limits
from preflight.fleet.waivers import CheckTable, WaiveTable

Port = Annotated[int, Meta(ge=1, le=65535)]
Positive = Annotated[int, Meta(ge=0, le=1024)]
Xid = Annotated[int, Meta(ge=1, le=9999)]
Device = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]


class Layer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of all nodes, of a group, or of one node; the nearest wins."""

    transport: str | None = None
    user: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.@-]*\Z")] | None = None
    port: Port | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    python: str | list[str] | None = None
    gpus: Positive | None = None
    gpu_model: str | None = None
    nvlinks_per_gpu: Positive | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    power_limit_w: Annotated[float, Meta(gt=0, le=100000)] | None = None
    nics: Positive | None = None
    hcas: tuple[Device, ...] | None = None
    nic_gbits: Annotated[int, Meta(ge=1, le=10000)] | None = None
    nic_link: Literal["ib", "roce"] | None = None
    allreduce_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    intra_node_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    fatal_xids: tuple[Xid, ...] | None = None
    tolerated_xids: tuple[Xid, ...] | None = None
    leaf: str | None = None
    limits: Limits | None = None
    baselines: Baselines | None = None
    checks: dict[str, CheckTable] | None = None


class GroupTable(Layer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[group.NAME]`: who is in it, and what is said of them all."""

    nodes: str
    learned: date | None = None
    """When `preflight learn` wrote it down from what it found; nobody promised it."""


class NodeTable(Layer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is said of one node alone."""

    address: str | None = None


class JobTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[job]`: what the job that will be launched uses."""

    master: str | None = None
    master_port: Port | None = None
    nproc_per_node: Annotated[int, Meta(ge=1, le=1024)] | None = None
    env_file: str | None = None
    launch: str | None = None
    interface: str | None = None


class FileTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    defaults: Layer = Layer()
    job: JobTable = JobTable()
    group: dict[str, GroupTable] = {}
    node: dict[str, NodeTable] = {}
    checks: dict[str, CheckTable] = {}
    waive: tuple[WaiveTable, ...] = ()


PROMISES = tuple(
    name for name in Promise.__struct_fields__ if name not in ("origin", "limits", "baselines")
)
"""Of each the nearest layer wins; limits and baselines are joined name by name."""
FILES = ("identity_file", "known_hosts", "ssh_config")
WAYS_IN = ("transport", "user", "port", *FILES)
