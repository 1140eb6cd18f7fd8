"""A file system whose server is gone: it was mounted, and now it answers nobody.

    python hung_mount.py FOLDER [unkillable]

Started inside a lab host. A FUSE file system that answers the kernel's first request and no other:
whoever asks for its size waits, as with a dead file server. `unkillable` also takes the requests:
then even SIGKILL does not end who waits, until this process ends.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import time
from pathlib import Path

_HEADER = struct.Struct("IIQ")  # length, opcode, unique of fuse_in_header
_DEVICE = os.makedev(10, 229)
_LONGEST = 1 << 20


def main(folder: str, *how: str) -> None:
    """Mount it, answer the greeting, and be of no use from then on."""
    device = Path("/dev/fuse")
    if not device.exists():
        os.mknod(device, stat.S_IFCHR | 0o666, _DEVICE)
    fuse = os.open(device, os.O_RDWR)
    Path(folder).mkdir(parents=True, exist_ok=True)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"nas1:/export", folder.encode(), b"fuse.nas", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount of a FUSE file system")
    request = os.read(fuse, _LONGEST)
    _, _, unique = _HEADER.unpack_from(request)
    (readahead,) = struct.unpack_from("I", request, 48)
    greeting = struct.pack("IIIIHHI", 7, 31, readahead, 0, 12, 10, 1 << 17).ljust(64, b"\0")
    os.write(fuse, struct.pack("IiQ", 16 + len(greeting), 0, unique) + greeting)
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    while how:
        os.read(fuse, _LONGEST)
    time.sleep(1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
