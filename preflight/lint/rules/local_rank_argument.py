"""A script that waits for --local_rank on its command line: torchrun says it by the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.job import init_calls
from preflight.lint.model import Found, Rule, Severity
from preflight.lint.names import constant
from preflight.lint.ranks import variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script


def _find(script: Script) -> Iterator[Found]:
    if not init_calls(script) or script.imported("deepspeed") or _asks_environment(script):
        return
    for call in script.calls:
        names = {constant(one) for one in call.node.args}
        if call.last != "add_argument" or not names & {"--local_rank", "--local-rank"}:
            continue
        launch = "" if "--local-rank" in names else (
            "; torch.distributed.launch says --local-rank since torch 2.0: unrecognized argument"
        )  # fmt: skip
        yield Found(
            call.line,
            "the local rank comes from the command line, and LOCAL_RANK is never read",
            f"under torchrun every rank has the default {_default(call)}{launch}",
            "default=int(os.environ.get('LOCAL_RANK', 0)), or leave the option away",
        )


def _asks_environment(script: Script) -> bool:
    told = (variable(call.node, script.imports) for call in script.calls)
    if "LOCAL_RANK" in told:
        return True
    import ast

    return any(
        isinstance(node, ast.Constant) and node.value == "LOCAL_RANK"
        for node in ast.walk(script.tree)
    )


def _default(call: Call) -> str:
    given = constant(call.keyword("default"))
    return "None" if given is None else str(given)


RULE = Rule("local-rank-argument", Severity.WARNING, _find)
