"""A launch line is read as its launcher would read it, or refused; never half understood."""

from __future__ import annotations

import pytest

from preflight.errors import UsageError
from preflight.fleet.launch_line import read_launch


@pytest.mark.parametrize(
    ("line", "nproc", "address", "port"),
    [
        ("torchrun --nproc_per_node 8 --master_addr h1 --master-port=7 t.py", 8, "h1", 7),
        ("torchrun t.py --master-port=99999 --nproc-per-node=zero", None, None, None),
        ("torchrun --nnodes 2 -t 3 -m pkg.train --master-port=99999", None, None, None),
        ("torchrun --nproc 4 t.py", 4, None, None),
        ("torchrun --rdzv-endpoint=localhost:0 t.py", None, None, None),
        ("torchrun --rdzv-endpoint=h1:0 t.py", None, "h1", None),
        ("torchrun --rdzv-endpoint=[fd00::1]:77 t.py", None, "fd00::1", 77),
        ("torchrun --standalone --nproc-per-node=gpu t.py", None, None, None),
        ("python3 -u -m torch.distributed.run --nproc-per-node=2 t.py", 2, None, None),
        ("python -W ignore /opt/bin/torchrun --master-port 5 t.py", None, None, 5),
        ("python train.py --master-port=99999", None, None, None),
        ("srun -N2 --export=ALL torchrun --nproc-per-node=2 t.py > log 2>&1", 2, None, None),
        ("MASTER_ADDR=h1 MASTER_PORT=7 srun ./train", None, "h1", 7),
        ("accelerate launch --main_process_port 7 --main_process_ip h1 t.py", None, "h1", 7),
        ("deepspeed --num_gpus 4 --master_port=7 t.py --master_port=99999", 4, None, 7),
        ("torchrun \\\n --nproc-per-node=2 \\\n t.py", 2, None, None),
    ],
)
def test_a_launchers_own_options_are_read(
    line: str, nproc: int | None, address: str | None, port: int | None
) -> None:
    """They end where the script begins; the script's own are not the launcher's."""
    launch = read_launch(line)
    assert (launch.nproc_per_node, launch.master_addr, launch.master_port) == (nproc, address, port)


@pytest.mark.parametrize(
    "line",
    [
        'srun -N2 bash -c "CUDA_VISIBLE_DEVICES=0 torchrun t.py"',
        'X=1 bash -lc "torchrun t.py"',
        "cd x && CUDA_VISIBLE_DEVICES=0 torchrun t.py",
        "export NCCL_DEBUG=INFO; torchrun t.py",
        "./start-everything",
    ],
)
def test_what_is_not_understood_is_refused(line: str) -> None:
    """A line of which nothing was read must not look as if the job's environment were known."""
    with pytest.raises(UsageError, match=r"give it alone, as: VAR=\.\.\. torchrun"):
        read_launch(line)


def test_variables_before_the_launcher_are_the_jobs() -> None:
    """Also behind srun or mpirun -x, and with an operator in quotes."""
    launch = read_launch("NCCL_A='1;2' mpirun -x NCCL_DEBUG=INFO env CUDA_A=0 torchrun t.py B=1")
    assert launch.environ == {"NCCL_A": "1;2", "NCCL_DEBUG": "INFO", "CUDA_A": "0"}
