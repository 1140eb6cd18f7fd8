"""Who started the ranks of a node: one that waits for a rank that died is itself a sign."""

from __future__ import annotations

import os
import re

from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PROGRAMS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "orted": "mpirun",
    "prted": "mpirun",
    "prterun": "mpirun",
    "hydra_pmi_proxy": "mpirun",
    "slurmstepd": "srun",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
_INTERPRETER = re.compile(r"^(?:python|pypy)[\d.]*$")
_WORDS = 16
"""Of a command are looked at; the program comes first."""

_MOST = 65535


def kind(argv: Sequence[bytes]) -> str:
    """Name the launcher that a command line is of; "" for anything else."""
    words = [word.decode("utf-8", "replace") for word in argv[:_WORDS]]
    if not words:
        return ""
    first = os.path.basename(words[0])
    if not _INTERPRETER.match(first):
        return _PROGRAMS.get(first.partition(":")[0], "")
    for at, word in enumerate(words[1:], 1):
        if word == "-m":
            return _MODULES.get(words[at + 1], "") if at + 1 < len(words) else ""
        if not word.startswith("-"):
            return _PROGRAMS.get(os.path.basename(word), "")
    return ""


def told(argv: Sequence[bytes]) -> dict[str, Any]:
    """Return `job` and `ranks` as its own options say, for one that has no ranks yet or any more.

    Unknown is "" and None: torchrun reads both from files and variables too.
    """
    given = _options(argv)
    run_id = given.get("rdzv-id", "")
    meets = given.get("rdzv-endpoint", "")
    if given.get("master-port"):
        meets = f"{given.get('master-addr', '')}:{given['master-port']}"
    ranks = given.get("nproc-per-node", "")
    return {
        "job": clean(run_id if run_id not in ("", "none") else meets),
        "ranks": int(ranks) if ranks.isdigit() and int(ranks[:9]) <= _MOST else None,
    }


def _options(argv: Sequence[bytes]) -> dict[str, str]:
    """Read `--name value` and `--name=value`, with dashes or underscores, up to the script."""
    words = [word.decode("utf-8", "replace") for word in argv[:256]]
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):  # noqa: B905 (Python 3.8)
        if word.endswith(".py"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.setdefault(name.replace("_", "-"), value if equals else following)
    return found
