"""The text of an inventory as plain tables; what could be read two ways is refused."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from preflight.errors import UsageError
from preflight.fleet.files import parse_toml

if TYPE_CHECKING:
    from pathlib import Path

DEEPEST = 32
"""Levels of nesting; an inventory needs four."""

_MANY_LINES = ("nodes", "launch")
"""Keys whose text may go over several lines."""


def parse(path: Path, text: str) -> Any:
    """Read TOML, or YAML by its suffix; UsageError says what to correct."""
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    content = _parse_yaml(text) if is_yaml else _parse_toml(text)
    _refuse_control(content, "")
    return content


def _parse_toml(text: str) -> Any:
    try:
        return parse_toml(text)
    except (RecursionError, ValueError) as error:
        raise UsageError(
            f"not TOML: {error}; correct that line (a YAML file must end in .yaml)"
        ) from error


def _parse_yaml(text: str) -> Any:
    import yaml

    loader = _strict_loader()
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            # A few lines of anchors and aliases can stand for more than all memory.
            if isinstance(event, yaml.AliasEvent):
                raise UsageError("uses YAML aliases (*name): write the values out")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise UsageError("not YAML of an inventory: nested too deep; correct the file")
        return yaml.load(text, Loader=loader) or {}  # noqa: S506  a safe loader, made strict
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"not YAML: {reason}; correct the file") from error


@lru_cache(maxsize=1)
def _strict_loader() -> Any:
    """The loader of libyaml where there is one (40 times faster), without repeated keys."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Strict(base):  # type: ignore[misc]  # which of the two is known only now
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  PyYAML's
            seen = set()
            for key, _ in node.value:
                if (key.tag, str(key.value)) in seen:
                    line = key.start_mark.line + 1
                    raise UsageError(f"line {line} repeats the key {key.value!a}: keep one of them")
                seen.add((key.tag, str(key.value)))
            return super().construct_mapping(node, deep)

    return Strict


def _refuse_control(content: Any, key: str) -> None:
    """A NUL or an escape sequence in a name, a path or a command is a mistake or a trap."""
    if isinstance(content, dict):
        for name, value in content.items():
            _refuse_control(str(name), "a key")
            _refuse_control(value, str(name))
    elif isinstance(content, list):
        for value in content:
            _refuse_control(value, key)
    elif isinstance(content, str):
        text = " ".join(content.split("\n")) if key in _MANY_LINES else content
        text = text.replace("\t", " ").replace("\r", " ") if key in _MANY_LINES else text
        if not text.isprintable():
            raise UsageError(f"{key} holds a control character: {content[:60]!a}; remove it")
