"""Who wrote a line: torchrun's and srun's prefixes, NCCL's own, and the file it stands in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.triage.explain.model import Speaker

if TYPE_CHECKING:
    from pathlib import Path

_RANK = re.compile(r"\[rank ?(\d{1,6})\]:")
_PREFIXED = re.compile(
    r"^(?:\[\d+,(\d{1,6})\]<std|\(\w{1,40} rank=(\d{1,6}) pid=|\[RANK (\d{1,6})\] )"
)
"""mpirun --tag-output, vLLM's workers, and what scripts print."""
_OWN_RANK = re.compile(r"\[(?:[^\]\[]{0,80}\b)?Rank (\d{1,6})\]")
_NCCL = re.compile(r"(?:^|[\s>])([A-Za-z0-9][\w.-]{0,252}):(\d{1,8}):\d{1,8} \[\d+\] ")
_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def speaker_of(text: str) -> Speaker:
    """Read a line's own prefixes. `[rank9]:` is global; `[Rank 1]` may count within a group only.

    Torch writes the second beside the first; alone it is taken as it is.
    """
    rank = _RANK.search(text)
    if rank is None and "what():" not in text:  # who dies by it has said so with its prefix
        rank = _OWN_RANK.search(text) or _PREFIXED.match(text)
    nccl = _NCCL.search(text)
    return Speaker(
        rank=int(rank[rank.lastindex or 1]) if rank else None,
        node=nccl[1] if nccl else "",
        pid=int(nccl[2]) if nccl else None,
    )


def speaker_of_file(path: Path) -> Speaker:
    """A file that is named after a rank speaks for it: `rank3.log`, `logs/rank_12/stderr`."""
    for part in (path.name, path.parent.name):
        named = _IN_NAME.search(part)
        if named:
            return Speaker(rank=int(named[1]))
    return Speaker()
