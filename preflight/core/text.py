"""Text for terminals, reports and JSON: made printable and wrapped; sizes and speeds with units.

Names from nodes become part of sentences; an escape sequence in one must not reach a terminal.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Struct


LONGEST = 600
"""Characters of a sentence for a person; report.json holds the longer text."""


def printable(text: str) -> str:
    """Drop control, format and surrogate characters, and cut at LONGEST.

    Nodes may be hostile: an escape sequence in a process name must not reach the terminal.
    """
    clean = sanitize(text[: LONGEST * 4])
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 3] + "..."


def sanitize(text: str) -> str:
    """Drop unprintable characters from a text of any length; line ends and tabs become blanks."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)


def cut_list(items: Sequence[str], most: int) -> list[str]:
    """At most `most` of the items; if some are left out, the last one counts them: "and 3 more"."""
    if len(items) <= most:
        return list(items)
    return [*items[: most - 1], f"and {len(items) - most + 1} more"]


def and_more(omitted: int, noun: str = "") -> str:
    """The end of a cut list: " and 3 more nodes"; empty if nothing was left out."""
    return f" and {omitted} more{noun}" if omitted > 0 else ""


def wrapped(text: str, *, first: str, indent: str, width: int) -> list[str]:
    """Wrap to the terminal's width, with a label before the first line."""
    import textwrap  # only here: `watch` loads this module and stays for days

    return textwrap.wrap(
        printable(text),
        width=max(width, len(indent) + 20),
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [first.rstrip()]


_LINK = re.compile(r"\[([^][]{1,200})\]\([^][)(\s]{1,200}\.md(?:#[^][)(\s]{1,200})?\)")


def markdown_for_terminal(markdown: str, width: int) -> str:
    """Wrap the paragraphs, lists and tables of a page; headings and code stay as they are.

    Of a link to another page, its text.
    """
    blocks: list[str] = []
    for block in _LINK.sub(r"\1", markdown).split("\n\n"):
        if blocks and blocks[-1].startswith("```") and not blocks[-1].endswith("```"):
            blocks[-1] += f"\n\n{block}"  # an empty line inside of code
        else:
            blocks.append(block)
    return "\n\n".join(_block_for_terminal(block, width) for block in blocks)


def _block_for_terminal(block: str, width: int) -> str:
    import textwrap

    lines = block.split("\n")
    if max(map(len, lines)) <= width or block.startswith(("```", "    ", "#")):
        return block
    items: list[str] = []
    if block.startswith("|"):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines
        )
        for first, *cells in rows:
            fields = [f"{name} {cell}" for name, cell in zip(head[1:], cells, strict=False)]
            items.append(f"- {first}: {'; '.join(fields if len(fields) > 1 else cells)}")
    else:
        for line in lines:
            if not items or line.lstrip().startswith(("- ", "* ")) or line[:1].isdigit():
                items.append(line)
            else:
                items[-1] += f" {line.strip()}"
    return "\n".join(
        line
        for item in items
        for line in textwrap.wrap(
            item,
            width,
            subsequent_indent="  " * item.startswith(("- ", "* ")),
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def one_line(text: str, width: int) -> str:
    """Cut a text to one line: at the end of a clause if that keeps most of it, else of a word."""
    import textwrap

    line = " ".join(printable(text).split())
    if len(line) <= width:
        return line
    limit = width - len(_ELLIPSIS)
    cut = textwrap.shorten(line, limit, placeholder="", break_on_hyphens=False) or line[:limit]
    clause = max(cut.rfind("; "), cut.rfind(", "))
    kept = cut[:clause] if clause * 2 > len(cut) else cut
    return kept.rstrip(" ;,:(") + _ELLIPSIS


_ELLIPSIS: Final = " ..."

_BYTE_ORDER_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def decode_text(content: bytes, errors: Literal["strict", "replace"] = "strict") -> str:
    """Decode UTF-8 with or without a byte-order mark, or UTF-16 with one.

    PowerShell writes marks; if a mark stays in the text, no parser recognises the first line.
    """
    mark = next(filter(content.startswith, _BYTE_ORDER_MARKS), b"")
    return content[len(mark) :].decode(_BYTE_ORDER_MARKS.get(mark, "utf-8"), errors)


WIDTH = 200
"""Characters of the longest quotation from a node in a sentence."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def excerpt(text: bytes | str, width: int = WIDTH) -> str:
    """One line of printable characters, no longer than `width`, without escape sequences."""
    raw = text if isinstance(text, str) else text[: 16 * width].decode("utf-8", "replace")
    unescaped = _ESCAPES.sub("", raw)
    words = " ".join("".join(c if c.isprintable() else " " for c in unescaped).split())
    return words if len(words) <= width else words[: width - 3] + "..."


def last_line(text: bytes, width: int = WIDTH) -> str:
    """The last line that is not empty: programs print there why they gave up."""
    for line in reversed(text[-65536:].splitlines()):
        if words := excerpt(line, width):
            return words
    return ""


_TOO_LONG: Final = re.compile(r"\d{21}")
_TOO_LONG_NUMBER: Final = re.compile(r"(?<![\d.])\d{21,}|(?<!\d)\d{301,}")


def cut_long_numbers(text: str) -> str:
    """Cut out numbers that are too long: 64 bits have 20 digits, and a float 300 at most.

    int() refuses some of them, and thousands of numbers beyond 64 bits can share one hash.
    """
    return _TOO_LONG_NUMBER.sub("...", text) if _TOO_LONG.search(text) else text


def whole(text: str, most: int = 10**18) -> int | None:
    """Parse an untrusted whole number from 0 to `most`; None for anything else.

    int() also accepts other alphabets' digits, signs and underscores, and raises at 4,300 digits.
    """
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else most + 1
    return number if number <= most else None


_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_DIGITS: Final = re.compile(r"([0-9]{1,18})")


Natural = tuple[tuple[int, str], ...]


@lru_cache(maxsize=4096)  # the same few names on every node
def natural(name: str) -> Natural:
    """Return a sort key that puts h2 before h10, and mlx5_2 before mlx5_10."""
    numbers = ((whole(part), part) for part in _DIGITS.split(name))
    return tuple((-1, part) if number is None else (number, "") for number, part in numbers)


_CSI_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def printable_lines(text: str) -> str:
    """Keep printable characters and tabs; every kind of line end becomes a newline."""
    lines = map(_printable_line, _CSI_ESCAPE.sub("", text).splitlines())
    return "\n".join(lines) + "\n" * text.endswith("\n")


def _printable_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char == "\t")


_REPLACEMENT = "\\ufffd"
_CONTROL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u00[01][0-9a-f]|b|f|r)")
"""As JSON writes it; not a backslash that stands before a "u" of the text itself."""
_NOT_ASCII = re.compile(r"[^\n -~]")
_UNSAFE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control, bidirectional and formatting characters, halves of a pair, line ends."""


def plain_json(document: Struct, indent: int = 1) -> str:
    """Write a document as indented JSON that ends in a newline."""
    import msgspec  # `preflight check` reads this module before it is isolated

    text = msgspec.json.format(msgspec.json.encode(document), indent=indent).decode()
    return escape_json(text) + "\n"


def escape_json(text: str) -> str:
    """Make JSON text safe to print: control characters become U+FFFD, non-ASCII JSON escapes.

    Line ends and tabs stay.
    """
    if "\\" in text:
        text = _CONTROL_ESCAPE.sub(rf"\1\{_REPLACEMENT}", text)
    if text.isascii() and text.isprintable():  # nearly every line of events
        return text
    return _NOT_ASCII.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    if unicodedata.category(match[0]) in _UNSAFE_CATEGORIES:
        return _REPLACEMENT
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB")
_MS = 1000
_MOST_NAMED = 4
_MOST_COMPARED_CHARS, _MOST_COMPARED_WORDS = 80, 4096
"""Characters of a word, and words: difflib takes time with the square of a word, and more."""
_MINUTE_S, _HOUR_S, _DAY_S, _TWO_DAYS_H = 60, 3600, 86400, 48


def size(size_bytes: int) -> str:
    """4194304 → "4 MiB"."""
    value, unit = float(size_bytes), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:g} {_UNITS[unit]}"


def percent(share: float) -> str:
    """0.52 → "52 %"."""
    return f"{100 * share:.0f} %"


def gbs(value: float) -> str:
    """Two or three significant digits: "0.024 GB/s", "46 GB/s"."""
    return f"{value:.2g} GB/s" if value < 1 else f"{value:.3g} GB/s"


def time_us(value_us: float) -> str:
    """Microseconds below 100 us, where RDMA is, then ms and s: "4.2 us", "0.2 ms"."""
    if value_us < _MS / 10:
        return f"{value_us:.3g} us"
    value_ms = value_us / _MS
    if value_ms >= _MS:
        return f"{value_ms / _MS:.3g} s"
    return f"{value_ms:.2g} ms" if value_ms < _MS / 10 else f"{value_ms:.0f} ms"


def span(seconds: float) -> str:
    """Seconds up to an hour, then hours, from two days on days: "300.5 s", "412 days"."""
    if seconds < _HOUR_S:
        return f"{seconds:g} s"
    hours = seconds / _HOUR_S
    return f"{hours:.3g} hours" if hours < _TWO_DAYS_H else f"{hours / 24:,.0f} days"


def age(seconds: float) -> str:
    """45 s, 12 min, 2 h 14 min, 3 d 4 h."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"
    return f"{seconds // _DAY_S:.0f} d {seconds % _DAY_S // _HOUR_S:.0f} h"


def memory(mib: float) -> str:
    """512 MiB, 38.5 GiB."""
    return f"{mib:.0f} MiB" if mib < _STEP else f"{mib / _STEP:.1f} GiB"


def join_or(names: Sequence[str]) -> str:
    """Write "h1 or h2", "h1, h2 or h3"; many are counted."""
    if len(names) > _MOST_NAMED:
        return f"one of {names[0]}, {names[1]} and {len(names) - 2} more"
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def first_few(names: Sequence[str], most: int) -> str:
    """Write "h1, h2 and 5 more"."""
    return ", ".join(names[:most]) + and_more(len(names) - most)


def count(number: int, noun: str, plural: str = "") -> str:
    """1 GPU, 2 GPUs."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def first_finding(sentences: Sequence[str]) -> str:
    """The first sentence, and how many there are besides: "GPU 3 is lost (and 2 more)"."""
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return sentences[0] + more


def did_you_mean(word: str, known: Any) -> str:
    """The end of a sentence: the nearest known word, or all known words if they are few."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(word[:_MOST_COMPARED_CHARS], names[:_MOST_COMPARED_WORDS], n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(sorted(names))}" if 0 < len(names) <= 20 else ""  # noqa: PLR2004  a line


# Most are compiled on first use: that takes 4 ms, and many a start masks nothing.
_ENCODED_WORD: Final = r"(?i)(?<!\S)\S*%(?:3[AD]|40)\S*"
"""A word with an encoded : = or @."""
_URL_LOGIN: Final = re.compile(
    r"(://)(?:[^/\s]*|[^\s:]*:\S*)@"
    r"|(?<![^\s\"'=,;])(?:/?[^\s:@/\"'=,;]+:(?!/)\S*|[^\s:@/\"'=,;]+/[^\s:@/\"'=,;]+)@"
)
"""Of a URL, user:password@host and Oracle's user/password@host."""
_UP_TO_AT: Final = r"(?<!\S)\S*@"
"""Each word up to its last @: what follows holds no login."""
_HARMLESS_VALUE: Final = r"(?:/|(?:[-+.\d]{1,20}|true|false|on|off|yes|no|[yn])(?![^&;,\s\"']))"
_ASSIGNMENT: Final = (
    # Cookie: x y; a header's value may have several words.
    rf"(?i)([a-z][\w-]{{0,60}}[\"']?:\s+)(?!{_HARMLESS_VALUE})[^\n]+"
    # password=x, "pw": x, pw => x, pass('x'), <pwd>x, and any other name=x, unless x is a number
    # or a path, or all is a path.
    r"|((?:(?:token|secret|passw(?:or)?d|passphrase|passcode|pwd|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|credential|bearer|cookie|jwt)\w{0,20}|(?<![a-z])(?:pass|pw|auth|psk|otp|sas|sig|key))"
    r"[\\\"']{0,2}\s*(?:->|[=>|(\[<]|:(?!\s*/))[=:>]*\s*[\\\"']{0,2}"
    rf"|(?<![\w./-])[-+]{{0,2}}[a-z_][\w.-]{{0,60}}[\"']?=[\"']?(?!{_HARMLESS_VALUE})"
    r"|(?<![a-z])(?:token|secret|passw(?:or)?d|passphrase|api[-_]key|bearer|basic)\s+[\"']?)"
    r"(?:(?<=\")[^\"\n]+|(?<=')[^'\n]+|[^&;,\s\"']+)"
)
_RANDOM: Final = (
    r"(?<![A-Za-z0-9/.])(?:[0-9a-fA-F]{32,}+|(?=[A-Z0-9+]{0,99}[a-z])(?=[a-z0-9+]{0,99}[A-Z])"
    r"(?=[A-Za-z+]{0,99}\d)[A-Za-z0-9+]{20,}+)(?![A-Za-z0-9/.])"
)
"""A long word in hex, or of capitals, small letters and digits, that is no part of a path."""
TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|api_org_|sk-|[spr]k_|whsec_|gh[pousr]_|github_pat_|xox[a-z]-|xapp-"
    r"|gl(?:pat|dt|rt|ft|imt|agent|oas|soat|cbt|ptt|ffct)-|nvapi-|A[KS]IA|ABIA|ACCA|LTAI|AKCp|AIza"
    r"|GOCSPX-|ya29\.|1//0|do[opr]_v1_|dckr_pat_|npm_|pypi-|rubygems_|wandb_v1_|eyJ|hv[bsr]\."
    r"|gsk_|xai-|pplx-|csk-|r8_|tgp_v1_|lsv2_|shp[a-z]{2}_|lin_(?:api|oauth)_|SG\.|sq0[a-z]{3}-"
    r"|dapi(?=[0-9a-f]{10})|dp\.[a-z]{2,5}\.|dt0[a-z]\d\d\.|PMAK-|NRAK-|pul-|ph[cx]_|sntry[su]_"
    r"|gls?[ac]_|AT[AC]TT3|ATBB|pscale_|tskey-|figd_|ntn_|fm[12][a-z]?_|sgp_|AGE-SECRET-KEY-"
    r")[\w.+=-]{10,}"
)
"""Prefixes that issuers give their tokens; the payload has the same expression."""


def mask_secrets(value: str) -> str:
    """Mask logins, assigned words, tokens by their prefix, and what looks random or is encoded.

    >>> mask_secrets("http://ann:hunter2@proxy:3128")
    'http://***@proxy:3128'
    """
    masked = re.sub(_ENCODED_WORD, "***", value)
    masked = re.sub(_UP_TO_AT, lambda match: _URL_LOGIN.sub(r"\1***@", match[0]), masked)
    return re.sub(_RANDOM, "***", TOKEN.sub("***", re.sub(_ASSIGNMENT, r"\1\2***", masked)))
