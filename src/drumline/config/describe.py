"""Every key of a config with its type, default and meaning, for `drumline train --help-config`."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drumline.config.run import RunConfig
from drumline.config.section import Section, task_config_class


@dataclass(frozen=True)
class Key:
    """One key of a config."""

    name: str
    type: str
    default: str
    meaning: str


def describe_config(task: str | None = None, data: Mapping[str, Any] | None = None) -> list[Key]:
    """All keys of a RunConfig, those of the named task among them under `task.`.

    Args:
        task: Which task.
        data: A config as read, whose names choose sections within the task's; its values do not
            matter.

    Raises:
        ConfigError: If there is no task, or no section, of that name.
    """
    keys: list[Key] = []
    for key in _keys(RunConfig, ""):
        if key.name == "task" and task is not None:
            keys += _keys(task_config_class(task), "task.", _part(data, "task"))
        else:
            keys.append(key)
    return keys


def _keys(
    model: type[BaseModel], prefix: str, data: Mapping[str, Any] | None = None
) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        inner, part = _section(field.annotation), _part(data, name)
        if inner is not None and prefix + name != "task":
            if issubclass(inner, Section) and "name" in part:
                inner = inner.variant(str(part["name"]))
            yield from _keys(inner, f"{prefix}{name}.", part)
        else:
            yield Key(
                prefix + name, _type(field.annotation), _default(field), field.description or ""
            )


def _part(data: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    part = (data or {}).get(name)
    return part if isinstance(part, Mapping) else {}


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for found in map(_section, get_args(annotation)) if found), None)
    return None


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(str(argument) for argument in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"({', '.join(_type(argument) for argument in arguments)})"
    if annotation is type(None):
        return "null"
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return {"str": "text", "Path": "path"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation))
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "null"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
