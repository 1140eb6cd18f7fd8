"""Finds the checks by path, without pytest: one definition for plugin, prolog and stage gates."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from preflight.check import STAGES, Check
from preflight.errors import UsageError
from preflight.verdict import Conclude, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

Subject = Literal["node", "pair"]

_DECLARES = re.compile(r"^CHECK\s*=\s*Check\(", re.MULTILINE)
_PARAMETERS: dict[str, Subject] = {
    "node": "node",
    "preflight_node": "node",
    "pair": "pair",
    "preflight_pair": "pair",
}


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
        said: list[Verdict] = []
        conclude: Conclude = said.append
        try:
            self.function(**{self.parameter: subject, "conclude": conclude})
        except Exception as error:  # noqa: BLE001  whatever a check raises is our fault, and is kept
            return _broken(
                f"{self.check.id} raised {type(error).__name__}: {error}"[:300],
                traceback=traceback.format_exc(limit=-6),
            )
        if len(said) != 1:
            return _broken(f"{self.check.id} reached {len(said)} verdicts, expected 1")
        return said[0]


def _broken(sentence: str, **evidence: Any) -> Verdict:
    return Verdict(
        outcome=Outcome.BROKEN,
        sentence=sentence,
        advice="this is a fault of the check, not of the node: report it with the evidence",
        evidence=evidence,
    )


class Registry:
    """All checks of a run by id, in the order of their stages."""

    def __init__(self, checks: Iterable[Registered]) -> None:
        self._by_id: dict[str, Registered] = {}
        for registered in sorted(checks, key=_order):
            known = self._by_id.setdefault(registered.check.id, registered)
            if known is not registered and known.path != registered.path:
                raise UsageError(
                    f"{registered.path} and {known.path} both declare {registered.check.id!r}: "
                    "rename one"
                )
        for registered in self:
            for required in registered.check.requires:
                if required not in self._by_id:
                    raise UsageError(
                        f"{registered.path}: requires {required!r}, which no check declares: "
                        "correct the id"
                    )

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._by_id.values())

    def __getitem__(self, check_id: str) -> Registered:
        return self._by_id[check_id]

    def find(self, check_id: str) -> Registered:
        """Return the check of that id; UsageError with the nearest one if there is none."""
        if check_id not in self._by_id:
            import difflib

            near = difflib.get_close_matches(check_id, self._by_id, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see: preflight checks"
            raise UsageError(f"there is no check {check_id[:80]!r}: {hint}")
        return self._by_id[check_id]


def _order(registered: Registered) -> tuple[int, str]:
    return STAGES.index(registered.check.stage), registered.check.id


def shipped_folder() -> Path:
    """The checks that come with preflight: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "checks"
    return inside if inside.is_dir() else package.parent / "checks"


def declares_check(path: Path) -> bool:
    """Whether a Python file declares a check, told from its text without running it."""
    try:
        return bool(_DECLARES.search(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


def load_folder(folder: Path) -> list[Registered]:
    """Load every check file of a folder, in order of name."""
    files = sorted(folder.glob("test_*.py"))
    return [load_file(path) for path in files if declares_check(path)]


def load_file(path: Path) -> Registered:
    """Load one check file; UsageError that says what it lacks."""
    module = _import(path)
    check = getattr(module, "CHECK", None)
    if not isinstance(check, Check):
        raise UsageError(f"{path}: CHECK is not a preflight.check.Check: write CHECK = Check(...)")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    if len(tests) != 1 or not callable(tests[0]):
        raise UsageError(f"{path}: has {len(tests)} test functions, a check file has one")
    names = set(inspect.signature(tests[0]).parameters)
    subjects = [name for name in _PARAMETERS if name in names]
    if names - {"conclude"} != set(subjects) or len(subjects) != 1:
        raise UsageError(
            f"{path}: {tests[0].__name__} takes {sorted(names)}, a check takes (node, conclude) "
            "or (pair, conclude)"
        )
    return Registered(check, _PARAMETERS[subjects[0]], subjects[0], tests[0], path)


def _import(path: Path) -> ModuleType:
    name = f"preflight_checks_{path.stem}_{abs(hash(path.parent)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python: rename it to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
