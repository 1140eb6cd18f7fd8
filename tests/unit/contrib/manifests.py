"""The example manifests for Kubernetes, parsed, or changed where a mark says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "contrib" / "kubernetes"


def read(name: str) -> str:
    """Return the text of one file."""
    return (FOLDER / name).read_text()


def documents(text: str) -> dict[str, dict[str, Any]]:
    """Return its objects by their kind; each file has one of a kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod_spec(text: str) -> dict[str, Any]:
    """Return what the Job's pods are made of."""
    spec: dict[str, Any] = documents(text)["Job"]["spec"]["template"]["spec"]
    return spec


def container(text: str) -> dict[str, Any]:
    """Return the container that runs preflight."""
    pod = pod_spec(text)
    every = [*pod.get("initContainers", []), *pod["containers"]]
    found: dict[str, Any] = next(each for each in every if each["name"] == "preflight")
    return found


def environ(text: str) -> dict[str, str]:
    """Return its variables; "" for those that only a node can tell."""
    return {each["name"]: each.get("value", "") for each in container(text)["env"]}


def changed(text: str, *, pods: int, gpus: int) -> str:
    """Do what the comments say: another size, only in lines that are marked `<-`."""
    words = {r"\[0-3\]": f"[0-{pods - 1}]", r"\b4\b": str(pods), r"\b8\b": str(gpus)}
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        setting, mark, comment = line.partition("# <-")
        if mark:
            for old, new in words.items():
                setting = re.sub(old, new, setting)
            lines[number] = setting + mark + comment
    return "".join(lines)
