"""Does for the pods of a manifest what Kubernetes would: names, volumes, user, one after the other.

A pod is a host of the lab with another name. The image is this machine's /usr and the Python of the
tests, read-only. The names that a headless Service would give are written into /etc/hosts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.lab.host import PATH
from tests.stories.torchrun import Agent
from tests.unit.contrib import manifests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from tests.lab.cluster import Lab
    from tests.lab.host import Host

ROOT = Path(__file__).parents[2]
WORKING = "/job"
"""The image's working folder: what the user's own script would lie in."""
_MERGED = [Path(name) for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64")]
"""Links to the same folder below /usr, as Debian has them since 12."""


@dataclass
class Pod:
    """One pod: what each of its containers said, in the order in which they ran."""

    name: str
    node: str
    host: Host
    folder: Path
    ran: dict[str, Agent] = field(default_factory=dict)


_HERE = """
# What may be locked is this machine's own, and root in a sandbox cannot raise it.
[checks."host.memlock"]
enabled = false
"""


class Job:
    """An indexed Job: `with Job(lab, folder, text) as job: job.run()`, then look at `job.pods`."""

    def __init__(self, lab: Lab, folder: Path, text: str) -> None:
        self._lab = lab
        self._documents = manifests.documents(text)
        self._spec = manifests.pod_spec(text)
        own = self._documents["Job"]["metadata"]["name"]
        self.image = folder / "image"
        self.image.mkdir()
        self.pods = [
            Pod(f"{own}-{index}", f"node-{index}.example", host, folder / str(index))
            for index, host in enumerate(lab.hosts.values())
            if index < self._documents["Job"]["spec"]["parallelism"]
        ]

    def __enter__(self) -> Self:
        for pod in self.pods:
            self._volumes(pod)
            for end in ("", ".topo", ".list"):  # the driver tells hosts apart by their names
                (self._scenarios / f"{pod.name}{end}").symlink_to(f"{pod.host.name}{end}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pod in self.pods:
            for agent in pod.ran.values():
                agent.stop()
            for end in ("", ".topo", ".list"):
                (self._scenarios / f"{pod.name}{end}").unlink()

    def run(self, *pods: Pod, **environ: str) -> None:
        """Let these pods (else all) live to their end, with these variables changed."""
        chosen = pods or tuple(self.pods)
        with ThreadPoolExecutor(len(chosen)) as pool:
            for done in [pool.submit(self._live, pod, environ) for pod in chosen]:
                done.result()

    def said(self) -> str:
        """Return all that the containers wrote, for the message of a test that fails."""
        return "\n".join(
            f"== {pod.name} {name}: exit {agent.exit}\n{agent.out}\n{agent.err}"
            for pod in self.pods
            for name, agent in pod.ran.items()
        )

    def volume(self, pod: Pod, name: str) -> Path:
        """Return the folder behind one of the pod's volumes."""
        return pod.folder / "volumes" / name

    def _live(self, pod: Pod, environ: Mapping[str, str]) -> None:
        """Run its containers one by one, the next only after a 0."""
        for container in self._containers():
            pod.ran[container["name"]] = self._start(pod, container, environ)
            if pod.ran[container["name"]].wait().exit:
                return

    def _containers(self) -> Iterator[dict[str, Any]]:
        yield from self._spec.get("initContainers", [])
        yield from self._spec["containers"]

    def _start(self, pod: Pod, container: dict[str, Any], environ: Mapping[str, str]) -> Agent:
        security = self._spec["securityContext"]
        plan = pod.folder / f"{container['name']}.json"
        content = {
            "hostname": pod.name,
            "root": str(pod.folder / "root"),
            "working": WORKING,
            "links": {str(each): str(each.readlink()) for each in _MERGED if each.is_symlink()},
            "volumes": [*self._image(pod), *self._mounts(pod, container)],
            "user": security["runAsUser"],
            "group": security["runAsGroup"],
            "argv": [*container["command"], *container["args"]],
            "environ": {**self._environ(pod, container), **environ},
        }
        plan.write_text(json.dumps(content))
        fresh = ["unshare", "--mount", "--uts", "--ipc"]
        process = subprocess.Popen(
            pod.host.command([*fresh, sys.executable, "-m", "tests.lab.pod", str(plan)]),
            env={"PATH": PATH, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        return Agent(process)

    def _environ(self, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        """The image's PATH, the container's own variables, and those that Kubernetes adds."""
        fields = {"spec.nodeName": pod.node, "metadata.name": f"{pod.name}-x7k2p"}
        told = {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        added = {
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "HOSTNAME": pod.name,
            "JOB_COMPLETION_INDEX": pod.name.rpartition("-")[2],
        }
        return added | told

    @property
    def _scenarios(self) -> Path:
        return self._lab.folder / "nvml" / "scenarios"

    def _volumes(self, pod: Pod) -> None:
        """Make the pod's volumes: what the ConfigMap holds, and empty folders."""
        (pod.folder / "root").mkdir(parents=True)
        for volume in self._spec["volumes"]:
            place = self.volume(pod, volume["name"])
            place.mkdir(parents=True)
            if "emptyDir" in volume:
                place.chmod(0o777)
                continue
            data = self._documents["ConfigMap"]["data"]
            assert volume["configMap"]["name"] == self._documents["ConfigMap"]["metadata"]["name"]
            for name, text in data.items():
                (place / name).write_text(text + _HERE)

    def _names(self, pod: Pod) -> Iterator[str]:
        """The pod's own line, as the kubelet writes it; the others' are the Service's in DNS."""
        below = f"{self._spec['subdomain']}.default.svc.cluster.local"
        yield "127.0.0.1\tlocalhost\n"
        yield f"{pod.host.address}\t{pod.name}.{below}\t{pod.name}\n"
        service = self._documents["Service"]["metadata"]["name"]
        for each in self.pods:
            full = f"{each.name}.{service}"
            yield f"{each.host.address}\t{full}.default.svc.cluster.local\t{full}\n"

    def _mounts(self, pod: Pod, container: dict[str, Any]) -> Iterator[dict[str, object]]:
        for each in container["volumeMounts"]:
            source = self.volume(pod, each["name"])
            yield _volume(source, each["mountPath"], read_only=each.get("readOnly", False))

    def _image(self, pod: Pod) -> Iterator[dict[str, object]]:
        """What the image and the node's container runtime bring."""
        etc = pod.folder / "etc"
        etc.mkdir(exist_ok=True)
        (etc / "hosts").write_text("".join(self._names(pod)))
        (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        for file in etc.iterdir():
            yield _volume(file, f"/etc/{file.name}")
        yield _volume(self.image, WORKING)
        for folder in _python():
            yield _volume(folder, str(folder))
        driver = self._lab.folder / "nvml"
        for path in ("/usr", "/etc/ld.so.cache", "/proc", "/sys", driver):
            yield _volume(path, str(path))
        yield _volume("/dev", "/dev", read_only=False)


def _volume(source: Path | str, target: str, *, read_only: bool = True) -> dict[str, object]:
    return {"source": str(source), "target": target, "read_only": read_only}


def _python() -> set[Path]:
    """The folders that hold the Python of the tests: itself, what it links to, its packages."""
    folders = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    folders |= {Path(each) for each in sys.path if Path(each).is_dir()}
    python = Path(sys.executable)
    while python.is_symlink():
        python = python.parent / python.readlink()
        folders.add(python.parent)
    folders = {folder for folder in folders if not folder.is_relative_to("/usr")}
    return {each for each in folders if not folders & set(each.parents)}
