"""The command `drumline`: its list of commands, and the one place where errors are shown.

Nothing here imports torch, pydantic or a subcommand; see `lazy`.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.main import get_command

from drumline.cli.lazy import Entry, LazyGroup
from drumline.errors import EXIT_BAD_INPUT, EXIT_FAILED, DrumlineError

INTERRUPTED = 130  # what typer makes of Ctrl-C; ours is one of the four documented codes

EPILOG = """[bold]Exit codes[/]  0 done · 2 bad input · 75 stopped, resume me · 1 anything else

[bold]Start with[/]  drumline demo"""


class Commands(LazyGroup):
    """All commands of the terminal."""

    entries: ClassVar[dict[str, Entry]] = {
        "train": Entry(
            "drumline.cli.train", "Train what a config file says, on one device or many."
        ),
        "plan": Entry(
            "drumline.cli.plan_command", "Show what a run would do on these devices, and why."
        ),
        "estimate": Entry(
            "drumline.cli.estimate", "Predict speed, time and cost on several numbers of devices."
        ),
        "evaluate": Entry("drumline.cli.evaluate", "Evaluate a checkpoint of a run."),
        "backtest": Entry(
            "drumline.cli.backtest", "Trade on the test days, beside what must be beaten."
        ),
        "walk-forward": Entry(
            "drumline.cli.walk_forward", "Retrain before every quarter, and trade on it."
        ),
        "run": Entry("drumline.cli.run", "Run your own script, one process per device."),
        "demo": Entry("drumline.cli.demo", "Train an SAE on a real language model, start to end."),
        "check": Entry("drumline.cli.check", "Check whether training will work on this machine."),
        "runs": Entry("drumline.cli.runs", "List the runs there are."),
        "show": Entry("drumline.cli.show", "Show one run: plan, curves, checkpoints, verdict."),
        "activations": Entry("drumline.cli.activations", "Store a language model's activations."),
        "sae": Entry("drumline.cli.sae", "Export a trained sparse autoencoder."),
        "serve": Entry("drumline.cli.serve", "Serve the API, and run trainings from a queue."),
        "token": Entry("drumline.cli.token", "Make and revoke tokens of the service."),
        "agent": Entry("drumline.cli.agent", "Run the trainings queued for this machine."),
    }


app = typer.Typer(
    cls=Commands,
    help="Many GPUs, one beat: PyTorch training on every device you own, with the same result on "
    "any number of them.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from drumline import __version__

        typer.echo(f"drumline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    del version


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with one of the documented exit codes."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line; every error ends here as one message and an exit code."""
    as_json = "--json" in _before_dashes(arguments)
    try:
        code = get_command(app).main(arguments, prog_name="drumline", standalone_mode=False)
    except DrumlineError as error:
        _report(error.as_dict(), as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # the last resort: whatever nobody foresaw
        return _usage(error, as_json) if hasattr(error, "format_message") else _bug(error, as_json)
    if code == INTERRUPTED:
        _report({"code": "interrupted", "message": "Interrupted.", "remedy": ""}, as_json)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _report(error: dict[str, Any], as_json: bool) -> None:
    from drumline.cli.output import print_error, print_json

    if as_json:
        print_json({"error": error})
    else:
        print_error(error["message"], error["remedy"])


def _usage(error: Any, as_json: bool) -> int:
    """A command line that cannot be understood."""
    if as_json:
        path = error.ctx.command_path if getattr(error, "ctx", None) else "drumline"
        remedy = f"See: {path} --help"
        _report({"code": "usage", "message": error.format_message(), "remedy": remedy}, as_json)
    else:
        from typer.rich_utils import rich_format_error

        rich_format_error(error)
    return EXIT_BAD_INPUT


def _bug(error: Exception, as_json: bool) -> int:
    """An error that no code foresaw: the traceback is what helps, so it is shown whole."""
    import traceback

    traceback.print_exception(error, file=sys.stderr)
    name = type(error).__name__
    report = {
        "code": "unexpected",
        "message": f"Unexpected {name}: {error}" if str(error) else f"Unexpected {name}.",
        "remedy": "This is a fault in Drumline or in the code it ran; the traceback says where.",
    }
    _report(report, as_json)
    return EXIT_FAILED
