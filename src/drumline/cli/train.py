"""`drumline train`: a config file and overrides to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli import completion
from drumline.cli.options import GPUS_HELP, Json, new_app
from drumline.errors import BadInput

if TYPE_CHECKING:
    from drumline.config import RunConfig

app = new_app()

DECIDES_RESULT = frozenset(
    ["task", "seed", "global_batch", "epoch_end", "precision", "clip_norm", "optimizer", "schedule"]
)
"""Keys whose change makes another run; others say where, how long and how closely watched."""

EPILOG = """[bold]Examples[/]

drumline train sae.yaml --gpus 0,2 optimizer.lr=3e-4 steps=2000

drumline train sae.yaml --dry-run

drumline train --resume sae-20250131

drumline train --help-config sae

[bold]Exit codes[/]  0 done · 2 bad input · 75 stopped, resume me · 1 anything else"""


@app.command(epilog=EPILOG)
def train(
    *,
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            autocompletion=completion.configs,
            help="A YAML or JSON file. Not needed with --resume.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Keys to set on top of the file, with dots for sections: optimizer.lr=1e-3",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="WHICH", help=f"{GPUS_HELP} By default the config's devices key."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and stop; nothing is written.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Go on with this run from its last good checkpoint, on any number of devices. "
            "Its own config is used unless CONFIG is given.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The run directory; by default a new one in ./runs."),
    ] = None,
    help_config: Annotated[
        bool,
        typer.Option(
            "--help-config",
            help="Print every key of a config with type, default and meaning, and stop. "
            "CONFIG may be the name of a task, or a file, to see the task's keys, too.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train what a config file says, on one device or many. The result is the same on any
    number of them.
    """
    if help_config:
        from drumline.cli.help_config import print_help_config

        print_help_config(config, as_json=as_json)
        return
    from drumline.cli import launching
    from drumline.cli.outcome import finish, followed

    config, given = _split(config, overrides or [], resumes=resume is not None)
    resumed = _resumed(resume)
    checked = _read(config, given, resumed, {"devices": gpus, "run_dir": run_dir})
    if resumed is None and checked.run_dir is not None:
        refuse_another_run(checked, checked.run_dir)
    from drumline.trackers import require_trackers

    require_trackers(checked.logging.trackers)
    outcome = followed(
        lambda follower: launching.train(
            checked, follower, dry_run=dry_run, resume=resumed is not None
        ),
        as_json=as_json,
    )
    if outcome.status == "planned" and not as_json and outcome.plan is not None:
        from drumline.cli.output import results
        from drumline.cli.plan import render_plan

        results().print(render_plan(outcome.plan))
    go_on = f"Go on with: drumline train --resume {outcome.path}"
    finish(outcome, as_json=as_json, go_on=go_on)


def _split(
    config: str | None, overrides: list[str], *, resumes: bool
) -> tuple[str | None, list[str]]:
    """With --resume the config may be left out: a first word like key=value is an override."""
    if config is not None and resumes and "=" in config and not Path(config).exists():
        return None, [config, *overrides]
    if config is None and not resumes:
        raise BadInput(
            "No config was given.", remedy="Give one: drumline train CONFIG.yaml, or --resume RUN."
        )
    return config, overrides


def _resumed(resume: str | None) -> Path | None:
    if resume is None:
        return None
    from drumline.cli.find import find_run

    return find_run(resume).path


def refuse_another_run(config: RunConfig, run_dir: Path) -> None:
    """The same command goes on with its run; another config must not overwrite one by mistake.

    Raises:
        BadInput: If the directory holds a run whose result other keys have decided.
    """
    from drumline.cli.state import read_config
    from drumline.run_directory import RunDirectory

    there, given = read_config(RunDirectory(run_dir)), config.model_dump(mode="json")
    differing = [key for key in sorted(DECIDES_RESULT) if key in there and there[key] != given[key]]
    if differing:
        raise BadInput(
            f"{run_dir} holds another run: its {', '.join(differing)} differ from this config's.",
            remedy="Give another run_dir, or go on with that run all the same: drumline train "
            f"CONFIG --resume {run_dir}",
            run_dir=str(run_dir),
            differing=differing,
        )


def _read(
    config: str | None, overrides: list[str], resumed: Path | None, options: dict[str, Any]
) -> RunConfig:
    """The checked config: the file, then overrides, then options of the command line."""
    from drumline.config import parse_config
    from drumline.config.load import apply_overrides, read_mapping
    from drumline.run_directory import RunDirectory

    if config is not None:
        path = Path(config)
    else:
        assert resumed is not None
        path = RunDirectory(resumed).config_path
    data = apply_overrides(read_mapping(path), overrides)
    if resumed is not None:
        data["run_dir"] = str(resumed)
    data |= {key: str(value) for key, value in options.items() if value is not None}
    return parse_config(data, source=str(path))
