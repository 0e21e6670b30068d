"""Alerts: when something is wrong with a device, host, disk or training, somebody is told once, and
once more when it is over.

`rules` says what is wrong, `incidents` when to tell, `courier` brings it there without holding
anybody up, `webhook` and `email` are the ways. Who looks, and how often, is the service's.
"""

from drumline.monitoring.alerts.courier import Courier, couriers
from drumline.monitoring.alerts.incidents import Alert, Incidents
from drumline.monitoring.alerts.rules import Reading, Rule, TrainingProgress

__all__ = ["Alert", "Courier", "Incidents", "Reading", "Rule", "TrainingProgress", "couriers"]
