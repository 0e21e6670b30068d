"""What every part of a config has in common: frozen, no unknown keys, each key with a meaning."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from drumline.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from drumline.config.run import RunConfig

TASK_GROUP = "drumline.tasks"


class Section(BaseModel):
    """A part of a config. Every field of a subclass has a `description`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_enum_values=False,
        coerce_numbers_to_str=True,  # YAML reads `devices: 2` and `name: 2024` as numbers
        allow_inf_nan=False,
    )

    @classmethod
    def variant(cls, name: str) -> type[Section]:
        """The class of the section whose key `name` says this; one class for all names, unless a
        subclass knows of several.
        """
        del name
        return cls


class TaskConfig(Section):
    """What is trained. A task's own config derives from this and names its class.

    `implementation` is "module:Class" of the `training.Task`; it is imported only in a rank, so
    that reading a config needs no torch.
    """

    implementation: ClassVar[str] = ""
    name: str = Field(description="which task; its other keys depend on it")

    @classmethod
    def variant(cls, name: str) -> type[Section]:
        """The config class of the task of that name."""
        return task_config_class(name)

    @property
    def granularity(self) -> int:
        """Shares and micro-batches are whole multiples of this many samples, except at the end of
        an epoch. More than 1 where the loss couples consecutive samples.
        """
        return 1

    @property
    def sets_length(self) -> bool:
        """Whether the task's own keys say when a run ends, so that steps and epochs need not."""
        return False

    @property
    def untraced(self) -> tuple[str, ...]:
        """What takes time in a run and is in no trace of a step: how an estimate names it."""
        return ()

    def problem_with(self, run: RunConfig) -> str | None:
        """What in the other sections contradicts this one, with a remedy; None if nothing does."""
        del run
        return None

    def check(self) -> None:
        """Raise BadInput for what can be seen to be wrong before anything starts: a missing file,
        say. Called on the launching machine, without torch.
        """


def task_names() -> list[str]:
    """The names of all tasks that installed packages offer, sorted."""
    return sorted(_entries())


@cache
def _entries() -> dict[str, EntryPoint]:
    """Once in a process: it reads the metadata of every package there is."""
    return {entry.name: entry for entry in entry_points(group=TASK_GROUP)}


def task_config_class(name: str) -> type[TaskConfig]:
    """The config class of a task: by its registered name, or as "module:Class".

    Raises:
        ConfigError: If there is none of that name, with the names there are.
    """
    if ":" in name:
        return _checked(name, _import(name))
    if name in _entries():
        return _checked(name, _entries()[name].load())
    from difflib import get_close_matches

    near = get_close_matches(name, task_names(), n=1, cutoff=0.4)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise ConfigError(
        "The config",
        [
            ConfigProblem(
                "task.name", name, "no such task", f"{meant}There are: {', '.join(task_names())}."
            )
        ],
    )


def import_object(path: str) -> Any:
    """The object at "module:name". Import errors pass through."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _import(path: str) -> Any:
    try:
        return import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        problem = ConfigProblem(
            "task.name",
            path,
            f"cannot be imported ({error})",
            "Give it as module:Class, from an installed package or a folder on PYTHONPATH.",
        )
        raise ConfigError("The config", [problem]) from error


def _checked(name: str, value: Any) -> type[TaskConfig]:
    if isinstance(value, type) and issubclass(value, TaskConfig):
        return value
    problem = ConfigProblem(
        "task.name", name, "is not a task", "It must name a subclass of drumline.config.TaskConfig."
    )
    raise ConfigError("The config", [problem])
