"""Finds mistakes in a training script for many ranks from its text; no part of it is run.

`lint` applies all rules to one script, and counts the findings that its comments ignore.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from preflight.lint import rules_on_collectives, rules_on_start
from preflight.lint.reading import Unreadable, read_script
from preflight.lint.script import Finding, Rule, Script, Severity, is_distributed

RULES = tuple(
    rule
    for module in (rules_on_collectives, rules_on_start)
    for rule in vars(module).values()
    if isinstance(rule, Rule)
)
"""Every rule. Their ids are stable: scripts name them in comments."""


_ORDER = tuple(Severity)


class LintResult(Struct, frozen=True, kw_only=True):
    """What the rules found in one file."""

    path: str
    findings: tuple[Finding, ...] = ()
    """By severity, most severe first, then by line."""
    ignored: int = 0
    """How many findings comments in the script ignore."""
    lines: int = 0
    distributed: bool = False
    """Whether anything in it is for several ranks; if not, no rule applies."""
    unread: Unreadable | None = None

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


def lint(content: bytes, path: str) -> LintResult:
    """Apply all rules to the bytes of one file; never raises."""
    script = read_script(content, path)
    if isinstance(script, Unreadable):
        return LintResult(path=path, unread=script)
    try:
        findings = list(_findings(script))
    except RecursionError:
        reason = Unreadable("it is nested too deeply", "split its functions")
        return LintResult(path=path, unread=reason)
    active = [finding for finding in findings if not _is_ignored(script, finding)]
    return LintResult(
        path=path,
        findings=tuple(sorted(active, key=lambda hit: (_ORDER.index(hit.severity), hit.line))),
        ignored=len(findings) - len(active),
        lines=len(content.splitlines()),
        distributed=is_distributed(script),
    )


def _findings(script: Script) -> Iterator[Finding]:
    for rule in RULES:
        lines: set[int] = set()
        for mistake in rule.find(script):
            if mistake.line not in lines:
                lines.add(mistake.line)
                yield Finding(rule.id, rule.severity, *mistake)


def _is_ignored(script: Script, finding: Finding) -> bool:
    rules = script.ignored.get(finding.line, frozenset())
    return "" in rules or finding.rule in rules
