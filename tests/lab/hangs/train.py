"""A training job as people write them, and as it hangs: each rank can be told to go astray.

    torchrun ... train.py FOLDER

A word in FOLDER/rankN.told sends rank N elsewhere (`tests.lab.hangs.situations` has the words); it
says in FOLDER/rankN.there when it is there. Lines that a diagnosis must name end in `# HERE: name`.
When its connections break the job joins anew under the number in FOLDER/attempt, as jobs with
restarts in process do: nothing has to be imported again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
WIDTH = 64
LAYERS = 20
CHECKPOINT_EVERY = 4


def told(word: str, *, once: bool = False) -> bool:
    """Whether this rank is to go astray so; it then says that it is there."""
    order = FOLDER / f"rank{RANK}.told"
    if order.read_text() != word:
        return False
    (FOLDER / f"rank{RANK}.there").write_text(word)
    if once:
        order.write_text("")
    return True


def storage(word: str) -> Path:
    """Where the data is: on a storage that does not answer, if this rank is told so."""
    return FOLDER / ("slow" if told(word) else "shard")


class Samples(IterableDataset):  # type: ignore[misc]  # torch is not looked into
    """What the storage holds, as long as it holds something."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while not told("exhausted"):
            with storage("dataloader").open("rb") as file:  # HERE: sample
                yield torch.frombuffer(bytearray(file.read()), dtype=torch.float32)


def stepped(step: int) -> None:
    """Say how far this rank is."""
    (FOLDER / f"rank{RANK}.step").write_text(str(step))


def record() -> None:
    """Write what torch's flight recorder holds while no step is made, as NCCL's watchdog would."""
    last = -1.0
    while True:
        time.sleep(1)
        moved = (FOLDER / f"rank{RANK}.step").stat().st_mtime
        if moved == last and (FOLDER / "recorder").exists():
            fresh = Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{RANK}.new")
            recorded = torch._C._distributed_c10d._dump_fr_trace
            with suppress(FileNotFoundError):  # nobody wants it any more
                # With stack traces the first one takes 15 s.
                fresh.write_bytes(recorded(includeStackTraces=False))
                fresh.replace(fresh.with_suffix(""))
        last = moved


def attempt(last: str) -> str:
    """Return the number of the next attempt, once there is one."""
    while (number := (FOLDER / "attempt").read_text()) == last:
        time.sleep(0.1)
    return number


def join(number: str) -> None:
    """Prepare the data, then find the other ranks; of each attempt its own names in the store."""
    storage("prepare").read_bytes()  # HERE: prepare
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(number, dist.TCPStore(address, port))
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=world)  # HERE: join


def forward(weight: torch.Tensor, batch: torch.Tensor, layers: int) -> torch.Tensor:
    """Compute what a GPU would."""
    for _ in range(layers):
        batch = torch.tanh(batch @ weight)  # HERE: layer
    return batch.mean()


def average(gradients: torch.Tensor) -> None:
    """Bring the gradients of all ranks together."""
    if told("desync"):
        dist.broadcast(gradients, src=RANK)  # HERE: broadcast
    else:
        dist.all_reduce(gradients)  # HERE: average


def evaluate(weight: torch.Tensor, batch: torch.Tensor) -> None:
    """Look how good the model is, on rank 0 only: the others go on to the next step."""
    layers = LAYERS
    while True:
        forward(weight, batch, layers)  # HERE: evaluation
        if not told("evaluation"):  # HERE: evaluation
            return
        layers = 500 * LAYERS


def checkpoint(weight: torch.Tensor) -> None:
    """Rank 0 writes, and nobody goes on before that is done."""
    if told("skipped"):
        return
    if RANK == 0:
        disk = FOLDER / ("disk" if told("checkpoint") else "saved")
        torch.save({"weight": weight}, disk / "last.pt")  # HERE: checkpoint
    dist.barrier()  # HERE: saved


def train(weight: torch.Tensor) -> None:
    """Step after step, as long as there are samples."""
    loader = DataLoader(Samples(), batch_size=4, num_workers=1)
    for step, batch in enumerate(loader):  # HERE: dataloader
        loss = forward(weight, batch, 100 * LAYERS if told("slow") else LAYERS)  # HERE: forward
        gradients = torch.autograd.grad(loss, weight)[0]
        time.sleep(0.05)
        average(gradients[:0] if told("shapes", once=True) else gradients)
        weight = (weight - 0.01 * gradients).detach().requires_grad_()
        stepped(step)
        if step % CHECKPOINT_EVERY == 0:
            if RANK == 0:
                evaluate(weight, batch)  # HERE: evaluation
            checkpoint(weight)
    dist.barrier()  # HERE: end


def main() -> None:
    """Train; after a failure of the fabric anew, with whoever comes."""
    torch.manual_seed(0)
    stepped(-1)
    threading.Thread(target=record, daemon=True).start()
    (FOLDER / f"rank{RANK}.pid").write_text(str(os.getpid()))
    number = ""
    while True:
        number = attempt(number)
        join(number)
        try:
            train(torch.randn(WIDTH, WIDTH, requires_grad=True))
        except RuntimeError as error:
            print(f"rank {RANK}: {error}", flush=True)  # noqa: T201  # a job's log
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
