"""What `preflight lint` says of real scripts: python -m tests.bench.lint_rate FOLDER...

Downloads nothing: give it folders with the scripts of packages that you have unpacked. Each finding
is printed with its lines, for a person to judge; the counts by rule come last.
docs/reference/lint.md says what was found in which packages, and which of it a person found to be
wrong.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.lint import lint
from preflight.lint.reading import Unreadable, read_script
from preflight.lint.script import Severity, makes_group

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOR_RANKS = re.compile(rb"distributed|accelerate|lightning|deepspeed|horovod|composer|Trainer|ray")
_AROUND = 4
"""Lines shown before the one that is complained of."""


def main(folders: list[str]) -> int:
    """Lint every Python file below, print what a person has to judge."""
    counted: Counter[str] = Counter()
    by_rule: Counter[str] = Counter()
    for path in _scripts(folders):
        content = path.read_bytes()
        if not _FOR_RANKS.search(content):
            counted["files of one process, skipped"] += 1
            continue
        linted = lint(content, str(path))
        counted["files that may be for several ranks"] += 1
        counted["not read"] += linted.unread is not None
        counted["distributed"] += linted.distributed
        script = read_script(content, str(path))
        starts = not isinstance(script, Unreadable) and makes_group(script)
        counted["that make a group or wrap a model"] += starts
        for one in linted.findings:
            by_rule[f"{one.severity.value:<8} {one.rule}"] += 1
            if one.severity is not Severity.HINT:
                lines = content.decode("utf-8", "replace").splitlines()
                _say(f"\n{path}:{one.line}  {one.severity.value}  {one.rule}\n    {one.sentence}")
                for at in range(max(0, one.line - 1 - _AROUND), min(len(lines), one.line + 1)):
                    _say(f"    {at + 1:>5} {lines[at][:120]}")
    for name, number in [*counted.items(), *sorted(by_rule.items())]:
        _say(f"{number:>6}  {name}")
    return 0


def _scripts(folders: list[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(Path(folder).rglob("*.py"))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
