"""The files of a torch that is built with CUDA, as far as they can be read without an import."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.rehearsal.scenario import Machine


def write(packages: Path, machine: Machine) -> None:
    """Put torch and the wheel of NCCL there, in the versions that this machine has."""
    libraries = packages / "torch" / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    build = f"{machine.torch}+cu{machine.cuda.replace('.', '')}"
    version = f"__version__ = '{build}'\ncuda = '{machine.cuda}'\n"
    (packages / "torch" / "version.py").write_text(version)
    (libraries / "libtorch_cuda.so").write_bytes(library(container(image(2, 80), image(2, 90))))
    major = machine.cuda.partition(".")[0]
    (packages / f"nvidia_nccl_cu{major}-{machine.nccl}.dist-info").mkdir(exist_ok=True)


def image(kind: int, arch: int, payload: bytes = b"\0" * 24) -> bytes:
    """One image of a container, as nvcc lays it out: its architecture stands at byte 28."""
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, 0, 0, arch)
    return head.ljust(64, b"\0") + payload


def container(*images: bytes) -> bytes:
    """One source's images."""
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*containers: bytes) -> bytes:
    """A 64-bit ELF file with nothing but names of sections and .nv_fatbin."""
    names = b"\0.shstrtab\0.nv_fatbin\0"
    fatbin = b"\0" * 8 + b"".join(containers)
    at = 64 + len(names)
    table = at + len(fatbin)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 1
    )
    rows = [
        struct.pack("<IIQQQQIIQQ", *row)
        for row in (
            (0,) * 10,
            (1, 3, 0, 0, 64, len(names), 0, 0, 1, 0),
            (11, 1, 0, 0, at, len(fatbin), 0, 0, 8, 0),
        )
    ]
    return header + names + fatbin + b"".join(rows)
