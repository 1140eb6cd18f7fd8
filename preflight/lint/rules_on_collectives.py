"""Rules for collectives that some ranks never reach, or reach too late."""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from preflight.core.statistics import grouped
from preflight.lint.operations import (
    FIRST_RANK,
    PartialOperation,
    operation,
    operations_of,
    partial_operations,
)
from preflight.lint.script import (
    Assign,
    Call,
    Mistake,
    RankSet,
    Script,
    Severity,
    init_calls,
    known_names,
    once,
    rule,
    timeout_words,
    wraps_model,
)


@rule("collective-on-some-ranks", Severity.ERROR)
def collective_on_some_ranks(script: Script) -> Iterator[Mistake]:
    """Only some ranks reach a call that waits for every rank."""
    for partial in partial_operations(script):
        if not partial.operation.saves:
            line = partial.operation.call.line
            yield Mistake(line, _sentence(partial), _will(script, partial), _remedy(partial))


def _sentence(partial: PartialOperation) -> str:
    ranks, guard, call = partial.guard.ranks, partial.guard, partial.operation.call
    is_direct = call.line == partial.operation.line
    lead = "" if is_direct else f"{call.tail}(), which leads to "
    more = f" and {partial.more} more of its kind" if partial.more else ""
    position = "the others leave" if guard.early_exit else "it stands"
    reason = f"{position} under `{guard.text}` in line {guard.line}"
    if guard.text.startswith("@"):
        reason = f"{guard.text} makes the function do nothing on the other ranks"
    return f"only {_ranks_do(ranks, 'call')} {lead}{partial.operation.text}{more}: {reason}"


def _ranks_do(ranks: RankSet, verb: str) -> str:
    """Return "rank 0 waits" or "even ranks wait"."""
    return f"{ranks.words} {verb}{'s' * ranks.words.startswith('rank ')}"


def _will(script: Script, partial: PartialOperation) -> str:
    subject = _ranks_do(partial.guard.ranks, "wait")
    return (
        f"{subject} in {partial.operation.label} (line {partial.operation.line}) for "
        f"{timeout_words(script)}, or in the others' next collective, then the job dies"
    )


def _remedy(partial: PartialOperation) -> str:
    if partial.operation.label.startswith("new_"):
        return "make every group on every rank, also on those that are not in it"
    if "barrier" in partial.operation.label or "wait_for_everyone" in partial.operation.label:
        return "move it out of the condition, to where every rank calls it"
    return "call it on every rank; leave only what one rank does (print, write) in the condition"


@rule("checkpoint-on-one-rank", Severity.ERROR)
def checkpoint_on_one_rank(script: Script) -> Iterator[Mistake]:
    """Only some ranks write a checkpoint that gathers from every rank."""
    for partial in partial_operations(script):
        if not partial.operation.saves:
            continue
        guard = partial.guard
        yield Mistake(
            partial.operation.call.line,
            f"{partial.operation.text} gathers from every rank, and only "
            f"{_ranks_do(guard.ranks, 'call')} it (`{guard.text}`, line {guard.line})",
            f"{_ranks_do(guard.ranks, 'wait')} in it for the others' shards: "
            f"{timeout_words(script)}, then the job dies without a checkpoint",
            "call it on every rank (it writes only once), or write its result on rank 0",
        )


_Loop = tuple[str, tuple[int, ...]]
"""The function, and the lines of the loops around a call."""


@rule("skipped-step", Severity.WARNING)
def skipped_step(script: Script) -> Iterator[Mistake]:
    """A rank skips its step because of its loss, and the others wait for its gradients."""
    if not wraps_model(script):
        return
    for call in script.called(known_names()["does"]["test_for_finite"]):
        backward = _next_backward(script, call)
        exit_statement = _if_exits(script).get(id(call.node))
        if backward is None or not isinstance(exit_statement, ast.Continue | ast.Break):
            continue
        if _first_exchange(script).get(call.place.loop, sys.maxsize) <= call.line:
            continue  # ranks exchange data earlier in that loop, and so may share the value
        yield Mistake(
            exit_statement.lineno,
            f"a rank whose loss is not finite (line {call.line}) skips "
            f"backward in line {backward.line}, which averages gradients over all ranks",
            f"the other ranks wait for its gradients in line {backward.line} for "
            f"{timeout_words(script)}, then the job dies",
            "all_reduce the flag (MAX) first, so that every rank skips the step or none does",
        )


def _next_backward(script: Script, call: Call) -> Call | None:
    """The next backward pass in the same iteration of the same loop."""
    passes = _backward_passes(script).get(call.place.loop, [])
    at = bisect_right(passes, call.line, key=lambda backward: backward.line)
    return passes[at] if call.place.loops and at < len(passes) else None


@once
def _backward_passes(script: Script) -> dict[_Loop, list[Call]]:
    return grouped((call.place.loop, call) for call in script.calls if call.tail == "backward")


@once
def _if_exits(script: Script) -> dict[int, ast.stmt]:
    """The last statement of each `if`, by the id of every node in its condition."""
    conditionals = (node for node in ast.walk(script.tree) if isinstance(node, ast.If))
    return {id(part): node.body[-1] for node in conditionals for part in ast.walk(node.test)}


@once
def _first_exchange(script: Script) -> dict[_Loop, int]:
    """The first line in each loop that leads to an operation of all ranks."""
    first_lines: dict[_Loop, int] = {}
    for call in script.calls:
        first_line = first_lines.get(call.place.loop, sys.maxsize)
        if call.line < first_line and operations_of(script, call):
            first_lines[call.place.loop] = call.line
    return first_lines


_LOADER: Final = "torch.utils.data.DataLoader"
_EVEN: Final = ("drop_last", "join", "Join", "even_batches", "islice", "cycle")


@rule("uneven-batches", Severity.WARNING)
def uneven_batches(script: Script) -> Iterator[Mistake]:
    """Each rank loads its own part of the data, and the parts may differ in length."""
    if not wraps_model(script) or _evens_out_batches(script):
        return
    for call in script.called([_LOADER]):
        share = _rank_share(script, call)
        if share is None or call.open_ended or call.keyword("sampler") is not None:
            continue
        waiting_call = _first_waiting_call(script)
        if waiting_call is not None:
            yield Mistake(
                call.line,
                f"each rank loads its own part (`{ast.unparse(share)[:60]}`), and nothing makes "
                "the parts equally long",
                f"if the data does not divide evenly, the ranks with one batch more wait in "
                f"line {waiting_call.line} for {timeout_words(script)}, then the job dies",
                "use DistributedSampler, cut all parts to one length, or train inside "
                "`with model.join():`",
            )


def _evens_out_batches(script: Script) -> bool:
    """Whether the script names a remedy anywhere: its author then probably applied it."""
    return any(call.tail in _EVEN or any(map(call.keyword, _EVEN)) for call in script.calls)


def _rank_share(script: Script, loader: Call) -> ast.expr | None:
    """What the loader loads, if that is every n-th item starting at this rank's number."""
    data = loader.node.args[0] if loader.node.args else loader.keyword("dataset")
    if data is None:
        return None
    for node in _origins(script, data, loader):
        for part in ast.walk(node):
            first = None
            if isinstance(part, ast.Slice) and part.step is not None:
                first = part.lower
            elif isinstance(part, ast.Call) and script.dotted(part.func) == "range":
                first = part.args[0] if len(part.args) == 3 else None  # noqa: PLR2004  a step
            if first is not None and script.is_rank(first):
                return node
    return None


def _origins(script: Script, expression: ast.expr, loader: Call) -> Iterator[ast.expr]:
    """The expression, and what the same function assigns to the names in it."""
    yield expression
    pending, seen = _names(script, expression), set[str]()
    while pending:
        name = pending.pop()
        seen.add(name)
        assign = _first_assignments(script).get((name, loader.place.function))
        if assign is not None and assign.line <= loader.line:
            yield assign.value
            pending |= _names(script, assign.value) - seen


def _names(script: Script, node: ast.expr) -> set[str]:
    nodes = (part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute))
    return {name for part in nodes if (name := script.dotted(part))}


@once
def _first_assignments(script: Script) -> dict[tuple[str, str], Assign]:
    """The first assignment to each name in each function."""
    return {(assign.target, assign.place.function): assign for assign in reversed(script.assigns)}


@once
def _first_waiting_call(script: Script) -> Call | None:
    """The first call in a loop in which ranks wait for each other: backward or a collective."""
    for call in script.calls:
        if call.place.loops and (call.tail == "backward" or operations_of(script, call)):
            return call
    return None


_WaitOrWork = tuple[int, bool, Call]
"""A line, whether it needs every rank, and its call."""

_LONG_WORK: Final = re.compile(
    r"(?:^|_)(?:download|preprocess|(?:evaluate|evaluation|validate|run_eval|eval_model|inference|"
    r"generate|tokeni[sz]e_(?:data|dataset|files|corpus)|prepare_(?:data|dataset|datasets)|"
    r"build_(?:dataset|index|cache)|load_dataset|snapshot_download|test_model|benchmark)$)"
)
_BARRIERS: Final = frozenset(("barrier", "monitored_barrier"))


@rule("barrier-after-long-work", Severity.WARNING)
def barrier_after_long_work(script: Script) -> Iterator[Mistake]:
    """All ranks wait in a barrier for long work of rank 0, under the default timeout."""
    inits = init_calls(script)
    if not inits or any(call.keyword("timeout") is not None or call.open_ended for call in inits):
        return
    for barrier in script.calls:
        wait = operation(script, barrier)
        if wait is None or wait.label not in _BARRIERS or barrier.keyword("timeout") is not None:
            continue
        work = None if barrier.place.guard else _long_work_before(script, barrier)
        if work is not None:
            yield Mistake(
                barrier.line,
                f"every rank waits in this barrier while rank 0 alone does {work.tail}() "
                f"(line {work.line}), and init_process_group (line {inits[0].line}) sets no "
                "timeout",
                f"if {work.tail}() takes longer than {timeout_words(script)}, the barrier of the "
                "other ranks times out and the job dies",
                "init_process_group(timeout=timedelta(hours=2)), or do the work before the job",
            )


def _long_work_before(script: Script, barrier: Call) -> Call | None:
    """The last long work of rank 0 before the barrier, with no other barrier between."""
    place = barrier.place
    candidates: list[_WaitOrWork] = []
    for depth in range(len(place.loops) + 1):
        earlier = _waits_and_long_work(script).get((place.function, place.loops[:depth]), [])
        at = bisect_left(earlier, barrier.line, key=itemgetter(0))
        candidates += earlier[max(at - 1, 0) : at]
    last = max(candidates, key=itemgetter(0, 1), default=None)
    return None if last is None or last[1] else last[2]


@once
def _waits_and_long_work(script: Script) -> dict[_Loop, list[_WaitOrWork]]:
    """Each loop's operations of all ranks and long work of rank 0, by line."""
    rows = ((call.line, operation(script, call) is not None, call) for call in script.calls)
    in_order = sorted((row for row in rows if row[1] or _is_long(row[2])), key=itemgetter(0, 1))
    return grouped((row[2].place.loop, row) for row in in_order)


def _is_long(call: Call) -> bool:
    guard = call.place.guard
    on_first_rank = guard is not None and guard.ranks == FIRST_RANK and not guard.early_exit
    return on_first_rank and _LONG_WORK.search(call.tail) is not None
