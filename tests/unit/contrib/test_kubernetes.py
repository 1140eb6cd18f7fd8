"""The manifests for Kubernetes: the API takes them, and torchrun understands what they run."""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest

from tests.unit.contrib import manifests

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("1.31", "1.37")
"""The oldest with a stable podFailurePolicy, and the newest whose schema there is."""

manifest = pytest.mark.parametrize("name", ["preflight-job.yaml", "training-job.yaml"])


def _documents(name: str) -> dict[str, dict[str, Any]]:
    return manifests.documents(manifests.read(name))


def _pod(name: str) -> dict[str, Any]:
    return manifests.pod_spec(manifests.read(name))


def _container(name: str) -> dict[str, Any]:
    return manifests.container(manifests.read(name))


def _environ(name: str) -> dict[str, str]:
    return manifests.environ(manifests.read(name))


@pytest.mark.slow
@manifest
def test_the_api_takes_it(name: str) -> None:
    """Every object is valid by the strict schema: no unknown field, no wrong type."""
    for document in _documents(name).values():
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "paralelism"), 4),
        (("spec", "parallelism"), "four"),
        (("spec", "template", "spec", "containers"), None),
        (("spec", "podFailurePolicy", "rules", 0, "onExitCodes", "operator"), None),
    ],
)
def test_a_broken_manifest_would_be_noticed(path: tuple[Any, ...], value: object) -> None:
    """The schema refuses a misspelled field, a wrong type and a missing one."""
    job: Any = copy.deepcopy(_documents("training-job.yaml")["Job"])
    at = job
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


@manifest
def test_its_parts_agree(name: str) -> None:
    """Pods, ranks, names, ports and expectations are the same number in every place."""
    _agree(manifests.read(name))


@manifest
def test_the_marked_lines_are_all_there_is_to_change(name: str) -> None:
    """Other numbers of pods and GPUs, written in the lines marked `<-` alone, agree everywhere."""
    text = manifests.changed(manifests.read(name), pods=2, gpus=3)
    assert manifests.documents(text)["Job"]["spec"]["parallelism"] == 2
    _agree(text)


def _agree(text: str) -> None:
    documents, environ = manifests.documents(text), manifests.environ(text)
    container = manifests.container(text)
    job, service = documents["Job"], documents["Service"]
    own, pods = job["metadata"]["name"], job["spec"]["parallelism"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == pods == int(environ["NNODES"])
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": own}
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert manifests.pod_spec(text)["subdomain"] == service["metadata"]["name"]
    port = service["spec"]["ports"][0]["port"]
    assert environ["RENDEZVOUS"] == f"{own}-0.{service['metadata']['name']}:{port}"
    fleet = tomllib.loads(documents["ConfigMap"]["data"]["fleet.toml"])
    (group,) = fleet["group"].values()
    assert group["nodes"] == f"{own}-[0-{pods - 1}]"
    assert group["gpus"] == int(environ["GPUS"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == group["gpus"]
    policy = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert policy["containerName"] == container["name"]


@manifest
def test_it_asks_for_no_privilege(name: str) -> None:
    """No root, no host namespace, no writable image, no token; what it writes has a volume."""
    pod = _pod(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    volumes = {each["name"] for each in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {each["name"] for each in container["volumeMounts"]} == volumes
        written = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/tmp", "/report", "/dev/shm"} <= written


def _run_script(name: str, folder: Path, **environ: str) -> tuple[str, list[str]]:
    """Run the container's own command with a torchrun that shows its arguments."""
    fake = folder / "torchrun"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    container = _container(name)
    done = subprocess.run(
        [*container["command"], *container["args"]],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **_environ(name), **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, *words = done.stdout.splitlines()
    return first, words


@manifest
@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 3])
def test_torchrun_understands_the_line(name: str, index: int, tmp_path: Path) -> None:
    """The real shell expands the script, and torchrun's own parser takes all of it."""
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
    from torch.distributed.run import get_args_parser

    line, words = _run_script(name, tmp_path, JOB_COMPLETION_INDEX=str(index), NODE_NAME="n7")
    assert re.fullmatch(rf"preflight: .* is number {index}, on node n7", line)
    arguments = get_args_parser().parse_args(words)
    environ = _environ(name)
    assert (arguments.nnodes, arguments.nproc_per_node) == (environ["NNODES"], environ["GPUS"])
    assert arguments.max_restarts == 0
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("c10d", environ["RENDEZVOUS"])
    conf = _parse_rendezvous_config(arguments.rdzv_conf)
    assert conf["join_timeout"] == conf["read_timeout"] == environ["JOIN_S"]
    assert conf["is_host"] == ("true" if index == 0 else "false")
    assert (arguments.module, arguments.training_script) == (True, "pytest")
    assert arguments.training_script_args[2:] == [
        "--preflight",
        f"--preflight-inventory={environ['INVENTORY']}",
        f"--preflight-report={environ['REPORT']}",
    ]


def test_both_run_the_same() -> None:
    """The job alone and the init container differ in nothing that preflight does."""
    alone, before = (_container(n) for n in ("preflight-job.yaml", "training-job.yaml"))
    assert alone["args"] == before["args"]
    assert alone["resources"] == before["resources"]
    assert shlex.split(alone["args"][0])[0] == "echo"
