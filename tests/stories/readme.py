"""The demo's real output, as the tutorial shows it and as the pictures of the README show it.

`make pictures` runs the demo in a terminal of 80 columns, and renews the three of them.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from html import escape, unescape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.lab.browser import Browser

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorials" / "demo.md"
TERMINAL = ROOT / "docs" / "pictures" / "demo.svg"
PAGE = ROOT / "docs" / "pictures" / "report.png"
WIDTH = 80
_BLOCK = re.compile(r"(<!-- demo: [^\n]*-->\n```\n)(.*?)(```\n)", re.DOTALL)
_DESCRIPTION = re.compile(r"<desc>\n(.*?)</desc>", re.DOTALL)
_PIECE = re.compile(r'clip-path="url\(#demo-line-(\d+)\)">(.*?)</text>', re.DOTALL)
_SKIPPED = ("platform ", "rootdir", "configfile", "plugins", "collected")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")


def excerpt(output: str) -> list[str]:
    """Cut header and summary out of the demo's output; what comes and goes between them is left."""
    start, end = output.index("preflight 0."), output.rindex("\n\ndemo: ")
    lines = [x for x in output[start:end].splitlines() if not x.startswith(_SKIPPED)]
    header = lines[: next(n for n, line in enumerate(lines) if line.startswith("report   ")) + 1]
    titles = [n for n, line in enumerate(lines) if line.startswith("====")]
    return [*header, "", *lines[titles[0] : titles[1] if len(titles) > 1 else None]]


def shown() -> list[str]:
    """The tutorial's block."""
    match = _BLOCK.search(TUTORIAL.read_text(encoding="utf-8"))
    assert match is not None
    return match[2].splitlines()


def pictured() -> list[str]:
    """The text of the README's picture, which screen readers read."""
    match = _DESCRIPTION.search(TERMINAL.read_text(encoding="utf-8"))
    assert match is not None
    return unescape(match[1]).splitlines()


def drawn() -> list[str]:
    """The lines that the README's picture draws, from its pieces of one colour each."""
    text, rows = TERMINAL.read_text(encoding="utf-8"), dict[int, str]()
    for row, piece in _PIECE.findall(text):
        rows[int(row)] = rows.get(int(row), "") + unescape(piece).replace("\xa0", " ")
    return [rows[row].rstrip() for row in sorted(rows)]


def comparable(lines: list[str]) -> list[str]:
    """Blank the numbers and join wrapped lines: they depend on the day, the words do not."""
    text = re.sub(r"\n {7,}(?!do:)", " ", "\n".join(lines))
    # How many checks there are is known.
    counted = re.compile(r"^(?!checks ).+", re.MULTILINE)
    text = counted.sub(lambda line: re.sub(r"\d+(\.\d+)?", "N", line[0]), text)
    text = re.sub(r" with h\w", " with hN", text)
    text = text.replace("; N measured again", "")  # on a busy machine some pairs are
    # On a machine that is busy with other things the floor is the stricter limit.
    text = re.sub(r"\((N of the peers' median|shipped floor for gloo)\)", "(a yardstick)", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def _in_a_terminal(words: list[str]) -> str:
    """Run a command on a terminal of its own, and return what it wrote there."""
    control, terminal = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    with subprocess.Popen(words, cwd=ROOT, env=environ, stdout=terminal, stderr=terminal):
        os.close(terminal)
        written = b""
        try:
            while more := os.read(control, 1 << 16):
                written += more
        except OSError:  # Linux: the last process has closed the terminal
            pass
    os.close(control)
    return written.decode()


def _coloured(output: str, lines: list[str]) -> list[str]:
    """The lines of the excerpt with their colours, in their order."""
    rest = iter(output.replace("\r\n", "\n").split("\n"))
    return [
        next((one for one in rest if _COLOUR.sub("", one) == line), line) if line else ""
        for line in lines
    ]


def _svg(coloured: list[str], plain: list[str]) -> str:
    """Draw the terminal; its fonts are the reader's own, and its text can be read aloud."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(coloured)))
    drawn = console.export_svg(title="make demo", unique_id="demo")
    drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)
    described = f"<title>make demo</title>\n<desc>\n{escape(chr(10).join(plain))}\n</desc>\n"
    return re.sub(r"(<svg [^>]*>\n)", lambda m: m[1] + described, drawn, count=1)


def main() -> None:
    """Run the demo, and renew the tutorial's block and both pictures."""
    with tempfile.TemporaryDirectory(prefix="preflight-pictures-") as name:
        report = Path(name) / "report"
        output = _in_a_terminal([sys.executable, "-m", "tests.lab.demo", f"--keep={report}"])
        with Browser() as browser:
            browser.open(report / "report.html", width=1000, height=800)
            browser.picture(PAGE, whole=False)
    lines = excerpt(_COLOUR.sub("", output))
    block = "".join(f"{line}\n" for line in lines)
    page = TUTORIAL.read_text(encoding="utf-8")
    TUTORIAL.write_text(_BLOCK.sub(lambda m: m[1] + block + m[3], page), encoding="utf-8")
    TERMINAL.write_text(_svg(_coloured(output, lines), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
