"""Learn the weights of preflight/hang/explain/likely_lines.json from labelled logs.

    python -m tests.bench.train_likely_lines LABELS.tsv ... [--cross-validate] [--out FILE]

Each LABELS.tsv has a row per log, `NUMBER.txt` beside it, separated by tabs: its number,
`owner/repository:path@commit`, `stated`, `inferred` or `healthy`, and the numbers of the lines that
state why the job ended. `--cross-validate` writes no weights: it prints how often the line was
found in logs of repositories that the model had not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from preflight.hang.explain.likely_lines import END_BYTES, LEAST_LINES, features_of
from preflight.hang.explain.log_lines import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_WEIGHTS = Path("preflight/hang/explain/likely_lines.json")
_FOLDS, _STEPS, _RATE, _DECAY = 5, 120, 0.05, 1e-3
_REPOSITORIES = 3
"""A feature counts if it is in logs of so many."""
_LEAST = 3
"""Hundredths: features with less weight are left out."""


@dataclass(frozen=True)
class LabelledLog:
    """A log with its candidates' features, and which of them are right."""

    path: Path
    kind: str
    repository: str
    numbers: list[int]
    """As an editor shows them."""
    features: list[list[str]]
    right: list[bool]


def main(words: Sequence[str] | None = None) -> int:
    """Write the weights, or print what cross-validation finds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("labels", nargs="+", type=Path)
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--out", type=Path, default=_WEIGHTS)
    options = parser.parse_args(words)
    torch.manual_seed(0)
    logs = [*read(options.labels)]
    if len({log.repository for log in logs}) < _FOLDS:
        parser.error(f"the labels name logs of fewer than {_FOLDS} repositories; give more")
    if options.cross_validate:
        sys.stdout.writelines(f"{line}\n" for line in table(cross_validated(logs)))
        return 0
    weights = learn(logs)
    text = json.dumps(dict(sorted(weights.items())), ensure_ascii=True, indent=0)
    options.out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(logs)} logs, {len(weights)} weights: {options.out}\n")
    return 0


def read(labels: Iterable[Path]) -> Iterator[LabelledLog]:
    """The logs of the label files, each source once, but for excerpts of a few lines."""
    seen: set[str] = set()
    for file in labels:
        for row in file.read_text(encoding="utf-8", errors="replace").splitlines():
            number, source, kind, lines, *_ = [*row.split("\t"), "", "", ""]
            if number.isdigit() and source not in seen:
                seen.add(source)
                path = file.with_name(f"{number}.txt")
                if path.read_bytes().count(b"\n") >= LEAST_LINES:
                    yield _labelled(path, kind, source.partition(":")[0], lines)


def _labelled(path: Path, kind: str, repository: str, label: str) -> LabelledLog:
    texts: list[bytes] = []
    in_editor: list[int] = []
    number = 1
    for lines, ends in chunks(path, []):
        texts += lines
        for at in range(len(lines)):
            in_editor.append(number)
            number += ends[at : at + 1] != b"\r"
    end = b"\n".join([b"", *texts])[-END_BYTES:]
    before = len(texts) - end.count(b"\n")
    found, features = features_of(end)
    numbers = [in_editor[before + at - 1] for at in found]
    stated = _numbers(label) if kind != "healthy" else set()
    right = [any(abs(at - line) <= 1 for line in stated) for at in numbers]
    cut_off = kind == "inferred" and not any(right)
    return LabelledLog(
        path, kind, repository, numbers, features, [*right, kind == "healthy", cut_off]
    )


def _numbers(label: str) -> set[int]:
    """`3,7-9` has 3, 7, 8 and 9."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", label)
    return {at for first, last in spans for at in range(int(first), int(last or first) + 1)}


def learn(logs: Sequence[LabelledLog]) -> dict[str, int]:
    """By feature, a hundred times its weight: the largest likelihood of the right candidates."""
    logs = [log for log in logs if any(log.right)]
    repositories: defaultdict[str, set[str]] = defaultdict(set)
    for log in logs:
        for name in {name for names in log.features for name in names}:
            repositories[name].add(log.repository)
    known = [name for name, some in repositories.items() if len(some) >= _REPOSITORIES]
    number = {name: at for at, name in enumerate(known, 1)}
    flat: list[int] = []
    offsets: list[int] = []
    owner: list[int] = []
    right: list[float] = []
    for at, log in enumerate(logs):
        for names, is_right in zip(log.features, log.right, strict=True):
            offsets.append(len(flat))
            flat += [number[name] for name in sorted({*names}) if name in number] or [0]
            owner.append(at)
            right.append(float(is_right))
    bag = torch.nn.EmbeddingBag(len(known) + 1, 1, mode="sum")
    torch.nn.init.zeros_(bag.weight)
    optimizer = torch.optim.Adam(bag.parameters(), lr=_RATE)
    index, starts = torch.tensor(flat), torch.tensor(offsets)
    owners, rights = torch.tensor(owner), torch.tensor(right)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        scores = bag(index, starts).squeeze(1)
        most = torch.full((len(logs),), -math.inf)
        most = most.scatter_reduce(0, owners, scores.detach(), "amax")
        powers = torch.exp(scores - most[owners])
        of_all = torch.zeros(len(logs)).index_add(0, owners, powers)
        of_right = torch.zeros(len(logs)).index_add(0, owners, powers * rights)
        loss = (of_all.log() - (of_right + 1e-9).log()).mean()
        (loss + _DECAY * (bag.weight**2).sum()).backward()
        optimizer.step()
    weights = (bag.weight.detach().squeeze(1) * 100).round().int().tolist()
    named = zip(known, weights[1:], strict=True)
    return {name: weight for name, weight in named if abs(weight) >= _LEAST}


def shares(log: LabelledLog, weights: dict[str, int]) -> list[float]:
    """How probable each candidate of a log is, and the two endings without one."""
    scores = [sum(weights.get(name, 0) for name in {*names}) / 100 for names in log.features]
    found: list[float] = torch.softmax(torch.tensor(scores), 0).tolist()
    return found


def cross_validated(logs: Sequence[LabelledLog]) -> Iterator[tuple[LabelledLog, list[float]]]:
    """Each log, with the shares of a model that was learned without its repository."""
    fold = {name: at % _FOLDS for at, name in enumerate(sorted({log.repository for log in logs}))}
    for left_out in range(_FOLDS):
        weights = learn([log for log in logs if fold[log.repository] != left_out])
        for log in logs:
            if fold[log.repository] == left_out:
                yield log, shares(log, weights)


def table(judged: Iterable[tuple[LabelledLog, list[float]]]) -> Iterator[str]:
    """By kind of log: how many, and what the model takes for the likeliest."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for log, probable in judged:
        best = probable.index(max(probable)) - len(log.numbers)
        is_right = log.right[best + len(log.numbers)]
        ending = {0: "no failure", 1: "cut off"}.get(best, "the line" if is_right else "another")
        found[log.kind][ending] += 1
    for kind, counts in sorted(found.items()):
        words = ", ".join(f"{name} {number}" for name, number in counts.most_common())
        yield f"{kind}: {counts.total()} logs: {words}"


if __name__ == "__main__":
    sys.exit(main())
