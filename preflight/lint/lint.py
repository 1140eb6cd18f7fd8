"""All rules over one script, the gravest first; what a comment switches off is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.lint import rules_on_collectives, rules_on_start
from preflight.lint.reading import Unread, read_script
from preflight.lint.script import Finding, Rule, Severity, is_distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.script import Script


RULES = tuple(
    one
    for module in (rules_on_collectives, rules_on_start)
    for one in vars(module).values()
    if isinstance(one, Rule)
)
"""Every rule; their ids are a promise, scripts name them in comments."""


_ORDER = tuple(Severity)


class Linted(Struct, frozen=True, kw_only=True):
    """What is known of one file without running it."""

    path: str
    findings: tuple[Finding, ...] = ()
    """The gravest first, then by line."""
    ignored: int = 0
    """How many a comment of the script switched off."""
    lines: int = 0
    distributed: bool = False
    """Whether anything in it is for several ranks; else there was nothing to judge."""
    unread: Unread | None = None

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of that weight."""
        return [one for one in self.findings if one.severity is severity]


def lint(content: bytes, path: str) -> Linted:
    """Judge the bytes of one file; never raises, whatever they are."""
    script = read_script(content, path)
    if isinstance(script, Unread):
        return Linted(path=path, unread=script)
    try:
        found = list(_found(script))
    except RecursionError:
        return Linted(path=path, unread=Unread("it is nested too deeply", "split its functions"))
    told = [one for one in found if not _switched_off(script, one)]
    return Linted(
        path=path,
        findings=tuple(sorted(told, key=lambda one: (_ORDER.index(one.severity), one.line))),
        ignored=len(found) - len(told),
        lines=content.count(b"\n") + 1,
        distributed=is_distributed(script),
    )


def _found(script: Script) -> Iterator[Finding]:
    for rule in RULES:
        seen: set[int] = set()
        for one in rule.find(script):
            if one.line not in seen:
                seen.add(one.line)
                yield Finding(rule.id, rule.severity, *one)


def _switched_off(script: Script, finding: Finding) -> bool:
    rules = script.ignored.get(finding.line)
    return rules is not None and ("" in rules or finding.rule in rules)
