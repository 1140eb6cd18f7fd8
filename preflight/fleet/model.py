"""The fleet: its nodes, what the inventory expects of each, and the job to be launched."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from preflight.core.thresholds import Override
from preflight.fleet.job_environment import measured_in
from preflight.fleet.nodeset import check_host_name

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


class Shape(Struct, frozen=True, kw_only=True):
    """A launch as its launcher reads it. None: not given as a number."""

    launcher: str
    """torchrun, accelerate, deepspeed."""
    nnodes: tuple[int, int] | None = (1, 1)
    """Fewest and most nodes."""
    nproc: int | None = None
    """Ranks per node; torchrun's default is 1."""
    standalone: bool = False
    static: bool = True
    """The static rendezvous, which needs --node-rank; else c10d or another."""
    endpoint: str = ""
    """The value of --rdzv-endpoint, else of --master-addr where that has an effect."""
    ignored: tuple[str, ...] = ()
    """Options that have no effect beside the others."""
    node_rank: bool = False
    srun_nodes: int | None = None
    srun_tasks: int | None = None
    """How many nodes srun starts it on, and how often on each."""


MOST_LIBRARIES = 64
"""Folders of LD_LIBRARY_PATH that are searched."""


SmallCount = Annotated[int, Meta(ge=0, le=1024)]
Xid = Annotated[int, Meta(ge=1, le=9999)]
Device = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]


class Expectations(Struct, frozen=True, kw_only=True):
    """The keys of an inventory for what nodes must have, and their bounds. None: not expected."""

    gpus: SmallCount | None = None
    gpu_model: str | None = None
    nvlinks_per_gpu: SmallCount | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    """Modes of every GPU: on or off."""
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    power_limit_w: Annotated[float, Meta(gt=0, le=100000)] | None = None
    """What each GPU's power limit is set to, W."""
    pcie_lanes: Annotated[int, Meta(ge=1, le=32)] | None = None
    """PCIe lanes of each GPU: 16."""
    pcie_generation: Annotated[int, Meta(ge=1, le=9)] | None = None
    """The highest PCIe generation that each GPU and its slot can run at: 5."""
    nics: SmallCount | None = None
    hcas: tuple[Device, ...] | None = None
    """RDMA device of each rail, in the order of the GPUs: ("mlx5_0", "mlx5_1", ...)."""
    nic_gbits: Annotated[int, Meta(ge=1, le=10000)] | None = None
    """Line rate of the NIC of each rail, Gb/s: 100, 200, 400, 800."""
    nic_link: Literal["ib", "roce"] | None = None
    allreduce_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    """Least busbw of one pair on one rail, at the largest size of the ladder, GB/s."""
    intra_node_min_gbs: Annotated[float, Meta(gt=0)] | None = None
    """Least busbw among all GPUs of one node, at the largest size that it reaches, GB/s."""
    fatal_xids: tuple[Xid, ...] | None = None
    tolerated_xids: tuple[Xid, ...] | None = None
    """Xids that this site judges differently from preflight's catalog: a fault, or not."""


class Expected(Expectations, frozen=True, kw_only=True):
    """What the inventory expects of one group's nodes, with its numbers."""

    limits: dict[str, Override] = {}
    """Numbers that replace shipped ones, by name: "zombie_age_s", "gemm_bf16"."""
    baselines: dict[str, Override] = {}
    """What good nodes of this group reach, by measure ("gemm_bf16"); learned or written."""
    origin: str = ""
    """Where the numbers come from: "inventory/train.toml [group.train]"."""


Port = Annotated[int, Meta(ge=1, le=65535)]
User = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.@-]*\Z")]


class Host(Struct, frozen=True, kw_only=True):
    """One node: its name, how to reach it, and the job's Python on it."""

    name: str
    address: str
    """The address to connect to, from the controller and from other nodes; default: the name."""
    group: str = "all"
    transport: str = "ssh"
    """One of TRANSPORTS; "ssh" is paramiko, or OpenSSH for what paramiko cannot do."""
    user: User | None = None
    port: Port | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    """A file in place of the user's ~/.ssh/config (`ssh -F`)."""
    python: tuple[str, ...] = ("python3",)
    """The job's Python as an argv prefix: ("apptainer", "exec", "x.sif", "python3")."""
    expected: Expected = Expected()
    leaf: str = ""
    """Its leaf switch; "" if no topology source names it."""
    off: dict[str, str] = {}
    """Checks that are switched off, and where: {"gpu.ecc": "fleet.toml [group.old]"}."""
    group_rank: int | None = None
    """torchrun's number of the node, if preflight runs inside the job's ranks."""

    def __post_init__(self) -> None:
        """Refuse invalid names, whatever their source; UsageError."""
        check_host_name(self.address)
        check_host_name(self.name, resolved=False)


UNWAIVABLE = ("burn.integrity",)
"""Checks that cannot be waived: they test only that data is not corrupted."""


class Waiver(Struct, frozen=True, kw_only=True):
    """A known failure of one check on these nodes, accepted until the end of a day."""

    check: str
    nodes: tuple[str, ...]
    until: date
    reason: str
    origin: str

    def expired(self, today: date) -> bool:
        """Whether the waiver has ended."""
        return today > self.until


def today() -> date:
    """Return today in UTC, by which waivers end."""
    return datetime.now(UTC).date()


class TrainingScript(Struct, frozen=True):
    """A script that the operator names, as its file has it."""

    path: str
    content: bytes


class Job(Struct, frozen=True, kw_only=True):
    """The job to be launched, as far as it is known."""

    master: str | None = None
    """Name of the node that hosts the rendezvous; the first of the fleet unless given."""
    launch_address: str = ""
    """What the launch line calls that node, by which torchrun finds it; "" if it does not."""
    master_port: int = 29500
    """torchrun's default unless the launch line, the inventory or the environment sets it."""
    master_port_origin: str = "torchrun's default"
    nproc_per_node: int | None = None
    environ: dict[str, dict[str, str]] | None = None
    """The job's environment by node name ("" = every other node); None if unknown."""
    uneven: dict[str, dict[str, tuple[str | None, ...]]] = {}
    """By node, variables that differ between its ranks: values by local rank, None if not set."""
    environ_origin: str = ""
    """Where `environ` comes from: "--preflight-env-file job.env", "Slurm job 4711"."""
    launch: Shape | None = None
    """What the launch line starts; None without one, or if its launcher is unknown."""
    environ_unsafe: str = ""
    """As root: who else could have written it, "job.env belongs to alice"; "" if no one could."""
    script: TrainingScript | None = None
    """What its ranks run; None if it is not given."""

    def environ_of(self, name: str) -> dict[str, str] | None:
        """Return the job's environment on a node; None if unknown."""
        if self.environ is None:
            return None
        return self.environ.get(name, self.environ.get(""))

    def master_address(self, name: str) -> str:
        """Return by what the job finds its master on a node; "" if that is unknown."""
        return self.launch_address or (self.environ_of(name) or {}).get("MASTER_ADDR", "")

    def measured_in(self, name: str) -> dict[str, str]:
        """Return the part of the job's environment that measuring processes on a node get."""
        return measured_in(self.environ_of(name) or {}, self.environ_unsafe)[0]

    def libraries(self, name: str) -> list[str]:
        """Return the folders of the job's LD_LIBRARY_PATH on a node."""
        search_path = (self.environ_of(name) or {}).get("LD_LIBRARY_PATH", "")
        folders = re.split("[:;]", search_path)  # ld.so takes both
        return [folder for folder in folders if folder.startswith("/")][:MOST_LIBRARIES]

    def nccl_conf_file(self, name: str) -> str:
        """Return the path in the job's NCCL_CONF_FILE on a node; "" if it is not set."""
        return (self.environ_of(name) or {}).get("NCCL_CONF_FILE", "")


class Fleet(Struct, frozen=True, kw_only=True):
    """The nodes of this run, in a stable order, and the source that named them."""

    hosts: tuple[Host, ...]
    origin: str
    """"--preflight-nodes", "SLURM_JOB_NODELIST", "inventory/train.toml", "this machine"."""
    job: Job = Job()
    waivers: tuple[Waiver, ...] = ()
    """Known failures that the inventory accepts until a date, expired ones included."""
    mentioned_checks: tuple[tuple[str, str], ...] = ()
    """Every check that the inventory names, and where."""
    interface: str | None = None
    """Network interface for gloo and NCCL bootstrap; None: they choose it by the address."""
    interface_origin: str = ""
    """Its source: "--preflight-interface", "fleet.toml: [job] interface"."""
    topology: str = ""
    """Source of the leaf switches: "the inventory", a path; "" if none is known."""
    topology_remark: str = ""
    """Why a topology source that exists could not be used."""
    ranks: int = 0
    """How many ranks torchrun started on these nodes; 0 if preflight does not run inside them."""
    restarts: int = 0
    """torchrun's --max-restarts, if preflight runs inside its ranks."""

    @property
    def measured_in(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the job's variables that measuring processes get, and why they lack the others.

        Both are empty under torchrun: there the processes inherit the whole environment.
        """
        names: set[str] = set()
        left_out: dict[str, str] = {}
        for environ in (self.job.environ or {}).values() if not self.ranks else ():
            variables, reasons = measured_in(environ, self.job.environ_unsafe)
            names |= variables.keys()
            left_out |= reasons
        if self.interface and "NCCL_SOCKET_IFNAME" in names:
            names.remove("NCCL_SOCKET_IFNAME")
            left_out["NCCL_SOCKET_IFNAME"] = f"{self.interface_origin} names another"
        return tuple(sorted(names)), left_out

    @property
    def leaves(self) -> dict[str, str]:
        """Node name → its leaf switch, where known."""
        return {host.name: host.leaf for host in self.hosts if host.leaf}

    def host(self, name: str) -> Host:
        """Return the node of that name; KeyError if there is none."""
        return next(host for host in self.hosts if host.name == name) if name else self.hosts[0]

    @property
    def master(self) -> Host:
        """The node that hosts the job's rendezvous."""
        return self.host(self.job.master) if self.job.master else self.hosts[0]

    @property
    def master_names(self) -> tuple[str, ...]:
        """Names by which nodes look up the master: those of the job, else its address.

        None in a fleet of one, where no node looks it up. Unexpanded shell text is not a name.
        """
        if len(self.hosts) == 1:
            return ()
        masters = {self.job.master_address(name) for name in self.job.environ or ("",)}
        names = sorted(name for name in masters if _HOST_NAME.fullmatch(name))
        return tuple(names[:3]) or (self.master.address,)


TRANSPORTS = ("ssh", "paramiko", "openssh", "srun", "local")
"""Every transport, as inventories name them; for "ssh" see `Ways`."""
