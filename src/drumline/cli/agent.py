"""`drumline agent`: the service's process on a GPU host."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from drumline.cli.options import new_app
from drumline.errors import MissingPackage

app = new_app()

EPILOG = """[bold]Settings[/]  environment variables that begin with DRUMLINE_; see docs/agent.md

[bold]Examples[/]

DRUMLINE_DATABASE_URL=postgresql+psycopg://drumline@db/drumline drumline agent

DRUMLINE_SIMULATE=8xH100 drumline agent"""


@app.command(epilog=EPILOG, no_args_is_help=False)
def agent() -> None:
    """Run the trainings that the queue gives to this machine.

    Stop it and start it again at any time: trainings go on meanwhile.
    """
    try:
        from drumline.jobs.agent_process import run_agent
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name), "service", "drumline agent") from error

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    logging.getLogger("celery").setLevel(logging.WARNING)  # tells of every task otherwise
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    run_agent(stop)
