"""What strangers write takes time in proportion to its length: names, subjects, schedules."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING

import pytest

from preflight import cli
from preflight.errors import UsageError
from preflight.fleet.nodeset import expand, fold
from preflight.fleet.sources import Wish, resolve
from preflight.report.document import encode
from tests.unit.report.nights import report
from tests.unit.report.test_public_folders import measured, whose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Read = Callable[[Path, int], object]

_TIMES = 8.5
"""Of four times the input, 4 is linear and 16 the square."""
_LEAST_S = 0.005
_WHOLE = encode(report(("n1", "n2"))).decode()


def _names(many: int) -> list[str]:
    chance = random.Random(1)  # noqa: S311  the same ones in each run
    return [f"{a}{b}{c}" for a, b, c in zip(*(
        [f"{letter}{chance.randrange(1000)}" for _ in range(many)] for letter in "abc"
    ), strict=True)]  # fmt: skip


def _subject_of_dashes(folder: Path, length: int) -> None:
    document = json.loads(_WHOLE)
    document["verdicts"][0]["subject"] = "pair " + "-" * 25 * length
    (folder / "report.json").write_text(json.dumps(document))
    cli.main(["report", str(folder)])


def _killed_run(folder: Path, length: int) -> None:
    began = {
        "event": "began", "preflight": "0.1.0", "run": "ab", "origin": "", "tier": "quick",
        "started": "2026-11-22T02:00:00+00:00", "owed": {"gpu.count": ["-" * 25 * length]},
        "nodes": _names(length),
    }  # fmt: skip
    bent = {
        "event": "verdict", "check": "gpu.count", "subject": "n1", "outcome": "fail", "advice": "",
        "sentence": "bent", "evidence": {}, "blame": "pair " + "-" * 25 * length,
    }  # fmt: skip
    (folder / "events.jsonl").write_text(f"{json.dumps(began)}\n{json.dumps(bent)}\n")
    cli.main(["report", str(folder)])


def _blame(folder: Path, **sweep: object) -> None:
    path = folder / "sweep.json"
    path.write_text(json.dumps({"ladder": [], "rounds": [], "pairs": [], **sweep}))
    cli.main(["blame", str(path)])


def _round(folder: Path, length: int) -> None:
    names = [f"n{number}" for number in range(length * 4)]
    pairs = list(zip(names[::2], names[1::2], strict=True))
    _blame(folder, rounds=[[*pairs, (names[-1], "m1")]])


def _insides(folder: Path, length: int) -> None:
    names = [f"n{number}" for number in range(length * 4)]
    rails = {"backend": "gloo", "rails": [None, None]}
    _blame(folder, inside=[{"node": name, **rails} for name in (*names, names[-1])])


def _inventory(folder: Path, length: int) -> None:
    path = folder / "fleet.toml"
    path.write_text(f'[group.gpu]\nnodes = "{",".join(_names(length))}"\n')
    assert resolve(Wish(inventory=str(path))).hosts


def _suggestion(folder: Path, length: int) -> None:
    """Long names that are alike, and one that is not of them."""
    label = "ab" * (length // 40) or "ab"
    path = folder / "fleet.toml"
    nodes, odd = f"{label}.{label}.n[1-1000]", f"{label}.{label[::-1]}.m7"
    path.write_text(f'[group.gpu]\nnodes = "{nodes}"\n[node."{odd}"]\nuser = "x"\n')
    with pytest.raises(UsageError):
        resolve(Wish(inventory=str(path)))


def _script(folder: Path, text: str) -> None:
    path = folder / "train.py"
    path.write_text(f"import torch.distributed as dist\n{text}")
    cli.main(["lint", str(path)])


def _conditions(folder: Path, length: int) -> None:
    """Each `return` hangs on one more parameter of the function."""
    names = [f"a{number}" for number in range(10 * length)]
    body = "".join(f"    if {name}: return\n    g()\n" for name in names)
    _script(folder, f"def f({','.join(names)}):\n{body}")


def _classes(folder: Path, length: int) -> None:
    """Each class has the one before as its base, and the last calls what none of them has."""
    bases = "".join(f"class A{at + 1}(A{at}): pass\n" for at in range(length))
    calls = "        self.f()\n" * length
    guarded = f"    def m(self):\n      if dist.get_rank() == 0:\n{calls}"
    _script(folder, f"{bases}class B(A{length}):\n{guarded}")


def _alternatives(folder: Path, length: int) -> None:
    """Each of many ranks has its own, and the rest a long one: it is the other side of each."""
    ranks = "".join(f"elif rank == {at}: f()\n" for at in range(length // 6))
    rest = "".join(f"    g{at}()\n" for at in range(10 * length))
    _script(folder, f"rank = dist.get_rank()\nif rank: f()\n{ranks}else:\n{rest}")


def _cycle(folder: Path, length: int) -> None:
    """Two classes that have each other as bases, often."""
    names = ("A", "B")
    classes = (f"class {a}({','.join([b] * length)}):" for a, b in (names, names[::-1]))
    body = "\n  def m(self):\n    if dist.get_rank() == 0: self.f()\n"
    _script(folder, body.join((*classes, "")))


def _public(folder: Path, said: str) -> None:
    document = json.loads(_WHOLE)
    document["verdicts"][0]["sentence"] = said
    (folder / "measured.json").write_bytes(measured(whose(("n1", "n2"))))
    (folder / "report.json").write_text(json.dumps(document))
    assert cli.main(["report", "--public", str(folder)]) in (0, 1, 2, 3)


def _labels(folder: Path, length: int) -> None:
    """Where a node set could begin at each label, and none ends."""
    _public(folder, "zz9" + ".a" * 25 * length)


def _domain(folder: Path, length: int) -> None:
    """A node's name, and a domain without an end; one of a mail, too."""
    _public(folder, f"n1{'.a' * 200 * length} u@b{'.a' * 200 * length}")


READ: list[Read] = [
    _subject_of_dashes, _killed_run, _round, _insides, _inventory, _suggestion, _conditions,
    _classes, _alternatives, _cycle, _labels, _domain,
    lambda _, length: fold(_names(length)),
    lambda _, length: expand("^".join(_names(length // 5))),
]  # fmt: skip


def _cost_s(read: Read, folder: Path, length: int) -> float:
    began = time.thread_time()
    read(folder, length)
    return time.thread_time() - began


@pytest.mark.parametrize("read", READ)
def test_time_is_linear_in_what_is_read(tmp_path: Path, read: Read) -> None:
    """Four times the names, or the length of a name, costs four times; 1,200 at most here."""
    read(tmp_path, 20)  # modules are loaded once
    for _ in range(3):
        before_s, after_s = (_cost_s(read, tmp_path, length) for length in (300, 1200))
        if after_s < _TIMES * max(before_s, _LEAST_S):
            return
    pytest.fail(f"{after_s / before_s:.1f} times the time for four times the input")


def test_names_of_several_numbers_fold_alike_few_or_many() -> None:
    """A grid of racks and nodes is one pattern at any size, and what is folded expands again."""
    for racks in (4, 64):
        grid = [f"rack{rack:02}n{node}" for rack in range(racks) for node in range(40)]
        assert fold(grid) == f"rack[00-{racks - 1:02}]n[0-39]"
        assert list(expand(",".join(grid))) == grid
        assert set(expand(fold(grid[5:]))) == set(grid[5:])
    names = _names(1000)
    assert set(expand(fold(names))) == set(expand(",".join(names))) == set(names)


def test_many_names_of_several_numbers_are_combined_as_few_are() -> None:
    """ClusterShell's operators count from left to right in long lists, too."""
    for last in (9, 999):
        said = f"a1b[1-{last}],c!a1b[2-3]&a[1-2]b[1-8],d^d1e1"
        assert expand(said) == ("a1b1", "a1b4", "a1b5", "a1b6", "a1b7", "a1b8", "d", "d1e1")
