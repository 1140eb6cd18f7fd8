"""Runs one command and prints its exit code, wall and processor time and peak memory, as JSON.

    python -I clock.py OUTPUT COMMAND...

A process of its own, and a small one: the kernel counts what a child had before its exec, a copy
of its parent, towards the child's peak.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

with open(sys.argv[1], "wb") as output:  # noqa: PTH123  pathlib would only make this bigger
    began = time.perf_counter()
    done = subprocess.run(sys.argv[2:], stdout=output, stderr=output, check=False)
    seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.stdout.write(
    json.dumps(
        {
            "exit": done.returncode,
            "seconds": seconds,
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_mib": used.ru_maxrss / 1024,
        }
    )
)
