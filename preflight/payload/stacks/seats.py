"""Which place a process has in a distributed job, from what its launcher put around it."""

from __future__ import annotations

import os

from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Environ = Mapping[bytes, bytes]
    Seat = dict[str, Any]

_NAMES = {
    # By launcher: rank, rank on this node, how many, how many on this node.
    "torch": (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE"),
    "mpi": (
        b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK",
        b"OMPI_COMM_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "pmi": (b"PMI_RANK", b"MPI_LOCALRANKID", b"PMI_SIZE", b"MPI_LOCALNRANKS"),
    "slurm": (b"SLURM_PROCID", b"SLURM_LOCALID", b"SLURM_STEP_NUM_TASKS", b""),
}  # fmt: skip
_MOST_RANKS, _MOST_LOCAL, _MOST_RESTARTS = 1 << 20, 65535, 1 << 31
_NO_RUN_ID = (b"", b"none")
"""What torchrun calls every job that was given no name."""

_HERE = ("localhost", "ip6-localhost", "::1", "[::1]")


def seat(environ: Environ) -> Seat | None:
    """Return its `kind`, `job`, `rank` and so on; None for one that is no rank of a job of many.

    torch's own variables win: under srun or mpirun every process has those of these too.
    """
    for kind, names in _NAMES.items():
        rank, local, world, here = (
            _number(environ.get(name), most)
            for name, most in zip(  # noqa: B905 (Python 3.8)
                names, (_MOST_LOCAL, _MOST_LOCAL, _MOST_RANKS, _MOST_LOCAL)
            )
        )
        if rank is None or not world or (kind != "torch" and world == 1):
            continue
        return {
            "kind": kind,
            "job": job(environ),
            "rank": rank,
            "local_rank": local,
            "world_size": world,
            "local_world_size": here,
            "restarts": _number(environ.get(b"TORCHELASTIC_RESTART_COUNT"), _MOST_RESTARTS),
            "master": master(environ),
        }
    return None


def job(environ: Environ) -> str:
    """Return what all ranks of a job share; "" where they share no name that we know.

    A master on the loopback serves this node alone, so another node's is another job.
    """
    run_id = environ.get(b"TORCHELASTIC_RUN_ID", b"")
    if run_id not in _NO_RUN_ID:
        return clean(run_id)
    meets = master(environ)
    if meets:
        address, _, port = meets.rpartition(":")
        loopback = address in _HERE or address.startswith("127.")
        return clean(os.uname().nodename) + ":" + port if loopback else meets
    number, step = environ.get(b"SLURM_JOB_ID"), environ.get(b"SLURM_STEP_ID")
    if number:
        return clean(b"slurm " + number + (b"." + step if step else b""))
    return clean(environ.get(b"PMIX_NAMESPACE", b""))


def master(environ: Environ) -> str:
    """Return where its ranks meet, "address:port"; "" where the environment does not say."""
    address, port = environ.get(b"MASTER_ADDR"), environ.get(b"MASTER_PORT")
    return clean(address + b":" + port) if address and port else ""


def _number(text: bytes | None, most: int) -> int | None:
    """Return a whole number within bounds; None for anything else."""
    if not text or not text.isdigit() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None
