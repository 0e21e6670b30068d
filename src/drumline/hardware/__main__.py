"""`python -m drumline.hardware [SIMULATE]` prints the machine as JSON."""

from __future__ import annotations

import json
import sys

from drumline.errors import DrumlineError
from drumline.hardware.machine import Machine


def main(arguments: list[str]) -> int:
    """Print `Machine.probe()`; the only argument is a setting of simulated devices."""
    try:
        machine = Machine.probe(simulate=arguments[0] if arguments else None)
    except DrumlineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(machine.as_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
