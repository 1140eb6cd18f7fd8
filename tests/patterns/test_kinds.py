"""Every kind of file that preflight reads: whatever part of it is longer makes linear work.

Each valid small file is taken apart into its values, items, lines and words. One of them at a time
is repeated, lengthened or nested: to a length, and to two, three and four times that length.

Only lines of the product are counted: what Python's own modules do in each is held by
test_growth_in_time.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle  # noqa: TID251  only written
import random
import re
import sqlite3
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from preflight.captured.archive import Part, pack
from preflight.commands import cli
from preflight.errors import PreflightError, UsageError
from preflight.fleet.job_environment import read_env_file
from preflight.fleet.leaf_switches import read_switches
from preflight.fleet.sources import FleetRequest, resolve
from preflight.hang.explain.symptom import load_symptoms
from preflight.hook import act, hook_values, judging, tokens
from preflight.hook.hook_values import DrainRecord, HookConfig, now
from preflight.report.document import encode
from preflight.transport.host_keys import read_known_hosts
from tests.patterns.amplify import lines, parts, toml
from tests.patterns.growth import work
from tests.patterns.test_growth import EVERY_WAY
from tests.unit.captured.test_archive import manifest
from tests.unit.fabric.stored_files import long_form, short_form
from tests.unit.facts.builders import facts
from tests.unit.hang.diagnose.jobs import collective, job, standing
from tests.unit.hang.logs import status, timed_out
from tests.unit.hang.recordings import entry, pending
from tests.unit.history.nights import found, gemm, kept, machine, made, night, slots
from tests.unit.report.nights import BENT, report
from tests.unit.report.test_public_folders import measured, whose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tests.patterns.amplify import Make

ROOT = Path(__file__).parents[2]
_TODAY = f"{datetime.now(UTC).date()}"
TIMES = 60
"""How often a part is repeated in the shortest of four files."""
SINGLES, PAIRS = (500, 40) if EVERY_WAY else (2, 1)
"""Of each kind at most, how many parts, and how many pairs of parts at once."""
STEEP = 1.2
"""How much more work a step may take per character than the one before: of the square 1.67 and 1.4
times."""
NOTHING = 400
"""Lines of work that no file is slow for."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: a small one, how its parts are written, and what reads it."""

    document: Any
    read: Callable[[Path, Any], None]
    text: Callable[[Any], str] = json.dumps


def _plain(text: str) -> str:
    return text


def _run(*words: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if cli.main([str(word) for word in words]) == 4:
            raise UsageError("refused")


def _into(name: str, *words: object) -> Callable[[Path, str], None]:
    """Write it under that name, and run this verb on it."""

    def read(folder: Path, text: str) -> None:
        path = folder / name
        path.write_text(text)
        _run(*words, folder if name in _OF_A_FOLDER else path)

    return read


_OF_A_FOLDER = ("report.json", "events.jsonl")


def _inventory(name: str) -> Callable[[Path, str], None]:
    def read(folder: Path, text: str) -> None:
        (folder / name).write_text(text)
        resolve(FleetRequest(inventory=str(folder / name)))

    return read


def _outputs(folder: Path, text: str) -> None:
    """Every output that `preflight report --public` makes of a run."""
    (folder / "report.json").write_text(text)
    (folder / "measured.json").write_bytes(measured(whose(("n1", "n2", "n3"))))
    files = (f"--{kind}={folder / kind}.prom" for kind in ("html", "junit", "prometheus"))
    _run("report", "--public", *files, folder)


def _state(name: str) -> Callable[[Path, str], None]:
    """A file in the hook's state_dir."""

    def read(folder: Path, text: str) -> None:
        folder.chmod(0o755)
        (folder / name).write_text(text)
        act.read_record(folder)
        judging.load_faults(folder)
        judging.complete_facts(facts(), HookConfig(state_dir=folder))
        with suppress(OSError):
            tokens.take(folder, "n1", 3, 60.0)

    return read


def _archive(name: str) -> Callable[[Path, str], None]:
    def read(folder: Path, text: str) -> None:
        given = Part(name=name, node="h1", command="env")
        (folder / "a.tar.gz").write_bytes(pack(manifest(given), {name: text.encode()}))
        _run("read", folder / "a.tar.gz")

    return read


def _contents(folder: Path, text: str) -> None:
    """The list of an archive's parts."""
    path = folder / "a.tar.gz"
    with suppress(ValueError, RecursionError):
        path.write_bytes(pack(msgspec.json.decode(text, type=type(manifest())), {}))
        _run("read", path)


def _recorder(folder: Path, text: str) -> None:
    """What torch's flight recorder wrote, pickled as torch does it."""
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(json.loads(text), 2))
    _run("explain", folder / "nccl_trace_rank_0")


def _history(folder: Path, text: str) -> None:
    """Rows of each table, as another user may put them there."""
    rows = json.loads(text)
    with closing(sqlite3.connect(str(_past(folder)))) as other:
        for table, row in rows.items() if isinstance(rows, dict) else ():
            for one in row if isinstance(row, list) else ():
                values = list(one.values()) if isinstance(one, dict) else []
                marks = ",".join("?" * len(values))
                with suppress(sqlite3.Error):
                    other.execute(
                        f"INSERT OR REPLACE INTO {table} VALUES ({marks})",  # noqa: S608  our names
                        [
                            json.dumps(value) if isinstance(value, list | dict) else value
                            for value in values
                        ],
                    )
        other.commit()
    for words in ((), ("h0",), ("--worst",), ("--gpu=GPU-a",)):
        _run("history", f"--history={folder / 'history'}", *words)


def _past(folder: Path) -> Path:
    place = made(folder / "history") if not (folder / "history").exists() else None
    if place is not None:
        gpus = machine("h0", "not_ready", gpus=slots("GPU-a"), serial="SN77QX")
        kept(place, night(1, gpus, machine("h1"), findings=(found("a.b", "h0"),),
                          numbers=(gemm("h0", 700.0), gemm("h1", 701.0))))  # fmt: skip
    (file,) = (path for path in (folder / "history").iterdir() if path.suffix in (".db", ".sqlite"))
    return file


def _rows(folder: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(str(_past(folder)))) as other:
        other.row_factory = sqlite3.Row
        names = [
            row[0] for row in other.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {
            name: [dict(row) for row in other.execute(f"SELECT * FROM {name} LIMIT 2")]  # noqa: S608  our names
            for name in names
            if not name.startswith("sqlite")
        }


def _said(*words: Any) -> Any:
    return json.loads(msgspec.json.encode(*words))


def _report() -> dict[str, Any]:
    whole = report(("n1", "n2", "n3"), {("gpu.count", "n2"): BENT}, leaves={"n1": "s1", "n2": "s1"})
    document: dict[str, Any] = json.loads(encode(whole))
    slow = {**document["verdicts"][0], "check": "fabric.allreduce", "subject": "n1-n2",
            "outcome": "fail", "blame": "n1"}  # fmt: skip
    document["verdicts"].append(slow)
    document["blames"] = [{"kind": "leaf", "component": "s1", "sentence": "it is slow",
                           "confidence": 1, "advice": "look", "pairs": ["n1-n2"],
                           "culprits": ["n1", "n2"]}]  # fmt: skip
    return document


def _inventory_document() -> dict[str, Any]:
    return {
        "defaults": {"user": "ops", "python": "/opt/venv/bin/python"},
        "job": {"master": "n1", "master_port": 29500, "launch": "torchrun --nproc-per-node=2 a.py"},
        "group": {"train": {
            "nodes": "n[1-4],m7", "gpus": 8, "gpu_model": "H100", "hcas": ["mlx5_0", "mlx5_1"],
            "fatal_xids": [63], "leaf": "leaf1", "limits": {"zombie_age_s": 600},
            "baselines": {"gemm_bf16": {"value": 600, "of": "3 nodes"}},
        }},
        "node": {"n3": {"address": "10.0.0.17", "gpus": 7}},
        "waive": [{"check": "gpu.topology", "nodes": "n3,n[1-2]", "until": _TODAY,
                   "reason": "RMA 4711"}],
        "checks": {"fabric.intra_node": {"enabled": False}},
    }  # fmt: skip


def _toml_inventory(document: Any) -> str:
    return toml(document).replace(f'"{_TODAY}"', _TODAY)


def _ansible() -> dict[str, Any]:
    hosts = {"n1": {"ansible_host": "10.0.0.1", "ansible_user": "ops", "a": [1]}, "n2": {}}
    return {
        "_meta": {"hostvars": hosts},
        "all": {"children": ["gpu", "ungrouped"]},
        "gpu": {"hosts": ["n1", "n2"], "children": ["rack"]},
        "rack": {"hosts": ["n1"]},
    }


def _events() -> str:
    began = {
        "event": "began", "preflight": "0.1.0", "run": "ab", "origin": "", "tier": "quick",
        "started": "2026-11-22T02:00:00+00:00", "nodes": ["n1", "n2"], "leaves": {"n1": "s1"},
        "expected": {"gpu.count": ["n1", "n2"], "gpu.ecc": ["*"]},
    }  # fmt: skip
    bent = {
        "event": "verdict", "check": "gpu.count", "subject": "n1", "outcome": "fail",
        "advice": "drain", "sentence": "7 of 8", "evidence": {"a": [1]}, "blame": "n1",
    }  # fmt: skip
    return f"{json.dumps(began)}\n{json.dumps(bent)}\n"


def _job() -> Any:
    return _said(job(3, lambda rank: standing(collective("all_reduce", 7 + rank // 2))))


_HOOK = {
    "inventory": "/etc/preflight/fleet.toml", "enforce": True, "budget_s": 8, "skip": ["gpu.ecc"],
    "breaker": {"directory": "/srv/tokens", "most_nodes": 3},
}  # fmt: skip
_SCRIPT = """import os, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer(Base):
    def step(self, rank, batch=None):
        if rank == 0 and batch: dist.barrier()
        elif rank > 1: dist.all_reduce(batch, group=self.group)
        for each in self.loader: self.save(each)
        return [a for a in batch if a.rank == rank]
def main():
    rank = int(os.environ["RANK"]); dist.init_process_group("nccl", rank=rank)
    with open(f"a{rank}") as file: Trainer().step(rank, file)
    try: dist.broadcast(rank, 0)
    except RuntimeError: dist.destroy_process_group()
main()
"""
_KNOWN_HOSTS = """n1,10.0.0.1 ssh-ed25519 AAAA
[n1]:2222,*.a?b*,!n2 ssh-rsa AAAA a comment
|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-rsa AAAA
@revoked n3 ssh-rsa AAAA
@cert-authority * ssh-ed25519 AAAA
"""
_ENV = "export NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME='eth0,eth1'\nMASTER_ADDR=n1\n"
_SWITCHES = """SwitchName=leaf1 Nodes=n[1-4],m2
SwitchName=leaf2 Nodes=n[5-8]
SwitchName=s Switches=leaf[1-2]
"""
_LOG = "".join((
    "[rank0]: RuntimeError: NCCL error in: a.cpp:7, unhandled system error, NCCL version 2.21.5\n",
    timed_out(1, 9), status(1, 8), "n1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n",
))  # fmt: skip
_SMI = """index, name, temperature.gpu, ecc.errors.uncorrected.volatile.total
0, NVIDIA H100, 41, 0
1, NVIDIA H100, 42, 0
"""
_KERNEL = """Linux version 6.1
[    5.0] NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=a, GPU has fallen off the bus.
[    6.0] mlx5_core 0000:1a:00.0: Port: 1 Link DOWN
[    7.0] EDAC MC0: 1 UE memory read error on DIMM0 (channel:0 slot:0 page:0x7740c0 offset:0x0)
[    8.0] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
"""
_LAUNCH = """#!/bin/bash
#SBATCH --nodes=2
export NCCL_IB_HCA=mlx5_0,mlx5_1
A=$B:${NCCL_IB_HCA}
torchrun --nnodes=2 --nproc-per-node=8 a.py --lr=1
"""


_SYMPTOM = {
    "category": "other", "role": "cause", "confidence": 0.5, "anchors": ["quota"],
    "patterns": [r"quota of (?P<project>\w+)"], "sentences": ["no {project}", "no quota"],
    "cause": "it is full", "advice": "remove", "source": "ours", "examples": [],
    "words": {"project": {"1": "vision"}}, "numbers": {"project": {"vision": "1"}},
}  # fmt: skip


def _env_file(folder: Path, text: str) -> None:
    (folder / "job.env").write_text(text)
    read_env_file(str(folder / "job.env"), ["n1"])


def _topology(folder: Path, text: str) -> None:
    (folder / "topology.conf").write_text(text)
    read_switches(folder / "topology.conf")


def _hosts(folder: Path, text: str) -> None:
    (folder / "known_hosts").write_text(text)
    read_known_hosts([str(folder / "known_hosts")], ["n1", "[n1]:2222"])


def _symptoms(folder: Path, text: str) -> None:
    (folder / "own.toml").write_text(text)
    load_symptoms(folder)


def _hook_toml(folder: Path, text: str) -> None:
    del folder
    hook_values.parse_config(text.encode(), hook_values.DEFAULT)


def kinds(folder: Path) -> dict[str, Kind]:
    """Every kind of file, with one that is valid."""
    dumped = {"version": "2.10", "entries": [entry(1), pending(2)],
              "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}},
              "pg_status": {"0": {"last_enqueued_collective": 2}}}  # fmt: skip
    own = _inventory_document()
    return {
        "inventory, TOML": Kind(own, _inventory("fleet.toml"), _toml_inventory),
        "inventory, YAML": Kind(own, _inventory("fleet.yaml"), yaml.safe_dump),
        "inventory, Ansible": Kind(_ansible(), _inventory("inventory.json")),
        "hook.toml": Kind(_HOOK, _hook_toml, toml),
        "report.json": Kind(_report(), _into("report.json", "report")),
        "report.json, public": Kind(_report(), _outputs),
        "events.jsonl": Kind(_events(), _into("events.jsonl", "report"), _plain),
        "measured.json": Kind(
            json.loads(measured(whose(("n1", "n2")))), _into("measured.json", "blame")
        ),
        "measured.json, learned": Kind(
            json.loads(measured(whose(("n1", "n2")))), _into("measured.json", "learn")
        ),
        "samples, long": Kind(json.loads(long_form()), _into("sweep.json", "blame")),
        "samples, short": Kind(
            json.loads(short_form(lambda _: None)), _into("sweep.json", "blame")
        ),
        "history": Kind(_rows(folder), _history),
        "state, drained": Kind(
            _said(DrainRecord(check="gpu.ecc", reason="pf:gpu.ecc 1", time_s=1.0, at=now())),
            _state("drained.json"),
        ),
        "state, look": Kind(_said(now()), _state("hung.json")),
        "state, facts": Kind(_said(facts()), _state("facts.json")),
        "state, token": Kind({"node": "n1", "time_s": 1.0}, _state("00000001")),
        "diagnose": Kind(_job(), _into("state.json", "diagnose")),
        "recorder, JSON": Kind(dumped, _into("nccl_trace_rank_0", "explain")),
        "recorder": Kind(dumped, _recorder),
        "archive, facts": Kind(_said(facts()), _archive("nodes/h1/facts.json")),
        "archive, text": Kind(_SMI, _archive("nodes/h1/nvidia-smi-query.txt"), _plain),
        "archive": Kind(
            _said(manifest(Part(name="nodes/h1/env.txt", node="h1", command="env", error="none"))),
            _contents,
        ),
        "nvidia-smi": Kind(_SMI, _into("smi.txt", "read"), _plain),
        "dmesg": Kind(_KERNEL, _into("dmesg.txt", "read"), _plain),
        "launch script": Kind(_LAUNCH, _into("run.sh", "read"), _plain),
        "log": Kind(_LOG, _into("a.log", "explain"), _plain),
        "script": Kind(_SCRIPT, _into("train.py", "lint"), _plain),
        "known_hosts": Kind(_KNOWN_HOSTS, _hosts, _plain),
        "environment": Kind(_ENV, _env_file, _plain),
        "symptom": Kind(_SYMPTOM, _symptoms, toml),
        "topology.conf": Kind(_SWITCHES, _topology, _plain),
    }


def _own(folder: Path, name: str) -> Path:
    """A folder for one kind, whose files root trusts."""
    own = folder / name.replace(" ", "-")
    own.mkdir(mode=0o755, exist_ok=True)
    return own


def _taken_apart(document: Any) -> dict[str, Make]:
    return dict(lines(document) if isinstance(document, str) else parts(document))


def _both(document: Any, first: str, second: str) -> Make:
    """Two parts of it at once."""

    def make(times: int) -> Any:
        longer = _taken_apart(document)[first](times)
        within = lines(longer) if isinstance(longer, str) else parts(longer)
        return next((other(times) for part, other in within if part == second), longer)

    return make


def _versions(kind: Kind, name: str) -> Iterator[tuple[str, Make]]:
    """Some parts and pairs of parts, more of them in `make bench-full`."""
    dice = random.Random(name)  # noqa: S311  the same in each run
    singles = _taken_apart(kind.document)
    wide = [one for one in singles if not one.endswith(("in_lists", "in_tables", "same"))]
    for one in dice.sample(sorted(singles), min(len(singles), SINGLES)):
        yield one, singles[one]
    for _ in range(PAIRS):
        first, second = dice.choice(wide), dice.choice(wide)
        yield f"{first} + {second}", _both(kind.document, first, second)


def _slow(kind: Kind, make: Make, folder: Path) -> str:
    """What was counted at each length; "" where that is linear."""

    def read(text: str) -> None:
        with suppress(PreflightError):
            kind.read(folder, text)

    try:
        texts = [kind.text(make(many * TIMES)) for many in (1, 2, 3, 4)]
    except RecursionError:  # of what writes it
        return ""
    counts = [work(lambda text=text: read(text)) for text in texts]  # type: ignore[misc]
    sizes = [len(text) for text in texts]
    first, second, third = (
        (after - before) / max(1, longer - shorter)
        for (before, after), (shorter, longer) in zip(
            pairwise(counts), pairwise(sizes), strict=True
        )
    )
    # Where another way is taken from some length on, only one step is steeper, or falls.
    beyond = min(first, second - STEEP * first, third - STEEP * second)
    return f"{counts} for {sizes} characters" if beyond * (sizes[3] - sizes[1]) > NOTHING else ""


@pytest.mark.parametrize("quarter", range(4))
def test_a_longer_part_makes_linear_work(tmp_path: Path, quarter: int) -> None:
    """Four times the part is at most four times the work, with some room."""
    slow = []
    for name, kind in sorted(kinds(_own(tmp_path, "past")).items())[quarter::4]:
        folder = _own(tmp_path, name)
        kind.read(folder, kind.text(kind.document))  # modules and tables are read once
        for part, make in _versions(kind, name):
            if said := _slow(kind, make, folder):
                slow.append(f"{name}, {part}: {said}")
    assert not slow, "\n".join(slow)


READERS = ("read_regular", "read_text", "open_stream", "read_trusted")
ELSEWHERE = {
    "preflight/commands/install_hook.py": "root's own scripts, of which it writes the next version",
    "preflight/commands/nightly/state.py": "the state of a nightly run of one's own",
    "preflight/commands/nightly/wave_runner.py": "report.json, by the reader of `report`",
    "preflight/hook/work.py": "the inventory that hook.toml names",
    "preflight/session/xdist.py": "measured.json, which its sender has hashed",
    "preflight/hang/watch/evidence.py": "nccl.conf, of 64 KiB",
    "preflight/session/site.py": "an ini file, searched for one word",
    "preflight/transport/ssh_config.py": "a key of 64 KiB, for paramiko",
    "preflight/commands/capture.py": "measured.json and report.json of its own run",
}
"""Modules that read a file of no kind above, and which."""


def _calls_a_reader(path: Path) -> bool:
    return bool(re.search(rf"(?<!def )(?<![.\w])(?:{'|'.join(READERS)})\(", path.read_text()))


def test_each_of_them_is_read_and_every_reader_reads_one(tmp_path: Path) -> None:
    """None is refused at once; and a new kind of file is made longer, too, or is in the table."""
    files = [path for path in (ROOT / "preflight").rglob("*.py") if path.name != "files.py"]
    calling = {str(path.relative_to(ROOT)) for path in files if _calls_a_reader(path)}
    reading = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name in READERS and frame.f_back:
            reading.add(frame.f_back.f_code.co_filename.removeprefix(f"{ROOT}/"))

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for name, kind in kinds(_own(tmp_path, "past")).items():
            kind.read(_own(tmp_path, name), kind.text(kind.document))
    finally:
        sys.setprofile(before)
    assert calling - reading == set(ELSEWHERE)
