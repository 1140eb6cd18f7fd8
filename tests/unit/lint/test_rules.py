"""Every other rule: the mistake is found, and what looks like it and is none is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.lint import RULES, lint
from tests.unit.lint.scripts import HEAD, found, hints

ROOT = Path(__file__).resolve().parents[3]

NCCL = "dist.init_process_group('nccl')\n"
LOOP = "    loss = model(x)\n    {test}\n        {leave}\n    loss.backward()\n"
WRAPPED = "model = DDP(net)\nfor x in data:\n"
PARTS = "from torch.utils.data import DataLoader\nmodel = DDP(net)\n"
TRAIN = "for x in loader:\n    model(x).backward()\n"

FOUND = {
    "FSDP's state on rank 0": (
        "checkpoint-on-one-rank", 4,
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(net)\nif rank == 0:\n    torch.save(model.state_dict(), 'f')\n"),
    ),
    "DCP on rank 0": (
        "checkpoint-on-one-rank", 3,
        "import torch.distributed.checkpoint as dcp\nif rank == 0:\n    dcp.save(state)\n",
    ),
    "DeepSpeed on rank 0": (
        "checkpoint-on-one-rank", 4,
        ("import deepspeed\nengine, _, _, _ = deepspeed.initialize(model=net)\n"
        "if rank == 0:\n    engine.save_checkpoint('d')\n"),
    ),
    "accelerate's state on rank 0": (
        "checkpoint-on-one-rank", 4,
        ("from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "if accelerator.is_main_process:\n    accelerator.save_state('d')\n"),
    ),
    "ZeRO's state on rank 0": (
        "checkpoint-on-one-rank", 4,
        ("from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "opt = ZeroRedundancyOptimizer(p)\nif rank == 0:\n    opt.consolidate_state_dict()\n"),
    ),
    "Lightning's checkpoint on rank 0": (
        "checkpoint-on-one-rank", 4,
        ("import lightning as L\ntrainer = L.Trainer()\nif trainer.is_global_zero:\n"
        "    trainer.save_checkpoint('f')\n"),
    ),
    "a NaN skips the step": (
        "skipped-step", 5, WRAPPED + LOOP.format(test="if torch.isnan(loss):", leave="continue")
    ),
    "an infinite loss ends the loop": (
        "skipped-step", 6,
        "import math\n" + WRAPPED
        + LOOP.format(test="if not math.isfinite(loss.item()):", leave="break"),
    ),
    "every n-th item": (
        "uneven-batches", 3, PARTS + "loader = DataLoader(data[rank::world])\n" + TRAIN
    ),
    "every n-th item, assigned before": (
        "uneven-batches", 4,
        PARTS + "mine = [d for d in data[rank::world]]\nloader = DataLoader(mine)\n" + TRAIN,
    ),
    "every n-th index": (
        "uneven-batches", 3,
        PARTS + "loader = DataLoader(Subset(d, range(rank, len(d), world)))\n" + TRAIN,
    ),
    "rank 0 evaluates, the others wait": (
        "barrier-after-long-work", 4, NCCL + "if rank == 0:\n    evaluate(model)\ndist.barrier()\n"
    ),
    "rank 0 downloads, the others wait": (
        "barrier-after-long-work", 4,
        NCCL + "if rank == 0:\n    download_data()\ndist.barrier()\n",
    ),
    "no GPU is chosen": ("no-set-device", 2, NCCL + "model = net.cuda()\n"),
    "no GPU is chosen, to": ("no-set-device", 2, NCCL + "model = net.to('cuda')\n"),
    "set_device(0)": ("fixed-device", 2, NCCL + "torch.cuda.set_device(0)\n"),
    "to cuda:0": ("fixed-device", 3, NCCL + "torch.cuda.set_device(i)\nnet.to('cuda:0')\n"),
    "device_ids": ("fixed-device", 1, "model = DDP(net, device_ids=[0])\n"),
    "map_location": (
        "fixed-device", 3,
        NCCL + "torch.cuda.set_device(i)\nw = torch.load('f', map_location='cuda:0')\n",
    ),
    "the global rank's GPU": (
        "global-rank-as-device", 2, NCCL + "torch.cuda.set_device(dist.get_rank())\n"
    ),
    "the global rank's GPU, by name": (
        "global-rank-as-device", 2,
        "rank = int(os.environ['RANK'])\nd = torch.device(f'cuda:{rank}')\n",
    ),
    "an option for the local rank": (
        "local-rank-argument", 2,
        "dist.init_process_group('gloo')\np.add_argument('--local_rank', type=int, default=-1)\n",
    ),
    "the list of GPUs": (
        "cuda-visible-devices", 1,
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\ndist.init_process_group('gloo')\n",
    ),
}  # fmt: skip

FINE = {
    "FSDP's state on all": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(net)\nstate = model.state_dict()\nif rank == 0:\n    torch.save(state, 'f')\n"
    ),
    "DDP's state on rank 0": (
        "model = DDP(net)\nif rank == 0:\n    torch.save(model.module.state_dict(), 'f')\n"
    ),
    "DCP in a group": (
        "import torch.distributed.checkpoint as dcp\n"
        "if rank == 0:\n    dcp.save(state, process_group=g)\n"
    ),
    "a NaN ends the job": (
        WRAPPED + LOOP.format(test="if torch.isnan(loss):", leave="raise ValueError")
    ),
    "a NaN they agree on": (
        WRAPPED + "    loss = model(x)\n    dist.all_reduce(loss)\n    if torch.isnan(loss):\n"
        "        continue\n    loss.backward()\n"
    ),
    "a NaN after the step": (
        WRAPPED + "    loss.backward()\n    if torch.isnan(loss):\n        continue\n"
    ),
    "a NaN in one process": (
        "for x in data:\n" + LOOP.format(test="if torch.isnan(loss):", leave="continue")
    ),
    "a sampler": (
        PARTS + "loader = DataLoader(d, sampler=DistributedSampler(d))\n" + TRAIN
    ),
    "parts inside of join": (
        PARTS + "loader = DataLoader(data[rank::world])\nwith model.join():\n"
        "    for x in loader:\n        model(x).backward()\n"
    ),
    "parts without last": (
        PARTS + "loader = DataLoader(data[rank::world], drop_last=True)\n" + TRAIN
    ),
    "parts without a collective": PARTS + "loader = DataLoader(data[rank::world])\n",
    "halves, not ranks": PARTS + "loader = DataLoader(data[::2])\n" + TRAIN,
    "short work": NCCL + "if rank == 0:\n    os.makedirs('d')\ndist.barrier()\n",
    "long work with time for it": (
        "dist.init_process_group('nccl', timeout=t)\nif rank == 0:\n    evaluate(m)\n"
        "dist.barrier()\n"
    ),
    "long work on all": NCCL + "evaluate(m)\ndist.barrier()\n",
    "the GPU is chosen": NCCL + "torch.cuda.set_device(local_rank)\nnet.cuda()\n",
    "the GPU is passed on": NCCL + "net.cuda(local_rank)\nx.cuda()\n",
    "the group knows the GPU": (
        "dist.init_process_group('nccl', device_id=d)\nnet.cuda()\n"
    ),
    "the GPU's name is computed": NCCL + "d = f'cuda:{local_rank}'\nnet.to(d)\nx.cuda()\n",
    "gloo has no GPU": "dist.init_process_group('gloo')\nnet.cuda()\n",
    "one process has one GPU": "net.to('cuda:0')\n",
    "GPU 0 where it is not distributed": (
        NCCL + "if single:\n    net.to('cuda:0')\nelse:\n    torch.cuda.set_device(i)\n"
    ),
    "GPU 0 under RPC": (
        "from torch.distributed import rpc\nmodel = DDP(net)\nx = torch.ones(1).cuda(0)\n"
    ),
    "GPU 0 on rank 0": NCCL + "torch.cuda.set_device(i)\nif rank == 0:\n    x.to('cuda:0')\n",
    "the rank modulo the GPUs": (
        "rank = dist.get_rank()\ngpu = rank % torch.cuda.device_count()\n"
        "torch.cuda.set_device(gpu)\n"
    ),
    "a rank that spawn gives": (
        "rank = int(os.environ['RANK'])\ndef work(rank):\n    torch.cuda.set_device(rank)\n"
    ),
    "an option with the environment": (
        "dist.init_process_group('gloo')\n"
        "p.add_argument('--local_rank', default=int(os.environ['LOCAL_RANK']))\n"
    ),
    "an option for DeepSpeed": (
        "import deepspeed\ndist.init_process_group('gloo')\np.add_argument('--local_rank')\n"
    ),
    "the list of GPUs, of an option": (
        "if args.gpus:\n    os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = args.gpus\n"
    ),
    "the GPUs of ranks that it starts itself": (
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nmp.spawn(f)\n"
        "dist.init_process_group('gloo')\n"
    ),
    "the GPUs of one process": (
        "import accelerate\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n"
    ),
    "no GPU at all": NCCL + "torch.cuda.set_device(i)\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n",
    "the list of GPUs is read": "x = os.environ['CUDA_VISIBLE_DEVICES']\n",
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_mistake_is_found(name: str) -> None:
    """By its rule alone, in its line."""
    rule, line, text = FOUND[name]
    assert found(text) == {rule: [line]}


@pytest.mark.parametrize("name", FINE)
def test_what_is_no_mistake_is_left_alone(name: str) -> None:
    """Few and true: who cannot be sure is silent."""
    assert found(FINE[name]) == {}


def test_what_costs_evidence_is_a_hint() -> None:
    """A script that starts its group without arguments gets four; one with all gets none."""
    main = "if __name__ == '__main__':\n    main()\n"
    bare = f"def main():\n    {NCCL}{main}"
    assert hints(bare) == {"init-timeout", "init-device-id", "no-record", "no-destroy"}
    whole = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n@record\n"
        "def main():\n    dist.init_process_group('nccl', timeout=t, device_id=d)\n"
        f"    dist.destroy_process_group()\n{main}"
    )
    assert hints(whole) == set()
    assert hints("dist.init_process_group('gloo', rank=0, world_size=1)\n") == set()
    assert hints("dist.init_process_group('gloo', **how)\nmp.spawn(f)\ncleanup()\n") == set()


def test_a_script_of_a_framework_is_left_to_it() -> None:
    """Who trains by a Trainer starts no group, chooses no GPU and cuts no batches himself."""
    head = "from transformers import Trainer\n"
    assert found("Trainer(model=net.cuda()).train()\n", head=head) == {}
    assert hints("Trainer(model=net.cuda()).train()\n", head=head) == set()


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:\n    dist.barrier()  # preflight: ignore[collective-on-some-ranks]\n",
        "if rank:\n    # preflight: ignore[x, collective-on-some-ranks]\n    dist.barrier()\n",
        "if rank == 0:\n    dist.barrier()  # preflight: ignore\n",
        "if rank:\n    dist.all_reduce(\n    x)  # preflight:ignore[collective-on-some-ranks]\n",
    ],
)
def test_a_comment_switches_a_rule_off(text: str) -> None:
    """In its line, in the line above, or at the end of a longer statement; it is counted."""
    linted = lint((HEAD + text).encode(), "t.py")
    assert (linted.findings, linted.ignored) == ((), 1)


def test_a_comment_switches_nothing_else_off() -> None:
    """Another rule's name, another line, or the words inside of a string change nothing."""
    rule = "collective-on-some-ranks"
    for text in (
        "if rank == 0:\n    dist.barrier()  # preflight: ignore[no-record]\n",
        "if rank == 0:\n    x = 1  # preflight: ignore\n    dist.barrier()\n",
        "if rank == 0:\n    s = '# preflight: ignore'; dist.barrier()\n",
    ):
        assert list(found(text)) == [rule]


def test_every_rule_has_its_section() -> None:
    """docs/reference/lint.md explains each by its id; ids are unique and stay."""
    ids = [rule.id for rule in RULES]
    page = (ROOT / "docs" / "reference" / "lint.md").read_text(encoding="utf-8")
    assert len(set(ids)) == len(ids)
    assert [one for one in ids if f"### {one}\n" not in page] == []


def test_a_script_that_spawns_its_ranks_gets_no_advice_about_local_rank() -> None:
    """Only a launcher sets LOCAL_RANK: where spawn() starts the ranks, reading it is a KeyError."""
    text = f"{HEAD}{NCCL}torch.multiprocessing.spawn(work, nprocs=8)\n"
    remedies = {
        spawned: [one.remedy for one in lint(source.encode(), "a.py").findings]
        for spawned, source in ((True, text), (False, text.replace("spawn(", "run(")))
    }
    assert not any("LOCAL_RANK" in one for one in remedies[True])
    assert any("spawn() passes to each process" in one for one in remedies[True])
    assert any("LOCAL_RANK" in one for one in remedies[False])


def test_a_range_of_nothing_in_a_dataset_is_read() -> None:
    """Python itself refuses it when the script runs; lint goes on."""
    assert (
        found("""
        from torch.utils.data import DataLoader
        model = torch.nn.parallel.DistributedDataParallel(net)
        loader = DataLoader([x for x in range()], batch_size=4)
    """)
        == {}
    )
