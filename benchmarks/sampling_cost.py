"""What sampling costs: CPU time of this process in percent of one core, for 8 simulated devices.

    python benchmarks/sampling_cost.py [--seconds 60] [--every 1]

Once the sampler alone, and once the whole monitor: sampler, history and inventory in an SQLite
file, and the bus. The first seconds, with imports and the first look at everything, are not
counted. The simulated driver answers at once: the time that real drivers take in their calls comes
on top. Rows, as CSV, come last.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime

from history_range import commit, cpu

from drumline.database import open_database
from drumline.database.migrate import upgrade
from drumline.hardware.providers.simulated import SimulatedProvider
from drumline.monitoring.bus import Bus
from drumline.monitoring.monitor import Monitor
from drumline.monitoring.sampler import Sampler

DEVICES, WARM_UP_S = 8, 5.0


def percent_of_a_core(start: Callable[[], None], stop: Callable[[], None], seconds: float) -> float:
    start()
    time.sleep(WARM_UP_S)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    used = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
    stop()
    return 100 * used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=1)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    options = parser.parse_args()
    setting = f"{DEVICES}xH100:mixed"
    sampler = Sampler(SimulatedProvider(setting), lambda _sample: None, options.every)
    costs = {"sampler": percent_of_a_core(sampler.start, sampler.stop, options.seconds)}
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{folder}/history.db")
        upgrade(database)
        monitor = Monitor(database, SimulatedProvider(setting), Bus(), every_s=options.every)
        costs["monitor"] = percent_of_a_core(monitor.start, monitor.stop, options.seconds)
        database.close()
    tail = f"{options.every},{options.seconds:.0f},{cpu()},Python {platform.python_version()}"
    tail += f",{datetime.now(UTC):%Y-%m-%d},{commit()},python benchmarks/sampling_cost.py"
    print(
        "what,devices,cpu_percent_of_a_core,every_s,seconds,cpu,versions,date,commit,command,note"
    )
    for what, percent in costs.items():
        print(f"{what},{DEVICES},{percent:.3f},{tail},{options.note}")


if __name__ == "__main__":
    main()
