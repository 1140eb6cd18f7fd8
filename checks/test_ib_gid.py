"""On RoCE, the GID that NCCL will use exists and can leave its own link."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gids import wrong_gids
from preflight.facts.oddities import conclude_oddities
from preflight.facts.selected import hca_of, nccl_ports
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("ib.gid", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts, environ: Mapping[str, str] | None) -> Verdict:
    """Look up the job's NCCL_IB_GID_INDEX in the table of each RoCE port it selects."""
    ports = [p for p in nccl_ports(facts, hca_of(environ)) if p.active and p.layer == "ethernet"]
    if not ports:
        return not_run("no active RoCE port here that the job selects")
    text = (environ or {}).get("NCCL_IB_GID_INDEX", "").strip()
    index = int(text) if text.isdigit() else None
    odd = conclude_oddities(wrong_gids(ports, index))
    if odd is not None:
        return odd
    mute = [port.name for port in ports if port.port.gids is None]
    if mute:
        said = f"the GID table of {', '.join(mute)} could not be read"
        return unknown(said, advice="look at gids in /sys/class/infiniband/*/ports")
    chosen = "a RoCE v2 GID to choose" if index is None else f"GID {index} of RoCE v2"
    tables = {p.name: [f"{g.index} {g.kind} {g.gid}" for g in p.port.gids or ()] for p in ports}
    return ok(f"{count(len(ports), 'RoCE port')} with {chosen}", gids=tables)


def test_ib_gid(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.environ))
