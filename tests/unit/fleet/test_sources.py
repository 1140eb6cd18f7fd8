"""Which source wins, and which environment and port the job will have."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.fleet.sources import FleetRequest, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fleet.model import Fleet


def _names(fleet: Fleet) -> list[str]:
    return [host.name for host in fleet.hosts]


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    """Three nodes, four GPUs each."""
    path = tmp_path / "fleet.toml"
    path.write_text('[job]\nmaster = "b"\nmaster_port = 4321\n[group.t]\nnodes = "a,b,c"\ngpus = 4')
    return str(path)


def test_without_a_source_the_fleet_is_this_machine() -> None:
    """Without any source the fleet is this machine, by this Python, over no network."""
    fleet = resolve(FleetRequest())
    assert fleet.origin == "this machine"
    assert fleet.hosts[0].transport == "local"
    assert fleet.hosts[0].python == (sys.executable,)


def test_sources_win_in_their_order(inventory: str) -> None:
    """Option, then inventory, then PREFLIGHT_NODES, then Slurm, then the ini file."""
    environ = {"PREFLIGHT_NODES": "p1", "SLURM_JOB_NODELIST": "s[1-2]"}
    full = FleetRequest(nodes="a", inventory=inventory, environ=environ, ini_nodes="i1")
    assert resolve(full).origin == "--preflight-nodes"
    assert _names(resolve(FleetRequest(inventory=inventory, environ=environ))) == ["a", "b", "c"]
    assert resolve(FleetRequest(environ=environ, ini_nodes="i1")).origin == "PREFLIGHT_NODES"
    slurm = resolve(FleetRequest(environ={"SLURM_JOB_NODELIST": "s[1-2]"}, ini_inventory=inventory))
    assert (slurm.origin, _names(slurm)) == ("SLURM_JOB_NODELIST", ["s1", "s2"])
    assert _names(resolve(FleetRequest(ini_nodes="i1"))) == ["i1"]


def test_a_chosen_node_keeps_its_promises(inventory: str) -> None:
    """Nodes by option and expectations by inventory go together."""
    fleet = resolve(FleetRequest(nodes="c,a", inventory=inventory))
    assert [host.expected.gpus for host in fleet.hosts] == [4, 4]


def test_excluding_names_only_nodes_of_the_fleet(inventory: str) -> None:
    """A misspelled exclusion would leave the bad node in, so it is refused."""
    assert _names(resolve(FleetRequest(inventory=inventory, exclude="b"))) == ["a", "c"]
    with pytest.raises(UsageError, match="not in this fleet"):
        resolve(FleetRequest(inventory=inventory, exclude="bb"))
    with pytest.raises(UsageError, match="leaves no node"):
        resolve(FleetRequest(inventory=inventory, exclude="a,b,c"))


def test_an_empty_list_is_refused_and_names_its_source() -> None:
    """An empty allocation must never read as a fleet without faults."""
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        resolve(FleetRequest(environ={"SLURM_JOB_NODELIST": ""}))


def test_the_launch_line_tells_port_ranks_and_environment() -> None:
    """The spellings that torchrun takes are understood, and variables in front of it."""
    line = "env CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 --rdzv-endpoint=b:777 t.py"
    fleet = resolve(FleetRequest(nodes="a,b", launch=line))
    assert fleet.job.master_port == 777
    assert fleet.job.nproc_per_node == 2
    assert fleet.master.name == "b"
    assert fleet.job.environ == {"": {"CUDA_VISIBLE_DEVICES": "0,1"}}


def test_an_environment_file_per_node(tmp_path: Path) -> None:
    """{node} in the path reads one file for each node."""
    for name, devices in (("a", "0"), ("b", "1")):
        (tmp_path / f"{name}.env").write_text(f"export CUDA_VISIBLE_DEVICES={devices}\n")
    fleet = resolve(FleetRequest(nodes="a,b", env_file=str(tmp_path / "{node}.env")))
    assert fleet.job.environ == {
        "a": {"CUDA_VISIBLE_DEVICES": "0"},
        "b": {"CUDA_VISIBLE_DEVICES": "1"},
    }


def test_credentials_are_dropped_where_they_are_read(tmp_path: Path) -> None:
    """A token in the job's environment does not even enter the process's own records."""
    path = tmp_path / "job.env"
    path.write_text(
        "WANDB_API_KEY=hunter2\nHF_TOKEN=hunter2\nNCCL_SECRET_TOKEN=hunter2\nNCCL_DEBUG=INFO\n"
        "SLURM_JWT=hunter2\nSLURM_SPANK_VNC_PASS=hunter2\nSLURM_JOB_COMMENT=pw=hunter2\n"
        "CUDA_AUTH=hunter2\nNCCL_PW=hunter2\nUCX_APIKEY=hunter2\nNCCL_PASS=hunter2\nTORCH_NCCL_EXTRA_DUMP_ON_EXEC=1\n"
        "SLURM_EXPORT_ENV=ALL,DB_PASS=hunter2\nSLURM_WCKEY=hunter2\nSLURM_COMMENT=hunter2\n"
        "SLURM_JOB_ADMIN_COMMENT=hunter2\nSLURM_JOB_ID=7\nSLURM_GPU_BIND=closest\n"
    )
    fleet = resolve(FleetRequest(nodes="a", env_file=str(path)))
    kept = {"NCCL_DEBUG": "INFO", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"}
    kept |= {"SLURM_JOB_ID": "7", "SLURM_GPU_BIND": "closest"}
    assert fleet.job.environ == {"": kept}


@pytest.mark.parametrize(
    ("fleet_request", "message"),
    [
        (FleetRequest(nodes="a", launch="torchrun --nproc-per-node=zero t.py"), "nproc-per-node"),
        (FleetRequest(nodes="a", launch="torchrun --master-port 99999 t.py"), "1 to 65535"),
        (FleetRequest(nodes="a", launch="torchrun 'x"), "quote"),
        (FleetRequest(nodes="a", env_file="/nonexistent.env"), "cannot read the environment file"),
        (FleetRequest(nodes="a", python=""), "--preflight-python is empty"),
        (FleetRequest(nodes="a", inventory=""), "--preflight-inventory is empty"),
        (FleetRequest(nodes="a", env_file=""), "--preflight-env-file is empty"),
        (FleetRequest(nodes="a", env_file="/dev/zero"), "not a regular file"),
        (FleetRequest(nodes="a", launch=""), "--preflight-launch is empty"),
        (FleetRequest(nodes="a,b", launch="torchrun --master-addr=h9 t.py"), "'h9' names no node"),
        (
            FleetRequest(nodes="h1,h2", launch="torchrun --master-addr=hh1 t.py"),
            "did you mean 'h1'",
        ),
        (
            FleetRequest(nodes="a,b", launch="torchrun --master-addr=localhost t.py"),
            "another machine on",
        ),
        (FleetRequest(nodes="a,b", launch="torchrun --master-addr=$M t.py"), "not expanded"),
    ],
)
def test_faults_say_what_to_type(fleet_request: FleetRequest, message: str) -> None:
    """A wrong option ends in one line."""
    with pytest.raises(UsageError, match=message):
        resolve(fleet_request)


def test_the_launch_line_wins_over_the_inventory(inventory: str) -> None:
    """The address that will be used is tested, as the port that will be used is."""
    job = resolve(
        FleetRequest(inventory=inventory, launch="torchrun --master-addr=c --master-port=99 t.py")
    ).job
    assert (job.master, job.master_port) == ("c", 99)
    assert resolve(FleetRequest(inventory=inventory)).job.master == "b"


@pytest.mark.parametrize(
    ("nodes", "address", "master", "remark"),
    [
        ("h1,h2", "h2.cluster.example", "h2", ""),
        ("h1", "localhost", "h1", ""),
        ("h1,h2", "10.1.2.3", "h1", "tried on h1: 10.1.2.3 is the address of no node known"),
    ],
)
def test_a_master_by_another_name(nodes: str, address: str, master: str, remark: str) -> None:
    """Longer names and this machine's own are understood; an unknown address is reported."""
    fleet = resolve(FleetRequest(nodes=nodes, launch=f"torchrun --master-addr={address} t.py"))
    assert fleet.master.name == master
    assert remark in fleet.job.master_port_origin


@pytest.mark.parametrize("transport", ["ssh", "paramiko", "openssh"])
def test_one_machine_under_two_names_is_refused(tmp_path: Path, transport: str) -> None:
    """A copied address would count one machine twice, and the other would never be looked at."""
    path = tmp_path / "fleet.toml"
    table = '[node.{}]\naddress = "10.0.0.{}"\n{}'
    defaults = f'[defaults]\ntransport = "{transport}"\n'
    path.write_text(defaults + table.format("a", 1, "") + table.format("b", 1, ""))
    with pytest.raises(UsageError, match=r"a and b have the same address 10\.0\.0\.1.*correct"):
        resolve(FleetRequest(inventory=str(path)))
    assert _names(resolve(FleetRequest(inventory=str(path), exclude="b"))) == ["a"]
    path.write_text(defaults + table.format("a", 1, "") + table.format("b", 1, "port = 23\n"))
    assert _names(resolve(FleetRequest(inventory=str(path)))) == ["a", "b"]
    assert len(resolve(FleetRequest(inventory=str(path), transport="local")).hosts) == 2


def test_what_of_the_job_measuring_processes_get(tmp_path: Path) -> None:
    """NCCL's settings and the loader's; not the sweep's own, nor what is none of its business."""
    path = tmp_path / "job.env"
    path.write_text(
        "NCCL_IB_TC=106\nNCCL_ALGO=Tree\nNCCL_COMM_ID=h1:1\nLD_LIBRARY_PATH=/opt/nccl/lib\n"
        "CUDA_VISIBLE_DEVICES=0\nTORCH_NCCL_BLOCKING_WAIT=1\nSLURM_JOB_ID=7\nAWS_TOKEN=x\n"
    )
    fleet = resolve(FleetRequest(nodes="a,b", env_file=str(path)))
    given = {"LD_LIBRARY_PATH": "/opt/nccl/lib", "NCCL_IB_TC": "106"}
    assert (fleet.job.measured_in("a"), fleet.job.measured_in("b")) == (given, given)
    own = "the sweep has its own"
    assert fleet.measured_in == (tuple(given), {"NCCL_ALGO": own, "NCCL_COMM_ID": own})


def test_a_launch_line_is_not_expanded() -> None:
    """A value that a shell must still expand is not passed on, and that is reported."""
    line = "NCCL_IB_TC=106 LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH torchrun train.py"
    fleet = resolve(FleetRequest(nodes="a,b", launch=line))
    assert fleet.measured_in == (
        ("NCCL_IB_TC",), {"LD_LIBRARY_PATH": "a shell has yet to expand it"},
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is guarded")
def test_root_loads_no_code_that_another_user_names(tmp_path: Path) -> None:
    """Of a file that another user could have written settings count that name no file or code."""
    path = tmp_path / "job.env"
    path.write_text(
        "NCCL_IB_TC=106\nLD_PRELOAD=evil.so\nNCCL_NET_PLUGIN=/tmp/evil.so\nFI_PROVIDER=efa\n"
        "UCX_GDB_COMMAND=reboot\nUCX_PROFILE_FILE=.bashrc\nUCX_MODULE_DIR=.\n"
    )
    os.chown(path, 65534, 65534)
    given, left_out = resolve(FleetRequest(nodes="a", env_file=str(path))).measured_in
    assert given == ("FI_PROVIDER", "NCCL_IB_TC")
    ucx = {"UCX_GDB_COMMAND", "UCX_PROFILE_FILE", "UCX_MODULE_DIR"}
    assert set(left_out) == {"LD_PRELOAD", "NCCL_NET_PLUGIN", *ucx}
    assert str(path) in left_out["LD_PRELOAD"]


def test_an_interface_that_was_named_wins_over_the_jobs(tmp_path: Path) -> None:
    """And the header does not claim that NCCL_SOCKET_IFNAME counts."""
    path = tmp_path / "job.env"
    path.write_text("NCCL_SOCKET_IFNAME=eth1\n")
    fleet = resolve(FleetRequest(nodes="a,b", env_file=str(path), interface="eth0"))
    assert fleet.measured_in == (
        (), {"NCCL_SOCKET_IFNAME": "--preflight-interface names another"},
    )  # fmt: skip
