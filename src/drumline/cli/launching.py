"""The seam between the terminal and `drumline.launch`: plain requests in, one outcome out.

A command builds a request, the floor below does the work and reports through `Follower`: it calls
`follower.watch(events_path, trackers)` before the first attempt starts, and
`follower.output(rank, line)` for what goes to the terminal. An error with a known cause is raised
as a `DrumlineError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.config import ClusterEnvironment, RunConfig
from drumline.errors import EXIT_DONE, BadInput, CheckpointError
from drumline.run_directory import RunDirectory
from drumline.trackers import open_tracker

if TYPE_CHECKING:
    from drumline.cli.follow import Follower
    from drumline.launch import Outcome as Launched
    from drumline.tasks.clstm_ppo.trading.report import Report
    from drumline.tasks.clstm_ppo.trading.walk_forward import Every
    from drumline.tasks.sae.extract_options import ExtractOptions
    from drumline.training import Result


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        status: "done", "stopped", "failed" or, for a dry run, "planned".
        exit_code: One of the four of `drumline.errors`.
        message: Why it failed or stopped; empty when done.
        path: The run directory, or the folder that was written.
        metrics: Final metrics by name.
        plan: The plan as plain data, as in plan.json; for a dry run.
        values: Anything else a program may want to know.
        reports: Whether this process tells the user; of several ranks only rank 0 does.
    """

    status: str
    exit_code: int = EXIT_DONE
    message: str = ""
    path: Path | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    values: dict[str, Any] = field(default_factory=dict)
    reports: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The outcome as plain data for `--json`."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "message": self.message,
            "path": None if self.path is None else str(self.path),
            "metrics": self.metrics,
            "plan": self.plan,
            **self.values,
        }


@dataclass(frozen=True)
class ScriptRequest:
    """What `drumline run` asks for."""

    script: Path
    arguments: list[str]
    gpus: str
    run_dir: Path | None = None


@dataclass(frozen=True)
class ExportRequest:
    """What `drumline sae export` asks for. `checkpoint` is "best", "last" or a step."""

    run: Path
    format: str
    out: Path
    checkpoint: str


@dataclass(frozen=True)
class EvaluateRequest:
    """What `drumline evaluate` asks for. `checkpoint` is "best", "last" or a step."""

    run: Path
    overrides: list[str]
    gpus: str
    checkpoint: str


@dataclass(frozen=True)
class BacktestRequest:
    """What `drumline backtest` asks for. `checkpoint` is "best", "last" or a step."""

    runs: list[Path]
    overrides: list[str]
    checkpoint: str
    chart: Path | None


@dataclass(frozen=True)
class WalkForwardRequest:
    """What `drumline walk-forward` asks for. `every` is "month", "quarter" or "year"."""

    config: Path
    overrides: list[str]
    every: Every
    out: Path
    chart: Path | None


def train(
    config: RunConfig, follower: Follower, *, dry_run: bool = False, resume: bool = False
) -> Outcome:
    """Plan and run a training over all its attempts; with `dry_run` plan only.

    With `resume`, a run whose checkpoints are all damaged is refused, not begun again.

    In a rank that torchrun, Slurm or mpirun has started, take part in that world instead.
    """
    from drumline.jobs.local import devices_for, plan_beside_others
    from drumline.launch.preflight import open_run

    if not ClusterEnvironment.detect().is_alone and not dry_run:
        return _take_part(config, follower)
    if resume and config.run_dir is not None:
        _check_resumable(config.run_dir)
    if dry_run:
        return Outcome("planned", plan=plan_beside_others(config).as_dict())
    from drumline.launch import LaunchRequest, launch

    path = config.run_dir or config.runs_dir / RunDirectory.new_name(config.name)
    with devices_for(config, path) as held, open_run(config, held.plan, path) as run:
        _follow(run, config, follower)
        request = LaunchRequest(
            run,
            held.plan,
            "train",
            spread=config.distributed,
            config=config,
            locks=held.locks,
        )
        return _outcome(launch(request, follower.output), run)


def run_script(request: ScriptRequest, follower: Follower) -> Outcome:
    """Run a user's script, one process per device."""
    from drumline.jobs.local import devices_for
    from drumline.launch import LaunchRequest, launch

    nominal = RunConfig(name=request.script.stem, steps=1, global_batch=2**30, devices=request.gpus)
    path = request.run_dir or nominal.runs_dir / RunDirectory.new_name(nominal.name)
    script = (str(request.script), *request.arguments)
    with devices_for(nominal, path) as held:
        run = RunDirectory.create(path)
        with run.held():
            follower.watch(run.events_path)
            asked = LaunchRequest(
                run, held.plan, "script", script, config=nominal, locks=held.locks
            )
            return _outcome(launch(asked, follower.output), run)


def extract(options: ExtractOptions, gpus: str, follower: Follower) -> Outcome:
    """Store activations; goes on where an earlier call with the same options ended."""
    from drumline.tasks.sae.extract import extract_in_rank, finished

    done = finished(options)
    if done is None:
        from drumline.jobs.local import devices_for
        from drumline.launch import LaunchRequest, launch

        nominal = RunConfig(steps=1, global_batch=2**30, devices=gpus)
        path = options.out / "extraction"
        function = f"{extract_in_rank.__module__}:{extract_in_rank.__name__}"
        payload = (function, options.model_dump_json())
        with devices_for(nominal, path) as held:
            run = RunDirectory.create(path)
            with run.held():
                follower.watch(run.events_path)
                asked = LaunchRequest(run, held.plan, "call", payload, locks=held.locks)
                launched = launch(asked, follower.output)
        if launched.exit_code != EXIT_DONE:
            return _outcome(launched, run)
        done = finished(options)
    assert done is not None
    facts = {"rows": done.count, "width": done.width, "dtype": done.dtype, "layer": done.layer}
    return Outcome("done", path=options.out, values=facts)


def export(request: ExportRequest) -> Outcome:
    """Write a trained SAE in another format."""
    from drumline.config import load_config
    from drumline.tasks.sae.config import SAETaskConfig
    from drumline.tasks.sae.export import export_sae
    from drumline.training.checkpoint import CheckpointStore

    run = RunDirectory.open(request.run)
    config = load_config(run.config_path)
    if not isinstance(config.task, SAETaskConfig):
        raise BadInput(f"{request.run} did not train an SAE.", remedy="Name a run of task sae.")
    checkpoint = CheckpointStore(run.checkpoints_path, config.checkpoint).choose(request.checkpoint)
    export_sae(checkpoint.weights_path, config.task, request.format, request.out)
    return Outcome("done", path=request.out, values={"step": checkpoint.step})


def evaluate(request: EvaluateRequest) -> Outcome:
    """Evaluate a checkpoint of a run, in this process."""
    from drumline.config import load_config
    from drumline.training.evaluate import evaluate_run

    run = RunDirectory.open(request.run)
    config = load_config(run.config_path, [*request.overrides, f"devices={request.gpus}"])
    found = evaluate_run(run, config, request.checkpoint)
    return Outcome("done", path=run.path, metrics=found.metrics, values={"step": found.step})


def backtest(request: BacktestRequest) -> Report:
    """Trade with the policies of runs, in this process; the chart, if asked for, is written."""
    from drumline.config import load_config
    from drumline.tasks.clstm_ppo.trading.backtest_runs import backtest_runs

    runs = [RunDirectory.open(path) for path in request.runs]
    overrides = [*request.overrides, "devices=cpu"]
    configs = [load_config(run.config_path, overrides) for run in runs]
    report = backtest_runs(list(zip(runs, configs, strict=True)), request.checkpoint)
    if request.chart is not None:
        from drumline.tasks.clstm_ppo.trading.chart import draw

        draw(report, request.chart)
    return report


def walk_forward(
    request: WalkForwardRequest, train_one: Callable[[RunConfig], Outcome]
) -> Report | Outcome:
    """Train a policy before each period of the test days, and let them trade in turn.

    Args:
        request: What is asked for. A period's run is in its folder below `out`; one that is done
            is not trained again.
        train_one: Trains; called once for each period.

    Returns:
        The report, or how the training ended that did not come to its end.
    """
    from drumline.config import load_config
    from drumline.tasks.clstm_ppo.trading.backtest_runs import trading_of, walk_runs
    from drumline.tasks.clstm_ppo.trading.walk_forward import periods

    whole = load_config(request.config, request.overrides)
    runs = []
    for period in periods(trading_of(str(request.config), whole), request.every):
        folder = request.out / period.name
        own = [*period.overrides, f"run_dir={folder}"]
        config = load_config(request.config, [*request.overrides, *own])
        outcome = train_one(config)
        if outcome.status != "done":
            return outcome
        runs.append((RunDirectory.open(folder), config))
    report = walk_runs(runs, trading_of(str(request.config), whole))
    if request.chart is not None:
        from drumline.tasks.clstm_ppo.trading.chart import draw

        draw(report, request.chart)
    return report


def demo(out: Path, gpus: str, follower: Follower) -> Outcome:
    """Store activations of the demo's model, unless they are there, and train an SAE on them."""
    from drumline.config import parse_config
    from drumline.config.load import read_mapping
    from drumline.tasks.sae.demo import DEMO_CONFIG, demo_extraction

    options = demo_extraction(out / "demo-activations")
    stored = extract(options, gpus, follower)
    if stored.exit_code != EXIT_DONE:
        return stored
    data = read_mapping(DEMO_CONFIG)
    data["task"]["activations"] = str(options.out)
    data |= {"runs_dir": str(out), "devices": gpus}
    trained = train(parse_config(data, source="the demo"), follower)
    speed = trained.values.get("samples_per_s")
    shown = {} if speed is None else {"activations_per_s": speed}
    return replace(trained, metrics={**trained.metrics, **shown})


def _check_resumable(run: Path) -> None:
    from drumline.training.checkpoint import CheckpointStore

    refused = []
    for _, checkpoint, reason in CheckpointStore(RunDirectory(run).checkpoints_path).examine():
        if checkpoint is not None:
            return
        refused.append(reason)
    if refused:
        raise CheckpointError(
            f"No checkpoint of {run} is whole: {'; '.join(refused)}",
            remedy="Move its checkpoints folder away to begin again at step 0.",
        )


def _take_part(config: RunConfig, follower: Follower) -> Outcome:
    """Be one rank of a world that somebody else started; rank 0 shows it."""
    from drumline.training import Trainer

    is_main = ClusterEnvironment.detect().rank == 0

    def opened(run: RunDirectory) -> None:
        if is_main:
            _follow(run, config, follower)

    result: Result = Trainer(config).fit(opened)
    return Outcome(
        result.status,
        result.exit_code,
        result.message,
        result.run_dir,
        dict(result.metrics),
        reports=is_main,
    )


def _follow(run: RunDirectory, config: RunConfig, follower: Follower) -> None:
    trackers = [open_tracker(name, run, config) for name in config.logging.trackers]
    follower.watch(run.events_path, trackers)


def _outcome(launched: Launched, run: RunDirectory) -> Outcome:
    result = launched.result
    status = {0: "done", 75: "stopped"}.get(launched.exit_code, "failed")
    return Outcome(
        status,
        launched.exit_code,
        f"{launched.message} {launched.remedy}".strip() if status == "failed" else "",
        run.path,
        dict(result.get("metrics") or {}),
        values={
            "attempts": launched.attempts,
            "step": result.get("step"),
            "samples": result.get("samples"),
            "seconds": result.get("seconds"),
            "samples_per_s": result.get("samples_per_s"),
        },
    )
