"""Every check, found by path, and every verdict that is expected of a run.

Without pytest: plugin, prolog and stage gates have one definition.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from preflight.check import STAGES, TIERS, Check, is_check_id, subject
from preflight.core.text import join_or
from preflight.errors import UsageError
from preflight.verdict import Conclude, Outcome, Verdict, not_run

Subject = Literal["node", "pair", "fleet"]


class Registered(Struct, frozen=True):
    """A check and the function that joins one subject with its judgement."""

    check: Check
    subject: Subject
    parameter: str
    function: Callable[..., None]
    path: Path
    about: str
    """Its author's description: the docstring of its file, or of its function in `CHECKS`."""

    def conclude(self, subject: Any) -> Verdict:
        """Judge one subject. An exception of the check is `broken`, never a failure of the node."""
        verdicts: list[Any] = []
        conclude: Conclude = verdicts.append
        try:
            self.function(**{self.parameter: subject, "conclude": conclude})
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  pytest.skip() and sys.exit() are no Exception
            import traceback

            return broken(
                f"{self.check.id} raised {type(error).__name__}: {error}"[:300],
                traceback=traceback.format_exc(limit=-6),
            )
        if len(verdicts) != 1:
            return broken(f"{self.check.id} reached {len(verdicts)} verdicts, expected 1")
        if not isinstance(verdicts[0], Verdict):
            return broken(
                f"{self.check.id} concluded with {type(verdicts[0]).__name__}, expected a Verdict"
            )
        return _json_safe(verdicts[0])


def _json_safe(verdict: Verdict) -> Verdict:
    """Make a verdict writable as JSON: evidence that is not is dropped, the outcome stays."""
    try:
        for names in (verdict.culprits, verdict.suspects):
            if names != ():
                msgspec.convert(msgspec.to_builtins(names), tuple[str, ...])
    except (TypeError, ValueError, RecursionError):
        return broken(f"culprits of {verdict.sentence!a:.80} are not names of nodes")
    try:
        msgspec.json.encode(verdict)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        words = {
            name: _utf8(str(getattr(verdict, name)))
            for name in ("sentence", "advice", "cause", "grant", "blame")
        }
        left_out = {"left_out": f"the check's evidence cannot be written: {error}"}
        return msgspec.structs.replace(verdict, **words, evidence=left_out)
    return verdict


def broken(sentence: str, **evidence: str) -> Verdict:
    """The check itself is at fault: the verdict says nothing about the node."""
    return Verdict(
        outcome=Outcome.BROKEN,
        sentence=_utf8(sentence),
        advice="this is a fault of the check, not of the node: report it with the evidence",
        evidence={name: _utf8(text) for name, text in evidence.items()},
    )


def _utf8(text: str) -> str:
    """Replace what UTF-8 cannot hold, such as half of a surrogate pair, by a question mark."""
    return text.encode("utf-8", "replace").decode()


_DECLARATION = re.compile(r"^(CHECK\s*=\s*Check\(|CHECKS\s*=\s*\()", re.MULTILINE)
_PARAMETERS: dict[str, Subject] = {
    "node": "node", "pair": "pair", "fleet": "fleet",
    "preflight_node": "node", "preflight_pair": "pair", "preflight_fleet": "fleet",
}  # fmt: skip


class Registry:
    """All checks of a run by id, in the order of their stages, each after those it requires."""

    def __init__(self, checks: Iterable[Registered]) -> None:
        self._by_id: dict[str, Registered] = {}
        for registered in sorted(checks, key=_order):
            earlier = self._by_id.setdefault(registered.check.id, registered)
            if earlier is not registered and earlier.path != registered.path:
                raise UsageError(
                    f"{registered.path} and {earlier.path} both declare {registered.check.id!r}: "
                    "rename one"
                )
        for registered in self:
            for required in registered.check.requires:
                self._refuse_bad_gate(registered, required)
        self._refuse_cycles()
        ordered = sorted(
            self, key=lambda entry: (*_order(entry)[:1], self._depth(entry), entry.check.id)
        )
        self._by_id = {registered.check.id: registered for registered in ordered}

    def add(self, checks: Iterable[Registered]) -> None:
        """Add checks in place, for all holders of this registry; UsageError as in __init__."""
        self._by_id = {entry.check.id: entry for entry in Registry([*self, *checks])}

    def _depth(self, registered: Registered) -> int:
        """The length of the longest chain of gates before a check."""
        gates = (self._by_id[required] for required in registered.check.requires)
        return 1 + max(map(self._depth, gates), default=0)

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._by_id.values())

    def __getitem__(self, check_id: str) -> Registered:
        return self._by_id[check_id]

    def _refuse_bad_gate(self, registered: Registered, required: str) -> None:
        """A gate must be a check of nodes, judged no later than the checks that require it."""
        start = f"{registered.path}: requires {required!r}"
        if required not in self._by_id:
            raise UsageError(f"{start}, which no check declares: correct the id")
        gate = self._by_id[required]
        if gate.subject != "node":
            subjects = "pairs" if gate.subject == "pair" else "the whole fleet"
            raise UsageError(f"{start}, which judges {subjects}: require a check of nodes")
        if _order(gate)[0] > _order(registered)[0]:
            raise UsageError(
                f"{start} of the later stage {gate.check.stage}: require one of the stage "
                f"{registered.check.stage} or before it"
            )

    def _refuse_cycles(self) -> None:
        from graphlib import CycleError, TopologicalSorter

        try:
            TopologicalSorter({entry.check.id: entry.check.requires for entry in self}).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            path, chain = self._by_id[circle[0]].path, " requires ".join(circle)
            raise UsageError(f"{path}: {chain}: break the circle") from error

    def select(self, typed: str) -> frozenset[str]:
        """Read the value of --preflight-checks, ids with commas between them."""
        ids = [word.strip() for word in typed.split(",") if word.strip()]
        if not ids:
            raise UsageError("--preflight-checks is empty: give ids, see: preflight list-checks")
        return frozenset(self.find(check_id).check.id for check_id in ids)

    def find(self, check_id: str) -> Registered:
        """Return the check of that id; UsageError with the nearest ones if there is none."""
        if check_id not in self._by_id:
            import difflib

            near = [repr(name) for name in difflib.get_close_matches(check_id, self._by_id)]
            hint = f"did you mean {join_or(near)}?" if near else "see: preflight list-checks"
            subject = check_id.rstrip(".*") + "."
            if family := [name for name in self._by_id if name.startswith(subject)]:
                hint = f"give one of {', '.join(sorted(family))}"
            raise UsageError(f"there is no check {check_id[:80]!r}: {hint}")
        return self._by_id[check_id]


def _order(registered: Registered) -> tuple[int, str]:
    return STAGES.index(registered.check.stage), registered.check.id


@cache
def shipped_checks() -> Registry:
    """The checks that come with preflight."""
    return Registry(load_folder(shipped_folder()))


def draining_ids() -> frozenset[str]:
    """Ids of the shipped checks that a scheduler may take a node out of service for."""
    return frozenset(entry.check.id for entry in shipped_checks() if entry.check.drains)


@cache
def shipped_folder() -> Path:
    """The checks that come with preflight: in the wheel, or beside the package in a checkout."""
    return (Path(__file__).resolve().parent.parent / "checks").resolve()


def page_of(check_id: str) -> str:
    """The documentation of a shipped check, as `preflight list-checks ID` prints it; else ""."""
    page = shipped_path(f"docs/checks/{check_id}.md")
    is_shipped = is_check_id(check_id) and page.is_file()
    return page.read_text(encoding="utf-8").rstrip() if is_shipped else ""


def shipped_path(name: str) -> Path:
    """A file or folder that comes with preflight: in the wheel, or in the checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / name if (package / name).exists() else package.parent / name


def declares_check(path: Path) -> bool:
    """Whether a Python file declares a check, judged by its text without running it."""
    try:
        return bool(_DECLARATION.search(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


def load_folder(folder: Path) -> list[Registered]:
    """Load every check file of a folder, in order of name."""
    shipped = folder.resolve() == shipped_folder()
    files = sorted(folder.rglob("test_*.py") if shipped else folder.glob("test_*.py"))
    return [check for path in files if declares_check(path) for check in load_file(path)]


def load_file(path: Path) -> list[Registered]:
    """Load the checks of one file; UsageError that says what it lacks.

    A file declares one `CHECK` and has one test function, or a tuple of `CHECKS` and for each of
    them a function of its name: `test_gpu_ecc` for `gpu.ecc`.
    """
    module = _import(path)
    tests = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    several = getattr(module, "CHECKS", None)
    if several is not None:
        return [_register_one(path, check, tests) for check in several]
    check = _valid_check(path, getattr(module, "CHECK", None))
    if len(tests) != 1 or not callable(next(iter(tests.values()))):
        raise UsageError(f"{path}: has {len(tests)} test functions, a check file has one")
    return [_register(path, check, next(iter(tests.values())), module.__doc__)]


def _register_one(path: Path, check: Any, tests: dict[str, Any]) -> Registered:
    check = _valid_check(path, check)
    name = "test_" + check.id.replace(".", "_")
    if not callable(tests.get(name)):
        raise UsageError(f"{path}: {check.id} has no test function: write def {name}(...)")
    return _register(path, check, tests[name], tests[name].__doc__)


def _register(path: Path, check: Check, test: Any, about: str | None) -> Registered:
    names = set(inspect.signature(test).parameters)
    subjects = [name for name in _PARAMETERS if name in names]
    if names - {"conclude"} != set(subjects) or len(subjects) != 1:
        raise UsageError(
            f"{path}: {test.__name__} takes {sorted(names)}, a check takes (node, conclude), "
            "(pair, conclude) or (fleet, conclude)"
        )
    return Registered(check, _PARAMETERS[subjects[0]], subjects[0], test, path, about or check.id)


def _valid_check(path: Path, check: Any) -> Check:
    """Refuse what is no check, a malformed id, which everything shows, and an unknown stage."""
    if not isinstance(check, Check):
        raise UsageError(
            f"{path}: {check!r:.80} is no preflight.check.Check: write CHECK = Check(...), or "
            "CHECKS = (Check(...), ...)"
        )
    if not isinstance(check.id, str) or not is_check_id(check.id):
        raise UsageError(f"{path}: {check.id!r:.80} is no check id: write one such as gpu.count")
    if check.stage not in STAGES:
        raise UsageError(f"{path}: stage {check.stage!r:.80}: write one of {', '.join(STAGES)}")
    if check.tier not in TIERS:
        raise UsageError(f"{path}: tier {check.tier!r:.80}: write one of {', '.join(TIERS)}")
    if not isinstance(check.requires, tuple):
        raise UsageError(f'{path}: requires is no tuple: write requires=("reach.answer",)')
    return check


def _import(path: Path) -> ModuleType:
    """Import a shipped check as a module of the package, and a site's check from its path."""
    real = path.resolve()
    if real.is_relative_to(shipped_folder()):
        inside = real.relative_to(shipped_folder()).with_suffix("")
        return importlib.import_module(".".join(("preflight.checks", *inside.parts)))
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


class Entry(Struct, frozen=True):
    """One verdict and its subject; `subject` is "h1", "h1-h2" or "fleet:all".

    `nodes` are the nodes of the subject; none for the whole fleet.
    """

    check: str
    subject: str
    nodes: tuple[str, ...]
    verdict: Verdict


class Ledger:
    """Knows every expected verdict; whatever has not arrived at the end is `missing`."""

    def __init__(self) -> None:
        self._expected: dict[tuple[str, tuple[str, ...]], None] = {}
        self._arrived: dict[tuple[str, tuple[str, ...]], Verdict] = {}

    def expect(self, keys: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Add expected verdicts."""
        self._expected.update(dict.fromkeys(keys))

    def record(self, check: str, nodes: tuple[str, ...], verdict: Verdict) -> None:
        """Add a verdict that arrived; one that was not expected is kept as well."""
        self._arrived[check, nodes] = verdict

    def mark_missing(self, keys: Iterable[tuple[str, tuple[str, ...]]], why: str) -> None:
        """Mark these as never going to arrive; those that have arrived stand."""
        for key in keys:
            self._arrived.setdefault(key, _missing(why))

    def __contains__(self, key: object) -> bool:
        return key in self._expected

    def settle(self, reason: str = "") -> tuple[Entry, ...]:
        """List all verdicts; a missing one is `missing`, or `not_run` with the reason of a stop."""
        missing = not_run(reason, stopped=True) if reason else _missing("its verdict never arrived")
        return tuple(
            Entry(check, subject(nodes), nodes, self._arrived.get((check, nodes), missing))
            for check, nodes in dict.fromkeys([*self._expected, *self._arrived])
        )


def _missing(sentence: str) -> Verdict:
    return Verdict(
        outcome=Outcome.MISSING,
        sentence=sentence,
        advice="run again; if it is missing again, report it with the output above",
    )
