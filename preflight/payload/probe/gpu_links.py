"""What a GPU's NVLinks counted: a link that retrains slows every collective, unseen elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .gpu_reader import Reader

_FIELDS = {
    "mbps": (164,),
    "replays": (161,),
    "recoveries": (162, 215),
    "crc": (163, 208),
    "failed_recoveries": (214,),
}
"""nvml.h, field ids whose scope is the link: those of NVLink up to 4, then those of NVLink 5."""

_MOST = 2**53
"""Beyond it is no count: a driver that fails may answer all ones."""

_OLD_COUNTERS = {"replays": (0,), "recoveries": (1,), "crc": (2,)}
"""nvmlNvLinkErrorCounter_t, for drivers that do not know the fields."""


def read(reader: Reader, known: list[dict[str, Any]] | None) -> None:
    """Fill `link_errors`, of the links that are up; a GPU without NVLinks lacks it."""
    links = [each["link"] for each in known or () if each["up"]]
    if links:
        _all_at_once(reader, links)
    elif known:
        reader.values["link_errors"] = []
    elif known is not None:
        reader.refuse("link_errors", reader.nvml.lib.NVML_ERROR_NOT_SUPPORTED)


def _all_at_once(reader: Reader, links: list[int]) -> None:
    """Ask for all links in one question, link by link only where that is refused."""
    asked = [(link, name, number) for link in links for name in _FIELDS for number in _FIELDS[name]]
    answers = reader.nvml.fields(reader.handle, [(number, link) for link, _, number in asked])
    found: dict[int, dict[str, Any]] = {link: {"link": link} for link in links}
    codes = set()
    for (link, name, _), (value, code) in zip(asked, answers):  # noqa: B905 - Python 3.8
        if code is None and 0 <= value <= _MOST:
            found[link][name] = max(value, found[link].get(name, 0))
        elif code is not None:
            codes.add(code)
    if all(len(one) == 1 for one in found.values()):
        codes |= _one_by_one(reader, found)
    if any(len(one) > 1 for one in found.values()):
        reader.values["link_errors"] = list(found.values())
    else:
        reader.refuse("link_errors", min(codes, default=reader.nvml.lib.NVML_ERROR_NOT_SUPPORTED))


def _one_by_one(reader: Reader, found: dict[int, dict[str, Any]]) -> set[int]:
    codes = set()
    for link, one in found.items():
        for name, (kind,) in _OLD_COUNTERS.items():
            value = reader.nvml.ask_by_name(
                "nvmlDeviceGetNvLinkErrorCounter", reader.handle, link, kind
            )
            if value is not None:
                one[name] = value
            elif reader.nvml.refusal is not None:
                codes.add(reader.nvml.refusal)
    return codes
