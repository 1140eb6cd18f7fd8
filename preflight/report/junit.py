"""The verdicts as JUnit XML, with names that are the same in every run and on every machine.

`classname` is "preflight." and the check's id, `name` the item's: "gpu.count[gpu041]". pytest's own
--junitxml gives a run's items the same ones; it would name the folder the checks lie in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from preflight.report.text import printable
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.report.document import Report, VerdictRow

_SKIPPED = (Outcome.NOT_RUN, Outcome.WAIVED)
_ERROR = (Outcome.BROKEN, Outcome.LOST)


def class_of(check: str) -> str:
    """Under which name a tool groups a check's results."""
    return f"preflight.{check}"


def junit(report: Report) -> bytes:
    """Give the document; a verdict that condemns is a failure, one that is owed still an error."""
    rows = report.verdicts
    failed = sum(map(_fails, rows))
    errors = sum(row.outcome in _ERROR for row in rows)
    skipped = sum(row.outcome in _SKIPPED for row in rows)
    suite = ET.Element(
        "testsuite",
        name="preflight",
        tests=str(len(rows)),
        failures=str(failed),
        errors=str(errors),
        skipped=str(skipped),
        time=f"{report.seconds:.3f}",
        timestamp=report.started,
    )
    for row in rows:
        _case(suite, row)
    root = ET.Element("testsuites", name="preflight")
    root.append(suite)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ET.Element, row: VerdictRow) -> None:
    name = printable(f"{row.check}[{row.subject}]")
    case = ET.SubElement(suite, "testcase", classname=class_of(row.check), name=name, time="0")
    said = printable(row.sentence)
    properties = ET.SubElement(case, "properties")
    ET.SubElement(properties, "property", name="preflight_outcome", value=str(row.outcome))
    ET.SubElement(properties, "property", name="preflight_sentence", value=said)
    kind = "failure" if _fails(row) else "error" if row.outcome in _ERROR else ""
    if kind:
        told = ET.SubElement(case, kind, message=said)
        told.text = f"{row.outcome}: {said}" + (
            f"\ndo: {printable(row.advice)}" if row.advice else ""
        )
    elif row.outcome in _SKIPPED:
        ET.SubElement(case, "skipped", message=said)


def _fails(row: VerdictRow) -> bool:
    if row.outcome is Outcome.UNKNOWN:
        return not row.grant
    return row.outcome in (Outcome.FAIL, Outcome.FLAKY)
