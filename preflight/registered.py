"""A check and how it is asked: whatever it does, one verdict comes back that can be written."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from preflight.verdict import Conclude, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preflight.check import Check

Subject = Literal["node", "pair", "fleet"]


@dataclass(frozen=True, slots=True)
class Registered:
    """A check and the function that joins one subject with its judgement."""

    check: Check
    subject: Subject
    parameter: str
    function: Callable[..., None]
    path: Path

    def conclude(self, subject: Any) -> Verdict:
        """Judge one subject. An exception of the check is `broken`, never a failure of the node."""
        said: list[Any] = []
        conclude: Conclude = said.append
        try:
            self.function(**{self.parameter: subject, "conclude": conclude})
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  pytest.skip() and sys.exit() are no Exception
            return broken(
                f"{self.check.id} raised {type(error).__name__}: {error}"[:300],
                traceback=traceback.format_exc(limit=-6),
            )
        if len(said) != 1:
            return broken(f"{self.check.id} reached {len(said)} verdicts, expected 1")
        if not isinstance(said[0], Verdict):
            return broken(
                f"{self.check.id} concluded with {type(said[0]).__name__}, expected a Verdict"
            )
        return _writable(said[0])


def _writable(verdict: Verdict) -> Verdict:
    """Return it fit for report.json: what cannot be written goes, the outcome stays."""
    try:
        for names in (verdict.culprits, verdict.suspects):
            msgspec.convert(msgspec.to_builtins(names), tuple[str, ...])
    except (TypeError, ValueError, RecursionError):
        return broken(f"culprits of {verdict.sentence!a:.80} are no names of nodes")
    try:
        msgspec.json.encode(verdict)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        words = {
            name: _legible(str(getattr(verdict, name)))
            for name in ("sentence", "advice", "cause", "grant", "blame")
        }
        left_out = {"left_out": f"the check's evidence cannot be written: {error}"}
        return msgspec.structs.replace(verdict, **words, evidence=left_out)
    return verdict


def broken(sentence: str, **evidence: str) -> Verdict:
    """The check itself is at fault; the node is neither condemned nor cleared."""
    return Verdict(
        outcome=Outcome.BROKEN,
        sentence=_legible(sentence),
        advice="this is a fault of the check, not of the node: report it with the evidence",
        evidence={name: _legible(text) for name, text in evidence.items()},
    )


def _legible(text: str) -> str:
    """Put a question mark for what UTF-8 cannot hold, such as half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
