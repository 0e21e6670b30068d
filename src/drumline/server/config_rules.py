"""What a config may name that comes over the network: registered tasks, and files under the
configured folders.

A config on the command line may name any module and any path, as its author runs it. Here it is
read by a process that serves others, and run by an agent: no module is imported because a request
says so, where a run's files go is the service's choice, and whatever looks like a path must lie
below `script_roots` or `run_root`, links followed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from drumline.config import parse_config
from drumline.config.section import task_names
from drumline.config.service import ServiceSettings
from drumline.errors import ConfigError, ConfigProblem
from drumline.server.views.common import is_text

_CODE_KEYS = frozenset({"name", "id", "implementation"})
_DEFAULT_RUNS = "runs"
_MOST_DEPTH = 20
LARGEST = 2**63 - 1
_PATH_LIKE = re.compile(r"[/\\]|^[~.]")
_FILE_LIKE = re.compile(
    r"\.(arrow|bin|csv|gguf|json|jsonl|npy|npz|parquet|pt|pth|py|safetensors|txt|ya?ml|zip)$",
    re.IGNORECASE,
)
_SOURCE = "The config"

Key = tuple[str | int, ...]


def permitted(config: Mapping[str, Any], settings: ServiceSettings) -> dict[str, Any]:
    """The config, checked as a whole, as plain data; its relative paths made whole.

    Raises:
        ConfigError: With every key that names what it may not, or that is wrong.
    """
    _refuse(list(_unfit(config, ())))
    _refuse(list(_code(config)) + list(_places(config)))
    parsed = parse_config(dict(config))
    checked = parsed.model_dump(mode="json")
    roots = [*settings.script_roots, settings.run_root]
    problems = []
    for key, text in _paths(parsed.model_dump().get("task"), ("task",)):
        whole = _below(text, roots)
        if whole is None:
            problems.append(_outside(key, text, settings))
        else:
            _put(checked, key, whole)
    _refuse(problems)
    return checked


def _refuse(problems: list[ConfigProblem]) -> None:
    if problems:
        raise ConfigError(_SOURCE, problems)


def _unfit(value: Any, key: Key) -> Iterator[ConfigProblem]:
    """What cannot be stored or told in JSON: characters that are none, numbers without end."""
    if len(key) > _MOST_DEPTH:
        yield ConfigProblem(_dotted(key), None, "is nested too deep", "Flatten it.")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if not is_text(str(name)):
                yield ConfigProblem(_dotted((*key, ascii(name))), None, "is no text", "Rename it.")
            else:
                yield from _unfit(inner, (*key, str(name)))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _unfit(inner, (*key, place))
    elif isinstance(value, str) and not is_text(value):
        yield ConfigProblem(_dotted(key), ascii(value), "is no text", "Give plain characters.")
    elif isinstance(value, float) and not math.isfinite(value):
        yield ConfigProblem(_dotted(key), str(value), "is no finite number", "Give one.")
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        yield ConfigProblem(_dotted(key), None, "is too large", "Give up to 2^63 - 1.")


def _code(config: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    """Names that would have a module imported, found before anything is."""
    task = config.get("task")
    if task is None:
        yield ConfigProblem("task", None, "is missing", "Name a registered task.")
        return
    names = task_names()
    if isinstance(task, Mapping) and "name" in task and task["name"] not in names:
        yield ConfigProblem(
            "task.name", str(task["name"]), "no such task", f"There are: {', '.join(names)}."
        )
    for key, value in _strings(task, ("task",)):
        if key[-1] in _CODE_KEYS and ":" in value and key != ("task", "name"):
            yield ConfigProblem(
                _dotted(key),
                value,
                "names a module, which a config sent to the service may not",
                "Have the package register it as a task (entry points of group drumline.tasks).",
            )


def _places(config: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    remedy = "Leave it out: the service chooses, below DRUMLINE_RUN_ROOT."
    if config.get("run_dir") is not None:
        yield ConfigProblem("run_dir", str(config["run_dir"]), "is not the sender's choice", remedy)
    if config.get("runs_dir", _DEFAULT_RUNS) != _DEFAULT_RUNS:
        yield ConfigProblem(
            "runs_dir", str(config["runs_dir"]), "is not the sender's choice", remedy
        )


def _paths(value: Any, key: Key) -> Iterator[tuple[Key, str]]:
    """Values that are paths by their type, and texts that are by the look of them: names of
    datasets that packages ship, say, have neither slash nor ending.
    """
    for where, found in _leaves(value, key):
        if isinstance(found, PurePath):
            yield where, str(found)
        elif isinstance(found, str) and (_PATH_LIKE.search(found) or _FILE_LIKE.search(found)):
            yield where, found


def _strings(value: Any, key: Key) -> Iterator[tuple[Key, str]]:
    for where, found in _leaves(value, key):
        if isinstance(found, str):
            yield where, found


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, str(name)))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*key, place))
    else:
        yield key, value


def _below(text: str, roots: list[Path]) -> str | None:
    """The path made whole, where it lies below a root once its links are followed; else None.

    A relative path is looked for below each root in turn.
    """
    if "\x00" in text or text.startswith("~"):
        return None
    for root in roots:
        real_root = os.path.realpath(root)
        whole = os.path.normpath(root / text)
        inside = Path(os.path.realpath(whole)).is_relative_to(real_root)
        if inside and (Path(text).is_absolute() or os.path.lexists(whole)):
            return whole
    return None


def _outside(key: Key, text: str, settings: ServiceSettings) -> ConfigProblem:
    roots = ", ".join(str(root) for root in settings.script_roots) or "no folder so far"
    return ConfigProblem(
        _dotted(key),
        text,
        "is not below a folder that configs may name",
        f"DRUMLINE_SCRIPT_ROOTS names those folders: {roots}.",
    )


def _put(data: Any, key: Key, value: str) -> None:
    for part in key[:-1]:
        data = data[part]
    data[key[-1]] = value


def _dotted(key: Key) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, key)))
