"""`python -m drumline.server.plan_process`: one plan, in a process that may import torch and be
ended. The request is a JSON object on standard input, the answer the last line of standard output.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any

from pydantic import TypeAdapter

from drumline.bench.whole_plan import whole_plan
from drumline.config import parse_config
from drumline.errors import BadInput, ConfigError, DrumlineError
from drumline.events import finite
from drumline.hardware import Machine


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The plan of `config` on `machine` beside `occupied`, or the error that kept it from it."""
    try:
        config = parse_config(request["config"])
        machine = TypeAdapter(Machine).validate_python(request["machine"])
        return {"plan": whole_plan(config, machine, request["occupied"]).as_dict()}
    except DrumlineError as error:
        kind = "bad_input" if isinstance(error, BadInput) else "failed"
        kind = "bad_config" if isinstance(error, ConfigError) else kind
        return {"error": error.as_dict(), "kind": kind}


def main() -> None:
    """Answer the one request."""
    with redirect_stdout(sys.stderr):  # what libraries print must not stand before the answer
        found = finite(answer(json.load(sys.stdin)))
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
