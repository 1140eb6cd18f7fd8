"""Which words of a line report a failure, and which only quote or suppose one."""

from __future__ import annotations

import re

from preflight.core.files import shipped_table

_WORDS = shipped_table(__file__, "failure_words.toml")
_FAILURE = re.compile(
    f"(?i:{'|'.join(_WORDS['failure'])})|{'|'.join(_WORDS['failure_as_written'])}".encode()
)
"""A log without any of these shows no failure."""
_NOTICE = re.compile(
    f"(?i:{'|'.join(_WORDS['notice'])})|{'|'.join(_WORDS['notice_as_written'])}".encode()
)
"""What is no failure, whatever words are in it, unless NCCL or an exception says it."""
_HARMLESS = re.compile("|".join(_WORDS["harmless"]).encode())
"""What is no failure, at whatever level it is logged."""
_CERTAIN = re.compile(
    rb"NCCL WARN|\[E[ \d]|Traceback \(most|\bERROR\b|\bFATAL\b|^\w*Error: |core dumped"
    rb"|\bF\d{4} \d\d:"
)
STEMS: tuple[str, ...] = tuple(_WORDS["stems"])
"""Each line of failure has one of these, in lower or upper case; a first letter may lack."""

_OF_DATA = re.compile(
    r"(?:(?:\[[^\]\s]{1,60}\]:?|\d[\d:.,TZ/+-]{0,40}|INFO|DEBUG|(?i:eval(?:uation)?|test"
    r"|train(?:ing)?|validation)) {1,4}){0,5}"
    r"(?:(?i:(?:sample |user )?(?:prompt|question|completion|answer)|\[?sample(?: #?\d{1,6})?\]?"
    r"|generated|generation|title|issue #?\d{1,6})|Q)[:\]] {0,4}\S"
    r"|(?!.{0,400}(?:Error|Exception|ERROR|FATAL|WARN)).{0,400}\?$"
)
"""Begins a line in which a training or an evaluation prints text of its data, or a person asks."""
_REPORT = (
    r"(?i:message|msg|log|err|errors?|exc\w*|exception|reason|details?|desc\w*|event|stack\w*"
    r"|traceback|status|string|std(?:err|out))"
)
"""Ends the name of a field that reports a failure."""
_SETTING = re.compile(
    r"(?:\[[^\]\s]{1,40}\]:? ?)?"
    r"(?:\s{0,40}(?:#+(?!\d| (?:UNRECOVERABLE |FATAL )?ERROR\b)"
    r"|//|/\*|<!--|[;*•](?!\s(?:ERROR|FATAL|CRITICAL)\b)|\d{1,2}[.)]"
    r"|- [\w.-]{1,60}:)\s|\s{0,40}--[a-z]"
    r"|.{0,200}\s(?:#|//)\s|[+$]\s.{0,200}\b(?:grep|rg|awk|sed)\b"
    r"|(?=\s\s|export |\w{0,60}[_=]|[\w.-]{1,60} =)"
    rf"(?!\s{{0,40}}(?!on[_-])[\w.-]{{0,60}}?{_REPORT}[\"']?\s{{0,3}}[:=])"
    r"(?!(?!\s\s|on[_-]).{0,200}(?:Error|Exception|ERROR|FATAL)\b)"
    r"\s{0,40}(?:export )?[A-Za-z][A-Za-z._-]{0,60}[\"']?(?:\s?[:=]\s|(?<=[A-Z])=)"
    r"|[\s\"'{,]{0,20}[\w.-]{0,60}(?i:retr[iy]|ignor|skip|pattern|regex|transient|recover"
    r"|requeue|restart)[\w.-]{0,60}[\"']?\s{0,9}[:=][^=]{0,200}$)"
)
"""Begins a comment, an item of a list, a setting, an option, or a search."""
_YAML = re.compile(
    rf"(?!\w{{0,60}}?{_REPORT}:|exit|signal|xid)[a-z][a-z_-]{{0,60}}: "
    r"(?!error|fatal|warning|\[)\S.{0,200}$".encode()
)
"""A setting that is not indented."""
_IN_YAML = re.compile(rb"\s{0,40}(?:[a-z][a-z_.-]{0,80}:(?: [^\s\[]\S{0,200})?$|- \S)")
"""A line beside one: a name with no value or one of a single word, or an item of a list."""
_OF_PROGRAM = re.compile(r"\s{0,40}[\w./-]{1,60}(?:\[\d{1,8}\])?: (?:error|fatal|line \d{1,6}): ")
"""Begins a message of a program, which is no setting however far it is indented."""
_SUPPOSED = re.compile(
    r"(?i)\b(?:(?:watch|look|wait|listen|scan|search|check|poll|grep|monitor)(?:e?s|ing)?"
    r" (?:[\w./-]{1,40} ){0,3}for\b[^.,;:!?\n]{0,24}$"
    r"|(?:polic(?:y|ies)|patterns?|rules?|notes?|known issues?|troubleshooting)\b[^.;:!?\n]{0,40}:"
    r"[^.;!?\n]{0,40}$"
    r"|(?:(?<!failed to )(?<!unable to )(?:handles?|avoids?|prevents?|catch(?:es)?|fix(?:e[sd])?"
    r"|works? around)|in case of|such as|errors? like|e\.g\."
    r"|(?:retr(?:y|ies)|recovers?|restarts?|to do|happens) (?:on|after|from)"
    r"|(?:will|would|may|might) (?:stop|fail|abort|end|exit) with|todo"
    r"|how (?:do|to|can)|why do(?:es)?|(?:did|does|has|have) (?:you|anyone|we|they)|we saw"
    r"|(?:acts|reacts|drains|cordons|taints|reboots|resets|alerts|pages|(?:would|will|shall|to)"
    r" (?:act|react|drain|cordon|taint|reboot|reset|alert|page)) (?:[\w./-]{1,40} ){0,3}(?:up)?on"
    r"|(?:if|when) you (?:see|get|hit)|(?:if|when|whenever|once|unless) (?:[\w-]{1,30} ){1,4}"
    r"(?:sees?|shows?|finds?|reports?|prints?|contains?|logs?|matches))\b[^.;!?\n]{0,40}$)"
)
"""Ends before words of a failure that did not happen: a help text, a question, a rule."""
_EXPLAINED = re.compile(
    r"[^\n.]{0,60}?(?:\] PASSED| (?:->|=>|→) ?(?:drain|re[a-z]{2,9}|skip|ignore|smaller|use|try)\b"
    r"|\b(?:means|(?:is|are|gets?|will be) (?:re-?tried|ignored|handled|expected|tolerated|fixed)"
    r"|(?:may|might|can|could) (?:appear|happen|occur))\b)"
)
"""Follows the words of a failure that a text explains."""
_OF_TEST = re.compile(
    r"(?:\S{1,200}::\S{1,200} )?(?:PASSED|XFAIL|XPASS|SKIPPED|\[skip(?:ped)?\])(?!\w)"
)
"""Begins the report of a test that did not fail, or of what a program passed over."""
_CODE = re.compile(
    r"(?:\[[^\]\s]{1,40}\]:? ?)?(?:\s{0,8}\d{1,6}[:|]?(?=\s))?[+-]?\s{0,80}(?:\w{1,60} = )?"
    r"(?:except [\w ,.()]{1,200}:$|(?:(?:raise|throw) [\w.:]{1,80}\(|(?:el)?if\b|assert\b"
    r"|return(?= [a-z]?[\"'])|(?:[a-z_]\w{0,40}(?:\.|::)){0,4}(?:debug|info|warn(?:ing)?|error"
    r"|exception|critical|fatal|log|[a-z]{0,3}print[a-z]?|exit|write|TORCH_CHECK)\()"
    r"[^\"']{0,200}[\"'])"
)
"""Begins a line of a printed program, or of a change to one, that quotes a failure."""
_OF_DUMP = re.compile(
    r"(?:\[[^\]\s]{1,40}\]: ?)?(?:\s{1,80}(?:- )?|(?=[\"'][\w. -]{1,60}[\"']\s?:)).*[:\[,]\s*$"
)
"""Stands before a quotation that is a value of printed settings."""
_KEY = re.compile(r"\s{0,80}([\"'])(?:(?!\1).){1,200}\1\s?:\s")
"""A quotation that is the name of a setting."""
_STATE = re.compile(r"\breason[\"']?: [\"']?$")
"""Stands before the reason for which a container of Kubernetes ended."""
_OF_LOG = re.compile(r"[\"'](?:errno|level\w{0,4}|severity|time|timestamp|ts|asctime)[\"']\s?:")
"""In an object of a structured log, and in torchrun's and gRPC's report of an error."""
_ITEM = re.compile(r"\s{0,20}- (?!(?:ERROR|FATAL|CRITICAL)\b)[\"']?[A-Za-z.: ]{0,24}")
"""Begins an item of a list, not the level of a message behind its time."""
_OPEN_QUOTE = re.compile(
    rf"(?P<reports>\b{_REPORT}[\"']?\s?[:=]\s?|(?:Error|Exception)\("
    r"|\b(?i:error(?:message)?|failure|failed)\b[^\"']{0,30})?"
    r"(?:^|(?<=[\s(\[{=:,|]))(?P<mark>[\"'])(?:(?!(?P=mark)).)*$"
)
"""A quotation that is not closed, and what shows that it is of the report of a failure."""


def _is_supposed(text: str, begin: int, end: int) -> bool:
    """Whether words of a failure are in a comment, settings, a question, data of the training."""
    first = text.rfind("\n", 0, begin) + 1
    before = text[first:begin]
    item = _ITEM.match(text, first)
    if _STATE.search(before):
        return False
    is_setting = _SETTING.match(before) and not _OF_PROGRAM.match(text, first)
    if _OF_DATA.match(text) or is_setting or (item and begin <= item.end()):
        return True
    key = _KEY.match(text, first)
    if (
        _OF_TEST.match(text, first)
        or _CODE.match(text, first)
        or _is_dumped(text, before)
        or (key and end < key.end())
    ):
        return True
    return _SUPPOSED.search(before) is not None or _EXPLAINED.match(text, end) is not None


def _is_dumped(text: str, before: str) -> bool:
    """Whether words of a failure are a value of settings that are printed as JSON or YAML."""
    quote = _OPEN_QUOTE.search(before)
    head = before[: quote.start("mark")] if quote else ""
    nested = sum(map(head.count, "{[")) - sum(map(head.count, "]}")) > 1
    is_value = _OF_DUMP.match(head) or (nested and head.rstrip()[-1] in ":[,")
    return bool(is_value) and not _OF_LOG.search(text)


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Whether words of a failure are supposed, or stand between quotation marks."""
    quote = _OPEN_QUOTE.search(text[text.rfind("\n", 0, begin) + 1 : begin])
    in_quotes = quote and not quote["reports"] and quote["mark"] not in text[begin:end]
    return bool(in_quotes) or _is_supposed(text, begin, end)


TRIED_AGAIN = re.compile(
    r"(?i)(?<!not )(?<!after )(?<!while )(?<!before )(?<!failed )(?<!stopped )\b(?:re-?trying"
    r"|(?:will|going to) (?:re-?try|try again)|trying again|retry (?:in|loop|\(?\d)|reconnecting"
    r"|attempt (\d{1,3}) ?(?:of|/) ?(?!\1\b)\d)"
    r"|(?i:\bwarn.{0,400}\. falling back (?:to|on)\b)"
    r"(?!.{0,120}\b(?:abort|fail|exit|giv|crash|disabled|not|cannot|impossible))"
)
"""A line with these words reports no end: the program goes on."""


def among_settings(lines: list[bytes], at: int) -> bool:
    """Whether a line is a setting of printed YAML, as the two before or after it are."""
    if not _YAML.match(lines[at]):
        return False
    for beside in (lines[max(at - 2, 0) : at], lines[at + 1 : at + 3]):
        keys = {line.partition(b":")[0] for line in (lines[at], *beside)}  # not a launcher's prefix
        if len(keys) == 1 + len(beside) > 2 and all(map(_IN_YAML.match, beside)):  # noqa: PLR2004
            return True
    return False


AT_END = 3
"""Lines at the end of a log, which do not show whether it did."""


def reports_failure(line: str) -> bool:
    """Whether a line reports any failure, known or not; NCCL's INFO lines do not."""
    text = line.encode()
    if b"NCCL INFO " in text or is_harmless(text):
        return False
    certain = _CERTAIN.search(text) or not _NOTICE.search(text)
    match = _FAILURE.search(text) if certain else None
    return match is not None and not _is_supposed(text.decode("latin-1"), *match.span())


def is_harmless(line: bytes) -> bool:
    """Whether a line is known to report no failure, whatever words it has."""
    return _HARMLESS.search(line) is not None


def mentions_failure(line: bytes) -> bool:
    """Whether a line has any word of failure, whatever it says of it."""
    return _FAILURE.search(line) is not None


GRAVE_LEVEL = re.compile(rb"\b(?:ERROR|FATAL|CRITICAL)\b|\[(?:error|fatal|critical)\]")
"""Of logging: the message reports an error."""
_GRAVE_WORD = re.compile(
    rb"^(?:\(\w[^)]{1,80}\) )?[\W_]{0,8}(?:[\w./-]{1,40}: )?"
    rb"(?i:error|fatal|panic|abort(?:ed|ing)?)\b"
)


def is_grave(line: str) -> bool:
    """Whether a line calls itself an error, by its level or by its first word, and no notice."""
    text = line.encode()
    grave = GRAVE_LEVEL.search(text) or _GRAVE_WORD.search(text)
    return bool(grave) and not (TRIED_AGAIN.search(line) or _NOTICE.search(text))
