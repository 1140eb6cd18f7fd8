"""slurm.conf of a lab's Slurm, and what a test may add to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.cluster import Lab

_CONF = """
ClusterName={cluster}
SlurmctldHost=controller({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# Only the lab's own address: another lab's slurmctld has the same port on another one.
CommunicationParameters=NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
PrologFlags=Alloc
KillWait=2
SrunPortRange=30000-30999
"""
_CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


@dataclass(frozen=True)
class Settings:
    """What differs from a plain cluster.

    `Settings(lines=("GresTypes=gpu",), node="Gres=gpu:8", prolog=Path("prolog.sh"))`
    """

    lines: tuple[str, ...] = ()
    """More lines of slurm.conf."""
    node: str = ""
    """More words of every node's line."""
    prolog: Path | None = None
    """Runs on each node before a job starts there."""
    slurmd_timeout_s: int = 300
    """After which a silent node counts as down: Slurm's own default."""
    gres: str = ""
    """The text of gres.conf."""


def _two_leaves(names: list[str]) -> str:
    """A tree: one half of the hosts on one leaf switch, the rest on the other."""
    half = (len(names) + 1) // 2
    leaves = [leaf for leaf in (names[:half], names[half:]) if leaf]
    lines = [f"SwitchName=leaf{n} Nodes={','.join(leaf)}" for n, leaf in enumerate(leaves)]
    above = ",".join(f"leaf{n}" for n in range(len(leaves)))
    return "\n".join([*lines, f"SwitchName=spine Switches={above}", ""])


def write(folder: Path, lab: Lab, settings: Settings) -> None:
    """Write the files and folders that the daemons need."""
    for name in lab.hosts:
        (folder / "spool" / name).mkdir(parents=True)
    (folder / "state").mkdir()
    words = {"cluster": lab.folder.name, "controller": lab.controller, "folder": folder}
    lines = [_CONF.format(**words), f"SlurmdTimeout={settings.slurmd_timeout_s}", *settings.lines]
    if settings.prolog is not None:
        lines.append(f"Prolog={settings.prolog}")
    cpus = len(os.sched_getaffinity(0))
    for host in lab.hosts.values():
        where = f"NodeName={host.name} NodeAddr={host.address}"
        lines.append(f"{where} CPUs={cpus} RealMemory=512 State=UNKNOWN {settings.node}")
    lines.append("PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "topology.conf").write_text(_two_leaves(list(lab.hosts)))
    (folder / "cgroup.conf").write_text(_CGROUP)
    if settings.gres:
        (folder / "gres.conf").write_text(settings.gres)
