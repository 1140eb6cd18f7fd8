"""The lab itself: some hosts on one bridge, brought up together and gone together."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.lab import inventory, net, nvidia_smi
from tests.lab.host import PATH, Host
from tests.lab.nvml.build import build
from tests.lab.sshd import keygen

if TYPE_CHECKING:
    from types import TracebackType

    from tests.lab.inventory import Tables

_TOOLS = {
    "gcc": "gcc",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "tc": "iproute2",
    "unshare": "util-linux",
}
"""Programs, and the Debian packages that hold them."""


def why_not() -> str | None:
    """Say why no lab can be had here, or None if one can."""
    if os.geteuid():
        return "the lab needs root (network namespaces)"
    missing = {package for tool, package in _TOOLS.items() if not shutil.which(tool, path=PATH)}
    if missing:
        return f"the lab lacks programs: apt-get install {' '.join(sorted(missing))}"
    namespaces = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "true"]
    if subprocess.run(namespaces, check=False, capture_output=True).returncode:
        return "the lab needs namespaces, and this machine does not allow unshare"
    return None


class Lab:
    """Some healthy hosts h1..hN: `with Lab(hosts=4) as lab: lab.hosts["h1"].run(["hostname"])`."""

    def __init__(self, hosts: int = 4) -> None:
        self.cleanup_stale()
        self.folder = Path(tempfile.mkdtemp(prefix="preflight-lab-"))
        try:
            self._bridge = net.claim(self.folder)
        except OSError:
            self.folder.rmdir()
            raise
        atexit.register(self.close)
        self.controller = self._bridge.address(254)
        self.hosts = {
            name: Host(
                name,
                self._bridge.address(number),
                lab=self.folder,
                bridge=self._bridge.name,
                cable=f"{self._bridge.name}{name}",
            )
            for number in range(1, hosts + 1)
            for name in [f"h{number}"]
        }
        self.identity_file = self.folder / "controller"
        self.known_hosts = self.folder / "known_hosts"

    def __enter__(self) -> Self:
        try:
            self._prepare()
            for host in self.hosts.values():
                host.begin()
            for host in self.hosts.values():
                host.finish()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every host and leave nothing behind."""
        atexit.unregister(self.close)
        for host in self.hosts.values():
            host.stop()
        _remove(self._bridge)

    def heal(self) -> None:
        """Make every host healthy again, whatever a test did to it."""
        for host in self.hosts.values():
            host.heal()

    def stranger(self) -> Path:
        """Return a key that no host lets in."""
        key = self.folder / "stranger"
        if not key.exists():
            keygen(key, "stranger")
        return key

    def inventory(self, name: str = "inventory.toml", **changes: Tables) -> Path:
        """Write the fleet as an inventory; `changes` are tables laid over it.

        `lab.inventory(node={"h2": {"python": "/nowhere"}}, job={"master_port": 29501})`
        """
        path = self.folder / name
        path.write_text(inventory.toml(inventory.merged(self._tables(), changes)))
        return path

    @staticmethod
    def cleanup_stale() -> list[str]:
        """Remove what labs of dead owners left (their hosts died too); returns the bridges."""
        stale = [bridge for bridge in net.bridges() if bridge.abandoned]
        for bridge in stale:
            _remove(bridge)
        return [bridge.name for bridge in stale]

    def _tables(self) -> Tables:
        return {
            "defaults": {
                "transport": "paramiko",
                "user": "root",
                "python": sys.executable,
                "identity_file": str(self.identity_file),
                "known_hosts": str(self.known_hosts),
            },
            "job": {"master_port": 29500},
            "group": {
                "lab": {
                    "nodes": f"h[1-{len(self.hosts)}]",
                    "gpus": 8,
                    "gpu_model": "H100",
                    "nvlinks_per_gpu": 18,
                    "nics": 8,
                }
            },
            "node": {name: {"address": host.address} for name, host in self.hosts.items()},
        }

    def _prepare(self) -> None:
        """Write what the hosts share: the driver, nvidia-smi, names, keys."""
        keygen(self.identity_file, "controller")
        library = build(self.folder / "nvml")
        smi = self.folder / "sbin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(nvidia_smi.script(library.parent / "scenarios"))
        smi.chmod(0o755)
        _loader_cache(self.folder, library.parent)
        names = {"localhost": "127.0.0.1", "controller": self.controller}
        names |= {name: host.address for name, host in self.hosts.items()}
        lines = (f"{address} {name}\n" for name, address in names.items())
        (self.folder / "hosts").write_text("".join(lines))
        keys = []
        for host in self.hosts.values():
            host.prepare()
            public = (host.folder / "host_key.pub").read_text().split()[:2]
            keys.append(f"{host.name},{host.address} {' '.join(public)}\n")
        self.known_hosts.write_text("".join(keys))


def _loader_cache(folder: Path, driver: Path) -> None:
    """Make an ld.so.cache that also knows the emulator: a real loader finds it, no variable leaks.

    In a mount namespace with its own /var/cache, because ldconfig would also write there.
    """
    conf = folder / "ld.so.conf"
    conf.write_text(f"{driver}\ninclude /etc/ld.so.conf\n")
    script = 'mount -t tmpfs tmpfs /var/cache && exec ldconfig -X -C "$1" -f "$2"'
    own_mounts = ["unshare", "--mount", "sh", "-c", script, "sh"]
    words = [*own_mounts, str(folder / "ld.so.cache"), str(conf)]
    subprocess.run(words, check=True, env={"PATH": PATH}, capture_output=True)


def _remove(bridge: net.Bridge) -> None:
    net.ip("link", "delete", bridge.name, check=False)
    shutil.rmtree(bridge.folder, ignore_errors=True)
