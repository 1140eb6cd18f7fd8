"""Lists of interfaces and HCAs as they are written: which devices they hit is not seen here.

`^` and `=` count only in front of the whole list (NCCL user guide, NCCL_SOCKET_IFNAME, NCCL_IB_HCA;
src/misc/utils.cc parseStringList): what stands in front of a later name is part of that name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.remark import Remark, told

if TYPE_CHECKING:
    from preflight.facts.environ.variables import Variable

LONGEST_INTERFACE: Final = 15
"""IFNAMSIZ of Linux is 16, with the byte that ends the name."""

MOST_HCAS: Final = 32
"""NCCL user guide, NCCL_IB_HCA: a fixed upper limit."""

_HCA: Final = re.compile(r"[^:\s]+(?::[0-9]*(?::-?[0-9]*(?::-?[0-9]*)?)?)?")


def interfaces(variable: Variable, value: str) -> Remark | None:
    """NCCL's list of interfaces."""
    if not value:
        return None
    said = told(variable.name, value)
    if len(value) == 1:
        return Remark(f"{said}: a value of one character is ignored", "give at least two letters")
    names, wrong = _names(said, value)
    long = next((name for name in names if len(name) > LONGEST_INTERFACE), None)
    if wrong is None and long is not None:
        meant = "separate names with commas" if " " in long or ";" in long else "give its real name"
        return Remark(f"{said}: no interface has a name of {len(long)} characters", meant)
    return wrong


def interface_names(variable: Variable, value: str) -> Remark | None:
    """Gloo's: exact names."""
    said = told(variable.name, value)
    if value.startswith(("^", "=")):
        return Remark(
            f"{said}: gloo takes exact names, and knows no ^ and no =", "name one interface"
        )
    return _names(said, value)[1]


def hcas(variable: Variable, value: str) -> Remark | None:
    """NCCL's list of HCAs: name[:port[:rail[:plane]]]."""
    if not value:
        return None
    said = told(variable.name, value)
    names, wrong = _names(said, value)
    if wrong is not None:
        return wrong
    odd = next((name for name in names if not _HCA.fullmatch(name)), None)
    if odd is not None:
        return Remark(f"{said}: {odd[:40]!a} is not NAME:PORT", "write it as mlx5_0:1")
    if len(names) > MOST_HCAS:
        many = f"{variable.name} lists {len(names)} devices, NCCL takes {MOST_HCAS}"
        return Remark(many, "list fewer, or a prefix", "warn")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return Remark(f"{said}: {twice[:40]} is listed twice", "list each device once", "warn")
    return None


def endpoint(variable: Variable, value: str) -> Remark | None:
    """host:port, an IPv6 address in brackets."""
    host, _, port = value.rpartition(":")
    good = bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535  # noqa: PLR2004 TCP
    if not value or good:
        return None
    said = f"{told(variable.name, value)} is not HOST:PORT"
    return Remark(said, f"write {variable.name} as localhost:28028, IPv6 as [::1]:28028")


def _names(said: str, value: str) -> tuple[list[str], Remark | None]:
    """The names of a list, and what is wrong with its commas, blanks and signs."""
    names = re.sub(r"^\^?=?", "", value).split(",")
    blank = next((name for name in names if name != name.strip()), None)
    if blank is not None:
        wrong = f"{said}: the blank in {blank[:40]!a} is part of the name, which no device has"
        return names, Remark(wrong, "write the list without blanks")
    signed = next((name for name in names if name.startswith(("^", "="))), None)
    if signed is not None:
        wrong = f"{said}: the sign in {signed[:40]!a} is part of the name: "
        return names, Remark(wrong + "^ and = count only in front of the whole list", "write ^=a,b")
    spaced = next((name for name in names if re.search(r"[\s;|]", name)), None)
    if spaced is not None:
        return names, Remark(f"{said}: only a comma separates names", "write a,b")
    return [name for name in names if name], None
