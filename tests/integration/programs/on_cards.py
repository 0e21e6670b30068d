"""`drumline ARGUMENTS...` on simulated cards that pass for real ones, where nothing can be traced:
a tracing process would be /bin/false. Ends with 99 if torch was imported.

Arguments: the cards, as 8xH100, then drumline's own.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from drumline.cli.main import run
from drumline.hardware import Machine
from drumline.jobs import local
from drumline.launch import preflight


def main() -> int:
    simulated = Machine.probe(simulate=sys.argv[1])
    cards = tuple(replace(card, kind="cuda", simulated=False) for card in simulated.devices)
    for module in (local, preflight):
        module.visible_machine = lambda: replace(simulated, devices=cards)  # type: ignore[attr-defined]
    sys.executable = "/bin/false"
    code = run(sys.argv[2:])
    return 99 if "torch" in sys.modules else code


if __name__ == "__main__":
    sys.exit(main())
