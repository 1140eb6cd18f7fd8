"""Rules for how ranks start and end: the GPU of each, and the life of their process group."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from preflight.lint.operations import variable
from preflight.lint.script import (
    DDP,
    Mistake,
    Severity,
    backend,
    constant,
    entry_inits,
    init_calls,
    known_names,
    makes_group,
    once,
    own_gpu,
    rule,
    spawns,
    timeout_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.script import Call, Place, Script


@rule("no-set-device", Severity.WARNING)
def no_set_device(script: Script) -> Iterator[Mistake]:
    """Work goes to the current GPU, and the script sets none."""
    inits = entry_inits(script)
    if not inits or "nccl" not in backend(script):
        return
    if any(call.keyword("device_id") is not None or call.open_ended for call in inits):
        return
    setters = known_names()["does"]["set_device"]
    if script.calls_any(setters) or any(call.tail == "set_device" for call in script.calls):
        return
    if any(assign.target == "os.environ[CUDA_VISIBLE_DEVICES]" for assign in script.assigns):
        return
    first_use = next((call for call in script.calls if _uses_current_device(call)), None)
    if first_use is None or _computes_device(script):
        return
    yield Mistake(
        first_use.line,
        "this goes to the current GPU, and the script never sets which one that is",
        "unless the launcher shows each rank only one GPU, all ranks of a node use GPU 0: out of "
        "memory, or NCCL's `Duplicate GPU detected`",
        f"torch.cuda.set_device({own_gpu(script)}) before init_process_group",
    )


def _uses_current_device(call: Call) -> bool:
    """Whether it is `.cuda()` or `.to("cuda")`: the current device."""
    arguments = (*call.node.args, *(keyword.value for keyword in call.node.keywords))
    if call.tail == "cuda" and call.receiver:
        return not call.node.args and call.keyword("device") is None and not call.open_ended
    return call.tail == "to" and any(constant(argument) == "cuda" for argument in arguments)


def _computes_device(script: Script) -> bool:
    """Whether the script computes a device anywhere: `f"cuda:{local_rank}"`, `.cuda(gpu)`."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.JoinedStr) and any(
            isinstance(part, ast.Constant) and "cuda:" in str(part.value) for part in node.values
        ):
            return True
    return any(call.tail == "cuda" and call.node.args for call in script.calls) or any(
        call.name == "torch.device" and (len(call.node.args) > 1 or call.keyword("index"))
        for call in script.calls
    )


@rule("fixed-device", Severity.WARNING)
def fixed_device(script: Script) -> Iterator[Mistake]:
    """Every rank works on the same GPU."""
    uses_rpc = any("distributed.rpc" in name for name in script.imports.values())
    if not makes_group(script) or uses_rpc:
        return  # under RPC ranks have different tasks, and GPUs to match
    for call in script.calls:
        if call.place.guards or call.place.flags:
            continue  # for one rank only, or for a run that is not distributed
        if device := _fixed_device(call):
            yield Mistake(
                call.line,
                f"{device} is the same GPU on every rank",
                "all ranks of a node use that GPU: out of memory, or NCCL's "
                "`Duplicate GPU detected`",
                f"use the rank's own: torch.device('cuda', {own_gpu(script)})",
            )


def _fixed_device(call: Call) -> str:
    """The fixed device on which a call puts the rank's work, as the script writes it; or ""."""
    first = call.node.args[0] if call.node.args else None
    value = constant(first)
    if call.tail == "set_device" and call.name.startswith("torch."):
        return f"set_device({value!r})" if value in (0, "cuda:0") and value is not False else ""
    if call.name == DDP:
        return _fixed_ddp_device(call)
    if call.tail in ("to", "cuda") and call.receiver:
        device = value if call.node.args else constant(call.keyword("device"))
        number = call.tail == "cuda" and type(device) is int
        return f"{call.tail}({device!r})" if device == "cuda:0" or number else ""
    if call.name == "torch.load":
        device = constant(call.keyword("map_location"))
        return f"map_location={device!r}" if device == "cuda:0" else ""
    return ""


def _fixed_ddp_device(call: Call) -> str:
    ids = call.keyword("device_ids")
    if not isinstance(ids, ast.List | ast.Tuple) or len(ids.elts) != 1:
        return ""
    number = constant(ids.elts[0])
    return f"device_ids=[{number}]" if type(number) is int else ""


@rule("global-rank-as-device", Severity.WARNING)
def global_rank_as_device(script: Script) -> Iterator[Mistake]:
    """The GPU is chosen by the global rank."""
    for call in script.called(["torch.cuda.set_device", "torch.device"]):
        for index in _numbers(call):
            if _is_global(script, index) or _holds_global_rank(script, call, index):
                yield Mistake(
                    call.line,
                    f"the GPU is chosen by the global rank (`{ast.unparse(index)[:40]}`)",
                    "on the second node the ranks count on from the first node: "
                    "`invalid device ordinal`",
                    "use int(os.environ['LOCAL_RANK']), which counts from 0 on every node",
                )


def _holds_global_rank(script: Script, call: Call, number: ast.expr) -> bool:
    """Whether the name holds only the global rank where the call uses it."""
    name, enclosing = script.dotted(number), call.place.function
    function = script.functions.get(enclosing)
    if not isinstance(number, ast.Name | ast.Attribute) or not name:
        return False
    if function is not None and name in function.parameters:
        return False
    only_global = _only_global_rank(script)
    return only_global.get((name, enclosing), only_global.get((name, ""), False))


@once
def _only_global_rank(script: Script) -> dict[tuple[str, str], bool]:
    """For each name and function: whether every assignment is the global rank."""
    only_global: dict[tuple[str, str], bool] = {}
    for assign in script.assigns:
        key = assign.target, assign.place.function
        only_global[key] = only_global.get(key, True) and _is_global(script, assign.value)
    return only_global


def _numbers(call: Call) -> Iterator[ast.expr]:
    for arg in call.node.args:
        if isinstance(arg, ast.JoinedStr):
            yield from (part.value for part in arg.values if isinstance(part, ast.FormattedValue))
        else:
            yield arg


def _is_global(script: Script, node: ast.expr) -> bool:
    """Whether it is get_rank() or RANK itself, not a number computed from it."""
    if isinstance(node, ast.Call) and script.dotted(node.func) == "int" and node.args:
        return _is_global(script, node.args[0])
    if isinstance(node, ast.Call) and script.dotted(node.func) == "torch.distributed.get_rank":
        return not (node.args or node.keywords)
    return variable(node, script.imports) == "RANK"


@rule("local-rank-argument", Severity.WARNING)
def local_rank_argument(script: Script) -> Iterator[Mistake]:
    """The local rank comes from the command line, but torchrun does not put it there."""
    if not init_calls(script) or script.imported("deepspeed") or _reads_local_rank(script):
        return
    for call in script.calls:
        names = {constant(argument) for argument in call.node.args}
        if call.tail != "add_argument" or not names & {"--local_rank", "--local-rank"}:
            continue
        launch_note = "" if "--local-rank" in names else (
            "; torch.distributed.launch passes --local-rank since torch 2.0: unrecognized argument"
        )  # fmt: skip
        default = constant(call.keyword("default"))
        yield Mistake(
            call.line,
            "the local rank comes from the command line, and the script never reads LOCAL_RANK",
            f"under torchrun every rank has the default {default}{launch_note}",
            "default=int(os.environ.get('LOCAL_RANK', 0)), or remove the option",
        )


def _reads_local_rank(script: Script) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value == "LOCAL_RANK"
        for node in ast.walk(script.tree)
    )


_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_GROUP_STARTERS: Final = ("accelerate.Accelerator", "deepspeed.initialize")


@rule("cuda-visible-devices", Severity.WARNING)
def cuda_visible_devices(script: Script) -> Iterator[Mistake]:
    """The script sets the GPUs that its ranks see, and overrides the launcher."""
    makes_ranks = makes_group(script) or script.calls_any(_GROUP_STARTERS)
    if not makes_ranks or spawns(script):
        return  # one process, or one that chooses the GPUs of its ranks
    for line, value, place in _visible_device_lists(script):
        devices = constant(value)
        if not isinstance(devices, str) or devices.strip() in ("", "-1"):
            continue  # computed, or a process that should have no GPU
        if place.flags or place.guards:
            continue
        yield Mistake(
            line,
            f"every rank sees the GPUs {devices[:40]!r}, whatever its launcher or Slurm gave it",
            "LOCAL_RANK is an index into this list: `invalid device ordinal` if it has fewer "
            "entries than the node has ranks, and it may name GPUs of another job",
            "set it in front of the launcher: CUDA_VISIBLE_DEVICES=... torchrun ...",
        )


def _visible_device_lists(script: Script) -> Iterator[tuple[int, ast.expr, Place]]:
    for assign in script.assigns:
        if assign.target == f"os.environ[{_VISIBLE_DEVICES}]":
            yield assign.line, assign.value, assign.place
    for call in script.called(["os.putenv"]):
        if len(call.node.args) > 1 and constant(call.node.args[0]) == _VISIBLE_DEVICES:
            yield call.line, call.node.args[1], call.place


@rule("init-timeout", Severity.HINT)
def init_timeout(script: Script) -> Iterator[Mistake]:
    """The script sets no timeout for the process group."""
    for call in init_calls(script):
        if call.keyword("timeout") is None and not call.open_ended:
            yield Mistake(
                call.line,
                "init_process_group sets no timeout: the default limits every collective",
                f"if one rank works alone for {timeout_words(script)}, the job dies",
                "timeout=timedelta(minutes=...): longer than any work of one rank alone",
            )


@rule("init-device-id", Severity.HINT)
def init_device_id(script: Script) -> Iterator[Mistake]:
    """The process group does not know the rank's GPU."""
    if "nccl" not in backend(script):
        return
    hint = ", with the number that spawn() passes to each process of a node" * spawns(script)
    for call in init_calls(script):
        if call.keyword("device_id") is None and not call.open_ended:
            yield Mistake(
                call.line,
                "init_process_group has no device_id: the GPU of this rank (since torch 2.3)",
                "barrier() guesses the GPU from the rank, and NCCL connects only at the first "
                "collective: a wrong GPU shows late, as a hang",
                f"device_id=torch.device('cuda', {own_gpu(script)})" + hint,
            )


@rule("no-record", Severity.HINT)
def no_record(script: Script) -> Iterator[Mistake]:
    """No function has torchrun's @record, so torchrun's report lacks a rank's exception."""
    inits = entry_inits(script)
    if not inits or spawns(script):
        return
    decorators = (name for function in script.functions.values() for name in function.decorators)
    calls = (call.name for call in script.calls)
    if any(name.rpartition(".")[2] == "record" for name in (*decorators, *calls)):
        return
    yield Mistake(
        inits[0].line,
        "no function of this script has torchrun's @record",
        "when a rank raises, torchrun's report has `error_file: <N/A>` and no traceback",
        "from torch.distributed.elastic.multiprocessing.errors import record; @record above main",
    )


@rule("no-destroy", Severity.HINT)
def no_destroy(script: Script) -> Iterator[Mistake]:
    """The script does not destroy the process group at the end."""
    inits = entry_inits(script)
    if not inits or any("destroy" in call.tail or "cleanup" in call.tail for call in script.calls):
        return
    yield Mistake(
        inits[0].line,
        "the script never destroys the process group that it makes here",
        "when the rank with the store ends first, others that still work get errors or hang at "
        "the very end",
        "torch.distributed.destroy_process_group() at the end of main",
    )
