"""Gives the recorded nodes a fact that nodes did not send when they were recorded.

    python -m tests.frozen.add_fact machine.entropy_bits 256

Without it the new check is `unknown` on every recorded node, and every screen changes. The value is
JSON, and belongs to a healthy node. Nodes of which the part above (`machine`) is unknown stay.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING, Any

from tests.frozen.store import RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator


def add(path: str, value: Any) -> int:
    """Write the value to this path of every recorded node's facts; return in how many places."""
    *above, field = path.split(".")
    changed = 0
    for file in sorted(RUNS.glob("*/measured.json.gz")):
        run = json.loads(gzip.decompress(file.read_bytes()))
        parts = [one for facts in run["facts"].values() for one in _parts(facts, above)]
        lacking = [one for one in parts if field not in one]
        for part in lacking:
            part[field] = value
        changed += len(lacking)
        if lacking:
            text = json.dumps(run, ensure_ascii=False, separators=(",", ":"))
            file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return changed


def _parts(document: Any, keys: list[str]) -> Iterator[dict[str, Any]]:
    """What lies at this path; of a list, such as the GPUs, in each of its items."""
    if isinstance(document, list):
        for item in document:
            yield from _parts(item, keys)
    elif isinstance(document, dict) and keys:
        yield from _parts(document.get(keys[0]), keys[1:])
    elif isinstance(document, dict):
        yield document


if __name__ == "__main__":
    number = add(sys.argv[1], json.loads(sys.argv[2]))
    sys.stdout.write(f"{sys.argv[1]} was added in {number} places of recorded runs\n")
