"""`nvidia-smi -q` and `-q -x`: a tree of sections per GPU, in text or in XML, whole or cut."""

from __future__ import annotations

import re
from io import StringIO
from typing import Final
from xml.etree import ElementTree as ET

from msgspec import Struct

from preflight.offline import smi_values as v
from preflight.offline.smi_fields import Block, Pairs

_GPU: Final = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_LINE: Final = re.compile(r"^( *)([A-Za-z](?:[^:]*[^: ])?) *:(?: (.*))?$")
_SECTION: Final = re.compile(r"^( *)([A-Za-z](?:[\w ./()-]*[\w./()-])?)\s*$")
_NOTE: Final = re.compile(r"(?<!\s)\s{2,}(?:<[=-]|#|[=-]+>|[←→⇐⇒]).*")
"""What a person wrote behind a value to point at it."""
_CUT: Final = re.compile(r"^[^\S\n]*(?:\[?\.\.\.+\]?|\[snip\]|<snip>|…)[^\S\n]*$", re.MULTILINE)
_KNOWN: Final = re.compile(
    r"(?:^|/)(?:(?:ecc_errors|remapped_rows|retired_pages|fb_memory_usage|temperature|pci|fabric"
    r"|clocks_(?:throttle|event)_reasons|(?:gpu_)?power_readings)/"
    r"|(?:product_name|gpu_recovery_action|performance_state)$)"
)
_ASKED: Final = re.compile(r"^(?>.*?\bnvidia-smi\b).* (?:-i|--id)[ =]", re.MULTILINE)
_HEAD: Final = ("driver_version", "attached_gpus")
_LARGEST: Final = 32 << 20


class Queried(Struct, frozen=True):
    """What one -q said: the driver, every GPU's pairs, and what is wrong with the text."""

    driver: str
    blocks: tuple[Block, ...]
    damaged: str = ""


def parse_query(text: str) -> Queried | None:
    """Read the text form; None where it has neither a GPU's heading nor a section of one."""
    head: dict[str, str] = {}
    blocks = [Block("", [])]
    sections = [(-1, "")]
    for printed in text.expandtabs(8).splitlines():
        line = _NOTE.sub("", printed)
        if heading := _GPU.match(line.strip()):
            blocks.append(Block(heading[1], []))
            sections = [(-1, "")]
            continue
        key, value, indent = _split(line)
        if not key:
            continue
        while sections[-1][0] >= indent:
            sections.pop()
        path = "/".join([name for _, name in sections if name] + [key])
        sections.append((indent, key))
        if value is not None and len(blocks) == 1 and key in _HEAD:
            head[key] = value
        elif value is not None:
            blocks[-1].pairs.append((path, value))
    found = [block for block in blocks if block.bus_id or _is_section(block.pairs)]
    if not found:
        return None
    damaged = _damage(text, found, v.number(head.get("attached_gpus", "")))
    return Queried(head.get("driver_version", ""), tuple(found), damaged)


def _split(line: str) -> tuple[str, str | None, int]:
    """(key, value or None for a section, depth); key "" for a line that is neither."""
    if match := _LINE.match(line.rstrip()):
        return _key(match[2]), (match[3] or "").strip(), len(match[1])
    if match := _SECTION.match(line):
        return _key(match[2]), None, len(match[1])
    return "", None, 0


def _key(printed: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", printed.lower()).strip("_")


def _is_section(pairs: Pairs) -> bool:
    return any(_KNOWN.search(path) for path, _ in pairs)


def _damage(text: str, blocks: list[Block], attached: int | None) -> str:
    if _CUT.search(text):
        return "somebody has cut parts out of it"
    if "\ufffd" in text or "\x00" in text:
        return "it holds bytes that are no text"
    last = [path for path, _ in blocks[-1].pairs]
    if "product_name" in last and not any(path.startswith("processes") for path in last):
        return f"it ends within GPU {blocks[-1].bus_id}"
    return _too_few(text, blocks, attached)


def _too_few(text: str, blocks: list[Block], attached: int | None) -> str:
    """Those that are not listed are not known to be well, unless only some were asked for (-i)."""
    if attached is not None and len(blocks) < attached and not _ASKED.search(text):
        return f"it lists {len(blocks)} of {attached} attached GPUs"
    return ""


def parse_xml(text: str) -> Queried | None:
    """Read the XML form, as far as it is whole; None where it is not nvidia-smi's."""
    at = text.find("<nvidia_smi_log")
    if at < 0:
        return None
    if "<!ENTITY" in text or len(text) > _LARGEST:
        return Queried("", (), "it is no plain output of nvidia-smi")
    damaged, elements = _elements(text[at:])
    head = {str(one.tag): (one.text or "").strip() for one in elements if one.tag in _HEAD}
    blocks = []
    for element in (one for one in elements if one.tag == "gpu"):
        block = Block(element.get("id", ""), [])
        _flatten(element, "", block.pairs)
        blocks.append(block)
    few = _too_few(text, blocks, v.number(head.get("attached_gpus", "")))
    damaged = damaged or few or ("" if blocks else "it lists no GPU")
    return Queried(head.get("driver_version", ""), tuple(blocks), damaged)


def _elements(text: str) -> tuple[str, list[ET.Element]]:
    """What is wrong with it, and all children of the root that are whole."""
    found: list[ET.Element] = []
    depth = 0
    try:
        for event, element in ET.iterparse(StringIO(text), ("start", "end")):  # noqa: S314 - entities are refused
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1:
                found.append(element)
    except (ET.ParseError, UnicodeError, ValueError) as error:
        return f"its XML is cut off or broken ({error})", found
    return "", found


def _flatten(element: ET.Element, path: str, into: Pairs) -> None:
    """Turn a tree into pairs; an empty element still says that it is there."""
    for child in element:
        below = f"{path}/{child.tag}" if path else str(child.tag)
        if len(child):
            _flatten(child, below, into)
        else:
            into.append((below, (child.text or "").strip()))
