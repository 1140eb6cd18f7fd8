"""Reads the forms of `nvidia-smi` that name each reading: -q and -q -x (trees of sections), csv."""

from __future__ import annotations

import csv
import re
from functools import cache
from io import StringIO
from typing import Final
from xml.etree import ElementTree as ET

from msgspec.structs import replace

from preflight.captured import smi_fields as fields
from preflight.captured.smi_fields import Block, Listing, Pairs, join_path, listed
from preflight.core.statistics import grouped
from preflight.core.text import whole

_GPU: Final = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_LINE: Final = re.compile(r"^( *)([A-Za-z](?:[^:]*[^: ])?) *:(?: (.*))?$")
_SECTION: Final = re.compile(r"^( *)([A-Za-z](?:[\w ./()-]*[\w./()-])?)\s*$")
_NOTE: Final = re.compile(r"(?<!\s)\s{2,}(?:<[=-]|#|[=-]+>|[←→⇐⇒]).*")
"""A note that a person wrote after a value."""
_SNIP: Final = re.compile(r"^[^\S\n]*(?:\[?\.\.\.+\]?|\[snip\]|<snip>|…)[^\S\n]*$", re.MULTILINE)
_SECTIONS, _LINES = ("|".join(fields.table()[key]) for key in ("sections", "lines"))
_KNOWN_SECTION: Final = re.compile(rf"(?:^|/)(?:(?:{_SECTIONS})/|(?:{_LINES})$)")
SELECTS_GPUS: Final = re.compile(r"^(?>.*?\bnvidia-smi\b).* (?:-i|--id)[ =]", re.MULTILINE)
_HEAD: Final = ("driver_version", "attached_gpus")
_LARGEST: Final = 32 << 20


def parse_query(text: str) -> Listing | None:
    """Read the text form; None if it has neither a GPU's heading nor a section."""
    head: dict[str, str] = {}
    blocks = [Block("", [])]
    sections = [(-1, "")]
    for printed in text.expandtabs(8).splitlines():
        line = _NOTE.sub("", printed)
        if heading := _GPU.match(line.strip()):
            blocks.append(Block(heading[1], []))
            sections = [(-1, "")]
            continue
        key, value, indent = _key_and_value(line)
        if not key:
            continue
        while sections[-1][0] >= indent:
            sections.pop()
        path = join_path(sections[-1][1], key)
        sections.append((indent, path))
        if value is not None and len(blocks) == 1 and key in _HEAD:
            head[key] = value
        elif value is not None:
            blocks[-1].pairs.append((path, value))
    gpu_blocks = [block for block in blocks if block.bus_id or _is_section(block.pairs)]
    if not gpu_blocks:
        return None
    damaged = _damage(text, gpu_blocks, fields.number_of(head.get("attached_gpus", "")))
    return listed(gpu_blocks, head.get("driver_version", ""), damaged)


def _key_and_value(line: str) -> tuple[str, str | None, int]:
    """(key, value or None for a section, depth); key "" for a line that is neither."""
    if match := _LINE.match(line.rstrip()):
        return _key(match[2]), (match[3] or "").strip(), len(match[1])
    if match := _SECTION.match(line):
        return _key(match[2]), None, len(match[1])
    return "", None, 0


def _key(printed: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", printed.lower()).strip("_")


def _is_section(pairs: Pairs) -> bool:
    return any(_KNOWN_SECTION.search(path) for path, _ in pairs)


def _damage(text: str, blocks: list[Block], attached: int | None) -> str:
    if _SNIP.search(text):
        return "parts of it were cut out"
    if "\ufffd" in text or "\x00" in text:
        return "it contains bytes that are not text"
    if not blocks[0].bus_id and any(path.startswith("processes") for path, _ in blocks[0].pairs):
        return "it begins within a GPU"
    last = [path for path, _ in blocks[-1].pairs]
    if any(len(block.pairs) >= _FEW_PAIRS and not _has_sections(block) for block in blocks):
        return "its lines lost their indentation, which shows the section of each"
    if "product_name" in last and not any(path.startswith("processes") for path in last):
        return f"it ends within GPU {blocks[-1].bus_id}"
    return _too_few(text, blocks, attached) or _lines_missing(blocks)


_FEW_PAIRS: Final = 20


def _has_sections(block: Block) -> bool:
    return any("/" in path for path, _ in block.pairs)


def _too_few(text: str, blocks: list[Block], attached: int | None) -> str:
    """GPUs that are not listed are unknown, unless only some were requested (-i)."""
    if attached is not None and len(blocks) < attached and not SELECTS_GPUS.search(text):
        return f"it lists {len(blocks)} of {attached} attached GPUs"
    return ""


_WHOLE_GPU_LINES: Final = frozenset(("product_brand", "minor_number", "mig_mode"))
"""Only a whole GPU has these: `-d` selects none of them."""
_GPU_SPECIFIC: Final = frozenset(("mig_devices", "mig_device", "processes", "accounted_processes"))


@cache
def _groups() -> dict[str, list[list[str]]]:
    """By section, the lines of which every driver prints all or none; "|" between their names."""
    rows = fields.table()["together"].items()
    return grouped(
        (name, lines) for names, sets in rows for name in names.split("|") for lines in sets
    )


def _lines_missing(blocks: list[Block]) -> str:
    """Name a line that the tool prints with others that are there; "" if none is missing.

    A cut joins the beginning of a line with the end of another, so that what is between is missing.
    """
    names_by_model: dict[str, set[str]] = {}
    gpus = []
    for block in blocks:
        title = f"GPU {block.bus_id}" if block.bus_id else "its GPU"
        children = _children(block)
        names_of_gpu = children.get("", set())
        groups = [(name, group) for name in children for group in _groups().get(_leaf(name), ())]
        if not _WHOLE_GPU_LINES.isdisjoint(names_of_gpu):
            mig = ("remapped_rows",) if "mig_mode" in names_of_gpu else ()  # both since R450
            groups.append(("", [*fields.table()["whole_gpu"], *mig]))
        for section, group in groups:
            missing = [name for name in group if children[section].isdisjoint(name.split("|"))]
            if missing and len(missing) < len(group):
                place = f"{_leaf(section)}/" if section else ""
                return f"{title} has no line {place}{missing[0].partition('|')[0]}"
        model = next((value for path, value in block.pairs if path == "product_name"), "")
        gpus.append((title, model, names_of_gpu - _GPU_SPECIFIC))
        names_by_model[model] = names_by_model.get(model, set()) | gpus[-1][2]
    for title, model, names_of_gpu in gpus:
        if missing := sorted(names_by_model[model] - names_of_gpu):
            return f"{title} has no line {missing[0]}, unlike another GPU"
    return ""


def _leaf(section: str) -> str:
    return section.rpartition("/")[2]


_PREFIX: Final = re.compile(r"^clocks_(?:throttle|event)_reason_(?:gpu_)?")


def _children(block: Block) -> dict[str, set[str]]:
    """The names below each section of one GPU, except of its MIG devices."""
    children: dict[str, set[str]] = {}
    for path, _ in block.pairs:
        section = ""
        for part in path.split("/") if "mig_device/" not in path else ():
            children.setdefault(section, set()).add(_PREFIX.sub("", part))
            section = join_path(section, part)
    return children


def parse_xml(text: str) -> Listing | None:
    """Read the complete parts of the XML form; None if it is not nvidia-smi's."""
    at = text.find("<nvidia_smi_log")
    if at < 0:
        return None
    if "<!ENTITY" in text or len(text) > _LARGEST:
        return Listing((), damaged="it is no plain output of nvidia-smi")
    damaged, elements = _root_children(text[at:])
    head = {str(child.tag): (child.text or "").strip() for child in elements if child.tag in _HEAD}
    blocks = []
    for element in (child for child in elements if child.tag == "gpu"):
        block = Block(element.get("id", ""), [])
        _flatten(element, "", block.pairs)
        blocks.append(block)
    too_few = _too_few(text, blocks, fields.number_of(head.get("attached_gpus", "")))
    damaged = damaged or too_few or _lines_missing(blocks) or ("" if blocks else "it lists no GPU")
    return listed(blocks, head.get("driver_version", ""), damaged)


def _root_children(text: str) -> tuple[str, list[ET.Element]]:
    """What is wrong with it, and all complete children of the root."""
    children: list[ET.Element] = []
    depth = 0
    try:
        for event, element in ET.iterparse(StringIO(text), ("start", "end")):  # noqa: S314 - entities are refused
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1:
                children.append(element)
    except (ET.ParseError, UnicodeError, ValueError) as error:
        return f"its XML is cut off or broken ({error})", children
    return "", children


def _flatten(element: ET.Element, path: str, pairs: Pairs) -> None:
    """Turn a tree into pairs, including empty elements."""
    for child in element:
        place = join_path(path, str(child.tag))
        if len(child):
            _flatten(child, place, pairs)
        else:
            pairs.append((place, (child.text or "").strip()))


_COLUMN: Final = re.compile(r"^[a-z][A-Za-z0-9_.]{0,99}(?: \[[A-Za-z/%]{1,20}\])?$")
_KNOWN_COLUMN: Final = re.compile(f"^(?:{'|'.join(fields.table()['columns'])})")
_CSV_ASKED: Final = re.compile(
    r"^(?:\S*[$#>] ?)?(?:sudo )?nvidia-smi (?=[^|;&]*$)[^|;&]*--query-gpu="
    r"([a-z0-9_.]{1,100}(?:,[a-z0-9_.]{1,100})+)(?: [^|;&]*)?$"
)
_LOOP: Final = re.compile(
    r"^(?>.*?--query-gpu=).* (?:-l|-lms|--loop(?:-ms)?)[ =]?[0-9]", re.MULTILINE
)
_IDS: Final = frozenset(("index", "uuid", "gpu_uuid", "gpu_bus_id", "pci.bus_id", "serial"))
_CELL_VALUE: Final = re.compile(r"-?[0-9][0-9A-Fa-f:.]*(?: [A-Za-z]+| %)?|\[[^\]]*\]|N/A")
_ERROR: Final = re.compile(r"error|lost|timeout", re.IGNORECASE)


_HEADING_LINES: Final = 50


def parse_csv(text: str) -> Listing | None:
    """Read `--query-gpu=... --format=csv`; None without a line of column names."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not (line.lstrip()[:1].islower() or "--query-gpu=" in line):
            continue
        columns = _header(line) or _columns_of_command(line, lines[at + 1 : at + 50])
        if at >= _HEADING_LINES and len(columns) < 2:  # noqa: PLR2004 - a word proves nothing there
            continue
        if columns:
            rows, damaged = _rows(columns, lines[at + 1 :])
            if not damaged and len(rows) > 1 and _LOOP.search(text) and _IDS.isdisjoint(columns):
                damaged = "its rows repeat in a loop, and none names its GPU"
                advice = "capture it with index or uuid among the columns"
                worst = [max(rows, key=_error_count)]
                return replace(listed(worst, _driver(worst), damaged), advice=advice)
            return listed(rows, _driver(rows), damaged)
    return None


def _driver(rows: list[Block]) -> str:
    return dict(rows[0].pairs).get("driver_version", "") if rows else ""


def _header(line: str) -> list[str]:
    """Columns in a line that names them; [] for another line, and for a single plain word."""
    columns = [column.strip() for column in line.split(",")]
    are_names = all(_COLUMN.match(column) for column in columns)
    plain = len(columns) == 1 and not re.search(r"[._]", columns[0])
    is_header = are_names and not plain and any(_KNOWN_COLUMN.match(column) for column in columns)
    return [column.partition(" ")[0] for column in columns] if is_header else []


def _columns_of_command(line: str, following: list[str]) -> list[str]:
    """Columns in a command above the rows; [] if no row follows."""
    match = _CSV_ASKED.match(line.strip())
    columns = match[1].split(",") if match else []
    first = next((row for row in following if row.strip()), "").split(",")
    fits = len(first) == len(columns) and any(_CELL_VALUE.fullmatch(cell.strip()) for cell in first)
    return columns if fits else []


def _error_count(row: Block) -> int:
    return sum(_ERROR.search(value) is not None for _, value in row.pairs)


_PROMPT: Final = re.compile(r"\S{0,80}[$#>%](?:\s|$)")


def _rows(columns: list[str], lines: list[str]) -> tuple[list[Block], str]:
    rows: list[Block] = []
    odd: list[int] = []
    last = -1
    for at, line in enumerate(lines):
        try:
            cells = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            cells = []
        if len(cells) != len(columns):
            odd += [at] * bool(line.strip())
            continue
        last = at
        pairs = [(name, cell.strip()) for name, cell in zip(columns, cells, strict=True)]
        index = dict(pairs).get("index", "")
        rows.append(Block("", pairs, whole(index, 999)))
    if not rows:
        return rows, "a row of it is cut off" if odd else "it has no row"
    cut = any(at < last for at in odd) or (last + 1 in odd and _half_row(lines[last + 1 :]))
    return rows, "a row of it is cut off" if cut else ""


def _half_row(lines: list[str]) -> bool:
    """Whether what follows the last whole row is half of one: not a prompt or another output."""
    ends = not any(line.strip() for line in lines[1:])
    return "," in lines[0] or (ends and not _PROMPT.match(lines[0]))
