"""`preflight blame`: decodes stored samples again, without a fleet.

It tries a rule on measured samples before the rule may take nodes out of service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight import __version__
from preflight.check import subject
from preflight.commands import add_json, print_answer
from preflight.core.command_line import EMPTY, FOUND, UNCLEAR, path_type
from preflight.core.files import typed_path, write_output
from preflight.core.registry import Entry, shipped_checks
from preflight.core.statistics import grouped
from preflight.core.text import count, first_few, natural, wrapped
from preflight.errors import UsageError
from preflight.fabric.judge import Decoded, judge_sweep
from preflight.fabric.planner import unread_words
from preflight.fabric.retest import unsettled_words
from preflight.fabric.stored import UNTIMED, StoredSamples, read_stored, rebuilt
from preflight.facts.model import bare_facts
from preflight.facts.node import Group, Net, Node, Reach
from preflight.fleet.inventory import read_inventory
from preflight.fleet.leaf_switches import read_switches
from preflight.fleet.model import Expected, Host, Job
from preflight.fleet.nodeset import fold
from preflight.report.document import BlameRow
from preflight.report.fabric_page import fabric_page
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.ready import Readiness, blame_row, exit_code, readiness, sensitivity_rows
from preflight.report.terminal import apart_lines, finding_lines, labelled, missed_words
from preflight.verdict import Outcome

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from preflight.fabric.observed import Observed
    from preflight.fabric.pair_summary import Pair
    from preflight.fabric.samples import Sweep


SCHEMA = 1
"""Raised by a change that an older reader would misread. Additions do not raise it."""


class BlameDocument(Struct, frozen=True, kw_only=True):
    """The whole document; docs/reference/samples.md explains each field."""

    schema: int = SCHEMA
    preflight: str
    samples: str
    """The file that the samples were read from."""
    form: str
    run: str
    """The random id of the run that measured them; "" without one."""
    exit: Annotated[int, Meta(ge=0, le=5)]
    backend: str
    nodes: tuple[str, ...]
    leaves: int
    """Number of known leaf switches."""
    rails: int
    rounds: int
    pairs: int
    """Tried pairs, counted for each rail and round."""
    not_ready: tuple[str, ...]
    exclude: str
    """The same nodes, folded, to paste after `--exclude=`."""
    apart: tuple[tuple[str, str], ...]
    """Pairs whose path is bad although both nodes are ready."""
    findings: tuple[Finding, ...]
    blames: tuple[BlameRow, ...]
    missed: str
    """What the samples were too few to show, in the words of a run's summary."""
    notes: tuple[str, ...]
    """What was not judged and why, and remarks that are not findings."""


def lines(document: BlameDocument, width: int) -> list[str]:
    """Lay out the document like a run's summary."""
    if document.exit == EMPTY:
        untimed = f"of {document.pairs} pairs none has times" * bool(document.pairs)
        words = f"{document.samples}: {untimed or 'no pair was tried'}, there is nothing to judge"
        return wrapped(words, first="", indent="  ", width=width)
    words = (
        f"{document.samples}: {count(len(document.nodes), 'node')}, "
        f"{count(document.pairs, 'pair')} tried "
        f"({count(document.rails, 'rail')}, {count(document.rounds, 'round')}), {document.backend}"
    )
    rows = labelled("samples", words, width)
    for finding in document.findings:
        rows += finding_lines(finding, document.nodes, width)
    if document.missed:
        rows += labelled("missed", document.missed, width)
    for note in document.notes:
        rows += labelled("note", note, width)
    if document.exclude:
        rows += labelled("not ready", f"{document.exclude}  --exclude={document.exclude}", width)
    rows += apart_lines(document.apart, width)
    number = len(
        {name for row in document.findings if row.makes_not_ready for name in row.subjects}
    )
    blames = f"{number} blamed" if number else "nothing is blamed"
    return [*rows, f"{blames}    exit {document.exit}"]


_INVENTORIES = (".toml", ".yaml", ".yml")


def hosts_of(stored: StoredSamples, topology: Path | None) -> list[Host]:
    """Return every node of the samples, with its leaf and what the inventory expects.

    `topology`: a Slurm topology.conf, or an inventory by its suffix. Without one the leaves are
    those of the samples. UsageError for a file that cannot be used, or names none of these nodes.
    """
    left_out = stored.sweep.left_out if stored.sweep else {}
    names = sorted({*stored.observed.nodes, *left_out}, key=natural)
    if topology is None:
        leaves = stored.observed.leaves
        return [Host(name=name, address=name, leaf=leaves.get(name, "")) for name in names]
    hosts = _hosts_in_file(topology, names)
    if names and not any(host.leaf for host in hosts):
        raise UsageError(
            f"{topology} names no leaf of {fold(names)}: give the topology of this fleet"
        )
    return hosts


def _hosts_in_file(path: Path, names: list[str]) -> list[Host]:
    if path.suffix.lower() in _INVENTORIES:
        inventory = read_inventory(path)
        return [inventory.host(name) for name in names]
    leaves = read_switches(path)
    # Slurm uses short host names, samples may use long ones.
    leaf_of = {name: leaves.get(name, leaves.get(name.partition(".")[0], "")) for name in names}
    return [Host(name=name, address=name, leaf=leaf) for name, leaf in leaf_of.items()]


def with_leaves(stored: StoredSamples, hosts: list[Host]) -> StoredSamples:
    """Return the samples with the leaves of `hosts`."""
    leaves = {host.name: host.leaf for host in hosts if host.leaf}
    sweep = replace(stored.sweep, leaves=leaves) if stored.sweep else None
    return replace(stored, sweep=sweep, observed=replace(stored.observed, leaves=leaves))


class StoredVerdicts(Struct, frozen=True, kw_only=True):
    """The verdicts on stored samples, and what they rest on."""

    entries: tuple[Entry, ...] = ()
    blames: tuple[BlameRow, ...] = ()
    systemic: dict[str, str] = {}
    """Check → why one shared cause is more likely, so that no node is to be drained."""
    notes: tuple[str, ...] = ()


_MOST_PAIRS = 8


def _unjudged_words(observed: Observed) -> Iterator[str]:
    """Yield one line for each reason why pairs were not judged."""
    unjudged = [pair for pair in observed.tried if pair.state == "not_run" and pair.error]
    for reason, pairs in grouped((pair.error, f"{pair.a}-{pair.b}") for pair in unjudged).items():
        yield f"not judged: {first_few([*dict.fromkeys(pairs)], _MOST_PAIRS)}: {reason}"


def _node(name: str, decoded: Decoded) -> Node:
    """A node of which only its measurements by itself are known."""
    return Node(
        name=name, expected=Expected(), reach=Reach("samples"), facts=bare_facts(),
        group=Group("samples", {}), job=Job(), net=Net(), inside=decoded.inside[name],
        over_nvlink=decoded.over_nvlink.get(name),
    )  # fmt: skip


def judge_stored(stored: StoredSamples, hosts: Sequence[Host]) -> StoredVerdicts:
    """Compare, decode, blame, and judge pairs and nodes by every shipped check of a sweep.

    Samples without single times are judged as far as possible. `hosts` is the fleet in order.
    """
    observed = stored.observed
    sweep = stored.sweep or rebuilt(observed)
    decoded = judge_sweep(sweep, hosts, observed=observed)
    notes = [*_gap_notes(sweep)]
    if stored.sweep is None:
        number = sum(pair.error == UNTIMED for pair in decoded.pairs.values())
        notes = [f"{count(number, 'pair')} not judged: {UNTIMED}"] * bool(number)
    blames = tuple(map(blame_row, decoded.blames))
    systemic = (blame for blame in blames if blame.kind == "systemic")
    names = dict.fromkeys([*(samples.node for samples in sweep.inside), *decoded.over_nvlink])
    nodes = {(name,): _node(name, decoded) for name in names if name in decoded.inside}
    entries = (*_entries("pair", decoded.pairs.items()), *_entries("node", nodes.items()))
    return StoredVerdicts(
        entries=entries,
        systemic=suspicions(entries, len(observed.nodes)),
        blames=blames,
        notes=(
            *(f"{blame.sentence}; {blame.advice}" for blame in systemic),
            *_unjudged_words(observed),
            *notes,
        ),
    )


def _entries(kind: str, subjects: Iterable[tuple[tuple[str, ...], Pair | Node]]) -> Iterator[Entry]:
    for registered in shipped_checks():
        if registered.check.stage == "fabric" and registered.subject == kind:
            for names, result in subjects:
                yield Entry(registered.check.id, subject(names), names, registered.conclude(result))


def _gap_notes(sweep: Sweep) -> Iterator[str]:
    if unsettled := unsettled_words(sweep):
        yield unsettled
    yield from unread_words(sweep)
    if sweep.unfinished:
        yield f"the sweep ended early: {sweep.unfinished}"
    yield from (f"{name} took no part: {reason}" for name, reason in sweep.left_out.items())


def blame_document(stored: StoredSamples, verdicts: StoredVerdicts) -> BlameDocument:
    """Join the verdicts like a run's report, but exclude no node for lack of peers.

    A run may not start a job on a node of which nothing is known; here no job starts.
    """
    observed = stored.observed
    without_peers = [entry for entry in verdicts.entries if has_no_culprit(entry)]
    entries = [entry for entry in verdicts.entries if not has_no_culprit(entry)]
    names = tuple(sorted(observed.nodes, key=natural))
    cut = stored.sweep.cut_off if stored.sweep else {}
    path_ends = {*cut, *cut.values()}  # of a blamed path
    ready = readiness(sorted({*names, *path_ends}, key=natural), entries, strict=False)
    return BlameDocument(
        preflight=__version__,
        samples=str(stored.path),
        form=stored.form,
        run=stored.run,
        exit=_blame_exit(stored, entries, ready, without_peers),
        backend=observed.backend,
        nodes=names,
        leaves=len(set(observed.leaves.values())),
        rails=len({pair.rail for pair in observed.tried}),
        rounds=len({pair.round for pair in observed.tried}),
        pairs=len(observed.tried),
        not_ready=ready.not_ready,
        exclude=fold(ready.not_ready),
        apart=ready.apart,
        findings=(
            *findings(entries, verdicts.blames, verdicts.systemic),
            *(replace(finding, makes_not_ready=False) for finding in findings(without_peers)),
        ),
        blames=verdicts.blames,
        missed=missed_words(sensitivity_rows(observed, verdicts.blames)),
        notes=(*verdicts.systemic.values(), *verdicts.notes),
    )


def has_no_culprit(entry: Entry) -> bool:
    """Whether a verdict is unknown without a culprit: a measurement had nothing to compare with."""
    verdict = entry.verdict
    return verdict.outcome is Outcome.UNKNOWN and not (verdict.blame or verdict.culprits)


def _blame_exit(
    stored: StoredSamples,
    entries: Sequence[Entry],
    ready: Readiness,
    without_peers: Sequence[Entry],
) -> int:
    """Return a run's exit code, but 1 only for a named culprit, and 5 without measurements."""
    code = exit_code(entries, ready)
    if code != FOUND and without_peers:
        code = UNCLEAR
    return code if code == FOUND or stored.observed.digests else EMPTY


_EXAMPLES = """\
examples:
  preflight blame preflight-runs/latest
  preflight blame preflight-runs/latest --picture=fabric.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("samples", metavar="SAMPLES_OR_RUN_DIR", type=path_type,
        help="a run's folder, its measured.json, "
        "or samples of either form, also gzipped")  # fmt: skip
    add_json(parser)
    add("--topology", metavar="FILE", type=path_type,
        help="the nodes' leaf switches: a Slurm topology.conf, or an inventory (.toml, "
        ".yaml)")  # fmt: skip
    add("--picture", metavar="FILE", type=path_type, help="draw the fabric, as HTML")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 no culprit, 1 a culprit is named, 3 not all was judged, 5 no times.

    UsageError (exit 4) for samples that cannot be used.
    """
    topology = arguments.topology
    samples = read_stored(typed_path(arguments.samples))
    hosts = hosts_of(samples, typed_path(topology) if topology is not None else None)
    samples = with_leaves(samples, hosts)
    verdicts = judge_stored(samples, hosts)
    document = blame_document(samples, verdicts)
    if arguments.picture is not None:
        page = fabric_page(
            samples.observed, verdicts.blames, sweep=samples.sweep, origin=str(samples.path)
        )
        write_output(typed_path(arguments.picture), page.encode())
    print_answer(arguments, document, lambda width: lines(document, width))
    return document.exit
