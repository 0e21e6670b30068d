"""Devices, links and sensors of a machine: NVIDIA, AMD, CPU, simulated. Needs no torch."""

from drumline.hardware.device import Device, GpuProcess
from drumline.hardware.machine import Host, Link, Machine
from drumline.hardware.providers import Provider, choose_provider
from drumline.hardware.selection import resolve_devices
from drumline.hardware.slowness import why_slow
from drumline.hardware.visible import VisibleDevices, visible_devices

__all__ = [
    "Device",
    "GpuProcess",
    "Host",
    "Link",
    "Machine",
    "Provider",
    "VisibleDevices",
    "choose_provider",
    "resolve_devices",
    "visible_devices",
    "why_slow",
]
