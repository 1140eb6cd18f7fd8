"""Outputs of tools that no reader knows: what a ticket holds between those that one does."""

from __future__ import annotations

from typing import Final

_DISKS = "".join(
    f"/dev/nvme{at}n1p1   3.5T  {at}.2T  1.8T  {40 + at}% /scratch{at}\n" for at in range(12)
)
_INTERRUPTS = "".join(
    f" {at}:   {at * 7}   0   {at * 11}   IR-PCI-MSI {at}-edge   xhci_hcd\n" for at in range(40, 60)
)
_DEVICES = "".join(
    f"{at:02x}:00.0 Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe\n"
    for at in range(0x20, 0x34)
)
_UNITS = "".join(
    f"  fabric-agent@{at}.service  loaded failed failed  Agent of plane {at}\n" for at in range(9)
)

STRANGERS: Final = {
    "df": f"Filesystem       Size  Used Avail Use% Mounted on\n{_DISKS}",
    "/proc/interrupts": f"      CPU0   CPU1   CPU2\n{_INTERRUPTS}",
    "lspci": _DEVICES,
    "systemctl": f"  UNIT  LOAD  ACTIVE SUB  DESCRIPTION\n{_UNITS}",
    "a traceback": "Traceback (most recent call last):\n"
    + "".join(f'  File "/srv/train/step{at}.py", line {at}, in run\n' for at in range(10)),
    "a bench": "".join(
        f"{1 << at}  {at}  float  sum  -1  {at * 3}.4  {at}.7  {at}.1  0\n" for at in range(8, 28)
    ),
    "words": "The node was taken out then.\nWe then swapped two trays\nand saw it again there\n"
    "on the next rack over\nwith the same firmware\nand another driver build.\n" * 4,
}
