"""Who is judged and what each was promised to be."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from preflight.core.thresholds import Override
from preflight.errors import UsageError
from preflight.fleet.job_environment import measured_in
from preflight.fleet.nodeset import check_host_name, fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.lint.lint import Linted  # noqa: TC004  never decoded; its rules take 25 ms


_ENVIRONMENT: Final = "PET_"
"""torchrun takes each option from PET_<OPTION> where the line does not have it."""

_NODES: Final = ("-N", "--nodes")
_A_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_TASKS: Final = ("--ntasks-per-node", "--tasks-per-node")


class Shape(Struct, frozen=True, kw_only=True):
    """A launch as its launcher will understand it. None: not told as a number."""

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
    """As --rdzv-endpoint says, else --master-addr where that counts."""
    ignored: tuple[str, ...] = ()
    """Options that have no effect beside the others."""
    node_rank: bool = False
    srun_nodes: int | None = None
    srun_tasks: int | None = None
    """How many nodes srun starts it on, and how often on each."""


def shape_of(
    launcher: str,
    options: Mapping[str, str],
    before: Sequence[str],
    environ: Mapping[str, str],
    nproc: int | None,
) -> Shape | None:
    """Read a launch; None for a launcher whose ranks we cannot count. UsageError for nonsense.

    `before`: the words in front of the launcher, such as srun's own.
    """
    if not launcher:
        return None
    nodes, tasks = _srun(before, _NODES), _srun(before, _TASKS)
    if launcher != "torchrun":
        nnodes = _nnodes(options["nnodes"]) if "nnodes" in options else None
        return Shape(launcher=launcher, nnodes=nnodes, srun_nodes=nodes, srun_tasks=tasks)
    told = {
        key.removeprefix(_ENVIRONMENT).lower().replace("_", "-"): value
        for key, value in environ.items()
        if key.startswith(_ENVIRONMENT)
    }
    options = {**told, **options}
    static = options.get("rdzv-backend", "static") == "static"
    endpoint = options.get("rdzv-endpoint", "")
    masters = tuple(f"--{name}" for name in ("master-addr", "master-port") if name in options)
    by_master = static and not endpoint
    said = options.get("nproc-per-node", "1")
    return Shape(
        launcher=launcher,
        nnodes=_nnodes(options.get("nnodes", "1")),
        nproc=nproc
        if nproc is not None
        else int(said)
        if re.fullmatch("[1-9]\\d{0,3}", said)
        else None,
        standalone="standalone" in options,
        static=static,
        endpoint=options.get("master-addr", "") if by_master else endpoint,
        ignored=() if by_master else masters,
        node_rank="node-rank" in options,
        srun_nodes=nodes,
        srun_tasks=tasks,
    )


def _nnodes(text: str) -> tuple[int, int] | None:
    if "$" in text:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})(?::([1-9]\d{0,5}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--preflight-launch: --nnodes is {text!a}: give a number, or MIN:MAX")
    return int(match[1]), int(match[2] or match[1])


def _srun(words: Sequence[str], names: Sequence[str]) -> int | None:
    """The number that srun's option has; None where it is not there, or no plain number."""
    if not any(word.rpartition("/")[2] == "srun" for word in words):
        return None
    for at, word in enumerate(words):
        for name in names:
            value = word.removeprefix(name).removeprefix("=") if word.startswith(name) else ""
            value = next(iter(words[at + 1 : at + 2]), "") if word == name else value
            if re.fullmatch(r"[1-9]\d{0,5}", value):
                return int(value)
    return None


MOST_LIBRARIES = 64
"""Folders of a LD_LIBRARY_PATH that are looked into."""


class Promise(Struct, frozen=True, kw_only=True):
    """What the inventory says a group of nodes has. None means: nothing was promised."""

    gpus: int | None = None
    gpu_model: str | None = None
    nvlinks_per_gpu: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    """Modes of every GPU: on or off."""
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    power_limit_w: float | None = None
    """What each GPU's power limit is set to, W."""
    nics: int | None = None
    hcas: tuple[str, ...] | None = None
    """RDMA device of each rail, in the order of the GPUs: ("mlx5_0", "mlx5_1", ...)."""
    nic_gbits: int | None = None
    """Line rate of the NIC of each rail, Gb/s: 100, 200, 400, 800."""
    nic_link: Literal["ib", "roce"] | None = None
    allreduce_min_gbs: float | None = None
    """Least busbw of one pair on one rail, at the largest size of the ladder, GB/s."""
    intra_node_min_gbs: float | None = None
    """Least busbw among all GPUs of one node, at the largest size that it reaches, GB/s."""
    limits: dict[str, Override] = {}
    """Numbers that stand in for shipped ones, by name: "zombie_age_s", "gemm_bf16"."""
    baselines: dict[str, Override] = {}
    """What healthy nodes of this group reach, by measure: "gemm_bf16"; learned or written."""
    fatal_xids: tuple[int, ...] | None = None
    tolerated_xids: tuple[int, ...] | None = None
    """Xids that this site judges otherwise than preflight's catalog: a fault, or none."""
    origin: str = ""
    """Where the numbers come from: "inventory/train.toml [group.train]"."""


Port = Annotated[int, Meta(ge=1, le=65535)]
User = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.@-]*\Z")]


class Host(Struct, frozen=True, kw_only=True):
    """One node: its name, the way in, and the job's Python on it."""

    name: str
    address: str
    """What other nodes and the controller connect to; the name itself unless given."""
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
    promised: Promise = Promise()
    leaf: str = ""
    """Its leaf switch, where a source of topology says so."""
    off: dict[str, str] = {}
    """Checks that are switched off for it, and where: {"gpu.ecc": "fleet.toml [group.old]"}."""
    group_rank: int | None = None
    """torchrun's number of the node, where the job's own ranks are the way in."""

    def __post_init__(self) -> None:
        """Hold its names to what they are, whoever gives them; UsageError."""
        check_host_name(self.address)
        check_host_name(self.name, resolved=False)


NEVER = ("burn.integrity",)
"""Checks of nothing but whether data come back right: nobody may waive them."""


class Waiver(Struct, frozen=True, kw_only=True):
    """A failure of one check that is known on these nodes, and accepted until the end of a day."""

    check: str
    nodes: tuple[str, ...]
    until: date
    reason: str
    origin: str

    def expired(self, today: date) -> bool:
        """Whether it has no effect any more."""
        return today > self.until

    @property
    def words(self) -> str:
        """As in "gpu.count on h2 until 2026-12-01: one is away for repair"."""
        return f"{self.check} on {fold(self.nodes)} until {self.until}: {self.reason}"


def today() -> date:
    """The day by which waivers end: UTC, wherever the controller stands."""
    return datetime.now(UTC).date()


class Job(Struct, frozen=True, kw_only=True):
    """What is known of the job that is to be launched."""

    master: str | None = None
    """Name of the node that hosts the rendezvous; the first of the fleet unless given."""
    master_port: int = 29500
    """torchrun's own default, unless the launch line, the inventory or the environment says."""
    master_port_origin: str = "torchrun's default"
    nproc_per_node: int | None = None
    environ: dict[str, dict[str, str]] | None = None
    """The job's environment by node name ("" = every other node); None when it is not known."""
    uneven: dict[str, dict[str, tuple[str | None, ...]]] = {}
    """By node, what its ranks do not share: values by local rank, None where it is not set."""
    environ_origin: str = ""
    """Where `environ` comes from: "--preflight-env-file job.env", "Slurm job 4711"."""
    launch: Shape | None = None
    """What the launch line starts; None where there is none, or its launcher is not known."""
    environ_unsafe: str = ""
    """Where root runs: who else could have written it, "job.env belongs to alice"; "" if nobody."""
    script: Linted | None = None
    """What the training script says of itself; None where none was named."""

    def environ_of(self, name: str) -> dict[str, str] | None:
        """The job's environment on a node; None where no source for it is known."""
        if self.environ is None:
            return None
        return self.environ.get(name, self.environ.get(""))

    def measured_in(self, name: str) -> dict[str, str]:
        """What of it the processes get that measure on a node."""
        return measured_in(self.environ_of(name) or {}, self.environ_unsafe)[0]

    def libraries(self, name: str) -> list[str]:
        """Where the loader of the job looks on a node, as far as its LD_LIBRARY_PATH says."""
        said = (self.environ_of(name) or {}).get("LD_LIBRARY_PATH", "")
        folders = re.split("[:;]", said)  # as ld.so does
        return [folder for folder in folders if folder.startswith("/")][:MOST_LIBRARIES]

    def nccl_conf_file(self, name: str) -> str:
        """The file that the job's NCCL_CONF_FILE names on a node; "" where it is not set."""
        return (self.environ_of(name) or {}).get("NCCL_CONF_FILE", "")


class Fleet(Struct, frozen=True, kw_only=True):
    """Everyone of this run, in a stable order, and how we came to know of them."""

    hosts: tuple[Host, ...]
    origin: str
    """"--preflight-nodes", "SLURM_JOB_NODELIST", "inventory/train.toml", "this machine"."""
    job: Job = Job()
    waivers: tuple[Waiver, ...] = ()
    """Failures that the inventory accepts for a while, the expired ones among them."""
    spoken: tuple[tuple[str, str], ...] = ()
    """Every check that the inventory speaks of, and where it does."""
    interface: str | None = None
    """Network interface for gloo and NCCL bootstrap; None lets them choose by the address."""
    interface_origin: str = ""
    """Who named it: "--preflight-interface", "fleet.toml: [job] interface"."""
    topology: str = ""
    """Where the leaf switches come from: "the inventory", a path; empty if none is known."""
    topology_remark: str = ""
    """Why a source of topology that was there is of no use."""
    ranks: int = 0
    """How many ranks torchrun has started on these nodes; 0 where it is not the way in."""
    restarts: int = 0
    """torchrun's --max-restarts, where it is the way in."""

    @property
    def measured_in(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Names of the job's variables that measuring processes get, and why not the others.

        Nothing where they are children of the job's own ranks, and have all of it.
        """
        given: set[str] = set()
        left_out: dict[str, str] = {}
        for environ in (self.job.environ or {}).values() if not self.ranks else ():
            its, rest = measured_in(environ, self.job.environ_unsafe)
            given |= its.keys()
            left_out |= rest
        if self.interface and "NCCL_SOCKET_IFNAME" in given:
            given.remove("NCCL_SOCKET_IFNAME")
            left_out["NCCL_SOCKET_IFNAME"] = f"{self.interface_origin} names another"
        return tuple(sorted(given)), left_out

    @property
    def leaves(self) -> dict[str, str]:
        """Node name → its leaf switch, of those of which it is known."""
        return {host.name: host.leaf for host in self.hosts if host.leaf}

    def host(self, name: str) -> Host:
        """Return the node of that name; KeyError if there is none."""
        return next(host for host in self.hosts if host.name == name) if name else self.hosts[0]

    @property
    def master(self) -> Host:
        """The node on which the job's rendezvous will live."""
        return self.host(self.job.master) if self.job.master else self.hosts[0]

    @property
    def master_names(self) -> tuple[str, ...]:
        """The names by which the nodes look for the master: the job's own word, else our address.

        None in a fleet of one, where nobody looks. What a shell has yet to expand is no name.
        """
        if len(self.hosts) == 1:
            return ()
        given = {environ.get("MASTER_ADDR", "") for environ in (self.job.environ or {}).values()}
        names = sorted(name for name in given if _A_NAME.fullmatch(name))
        return tuple(names[:3]) or (self.master.address,)


TRANSPORTS = ("ssh", "paramiko", "openssh", "srun", "local")
"""Every way there is, as inventories name them; for "ssh" see `Ways`."""
