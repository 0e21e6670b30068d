"""Sources of devices: the drivers of this machine, or simulated devices on explicit wish."""

from drumline.hardware.providers.interface import Findings, Provider
from drumline.hardware.providers.system import SystemProvider, choose_provider

__all__ = ["Findings", "Provider", "SystemProvider", "choose_provider"]
