"""What strangers write takes time and memory in proportion to its length, names included."""

from __future__ import annotations

import base64
import gc
import json
import pickle  # noqa: TID251  only written
import random
import sqlite3
import struct
import tempfile
import time
import tracemalloc
import zlib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.commands import cli
from preflight.commands.read import captured, judge_captured
from preflight.errors import UsageError
from preflight.facts.job import Dump
from preflight.fleet.nodeset import expand, fold
from preflight.fleet.sources import FleetRequest, resolve
from preflight.report.document import encode
from preflight.transport.host_keys import read_known_hosts
from tests.patterns.growth import logs, pasted, stretched, words
from tests.patterns.test_growth import EVERY_WAY, _explain
from tests.unit.hang.diagnose.jobs import job
from tests.unit.history.nights import found, gemm, kept, machine, made, night, slots
from tests.unit.report.nights import report
from tests.unit.report.test_public_folders import measured, whose

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.hang.diagnose.job_state import JobState

    Read = Callable[[Path, int], object]

_TIMES = 8.5
"""Of four times the input, 4 is linear and 16 the square."""
_LEAST_S = 0.005
_MORE, _LEAST = 6.0, 1 << 18
"""Of memory, which is the same in each run; below that many bytes it is of what is loaded."""
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


def _blamed(folder: Path, length: int, pairs: list[str], **blame: object) -> int:
    """Each of many checks has a verdict on one pair, and one component is to blame for it."""
    document = json.loads(_WHOLE)
    slow = {**document["verdicts"][0], "subject": "n1-n2", "outcome": "fail", "blame": "c"}
    document["verdicts"] = [{**slow, "check": f"a.c{number}"} for number in range(length)]
    row = {"kind": "leaf", "component": "c", "sentence": "", "confidence": 1, "advice": ""}
    document["blames"] = [{**row, "pairs": pairs, **blame}]
    (folder / "report.json").write_text(json.dumps(document))
    return cli.main(["report", str(folder)])


def _culprits_of_a_pair(folder: Path, length: int) -> None:
    _blamed(folder, length, ["n1-n2"] * 2, culprits=[f"m{number}" for number in range(length)])


def _a_pair_again_and_again(folder: Path, length: int) -> None:
    _blamed(folder, length, ["n1-n2"] * length)


def _killed_run(folder: Path, length: int) -> None:
    began = {
        "event": "began", "preflight": "0.1.0", "run": "ab", "origin": "", "tier": "quick",
        "started": "2026-11-22T02:00:00+00:00", "expected": {"gpu.count": ["-" * 25 * length]},
        "nodes": _names(length),
    }  # fmt: skip
    bent = {
        "event": "verdict", "check": "gpu.count", "subject": "n1", "outcome": "fail", "advice": "",
        "sentence": "bent", "evidence": {}, "blame": "pair " + "-" * 25 * length,
    }  # fmt: skip
    (folder / "events.jsonl").write_text(f"{json.dumps(began)}\n{json.dumps(bent)}\n")
    cli.main(["report", str(folder)])


def _joint_names(folder: Path, length: int) -> None:
    """Each of many components, with a long name, is to blame for each of as many pairs."""
    document = json.loads(_WHOLE)
    row = {"kind": "leaf", "sentence": "", "confidence": 1, "advice": ""}
    pairs = [f"n{number}-m" for number in range(length // 4)]
    document["blames"] = [{**row, "component": f"{at:04000}", "pairs": pairs}
                          for at in range(len(pairs))]  # fmt: skip
    (folder / "report.json").write_text(json.dumps(document))
    cli.main(["report", str(folder)])


def _checks_of_every_node(folder: Path, length: int) -> None:
    """A killed run expects each of many checks on each of many nodes."""
    began = {
        "event": "began", "preflight": "0.1.0", "run": "ab", "origin": "", "tier": "quick",
        "started": "2026-11-22T02:00:00+00:00", "nodes": _names(8 * length),
        "expected": {f"a.c{number}": ["*"] for number in range(8 * length)},
    }  # fmt: skip
    (folder / "events.jsonl").write_text(f"{json.dumps(began)}\n")
    (folder / "report.json").unlink(missing_ok=True)
    assert cli.main(["report", str(folder)]) == (4 if length > 128 else 0)


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
    assert resolve(FleetRequest(inventory=str(path))).hosts


def _switches(folder: Path, length: int) -> None:
    """Many checks are off on each of many nodes."""
    path = folder / "fleet.toml"
    off = "".join(f'[checks."a.c{at}"]\nenabled = false\n' for at in range(min(length, 500)))
    path.write_text(f'[group.gpu]\nnodes = "n[1-{2 * length}]"\n{off}')
    assert resolve(FleetRequest(inventory=str(path))).hosts
    path.write_text(f"{off.replace('a.', 'b.')}{off}")
    if length >= 300:
        with pytest.raises(UsageError, match="at most 512"):
            resolve(FleetRequest(inventory=str(path)))


def _waivers(folder: Path, length: int) -> None:
    """A few of them name every node."""
    path = folder / "fleet.toml"
    nodes = f'nodes = "n[1-{8 * length}]"\n'
    today = datetime.now(UTC).date()
    waive = f'[[waive]]\ncheck = "gpu.ecc"\nreason = "known"\nuntil = {today}\n{nodes}'
    path.write_text(f"[group.gpu]\n{nodes}{waive * 3}")
    assert len(resolve(FleetRequest(inventory=str(path))).waivers) == 3


def _a_long_python(folder: Path, length: int) -> None:
    """All of many nodes share it, and a long path of a file."""
    path, many = folder / "fleet.toml", "/a" * 20 * length
    shared = f'python = "{many}"\nidentity_file = "{many}"\nknown_hosts = "{many}"\n'
    path.write_text(f'[group.gpu]\nnodes = "n[1-{4 * length}]"\n{shared}')
    assert resolve(FleetRequest(inventory=str(path))).hosts


def _suggestion(folder: Path, length: int) -> None:
    """Long names that are alike, and one that is not of them."""
    label = "ab" * (length // 40) or "ab"
    path = folder / "fleet.toml"
    nodes, odd = f"{label}.{label}.n[1-1000]", f"{label}.{label[::-1]}.m7"
    path.write_text(f'[group.gpu]\nnodes = "{nodes}"\n[node."{odd}"]\nuser = "x"\n')
    with pytest.raises(UsageError):
        resolve(FleetRequest(inventory=str(path)))


def _script(folder: Path, text: str) -> None:
    path = folder / "train.py"
    path.write_text(f"import torch.distributed as dist\ndist.init_process_group('nccl')\n{text}")
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


_GPU = "Attached GPUs : 1\nGPU 00000000:5D:00.0\n    Product Name : NVIDIA H100\n"


def _section(folder: Path, length: int) -> None:
    _judge(f"{_GPU}    {'a' * 40 * length}\n" + "     b : 1\n" * 4 * length, folder)


def _sections(folder: Path, length: int) -> None:
    """Each in the one before."""
    deep = "".join(f"{' ' * (at % 500)}  {'a' * 40}\n" for at in range(length))
    _judge(f"{_GPU}{deep}", folder)


def _element(folder: Path, length: int) -> None:
    name = "a" * 40 * length
    inside = "<b>1</b>" * 4 * length
    gpu = f'<gpu id="00000000:5D:00.0"><{name}>{inside}</{name}></gpu>'
    _judge(f"<nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>\n", folder)


def _column(folder: Path, length: int) -> None:
    _judge(f"index, temperature.gpu, {'a' * 40 * length}\n" + "0, 41, 1\n" * 4 * length, folder)


def _module(folder: Path, length: int) -> None:
    _script(folder, f"import {'a.' * 20 * length}a as z\n" + "z.f()\n" * 8 * length)


def _from_module(folder: Path, length: int) -> None:
    names = ",".join(f"z{at}" for at in range(4 * length))
    _script(folder, f"from {'a' * 40 * length} import {names}\n" + "z1.f()\n" * 8 * length)


def _methods(folder: Path, length: int) -> None:
    defs = "".join(f" def f{at}(): g()\n" for at in range(2 * length))
    _script(folder, f"class {'a' * 40 * length}:\n{defs}")


def _nested(folder: Path, length: int) -> None:
    deep = "".join(f"{' ' * at}def {'a' * length}():\n" for at in range(30))
    _script(folder, deep + f"{' ' * 30}f()\n" * length)


def _calls(folder: Path, length: int) -> None:
    _script(folder, f"def {'a' * 40 * length}():\n" + " f()\n" * 8 * length)


def _chains(folder: Path, length: int) -> None:
    _script(folder, f"f(){f'.g{length}()' * (length // 8)}\n" * 4)


def _parameters(folder: Path, length: int) -> None:
    names = ",".join(f"a{at}" for at in range(2 * length))
    asked = f" if [{names}]:\n  if [{names}]: return\n"
    _script(folder, f"def f({names}):\n{asked}" + "  x = 1\n" * 2 * length)


def _chain(folder: Path, length: int) -> None:
    """Each function has a long chain of conditions, whose rest is the other side of each."""
    rest = "".join(f"  elif rank == {at}: dist.all_reduce(f{at}())\n" for at in range(length // 2))
    _script(folder, f"def f(rank):\n  if rank: g()\n{rest}")


def _parts_of_a_string(folder: Path, length: int) -> None:
    _script(folder, f"x = f'{'{rank}' * 40 * length}'\n")


def _nodes_of_a_verdict(folder: Path, length: int) -> None:
    """One verdict of a stored night blames them all."""
    place = made(Path(tempfile.mkdtemp(dir=folder)))
    kept(place, night(1, machine("h0", "not_ready"), findings=(found("a.b", "h0"),)))
    with closing(sqlite3.connect(str(place.file))) as other:
        (verdict,) = other.execute("SELECT verdict_id FROM blamed").fetchone()
        nodes = [(at, f"m{at}") for at in range(10, 10 + 40 * length)]
        other.executemany("INSERT INTO nodes VALUES (?, ?, NULL, 1, 1)", nodes)
        other.executemany("INSERT INTO blamed VALUES (?, ?)", ((at, verdict) for at, _ in nodes))
        other.commit()
    assert cli.main(["history", f"--history=sqlite:///{place.file}", "h0"]) == 0


def _places_of_a_gpu(folder: Path, length: int) -> None:
    """It was in many slots of a node, whose numbers have as many layouts."""
    place = made(Path(tempfile.mkdtemp(dir=folder)))
    own = machine("h0", gpus=slots("GPU-a"))
    kept(place, night(1, own, numbers=(gemm("h0", 700.0),)))
    with closing(sqlite3.connect(str(place.file))) as other:
        for table, values in {
            "layouts": f"""(?1, ?1, '', '[{",".join(['"GPU 0"'] * 9)}]')""",
            "places": "(?, 1, 1, 0, 1, NULL)",
        }.items():
            ids = [(at,) for at in range(10, 10 + length)]
            other.executemany(f"INSERT INTO {table} VALUES {values}", ids)  # noqa: S608  our names
        other.commit()
    assert cli.main(["history", f"--history=sqlite:///{place.file}", "--gpu=GPU-a"]) == 0


def _stars_of_a_host(folder: Path, length: int) -> None:
    """In names of a known_hosts file, each star may stand for any part of a long name."""
    path = folder / "known_hosts"
    path.write_text(f"{'*a' * (length // 20)}*b ssh-ed25519 AAAA\n" * (length // 10))
    assert not read_known_hosts([str(path)], ["a" * 250])


def _groups_of_groups(folder: Path, length: int) -> None:
    """One is asked for; each of the others has all nodes."""
    groups: dict[str, object] = {"a": {"hosts": [f"h{at}" for at in range(length)]}}
    groups |= {f"g{at}": {"children": ["a"]} for at in range(length)}
    path = folder / "inventory.json"
    path.write_text(json.dumps({"_meta": {"hostvars": {}}, **groups}))
    assert resolve(FleetRequest(inventory=str(path), nodes="@inventory:a")).hosts


def _recorder(folder: Path, recorded: bytes) -> None:
    """Read it, as the only rank's dump."""
    content = base64.b64encode(zlib.compress(recorded, 1)).decode()
    dump = Dump(written_s=2e9, content=content)
    _diagnose(folder, job(1, lambda _: {"dump": dump}))


def _texts_for_numbers(folder: Path, length: int) -> None:
    """One long text stands for the number of each line of the calls."""
    text = "-" * 1000 * length
    frames = [[{"line": text} for _ in range(64)] for _ in range(length)]
    entries = [{"collective_seq_id": 1, "profiling_name": "a", "frames": each} for each in frames]
    _recorder(folder, pickle.dumps({"entries": entries}, 4))


def _long_keys(folder: Path, length: int) -> None:
    """Two keys that are alike, and are not the same object, again and again."""
    key = b"X" + struct.pack("<I", 1000 * length) + b"a" * 1000 * length
    _recorder(
        folder, b"\x80\x02" + key + b"q\0" + key + b"q\1}" + b"h\0K\1sh\1K\1s" * 40 * length + b"."
    )


def _diagnose(folder: Path, state: JobState) -> None:
    path = folder / "state.json"
    path.write_bytes(msgspec.json.encode(state))
    assert cli.main(["diagnose", str(path)]) in (0, 1, 3)


NAMED: list[Read] = [
    _section, _sections, _element, _column, _module, _from_module, _methods, _nested, _calls,
    _chains, _parameters, _parts_of_a_string,
]  # fmt: skip
"""One name is as long as all that stands in it or behind it."""
READ: list[Read] = [
    *NAMED, _texts_for_numbers, _long_keys, _culprits_of_a_pair, _a_pair_again_and_again,
    _nodes_of_a_verdict, _places_of_a_gpu, _groups_of_groups, _stars_of_a_host,
    _checks_of_every_node, _waivers, _a_long_python, _joint_names, _switches,
    _subject_of_dashes, _killed_run, _round, _insides, _inventory, _suggestion, _conditions,
    _classes, _alternatives, _chain, _cycle, _labels, _domain,
    lambda _, length: fold(_names(length)),
    lambda _, length: expand("^".join(_names(length // 5))),
]  # fmt: skip


def _cost_s(read: Read, folder: Path, length: int) -> float:
    # A collection walks all that this process holds, and falls into the one run or the other.
    gc.disable()
    began = time.thread_time()
    try:
        read(folder, length)
        return time.thread_time() - began
    finally:
        gc.enable()


def _peak(read: Read, folder: Path, length: int) -> int:
    tracemalloc.start()
    try:
        read(folder, length)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _slow(read: Read, folder: Path, less: int) -> str:
    """How much more than four times the time it takes for four times the input; "" if it is not."""
    read(folder, 20)  # modules are loaded once
    costs_s = []
    for _ in range(3):  # what else the machine does only adds to the least
        costs_s.append([_cost_s(read, folder, length) for length in (less, 4 * less)])
        before_s, after_s = map(min, zip(*costs_s, strict=True))
        if after_s < _TIMES * max(before_s, _LEAST_S):
            return ""
    return f"{after_s / before_s:.1f} times the time for four times the input"


def _large(read: Read, folder: Path, less: int) -> str:
    """The same of memory."""
    read(folder, 20)
    before, after = (_peak(read, folder, length) for length in (less, 4 * less))
    return "" if after < _MORE * max(before, _LEAST) else f"{before:,}, then {after:,} bytes"


@pytest.mark.parametrize("read", READ)
def test_time_is_linear_in_what_is_read(tmp_path: Path, read: Read) -> None:
    """Four times the names, or the length of a name, costs four times; 1,200 at most here."""
    assert not _slow(read, tmp_path, 300)


@pytest.mark.parametrize("read", NAMED)
def test_memory_is_linear_in_what_is_read(tmp_path: Path, read: Read) -> None:
    """No name is copied into all that stands behind it."""
    assert not _large(read, tmp_path, 150)


def test_one_long_name_in_a_text_takes_linear_time_and_memory(tmp_path: Path) -> None:
    """As long as all that stands behind it, in a text of another tool or a log."""
    texts: list[tuple[str, str, Callable[[str, Path], None]]] = [
        (name, text, _judge) for name, text in pasted() if captured(text) is not None
    ]
    texts += [(name, text, _explain) for name, text in logs()]
    assert len(texts) > 140
    cases = [
        (f"{name} {text[slice(*word)]}", lambda folder, length, run=run, text=text, word=word: run(
            stretched(text, word, length), folder))
        for at, (name, text, run) in enumerate(texts)
        for word in (words(text) if EVERY_WAY else words(text)[at % 3 :: 40] * (at % 10 == 0))
    ]  # fmt: skip
    told = {
        name: said
        for name, read in cases
        if (said := _slow(read, tmp_path, 8000) or _large(read, tmp_path, 2000))
    }
    assert not told


def _judge(text: str, _folder: Path) -> None:
    if (found := captured(text)) is not None:
        judge_captured({"pasted": found})


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
