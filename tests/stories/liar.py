"""Stands in for a node's Python: runs the real payload and changes what it says on its way out.

python liar.py KIND PYTHON WORDS... ; only the answers of the payload are touched, and whatever
ends it ends the payload.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m \u202egnp\u2066\u200b\x00\x85\x9b31m\r\n"
    "FAIL n1 ]]> <b>&amp; $(reboot) `id` [red]x[/red] \ud800"
)
OTHERS_NONCE = "0" * 32
Line = str


def nan(line: Line) -> Iterator[Line]:
    """Numbers that are none."""
    yield re.sub(r'"seconds":[^,}]*', '"seconds":NaN', line)


def infinite(line: Line) -> Iterator[Line]:
    """A number beyond every float."""
    yield re.sub(r'"seconds":[^,}]*', '"seconds":1e999', line)


def negative(line: Line) -> Iterator[Line]:
    """A time before time began."""
    yield re.sub(r'"seconds":[^,}]*', '"seconds":-1', line)


def overflowing(line: Line) -> Iterator[Line]:
    """A count that no machine word holds."""
    yield re.sub(r'"(seen|wire)":\d+', r'"\1":1' + "0" * 400, line)


def mistyped(line: Line) -> Iterator[Line]:
    """Text for a number, a number for a list."""
    yield re.sub(r'"seconds":[^,}]*', '"seconds":"soon"', line)


def strange(line: Line) -> Iterator[Line]:
    """A field that nobody knows."""
    yield line.replace("{", '{"__proto__":{},', 1)


def deep(line: Line) -> Iterator[Line]:
    """A list in a list in a list, a hundred thousand times."""
    yield re.sub(r'"seconds":[^,}]*', '"seconds":' + "[" * 100_000 + "]" * 100_000, line)


def huge(line: Line) -> Iterator[Line]:
    """Nine megabytes for a host name."""
    yield re.sub(r'"host":"[^"]*"', '"host":"' + "x" * (9 << 20) + '"', line)


def replayed(line: Line) -> Iterator[Line]:
    """An answer that was recorded in another run, under this run's mark."""
    yield re.sub(r'"nonce":"[^"]*"', f'"nonce":"{OTHERS_NONCE}"', line)


def recorded(line: Line) -> Iterator[Line]:
    """The same, mark and all: a line of somebody else's."""
    yield re.sub(r"[0-9a-f]{32}", OTHERS_NONCE, line)


def twice(line: Line) -> Iterator[Line]:
    """The answer, and then another one that says something else."""
    yield line
    yield re.sub(r'"seconds":[^,}]*', '"seconds":1e9', line)


def pretender(line: Line) -> Iterator[Line]:
    """Another node's name for its own."""
    yield re.sub(r'"host":"[^"]*"', '"host":"honest"', line)


def accusing(line: Line) -> Iterator[Line]:
    """Thousands of failed connections to an honest node that nobody asked it to make."""
    mark, _, document = line.partition("{")
    told = json.loads("{" + document)
    if "attempts" in told:
        kinds = ("master", "data")
        told["attempts"] += [
            {"target": "honest", "port": 1 + n, "kind": kinds[n % 2], "result": "refused"}
            for n in range(4000)
        ]
    yield mark + json.dumps(told)


def evil(line: Line) -> Iterator[Line]:
    """Control characters, markup and half surrogates in every text that may say anything."""
    mark, _, document = line.partition("{")
    told = json.loads("{" + document)
    yield mark + json.dumps(_spoilt(told))


def newlines(line: Line) -> Iterator[Line]:
    """Empty lines without end, and never the answer."""
    while line:
        yield "\n" * 65535


def drip(line: Line) -> Iterator[Line]:
    """One byte a second."""
    for byte in line:
        os.write(1, byte.encode())
        time.sleep(1)
    yield ""


_FIXED = ("nonce", "state", "ancestor", "remote_kind", "scheduler", "result", "kind", "link_layer")


def _spoilt(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _spoilt(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_spoilt(each, key) for each in value]
    return EVIL if isinstance(value, str) and key not in _FIXED else value


def main() -> None:
    """Run the rest of the command line and pass on its answers, changed."""
    change: Callable[[Line], Iterator[Line]] = globals()[sys.argv[1]]
    with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True) as payload:
        for line in payload.stdout or ():
            marked = re.match(r"@preflight [0-9a-f]{32} ", line)
            for told in change(line.rstrip("\n")) if marked else [line.rstrip("\n")]:
                sys.stdout.write(told + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
