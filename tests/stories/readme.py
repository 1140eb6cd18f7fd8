"""The README shows the demo's real output; this cuts it out, and compares it without its numbers.

To renew it: `make demo | python -m tests.stories.readme`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"(<!-- demo: [^\n]*-->\n```\n)(.*?)(```\n)", re.DOTALL)
_SKIPPED = ("platform ", "rootdir", "configfile", "plugins", "collected")


def excerpt(output: str) -> list[str]:
    """Cut header and summary out of the demo's output; what comes and goes between them is left."""
    start, end = output.index("preflight 0."), output.rindex("\n\ndemo: ")
    lines = [x for x in output[start:end].splitlines() if not x.startswith(_SKIPPED)]
    header = lines[: next(n for n, line in enumerate(lines) if line.startswith("report   ")) + 1]
    titles = [n for n, line in enumerate(lines) if line.startswith("====")]
    return [*header, "", *lines[titles[0] : titles[1] if len(titles) > 1 else None]]


def shown() -> list[str]:
    """The README's block."""
    match = _BLOCK.search(README.read_text(encoding="utf-8"))
    assert match is not None
    return match[2].splitlines()


def comparable(lines: list[str]) -> list[str]:
    """Blank the numbers and join wrapped lines: they depend on the day, the words do not."""
    text = re.sub(r"\n {7,}(?!do:)", " ", "\n".join(lines))
    # How many checks there are is known.
    counted = re.compile(r"^(?!checks ).+", re.MULTILINE)
    text = counted.sub(lambda line: re.sub(r"\d+(\.\d+)?", "N", line[0]), text)
    text = re.sub(r" with h\w", " with hN", text)
    # On a machine that is busy with other things the floor is the stricter limit.
    text = re.sub(r"\((N of the peers' median|shipped floor for gloo)\)", "(a yardstick)", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def main() -> None:
    """Put the demo's output, read from standard input, into the README."""
    lines = excerpt(sys.stdin.read())
    text = README.read_text(encoding="utf-8")
    block = "".join(f"{line}\n" for line in lines)
    README.write_text(_BLOCK.sub(lambda m: m[1] + block + m[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
