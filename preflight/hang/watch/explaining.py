"""`python -m preflight.hang.watch.explaining FOLDER FILE...`: why a launch ended, by its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preflight.hang.explain.scan import Scanner
from preflight.hang.explain.symptom import shipped
from preflight.hang.explain.weigh import explain, lines
from preflight.hang.watch.folder import FOUND, UNKNOWN, write

if TYPE_CHECKING:
    from collections.abc import Sequence

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
