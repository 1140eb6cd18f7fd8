"""Which rank of which torchrun this process is, as torchrun tells it in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")


class Place(Struct, frozen=True, kw_only=True):
    """One rank among all; `seat` counts the ranks of its node, also where LOCAL_RANK is virtual."""

    rank: int
    world: int
    local_rank: int
    """What the job takes for its GPU: 0 for all under torchrun's --virtual-local-rank."""
    per_node: int
    group: int
    run_id: str
    restart: int
    max_restarts: int
    master: str
    port: int
    agent_store: bool
    """torchrun itself hosts the store at the master port; else the job's rank 0 would have to."""

    @property
    def seat(self) -> int:
        """The number of this rank on its own node."""
        return self.rank % self.per_node

    @property
    def prefix(self) -> str:
        """Where our keys lie in the job's store: no other start of the job shares them."""
        return f"preflight/{self.run_id}/{self.restart}"


def started_by_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether a torchrun started this process as a rank; stray RANK variables do not say so."""
    return all(environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"))


def read_place(environ: Mapping[str, str]) -> Place:
    """Read it; UsageError when torchrun's variables were changed on the way."""
    try:
        number = {name: int(environ[name]) for name in _NUMBERS}
        restart = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        most = int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        master = environ["MASTER_ADDR"]
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"torchrun's environment is not whole ({error}): start pytest as torchrun's own "
            "program, torchrun ... -m pytest --preflight"
        ) from error
    if not 0 <= number["RANK"] < number["WORLD_SIZE"] or number["LOCAL_WORLD_SIZE"] < 1:
        raise UsageError(
            f"RANK {number['RANK']} of WORLD_SIZE {number['WORLD_SIZE']} cannot be: leave the "
            "variables of torchrun as it set them"
        )
    return Place(
        rank=number["RANK"],
        world=number["WORLD_SIZE"],
        local_rank=number["LOCAL_RANK"],
        per_node=number["LOCAL_WORLD_SIZE"],
        group=number["GROUP_RANK"],
        run_id=environ["TORCHELASTIC_RUN_ID"],
        restart=restart,
        max_restarts=most,
        master=master,
        port=number["MASTER_PORT"],
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE", "True") == "True",
    )
