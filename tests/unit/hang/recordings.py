"""Flight recorder files of our own, in torch's form."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from preflight.facts.job import Dump


def entry(number: int, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One call, done by default."""
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [[64, 64]],
        "output_sizes": [[64, 64]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "time_created_ns": 1_000 + number,
        **more,
    }


def pending(number: int, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """The same, begun and not ended."""
    return entry(number, op, **{"state": "started", "retired": False, **more})


def document(*entries: dict[str, Any]) -> bytes:
    """A recorder's JSON."""
    return json.dumps({"version": "2.10", "entries": entries}).encode()


def dump(*entries: dict[str, Any], written_s: float = 2e9 - 5) -> Dump:
    """The same as it travels."""
    content = base64.b64encode(zlib.compress(document(*entries))).decode()
    return Dump(written_s=written_s, content=content)
