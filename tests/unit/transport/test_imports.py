"""A run that needs no SSH does not pay for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_paramiko_is_loaded_only_to_connect() -> None:
    """Naming a transport, even paramiko's, loads no SSH library."""
    program = (
        "import sys\nfrom preflight.transport.ways import transport_for\n"
        "import preflight.transport.bundle, preflight.transport.ways\n"
        "transport_for('local'), transport_for('paramiko')\n"
        "print(sorted({'paramiko', 'cryptography', 'pynvml'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", program]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.slow
def test_invoke_is_loaded_only_for_who_needs_it() -> None:
    """Not for a connection of ours; `Match exec` in a configuration that others read finds it."""
    program = (
        "import io, socket, sys, threading\n"
        "from contextlib import suppress\n"
        "from preflight.core.remote_command import ReachError\n"
        "from preflight.fleet.model import Host\n"
        "from preflight.transport.ways import transport_for\n"
        "end = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: end.accept()[0].close(), daemon=True).start()\n"
        "host = Host(name='h', address='127.0.0.1', port=end.getsockname()[1])\n"
        "with suppress(ReachError):\n"
        "    transport_for('paramiko').connect(host, 5)\n"
        "print(sorted({'paramiko', 'invoke', 'asyncio'} & set(sys.modules)))\n"
        "import paramiko\n"
        "config = paramiko.SSHConfig()\n"
        "config.parse(io.StringIO('Match exec true\\n  User alice\\n'))\n"
        "print(config.lookup('h')['user'])\n"
    )
    argv = [sys.executable, "-c", program]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == "['paramiko']\nalice\n"
