"""Where a run lives: one directory that all ranks, and all attempts of a launcher, agree on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from drumline.config import ClusterEnvironment, RunConfig
from drumline.distributed import World
from drumline.errors import DrumlineError, RunDirectoryError
from drumline.run_directory import RunDirectory

_KEY = "drumline/run_dir"


def agree_on_run_directory(config: RunConfig, world: World) -> RunDirectory:
    """The run directory of this rank's run, made and writable.

    Our launcher names it in the environment; else the config does; else rank 0 makes a new one,
    which restarts under torchrun find again through its agent's store.

    Raises:
        RunDirectoryError: If it cannot be written, on every rank alike.
    """
    problem: dict[str, str] | None = None
    path: Path | None = None
    if world.is_main:
        try:
            path = _choose(config, world.environment)
            RunDirectory.create(path)
            run = RunDirectory(path)
            if world.environment.kind != "drumline" or not run.config_path.exists():
                run.write_config(config.model_dump(mode="json"))
                run.result_path.unlink(missing_ok=True)
        except DrumlineError as error:
            problem = {"message": error.message, "remedy": error.remedy}
        except OSError as error:
            problem = {
                "message": f"The run directory {path} cannot be written: {error}.",
                "remedy": "Free space on the disk.",
            }
    path, problem = world.control.broadcast((path, problem))
    if problem is not None or path is None:
        details = problem or {"message": "no run directory", "remedy": ""}
        raise RunDirectoryError(details["message"], remedy=details["remedy"])
    return RunDirectory(path)


def _choose(config: RunConfig, environment: ClusterEnvironment) -> Path:
    named = environment.run_dir or config.run_dir
    if named is not None:
        return named
    fresh = config.runs_dir / RunDirectory.new_name(config.name)
    if environment.kind != "torchrun":
        return fresh
    return Path(_remember(environment, str(fresh)))


def _remember(environment: ClusterEnvironment, value: str) -> str:
    """What the agent's store holds from an earlier attempt, or `value`, which it then holds."""
    store = TCPStore(
        environment.master_addr,
        environment.master_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
    )
    return store.compare_set(_KEY, "", value).decode()
