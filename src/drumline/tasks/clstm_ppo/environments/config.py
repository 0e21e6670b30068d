"""Which environments a policy acts in, and the keys of those that come with Drumline.

An environment is found by its registered name, or as "module:Class" of an `EnvironmentConfig`.
Needs no torch.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic_core import PydanticCustomError

from drumline.config import Section
from drumline.config.section import import_object
from drumline.errors import BadInput, ConfigError, ConfigProblem, MissingPackage

_HERE = "drumline.tasks.clstm_ppo.environments"
_TRADING = "drumline.tasks.clstm_ppo.trading.config"
NAMES = {
    "cartpole_memory": f"{_HERE}.config:CartPoleMemoryConfig",
    "pendulum_memory": f"{_HERE}.config:PendulumMemoryConfig",
    "gymnasium": f"{_HERE}.config:GymnasiumConfig",
    "portfolio": f"{_TRADING}:PortfolioConfig",
    "options": f"{_TRADING}:OptionsConfig",
}
"""Registered environments: name to "module:Class" of the config."""


class EnvironmentConfig(Section):
    """One kind of environment. Its own keys are in subclasses.

    `implementation` is "module:callable", called as (config, count, device, dtype) and giving
    `Environments`; it is imported only in a rank.
    """

    implementation: ClassVar[str] = ""
    name: str = Field(description="which environment; its other keys depend on it")

    @classmethod
    def variant(cls, name: str) -> type[Section]:
        """The config class of the environment of that name."""
        return environment_config_class(name)

    def check(self) -> None:
        """Raise BadInput for what can be seen to be wrong before anything starts. No torch."""

    def for_evaluation(self) -> EnvironmentConfig:
        """The environment that a policy is evaluated in."""
        return self


class CartPoleMemoryConfig(EnvironmentConfig):
    """CartPole whose velocities are hidden: the policy sees positions and must remember."""

    implementation: ClassVar[str] = f"{_HERE}.cartpole:CartPole"
    name: Literal["cartpole_memory"] = Field("cartpole_memory", description="this environment")
    episode_limit: PositiveInt = Field(500, description="steps after which an episode is cut off")
    velocities: bool = Field(False, description="show the velocities after all")


class PendulumMemoryConfig(EnvironmentConfig):
    """Pendulum without its angular velocity: the policy sees the angle and must remember."""

    implementation: ClassVar[str] = f"{_HERE}.pendulum:Pendulum"
    name: Literal["pendulum_memory"] = Field("pendulum_memory", description="this environment")
    episode_limit: PositiveInt = Field(200, description="steps after which an episode is cut off")
    velocities: bool = Field(False, description="show the velocity after all")


class GymnasiumConfig(EnvironmentConfig):
    """Any environment that Gymnasium knows, through its vector API."""

    implementation: ClassVar[str] = f"{_HERE}.gymnasium_environments:GymnasiumEnvironments"
    name: Literal["gymnasium"] = Field("gymnasium", description="this environment")
    id: str = Field(description="its id, for example CartPole-v1, or module:Id-v0")
    workers: Literal["sync", "async"] = Field(
        "sync", description="step all in the rank's own process, or each in one of its own"
    )
    arguments: dict[str, Any] = Field({}, description="keyword arguments of the environment")
    observed: list[NonNegativeInt] | None = Field(
        None, description="numbers of the flat observation that the policy sees; null: all"
    )

    def check(self) -> None:
        """The package is there and knows the id."""
        try:
            import gymnasium
        except ImportError:
            raise MissingPackage("gymnasium", "rl", "environment gymnasium") from None
        module, _, name = self.id.rpartition(":")
        try:
            if module:
                import_module(module)
            gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise BadInput(
                f"task.environment.id {self.id} is no environment here: "
                f"{' '.join(str(error).split())}",
                remedy="List what there is with: python -c 'import gymnasium; "
                "gymnasium.pprint_registry()'",
            ) from None


def environment_config_class(name: str) -> type[EnvironmentConfig]:
    """The config class of an environment: by its registered name, or as "module:Class".

    Raises:
        ConfigError: If there is none of that name, with the names there are.
    """
    path = NAMES.get(name, name)
    if ":" not in path:
        near = get_close_matches(name, NAMES, n=1, cutoff=0.4)
        meant = f"Did you mean {near[0]}? " if near else ""
        there = f"There are: {', '.join(sorted(NAMES))}, or module:Class."
        raise _wrong(name, "no such environment", meant + there)
    try:
        found = import_object(path)
    except (ImportError, AttributeError) as error:
        remedy = "Give it as module:Class, from an installed package or a folder on PYTHONPATH."
        raise _wrong(name, f"cannot be imported ({error})", remedy) from error
    if not (isinstance(found, type) and issubclass(found, EnvironmentConfig)):
        base = f"{EnvironmentConfig.__module__}.{EnvironmentConfig.__name__}"
        raise _wrong(name, "is no environment", f"It must name a subclass of {base}.")
    return found


def environment_config(value: Any) -> Any:
    """The config that a mapping with `name` asks for; anything else as it is, to be refused.

    Raises:
        PydanticCustomError: If there is no environment of that name.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return value
    try:
        found = environment_config_class(value["name"])
    except ConfigError as error:  # so that it is listed with the problems of other keys
        problem = error.problems[0]
        raise PydanticCustomError(
            "environment_name", "{what}", {"what": problem.what, "remedy": problem.remedy}
        ) from error
    return found.model_validate(value)


def _wrong(name: str, what: str, remedy: str) -> ConfigError:
    return ConfigError("The config", [ConfigProblem("task.environment.name", name, what, remedy)])
