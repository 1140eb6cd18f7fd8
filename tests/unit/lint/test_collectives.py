"""A collective that some ranks never reach is found; one that all reach, in any way, is not."""

from __future__ import annotations

import pytest

from preflight.lint import lint
from tests.unit.lint.scripts import found

RULE = "collective-on-some-ranks"

HANGS = {
    "a plain condition": ("if dist.get_rank() == 0:\n    dist.barrier()\n", 2),
    "a variable": ("rank = int(os.environ['RANK'])\nif rank == 0:\n    dist.all_reduce(x)\n", 3),
    "any name": ("r = dist.get_rank()\nif r == 0:\n    dist.barrier()\n", 3),
    "any name of a variable": (
        "me = int(os.environ['RANK'])\nif me != 0:\n    dist.barrier()\n", 3,
    ),
    "an else": ("if rank != 0:\n    pass\nelse:\n    dist.barrier()\n", 4),
    "all others": ("if rank > 0:\n    dist.barrier()\n", 2),
    "an attribute": ("if args.local_rank in (-1, 0):\n    dist.all_reduce(x)\n", 2),
    "a bare rank": ("if not rank:\n    dist.barrier()\n", 2),
    "and": ("if step % 9 == 0 and rank == 0:\n    dist.barrier()\n", 2),
    "or, not distributed": ("if not args.distributed or rank == 0:\n    dist.barrier()\n", 2),
    "the same line": ("rank == 0 and dist.barrier()\n", 1),
    "a choice": ("x = dist.all_reduce(t) if rank == 0 else None\n", 1),
    "a word for it": ("main = rank == 0\nif main:\n    dist.barrier()\n", 3),
    "a function for it": (
        "def first():\n    return dist.get_rank() == 0\nif first():\n    dist.barrier()\n", 4,
    ),
    "a usual name": ("if is_main_process():\n    dist.barrier()\n", 2),
    "a class's flag": (
        "class T:\n    def fit(self):\n        if self.is_main:\n            dist.barrier()\n", 4,
    ),
    "return before it": (
        "def save():\n    if rank != 0:\n        return\n    torch.save(x)\n    dist.barrier()\n",
        5,
    ),
    "return inside of with": (
        "def f():\n    with a:\n        if rank != 0:\n            return\n    dist.barrier()\n", 5,
    ),
    "continue in a loop": (
        "for b in data:\n    if rank != 0:\n        continue\n    dist.all_reduce(b)\n", 4,
    ),
    "exit": ("import sys\nif rank != 0:\n    sys.exit(0)\ndist.barrier()\n", 4),
    "a helper": ("def ev():\n    dist.all_reduce(x)\nif rank == 0:\n    ev()\n", 4),
    "a helper's helper": (
        "def b():\n    dist.barrier()\ndef a():\n    b()\nif rank == 0:\n    a()\n", 6,
    ),
    "a method": (
        ("class T:\n    def ev(self):\n        dist.barrier()\n    def fit(self):\n"
        "        if self.rank == 0:\n            self.ev()\n"), 6,
    ),
    "a method of the base": (
        ("class B:\n    def ev(self):\n        dist.barrier()\nclass T(B):\n    def fit(self):\n"
        "        if self.rank == 0:\n            self.ev()\n"), 7,
    ),
    "the name itself": ("from torch.distributed import barrier as b\nif rank == 0:\n    b()\n", 3),
    "the whole path": ("if rank == 0:\n    torch.distributed.barrier()\n", 2),
    "the world as group": ("if rank == 0:\n    dist.barrier(group=dist.group.WORLD)\n", 2),
    "a new group": ("if rank == 0:\n    g = dist.new_group([0, 1])\n", 2),
    "wrapping the model": ("if rank == 0:\n    model = DDP(model)\n", 2),
    "horovod": (
        "import horovod.torch as hvd\nif hvd.rank() == 0:\n    hvd.broadcast_parameters(p, 0)\n", 3,
    ),
    "accelerate": (
        ("from accelerate import Accelerator\nacc = Accelerator()\n"
        "if acc.is_main_process:\n    acc.wait_for_everyone()\n"), 4,
    ),
    "fabric": (
        ("from lightning.fabric import Fabric\nfabric = Fabric()\n"
        "if fabric.global_rank == 0:\n    fabric.barrier()\n"), 4,
    ),
    "lightning's log": (
        ("from lightning import LightningModule\nclass M(LightningModule):\n"
        "    def training_step(self):\n        if self.trainer.is_global_zero:\n"
        "            self.log('x', 1, sync_dist=True)\n"), 5,
    ),
    "another rank": ("rank = dist.get_rank()\nif rank == 1:\n    dist.barrier()\n", 3),
    "another rank, no name": ("if dist.get_rank() == 3:\n    dist.all_reduce(x)\n", 2),
    "all but another rank": ("if mode == 'x' and rank != 2:\n    dist.barrier()\n", 2),
    "several ranks": ("if rank in (1, 2):\n    dist.barrier()\n", 2),
    "the first ranks": ("if rank < 2:\n    dist.barrier()\n", 2),
    "every second rank": ("if rank % 2 == 0:\n    dist.barrier()\n", 2),
    "the other half": ("if dist.get_rank() % 2:\n    dist.barrier()\n", 2),
    "a word for another rank": ("odd = rank % 2 == 1\nif odd:\n    dist.barrier()\n", 3),
    "another rank twice": (
        "if rank == 1:\n    dist.barrier()\nload()\nif rank == 1:\n    print()\n", 2,
    ),
    "another rank leaves the loop": (
        "for b in data:\n    if rank == 1:\n        break\n    dist.barrier()\n", 4,
    ),
    "another rank's helper": (
        "def b():\n    dist.barrier()\ndef a():\n    b()\nif rank == 1:\n    a()\n", 6,
    ),
    "a new group of its members": (
        "if rank in [1, 2]:\n    g = dist.new_group([1, 2])\n    dist.all_reduce(x, group=g)\n", 2,
    ),
    "a decorator": (
        ("from lightning.pytorch.utilities import rank_zero_only\n@rank_zero_only\n"
        "def save():\n    dist.barrier()\n"), 4,
    ),
}  # fmt: skip

FINE = {
    "no condition": "dist.barrier()\n",
    "both sides": "if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()\n",
    "first the one, then the others": (
        "if rank not in (-1, 0):\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n"
    ),
    "both sides by helpers": (
        "def a():\n    dist.barrier()\ndef b():\n    dist.barrier()\n"
        "if rank == 0:\n    a()\nelse:\n    b()\n"
    ),
    "root and others in two functions": (
        "def give():\n    if rank == 0:\n        dist.broadcast(x, 0)\n"
        "def take():\n    if rank != 0:\n        dist.broadcast(x, 0)\n"
    ),
    "the meeting of two functions": (
        "def wait():\n    if rank != 0:\n        dist.barrier()\n"
        "def done():\n    if rank == 0:\n        dist.barrier()\n"
    ),
    "return after its own part": (
        "def g():\n    if rank:\n        dist.gather(x)\n        return\n    dist.gather(x, xs)\n"
    ),
    "each rank in its branch": (
        "if rank == 0:\n    dist.barrier()\nelif rank == 1:\n    dist.barrier()\n"
    ),
    "each rank in its helper": (
        "def a():\n    dist.barrier()\ndef b():\n    dist.barrier()\n"
        "if rank == 0:\n    a()\nelif rank == 1:\n    b()\n"
    ),
    "both halves, by number": (
        "if rank % 2 == 0:\n    dist.barrier()\nload()\nif rank % 2 == 1:\n    dist.barrier()\n"
    ),
    "another root and others in two functions": (
        "def give():\n    if rank == 1:\n        dist.broadcast(x, 1)\n"
        "def take():\n    if 1 != rank:\n        dist.broadcast(x, 1)\n"
    ),
    "objects from another root": (
        "if rank == 1:\n    dist.broadcast_object_list(xs, 1)\nelse:\n    xs = [None]\n"
        "    dist.broadcast_object_list(xs, 1)\n"
    ),
    "returns after their own parts": (
        "def g():\n    if rank == 1:\n        dist.gather(x)\n        return\n"
        "    if rank == 2:\n        dist.gather(y)\n        return\n    dist.gather(z, zs)\n"
    ),
    "an early return of another rank": (
        "def log(x):\n    if rank != 1:\n        return\n    print(x)\nlog(y)\ndist.barrier()\n"
    ),
    "the members of a group": (
        "g = dist.new_group([1, 2])\nif rank in (1, 2):\n    dist.all_reduce(x, group=g)\n"
    ),
    "each second rank sends": (
        "if rank % 2 == 0:\n    dist.send(x, rank + 1)\nelse:\n    dist.recv(x, rank - 1)\n"
    ),
    "another rank, only shown by the run": (
        "if rank == world - 1:\n    dist.barrier()\nif rank % n == 0:\n    dist.barrier()\n"
        "if rank in members:\n    dist.barrier()\n"
    ),
    "every rank": "if rank % 1 == 0:\n    dist.barrier()\nif rank <= -1:\n    dist.barrier()\n",
    "a group of its own": "if rank == 0:\n    dist.all_reduce(x, group=g)\n",
    "a group by place": "if rank == 0:\n    dist.broadcast(x, 0, g)\n",
    "whether it is distributed": "if args.local_rank != -1:\n    dist.barrier()\n",
    "whether it is distributed, again": "if rank >= 0:\n    dist.barrier()\n",
    "point to point": "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)\n",
    "only the run decides which rank": "if rank == src:\n    dist.broadcast(x, src)\n",
    "a rank inside of a group": "if dist.get_rank(group) == 0:\n    dist.barrier()\n",
    "another kind of rank": "if tp_rank == 0:\n    dist.barrier()\n",
    "or something else": "if rank == 0 or everywhere:\n    dist.barrier()\n",
    "the other side is not shown here": (
        "from work import serve\nif rank == 0:\n    dist.barrier()\nelse:\n    serve()\n"
    ),
    "a raise is no way round": (
        "def f():\n    if rank != 0:\n        raise ValueError\n    dist.barrier()\n"
    ),
    "the caller says that it is not to": (
        "def ev(sync):\n    if sync:\n        dist.barrier()\nif rank == 0:\n    ev(False)\n"
    ),
    "a barrier of threads": "if rank == 0:\n    threads.barrier()\n",
    "a low rank of LoRA": "if lora.rank == 0:\n    dist.barrier()\n",
    "print only": "if rank == 0:\n    print(loss)\ndist.barrier()\n",
    "return of a loop's turn": (
        "for b in d:\n    if rank != 0:\n        continue\n    print(b)\ndist.barrier()\n"
    ),
    "accelerate's own guard": (
        "from accelerate import Accelerator\nacc = Accelerator()\n"
        "if acc.is_main_process:\n    acc.save(x, 'f')\nacc.wait_for_everyone()\n"
    ),
}


@pytest.mark.parametrize("name", HANGS)
def test_ranks_that_part_are_found(name: str) -> None:
    """Whatever way the script says that only some ranks get there."""
    text, line = HANGS[name]
    assert found(text) == {RULE: [line]}


@pytest.mark.parametrize("name", FINE)
def test_ranks_that_meet_are_not(name: str) -> None:
    """If all ranks make the call, or the text does not decide it, there is no finding."""
    assert found(FINE[name]) == {}


def test_the_sentence_says_who_waits_where_and_how_long() -> None:
    """The line of the collective itself, of the condition, and of the script's own time-out."""
    text = (
        "import torch.distributed as dist\nfrom datetime import timedelta\n"
        "dist.init_process_group('nccl', timeout=timedelta(minutes=90))\n"
        "def ev():\n    dist.all_reduce(x)\nif dist.get_rank() == 0:\n    ev()\n"
    )
    one = lint(text.encode(), "t.py").findings[0]
    assert one.sentence == (
        "only rank 0 calls ev(), which leads to all_reduce in line 5: it stands under "
        "`dist.get_rank() == 0` in line 6"
    )
    assert one.will.startswith("rank 0 waits in all_reduce (line 5) for the timeout in line 3, or")


@pytest.mark.parametrize(
    ("condition", "ranks"),
    [
        ("rank == 1", "rank 1 calls"),
        ("rank != 2", "all ranks but 2 call"),
        ("rank in (2, 1)", "ranks 1, 2 call"),
        ("rank not in (2, 1)", "all ranks but 1, 2 call"),
        ("rank <= 2", "ranks below 3 call"),
        ("rank > 2", "ranks from 3 on call"),
        ("rank % 4 == 3", "ranks with rank % 4 == 3 call"),
        ("not rank % 4", "ranks with rank % 4 == 0 call"),
    ],
)
def test_the_sentence_names_the_ranks(condition: str, ranks: str) -> None:
    """Also where rank 0 is not the one that differs."""
    text = f"import torch.distributed as dist\nif {condition}:\n    dist.barrier()\n"
    (one,) = (f for f in lint(text.encode(), "t.py").findings if f.rule == RULE)
    assert one.sentence == f"only {ranks} barrier: it stands under `{condition}` in line 2"


@pytest.mark.parametrize("number", ["0x" + "f" * 9999, "9" * 30, "-3", "1.5", "True", "'x'"])
def test_a_number_of_no_rank(number: str) -> None:
    """It is no exception."""
    for condition in (f"rank == {number}", f"rank in ({number}, 1)", f"rank % {number} == 0"):
        found(f"if {condition}:\n    dist.barrier()\n")


def test_one_condition_is_one_finding() -> None:
    """Several collectives under one condition are counted, not listed one by one."""
    text = "if rank == 0:\n    dist.all_reduce(x)\n    dist.barrier()\n    dist.barrier()\n"
    head = "import torch.distributed as dist\n"
    (one,) = (f for f in lint((head + text).encode(), "t.py").findings if f.rule == RULE)
    assert "all_reduce and 2 more of its kind" in one.sentence
