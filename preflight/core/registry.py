"""Finds the checks by path, without pytest: one definition for plugin, prolog and stage gates."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.check import STAGES, TIERS, Check, is_check_id
from preflight.errors import UsageError
from preflight.registered import Registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from preflight.registered import Subject

_DECLARES = re.compile(r"^CHECK\s*=\s*Check\(", re.MULTILINE)
_PARAMETERS: dict[str, Subject] = {
    "node": "node",
    "preflight_node": "node",
    "pair": "pair",
    "preflight_pair": "pair",
    "fleet": "fleet",
    "preflight_fleet": "fleet",
}


class Registry:
    """All checks of a run by id, in the order of their stages, each behind those it requires."""

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
                self._refuse_unfit(registered, required)
        self._refuse_cycles()
        ordered = sorted(self, key=lambda one: (*_order(one)[:1], self._depth(one), one.check.id))
        self._by_id = {registered.check.id: registered for registered in ordered}

    def _depth(self, registered: Registered) -> int:
        """How many gates stand before a check, one behind the other."""
        gates = (self._by_id[required] for required in registered.check.requires)
        return 1 + max(map(self._depth, gates), default=0)

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._by_id.values())

    def __getitem__(self, check_id: str) -> Registered:
        return self._by_id[check_id]

    def _refuse_unfit(self, registered: Registered, required: str) -> None:
        """A gate must be judged before what stands behind it, and on a node."""
        says = f"{registered.path}: requires {required!r}"
        if required not in self._by_id:
            raise UsageError(f"{says}, which no check declares: correct the id")
        gate = self._by_id[required]
        if gate.subject != "node":
            what = "pairs" if gate.subject == "pair" else "the whole fleet"
            raise UsageError(f"{says}, which judges {what}: require a check of nodes")
        if _order(gate)[0] > _order(registered)[0]:
            raise UsageError(
                f"{says} of the later stage {gate.check.stage}: require one of the stage "
                f"{registered.check.stage} or before it"
            )

    def _refuse_cycles(self) -> None:
        passed: set[str] = set()

        def follow(check_id: str, behind: tuple[str, ...]) -> None:
            if check_id in behind:
                ring = " requires ".join([*behind[behind.index(check_id) :], check_id])
                path = self._by_id[check_id].path
                raise UsageError(f"{path}: {ring}: break the circle")
            if check_id not in passed:
                for required in self._by_id[check_id].check.requires:
                    follow(required, (*behind, check_id))
                passed.add(check_id)

        for check_id in self._by_id:
            follow(check_id, ())

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


def draining() -> frozenset[str]:
    """Ids of the shipped checks that a scheduler may take a node out of service for."""
    return frozenset(one.check.id for one in load_folder(shipped_folder()) if one.check.drains)


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
    _refuse_unfit_declaration(path, check)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    if len(tests) != 1 or not callable(tests[0]):
        raise UsageError(f"{path}: has {len(tests)} test functions, a check file has one")
    names = set(inspect.signature(tests[0]).parameters)
    subjects = [name for name in _PARAMETERS if name in names]
    if names - {"conclude"} != set(subjects) or len(subjects) != 1:
        raise UsageError(
            f"{path}: {tests[0].__name__} takes {sorted(names)}, a check takes (node, conclude), "
            "(pair, conclude) or (fleet, conclude)"
        )
    return Registered(check, _PARAMETERS[subjects[0]], subjects[0], tests[0], path)


def _refuse_unfit_declaration(path: Path, check: Check) -> None:
    """An id is shown, written and pasted everywhere; stage and tier decide when it is judged."""
    if not isinstance(check.id, str) or not is_check_id(check.id):
        raise UsageError(f"{path}: {check.id!r:.80} is no check id: write one such as gpu.count")
    if check.stage not in STAGES:
        raise UsageError(f"{path}: stage {check.stage!r:.80}: write one of {', '.join(STAGES)}")
    if check.tier not in TIERS:
        raise UsageError(f"{path}: tier {check.tier!r:.80}: write one of {', '.join(TIERS)}")
    if not isinstance(check.requires, tuple):
        raise UsageError(f'{path}: requires is no tuple: write requires=("reach.answer",)')


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
