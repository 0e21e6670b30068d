"""`/metrics` for Prometheus: devices, trainings, and how the service itself is doing.

`devices`, `trainings` and `health` each make some families of samples, `exposition` puts them
together. A value that is not known is left out, never 0. All names are listed in docs/metrics.md.
"""

from drumline.server.prometheus.exposition import Exposition, Health

__all__ = ["Exposition", "Health"]
