# ruff: noqa: T201  # a command for people: it prints
"""`python -m tests.lab up`: a fleet to play with, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.lab.cluster import Lab, why_not


def main() -> int:
    """Bring hosts up, say how to use them, wait, take them down."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("what", choices=["up", "clean"], help="clean: remove what dead labs left")
    parser.add_argument("--hosts", type=int, default=4)
    options = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    if options.what == "clean":
        print("removed:", ", ".join(Lab.cleanup_stale()) or "nothing")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Lab(hosts=options.hosts) as lab:
        try:
            _explain(lab)
            signal.pause()
        except KeyboardInterrupt:
            print("\ntaking the lab down")
    return 0


def _explain(lab: Lab) -> None:
    first = next(iter(lab.hosts.values()))
    ssh = f"ssh -i {lab.identity_file} -o UserKnownHostsFile={lab.known_hosts} root@{first.address}"
    print(f"{len(lab.hosts)} hosts are up, 8 x H100 each (emulated). Judge them:")
    print(f"  {sys.executable} -m pytest --preflight --preflight-inventory={lab.inventory()}")
    print("Look at one, break something:")
    print(f"  {ssh}")
    print(f"  {' '.join(first.command(['tc', 'qdisc', 'add', 'dev', 'eth0', 'root']))} \\")
    print("      tbf rate 200mbit burst 64kb latency 50ms")
    print("Ctrl-C takes them down.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
