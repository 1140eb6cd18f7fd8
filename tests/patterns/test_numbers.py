"""No number that somebody else wrote is so large that others have its hash: 64 bits hold each."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect

from preflight.commands import cli
from preflight.core.text import whole
from preflight.errors import UsageError
from preflight.fabric import agent_events
from preflight.fabric.observed import Observed
from preflight.fabric.samples import Sweep
from preflight.facts import burn, model
from preflight.facts.job import NodeLook
from preflight.fleet.sources import FleetRequest, refuse_parallel_tasks, resolve
from preflight.report.document import Report
from preflight.transport import job_store
from tests.unit.fabric.stored_files import long_form, short_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DECODED = (
    model.Facts, model.Ports, NodeLook, burn.Event, agent_events.Event, Sweep, Observed, Report,
    job_store.FromRank, job_store.Hello, job_store.Present, job_store.ToRank,
)  # fmt: skip
ALIKE = tuple(7 + turn * ((1 << 61) - 1) for turn in range(1000))
"""Of one hash each (Python's is the rest by this prime): a set of them takes the square of time."""


def _numbers(kind: inspect.Type, place: str, seen: set[type]) -> Iterator[tuple[str, Any]]:
    """Every whole number in a type, with the field that it stands in."""
    if isinstance(kind, inspect.IntType):
        yield place, kind
    elif isinstance(kind, inspect.StructType):
        if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from _numbers(field.type, f"{kind.cls.__name__}.{field.name}", seen)
    else:
        for name in getattr(kind, "__struct_fields__", ()):
            value = getattr(kind, name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, inspect.Type):
                    yield from _numbers(one, place, seen)


def test_every_number_that_is_decoded_has_bounds() -> None:
    """A bound of msgspec is at most 2**63; a field without one takes a number of any length."""
    seen: set[type] = set()
    numbers = [one for kind in DECODED for one in _numbers(inspect.type_info(kind), "", seen)]
    assert len(numbers) > 100
    loose = [
        place
        for place, kind in numbers
        if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None)
    ]
    assert not loose


def _sizes_of_an_end(document: dict[str, Any]) -> None:
    end = document["pairs"][0]["first"]
    end["timings"] = [{**end["timings"][0], "size_bytes": size} for size in ALIKE]


def _sizes_of_digests(document: dict[str, Any]) -> None:
    document["digests"] = [{**document["digests"][0], "size_bytes": size} for size in ALIKE]


def _rails_of_a_node(document: dict[str, Any]) -> None:
    numbers = [-number for number in ALIKE]
    rails = {"backend": "gloo", "rails": [None] * len(numbers), "numbers": numbers}
    document["inside"] = [{"node": "h1", **rails}]


@pytest.mark.parametrize(
    ("form", "change"),
    [
        (long_form, _sizes_of_an_end),
        (short_form, _sizes_of_digests),
        (long_form, _rails_of_a_node),
    ],
)
def test_samples_of_sizes_of_one_hash_are_refused(
    form: Callable[[Callable[[dict[str, Any]], Any]], bytes],
    change: Callable[[dict[str, Any]], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`preflight blame` refuses the first of them as it is read, before any is held to others."""
    path = tmp_path / "samples.json"
    path.write_bytes(form(change))
    assert cli.main(["blame", str(path)]) == 4
    said = capsys.readouterr().err
    assert "expected a whole number" in said
    assert "size_bytes" in said or "numbers" in said


def test_facts_with_a_number_beyond_64_bits_are_no_answer() -> None:
    """The NUMA node of a GPU counts in 64 bits, too; -1 is Linux's word for none."""
    gpu = {"index": 0, "uuid": "", "name": "", "bus_id": ""}
    assert msgspec.convert({**gpu, "numa": -1}, model.Gpu).numa == -1
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({**gpu, "numa": ALIKE[9]}), type=model.Gpu)


ASKS = ("isdecimal", "isdigit", "isnumeric")


def _read_unbounded(function: ast.AST) -> Iterator[str]:
    """Numbers that int() makes of a text of any length: of the environment, or of "only digits"."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if not any(isinstance(call.func, ast.Name) and call.func.id == "int" for call in calls):
        return
    asked = {
        ast.unparse(node)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ASKS
        for node in ast.walk(call.func.value)
    }
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id == "int" and len(call.args) == 1:
            text = ast.unparse(call.args[0])
            if text in asked or "environ" in text:
                yield f"{call.lineno}: int({text})"


KERNELS = [
    "burn/main.py: int(port)", "probe/kernel_log.py: int(fields[2])",
    "probe/kernel_log.py: int(number[0])",
    "probe/network.py: int(word)", "probe/node_files.py: int(ids[0])",
    "probe/node_files.py: int(text)", "probe/procfs.py: int(name)", "probe/procfs.py: int(uid)",
    "probe/rdma.py: int(name)", "sweep/main.py: int(os.environ.get('LOCAL_RANK', '0'))",
]  # fmt: skip
"""Of the payload: numbers that the kernel, root or our own parent wrote, and `whole` itself."""


def test_every_number_that_others_wrote_is_read_by_one_function() -> None:
    """`whole` of core.text has a bound: int() raises at 4,300 digits, and takes "²" and "1_0".

    The payload has one of its own, as it runs without the rest.
    """
    root = Path(__file__).parents[2]
    payload = root / "preflight/payload"
    files = [*root.glob("preflight/**/*.py"), *root.glob("checks/**/*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    found = [
        (path, one)
        for path, text in texts.items()
        if "int(" in text and any(word in text for word in (*ASKS, "environ"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for one in _read_unbounded(node)
    ]
    ours = [(path, one) for path, one in found if path.is_relative_to(payload)]
    assert [one for one in found if one not in ours] == []
    rows = [f"{path.relative_to(payload)}: {one.partition(': ')[2]}" for path, one in ours]
    assert sorted(rows) == KERNELS


@given(st.text(st.sampled_from("0129²٣_+- "), max_size=30), st.integers(0, 2**64))
@example("9" * 5000, 2**64)
@example("18446744073709551616", 2**64)
def test_a_number_is_what_it_is_or_none(text: str, most: int) -> None:
    """Up to 20 digits and nothing else; never an error."""
    number = whole(text, most)
    plain = text.isascii() and text.isdigit() and len(text) <= 20
    assert number == (int(text) if plain and int(text) <= most else None)


@pytest.mark.parametrize("name", [
    "SLURM_STEP_NUM_TASKS", "SLURM_JOB_NUM_NODES", "MASTER_PORT", "RANK", "WORLD_SIZE",
    "LOCAL_RANK", "NCCL_IB_GID_INDEX", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE",
])  # fmt: skip
def test_a_number_without_end_in_the_environment_is_no_traceback(name: str) -> None:
    """A fleet is found, or refused in one line."""
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", name: "9" * 5000}
    with suppress(UsageError):
        assert resolve(FleetRequest(environ=environ)).hosts
        refuse_parallel_tasks(environ)
