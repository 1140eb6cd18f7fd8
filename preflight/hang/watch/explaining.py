"""`python -m preflight.watching.explaining FOLDER FILE...`: what ended a launch, from its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preflight.report.explained import lines
from preflight.triage.explain.scan import Scanner
from preflight.triage.explain.weigh import explain
from preflight.triage.symptom import shipped
from preflight.watching.record import write

if TYPE_CHECKING:
    from collections.abc import Sequence

FOUND, UNKNOWN = 0, 3
_WIDTH = 100


def main(words: Sequence[str]) -> int:
    """Write explanation.json and .txt, and print the latter; 3 where it is unknown."""
    folder, *files = map(Path, words)
    told = explain(Scanner(shipped()).read(files))
    text = "".join(f"{line}\n" for line in lines(told, _WIDTH))
    write(folder / "explanation.json", msgspec.json.format(msgspec.json.encode(told)).decode())
    write(folder / "explanation.txt", text)
    sys.stdout.write(text)
    return UNKNOWN if told.category == "unknown" else FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
