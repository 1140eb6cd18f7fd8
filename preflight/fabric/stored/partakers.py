"""Who took part and who did not, held to each other: a contradiction would exclude the healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.stored.refusal import absurd

if TYPE_CHECKING:
    from preflight.fabric.samples import Sweep

BACKENDS = ("gloo", "nccl")
_ONE = 1


def refuse_backend(where: str, backend: str) -> None:
    """Hold it to what there is; UsageError that names the place and a way out."""
    if backend not in BACKENDS:
        raise absurd(where, f"its backend is {backend[:60]!a}", f"it is {' or '.join(BACKENDS)}")


def refuse_partakers(sweep: Sweep) -> None:
    """Who was left out measured nothing, and who was cut off was left out; UsageError as above."""
    for number, pair in enumerate(sweep.pairs):
        for end in (pair.first, pair.second):
            if end is not None and end.node in sweep.left_out and end.state != "not_run":
                where = f"pairs[{number}] ({f'{pair.a}-{pair.b}'[:60]!a})"
                said = f"{end.node} has an account of it and stands in left_out"
                raise absurd(where, said, "leave one of them out")
    for number, one in enumerate(sweep.inside):
        if one.node in sweep.left_out:
            where = f"inside[{number}] ({one.node[:60]!a})"
            raise absurd(where, "it stands in left_out too", "leave one of them out")
    paired = {name for around in sweep.rounds for pair in around for name in pair}
    # Of a single round one may have sat out, and may have been the store's host.
    all_paired = sum(bool(around) for around in sweep.rounds) > _ONE
    there = paired.union(sweep.troubles, (one.node for one in sweep.inside))
    for out, host in sweep.cut_off.items():
        where = f"cut_off ({out[:60]!a})"
        if out not in sweep.left_out:
            raise absurd(where, "it does not stand in left_out", "add it there with the reason")
        if host in sweep.left_out or (all_paired and host not in there):
            said = f"from {host[:60]!a}, which took no part"
            raise absurd(where, said, "name the host of the sweep's store")
