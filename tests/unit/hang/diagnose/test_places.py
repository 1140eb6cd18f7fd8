"""Where a rank stands is read from its stack: which collective, and which line of the user's."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.facts.job import Frame, GpuLook, Stacks, Thread, Worker
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.places import channel_words, place_in
from tests.unit.hang.diagnose.jobs import (
    C10D,
    LIB,
    LOADER,
    LOGGER,
    ROOT,
    TRAIN,
    at,
    collective,
    job,
    loading,
    stacks,
    standing,
)

WRAPPED = Frame("_exception_logger.<locals>.wrapper", LOGGER, 83)
JAX, VLLM = LIB + "jax/_src/", LIB + "vllm/distributed/"
ARRAY, MULTIHOST = JAX + "array.py", LIB + "jax/experimental/multihost_utils.py"
SHM = VLLM + "device_communicators/shm_broadcast.py"
SAVING = LIB + "torch/serialization.py"
FSDP = LIB + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"


@pytest.mark.parametrize(
    ("inner", "kind", "where"),
    [
        ([Frame("all_reduce", C10D, 1), WRAPPED], "collective", "all_reduce (train.py:9)"),
        (
            [Frame("all_gather", C10D, 1), WRAPPED, Frame("all_gather_object", C10D, 2), WRAPPED],
            "collective",
            "all_gather_object (train.py:9)",
        ),
        (
            [Frame("all_gather_single", C10D, 1), WRAPPED, Frame("foreach_all_gather", FSDP, 3)],
            "collective",
            "all_gather_single (train.py:9)",
        ),
        ([Frame("monitored_barrier", C10D, 1)], "collective", "monitored_barrier (train.py:9)"),
        ([Frame("recv", C10D, 1), WRAPPED], "p2p", "recv (train.py:9)"),
        (
            [Frame("barrier", C10D, 1), WRAPPED, Frame("init_process_group", C10D, 2)],
            "rendezvous",
            "init_process_group (train.py:9)",
        ),
        ([Frame("destroy_process_group", C10D, 1)], "end", "destroy_process_group (train.py:9)"),
        (
            [Frame("synchronize", LIB + "torch/cuda/__init__.py", 1)],
            "sync",
            "synchronize (train.py:9)",
        ),
        (
            [
                Frame("_engine_run_backward", LIB + "torch/autograd/graph.py", 979),
                Frame("backward", LIB + "torch/autograd/__init__.py", 395),
                Frame("Tensor.backward", LIB + "torch/_tensor.py", 623),
            ],
            "backward",
            "backward (train.py:9)",
        ),
        (
            [Frame("_save", SAVING, 1), Frame("save", SAVING, 2)],
            "checkpoint",
            "save (train.py:9)",
        ),
        ([Frame("_BaseDataLoaderIter.__next__", LOADER, 725)], "data", "DataLoader (train.py:9)"),
        (
            [Frame("encode", LIB + "transformers/tokenization_utils_base.py", 5)],
            "tokenizer",
            "tokenizer (train.py:9)",
        ),
        (
            [Frame("Popen._wait", "/usr/lib/python3.11/subprocess.py", 5)],
            "process",
            "child process (train.py:9)",
        ),
        (
            [Frame("Condition.wait", "/usr/lib/python3.11/threading.py", 5)],
            "lock",
            "lock (train.py:9)",
        ),
        ([Frame("linear", LIB + "torch/nn/functional.py", 5)], "code", "train (train.py:9)"),
        ([Frame("ArrayImpl._value", ARRAY, 5)], "sync", "result (train.py:9)"),
        (
            [Frame("ArrayImpl._value", ARRAY, 5), Frame("assert_equal", MULTIHOST, 3),
             Frame("sync_global_devices", MULTIHOST, 2)],
            "collective", "sync_global_devices (train.py:9)",
        ),
        ([Frame("State.initialize", JAX + "distributed.py", 5)], "rendezvous",
         "initialize (train.py:9)"),
        ([Frame("backend_compile", JAX + "compiler.py", 5)], "compile", "compiler (train.py:9)"),
        (
            [Frame("sched_yield", VLLM + "utils.py", 48), Frame("SpinCondition.wait", SHM, 203),
             Frame("MessageQueue.acquire_read", SHM, 700), Frame("MessageQueue.dequeue", SHM, 760)],
            "p2p", "dequeue (train.py:9)",
        ),
        (
            [Frame("PyNcclCommunicator.all_reduce", VLLM + "device_communicators/pynccl.py", 5),
             Frame("GroupCoordinator.all_reduce", VLLM + "parallel_state.py", 5)],
            "collective", "all_reduce (train.py:9)",
        ),
        ([], "code", "train (train.py:9)"),
    ],
)  # fmt: skip
def test_each_kind_of_place(inner: list[Frame], kind: str, where: str) -> None:
    """As py-spy showed them of torch 2.13."""
    place = place_in((*inner, *at(9)))
    assert (place.kind, place.where) == (kind, where)
    assert place.calls[0] == "train.py:9 in train"


def test_a_data_set_of_the_user_is_in_the_loader() -> None:
    """Without workers his __getitem__ runs inside of it, and is the line that matters."""
    frames = (
        Frame("Samples.__getitem__", "/home/u/data.py", 33),
        Frame("_MapDatasetFetcher.fetch", LIB + "torch/utils/data/_utils/fetch.py", 52),
        Frame("_BaseDataLoaderIter.__next__", LOADER, 725),
        *at(9),
    )
    place = place_in(frames)
    assert (place.kind, place.at) == ("data", "data.py:33")


def test_an_installed_trainer_is_told_apart_by_its_own_lines() -> None:
    """All ranks stand in the same line of the script, in different ones of the trainer."""
    trainer = LIB + "transformers/trainer.py"
    loop, evaluation = (
        place_in((Frame("all_reduce", C10D, 1), Frame(name, trainer, line), *at(9)))
        for name, line in (("train", 2200), ("evaluate", 3600))
    )
    assert loop.where == evaluation.where
    assert loop.key != evaluation.key


def test_native_functions_of_one_rank_speak_for_all_in_that_place() -> None:
    """`work.wait()` leaves no Python frame; C++ was read of rank 0 only."""
    waits = [Frame("pthread_cond_wait", "/lib/libc.so.6"), Frame("c10d::Work::wait", "/t/lib.so")]
    native = Stacks(threads=(Thread(frames=(*waits, *at(28)), main=True),))

    def where(rank: int) -> dict[str, Any]:
        if rank == 2:
            return standing(at(26), wait_channel="hrtimer_nanosleep")
        more: dict[str, Any] = {"native": native} if rank == 0 else {}
        return standing(at(28), wait_channel="futex_do_wait", **more)

    answer = diagnose(job(4, where))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 2",))
    assert answer.confidence > 0.9


@pytest.mark.parametrize("world", [4, 8, 32])
def test_gpu_jobs_wait_in_a_line_of_the_user(world: int) -> None:
    """`loss.item()` spins at 100 % of a core; one rank has not come there."""
    spins = standing(at(55), state="running", main_cpu_s=3.0, gpus=("GPU-x",))
    answer = diagnose(job(world, lambda r: standing(loading(18)) if r == 1 else spins))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 1",))
    assert "in train (train.py:55)" in answer.sentence


def test_rank_0_in_a_barrier_while_the_gpus_wait_elsewhere() -> None:
    """It alone saves, and calls a barrier that nobody else calls."""
    spins = standing(at(55), state="running", main_cpu_s=3.0, gpus=("GPU-x",))
    answer = diagnose(job(8, lambda r: standing(collective("barrier", 70)) if r == 0 else spins))
    assert (answer.category, answer.culprits) == ("desync", ("rank 0",))


def test_a_rank_that_hangs_in_the_kernel_without_a_stack() -> None:
    """Its disk has frozen: not even its memory can be read."""
    held = {"state": "disk", "wait_channel": "jbd2_log_wait_commit", "no_stacks": "reading hangs"}
    answer = diagnose(job(8, lambda r: held if r == 0 else standing(collective("barrier", 50))))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 0",))
    assert "is held by the kernel (D state in jbd2_log_wait_commit)" in answer.sentence
    assert answer.unseen == ("rank 0: reading hangs",)


def test_what_a_loader_waits_for_is_told() -> None:
    """Its worker stands in the user's own code."""
    worker = Worker(pid=77, stacks=stacks([Frame("Samples.__iter__", TRAIN, 66), *ROOT]))
    answer = diagnose(
        job(
            8,
            lambda r: (
                standing(loading(88), workers=(worker,), dead_children=1)
                if r == 3
                else standing(collective("all_reduce", 41))
            ),
        )
    )
    assert any("its worker (pid 77): train.py:66 in Samples.__iter__" in e for e in answer.evidence)
    assert "rank 3: 1 process of its own died" in answer.evidence


def test_the_gpu_that_has_nothing_to_do_is_told() -> None:
    """31 at 100 %, one at 0 %."""
    gpus = {
        "gpus": tuple(
            GpuLook(index=i, uuid=f"GPU-{i}", busy_percent=0 if i == 3 else 100, pids=(1000 + i,))
            for i in range(8)
        )
    }
    wait = standing(collective("all_reduce", 41))
    answer = diagnose(
        job(8, lambda r: standing(loading(88)) if r == 3 else wait, nodes={"gpu001": gpus})
    )
    assert answer.sentence.startswith("rank 3 (gpu001, GPU 3) is in its DataLoader")
    assert "rank 3: its GPU is 0 % busy, those of the others 100 to 100 %" in answer.evidence


def test_a_gpu_whose_clock_is_low_sets_the_pace() -> None:
    """All go on; one GPU runs at half of the others' clock."""

    def gpus(node: int) -> dict[str, Any]:
        return {
            "gpus": tuple(
                GpuLook(
                    index=i, uuid=f"GPU-{node}-{i}", busy_percent=100, pids=(1000 + 8 * node + i,),
                    clock_mhz=900 if (node, i) == (1, 3) else 1980,
                    throttled=("hw_thermal_slowdown",) if (node, i) == (1, 3) else (),
                )
                for i in range(8)
            )
        }  # fmt: skip

    answer = diagnose(
        job(
            16,
            lambda r: standing(at(20 + r % 2), at(55), gpus=("GPU-x",)),
            nodes={"gpu001": gpus(0), "gpu002": gpus(1)},
        )
    )
    assert (answer.category, answer.culprits) == ("straggler", ("rank 11",))
    assert "GPU at 900 MHz where the others run at 1980" in answer.sentence


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("do_epoll_wait", ""),
        ("poll_schedule_timeout.constprop.0", ""),
        ("ll_file_read", "waits for a file system"),
        ("wait_for_partner", "waits for a pipe"),
        ("locks_lock_inode_wait", "waits for a lock on a file"),
    ],
)
def test_what_the_kernel_calls_a_wait(channel: str, words: str) -> None:
    """A poll for a socket is no Lustre, whose functions begin with the same letters."""
    assert channel_words(channel) == words
