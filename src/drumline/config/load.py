"""Reading a config: YAML or JSON, then `key=value` overrides, then one check of the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from drumline.config.run import RunConfig
from drumline.config.section import Section, task_config_class
from drumline.errors import BadInput, ConfigError, ConfigProblem

Model = TypeVar("Model", bound=BaseModel)
_TYPES = {
    "bool": "true or false",
    "dict": "keys of its own below it",
    "float": "a number",
    "int": "a whole number",
    "list": "a list such as [1, 2]",
    "model": "keys of its own below it",
    "path": "a path",
    "string": "a text",
    "tuple": "a list such as [1, 2]",
}
_OTHER_NAMES = {
    "batch_size": "Use global_batch, samples of a step over all devices together, or micro_batch, "
    "samples of one forward on one device.",
}
"""What other programs call a key, and ours that may be meant."""
_OTHER_REMEDIES = {
    "finite_number": "Give a finite number.",
    "invalid_key": "Keys are texts.",
    "too_long": "Give fewer entries.",
    "too_short": "Give more entries.",
}


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a RunConfig from a file and overrides like `optimizer.lr=1e-3`.

    Raises:
        ConfigError: With every wrong key, its value and a remedy.
        BadInput: If the file is missing or is not YAML or JSON.
    """
    data = apply_overrides(read_mapping(path), overrides)
    return parse_config(data, source=str(path))


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """A config with `key=value` overrides, checked again; itself if there are none."""
    if not overrides:
        return config
    data = apply_overrides(config.model_dump(mode="json"), overrides)
    return parse_config(data, source="The config with overrides")


def parse_config(data: dict[str, Any], source: str = "The config") -> RunConfig:
    """Check a whole config given as plain data.

    Raises:
        ConfigError: With every wrong key, its value and a remedy.
    """
    return validate(RunConfig, data, source)


def validate(model: type[Model], data: dict[str, Any], source: str) -> Model:
    """Check plain data against a config class; problems come as one ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, data, dict(item)) for item in error.errors()]
        raise ConfigError(source, problems) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises:
        BadInput: If the file is missing, unreadable, or holds something else.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise BadInput(f"There is no file {path}.", remedy="Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.", remedy="Check the file.") from None
    try:
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise BadInput(
            f"{path} is not {kind}: {' '.join(str(error).split())}.", remedy="Mend the syntax."
        ) from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} holds no mapping of keys.", remedy="Write `key: value` lines.")
    return value


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `data` with dotted `key=value` overrides; values are read as YAML.

    A key that only the task knows may leave out `task.`.
    """
    result: dict[str, Any] = json.loads(json.dumps(data, default=str))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise BadInput(
                f"The override {override!r} is not of the form key=value.",
                remedy="For example: optimizer.lr=1e-3",
            )
        *parents, last = _whole_name(key, result).split(".")
        place = result
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            place[last] = text
    return result


def _whole_name(key: str, data: dict[str, Any]) -> str:
    """A key with `task.` before it, if the task of `data` has it and a RunConfig has not."""
    first, task = key.partition(".")[0], data.get("task")
    if first in RunConfig.model_fields or not isinstance(task, dict) or "name" not in task:
        return key
    try:
        known = task_config_class(str(task["name"])).model_fields
    except ConfigError:  # which comes up when the whole is checked
        return key
    return f"task.{key}" if first in known else key


def _problem(model: type[BaseModel], data: dict[str, Any], error: dict[str, Any]) -> ConfigProblem:
    location = list(error["loc"])
    value = None if isinstance(error["input"], dict) else error["input"]
    kind = error["type"]
    if kind in ("task_name", "environment_name"):
        location, value = [*location, "name"], error["input"]["name"]
    key = ".".join(map(str, location)) or "config"
    if kind == "extra_forbidden":
        known = _known_keys(model, data, location[:-1])
        names = {name: name for name in known}
        if len(location) == 1 and isinstance(data.get("task"), dict):  # `task.` may be left out
            names = {k: f"task.{k}" for k in _known_keys(model, data, ["task"])} | names
        near = get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
        listed = f"Known keys: {', '.join(sorted(known))}."
        remedy = f"Did you mean {names[near[0]]}?" if near else listed
        remedy = _OTHER_NAMES.get(key, remedy)
        return ConfigProblem(key, error["input"], "unknown key", remedy)
    if kind == "missing":
        return ConfigProblem(key, None, "is missing", "Give it in the file or as an override.")
    what = error["msg"].removeprefix("Value error, ")
    what = what[0].lower() + what[1:]
    if kind in ("enum", "literal_error"):
        what = "no such value"  # those there are come as the remedy
    return ConfigProblem(key, value, what, _remedy(kind, error.get("ctx", {})))


def _remedy(kind: str, context: dict[str, Any]) -> str:
    if kind in ("enum", "literal_error"):
        return f"Use one of: {context.get('expected', '')}."
    if kind.startswith("greater_than"):
        bound = context.get("gt", context.get("ge"))
        return f"Give a number {'above' if 'gt' in context else 'from'} {bound:g}."
    if kind.startswith("less_than"):
        bound = context.get("lt", context.get("le"))
        return f"Give a number {'below' if 'lt' in context else 'up to'} {bound:g}."
    if "remedy" in context:
        return str(context["remedy"])
    if kind.endswith(("_parsing", "_type", "_from_float")):
        return f"Give {_TYPES.get(kind.split('_', maxsplit=1)[0], 'another value')}."
    return _OTHER_REMEDIES.get(kind, "")


def _known_keys(model: type[BaseModel], data: dict[str, Any], location: list[Any]) -> list[str]:
    """The keys that the section at `location` knows."""
    section: Any = model
    place: Any = data
    for part in location:
        place = place.get(part) if isinstance(place, dict) else None
        field = section.model_fields.get(part) if _is_model(section) else None
        if field is not None:
            section = _model_of(field.annotation) or section
            if isinstance(place, dict) and "name" in place and issubclass(section, Section):
                section = section.variant(str(place["name"]))
    return list(section.model_fields) if _is_model(section) else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if _is_model(annotation):
        found: type[BaseModel] = annotation
        return found
    for argument in getattr(annotation, "__args__", ()):
        found_inside = _model_of(argument)
        if found_inside is not None:
            return found_inside
    return None


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
