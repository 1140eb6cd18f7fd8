"""What the job's Python would load, told from files alone: no torch was imported for it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from preflight.facts.basics import Line

Lines = Annotated[tuple[Line, ...], Meta(max_length=64)]


class Torch(Struct, frozen=True, forbid_unknown_fields=True):
    """The torch that this Python would import."""

    version: Line
    cuda: Line | None = None
    """The CUDA it is built for, "12.4"; None for a build without."""
    hip: Line | None = None
    """The same for ROCm."""
    archs: Lines | None = None
    """What its kernels are compiled for, in cuobjdump's words: "sm_90" is code, "compute_90" PTX.

    Read from the library's own table; None where that could not be read."""


class Software(Struct, frozen=True, forbid_unknown_fields=True):
    """Versions as packages and file names tell them; None where neither does."""

    torch: Torch | None = None
    """None: this Python finds no torch."""
    nccl: Line | None = None
    cudnn: Line | None = None
    cuda_compat: Line | None = None
    """Driver version of the forward-compatibility libraries in cuda*/compat."""
    net_plugins: Lines = ()
    """Paths of NCCL network plugins where the loader looks: libnccl-net*.so."""
