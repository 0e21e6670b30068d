"""Checks of what is installed, and of each device's health. They read; they measure nothing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from drumline.bench.checks.check import CheckContext, TorchFacts
from drumline.bench.checks.finding import Finding, failed, passed, warned
from drumline.hardware import Device
from drumline.planning.availability import Need, memory_in_words, units, why_held, why_in_use

_INSTALL = "Install a torch for your driver's CUDA: https://pytorch.org/get-started"


def read_torch() -> TorchFacts:
    """What torch here was built for, and whether it reaches the GPUs."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            available, problem = torch.cuda.is_available(), ""
        except Exception as error:  # a broken driver may raise anything
            available, problem = False, str(error)
    told = problem or next((str(one.message) for one in caught), "")
    return TorchFacts(
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        available=available,
        architectures=tuple(torch.cuda.get_arch_list()) if available else (),
        problem=told.strip().splitlines()[0] if told.strip() else "",
    )


def devices_there(context: CheckContext) -> Sequence[Finding]:
    """Which devices there are; a CPU-only machine is told plainly."""
    machine, name = context.machine, "devices"
    if not machine.devices:
        problems = " ".join(machine.problems)
        return [
            warned(
                name,
                f"This machine has no GPU: what is checked is training on the CPU over gloo. "
                f"{problems}".rstrip(),
                "If there is a GPU, see that nvidia-smi (or amd-smi) lists it for this user, and "
                "that CUDA_VISIBLE_DEVICES does not hide it.",
                0,
            )
        ]
    names = [device.name or device.kind for device in machine.devices]
    listed = ", ".join(f"{names.count(model)} × {model}" for model in dict.fromkeys(names))
    unlike = len(set(names)) > 1
    text = (
        f"{listed}; the models differ, so equal shares wait for the slowest" if unlike else listed
    )
    return [passed(name, text, len(names))]


def software(context: CheckContext) -> Sequence[Finding]:
    """Driver, CUDA and torch fit together, and torch has code for each architecture."""
    machine, torch = context.machine, context.torch
    if not machine.devices:
        return [passed("torch", f"torch {torch.version}", torch.version)]
    findings = [_versions(context)]
    nvidia = [device for device in machine.devices if device.family == "cuda"]
    if torch.architectures:
        capabilities = {device.compute_capability for device in nvidia}
        for capability in sorted(one for one in capabilities if one is not None):
            findings.append(_architecture(capability, torch))
    return findings


def _versions(context: CheckContext) -> Finding:
    host, torch, name = context.machine.host, context.torch, "driver and torch"
    family = context.machine.devices[0].family
    built = torch.cuda if family == "cuda" else torch.hip
    word = "CUDA" if family == "cuda" else "ROCm"
    value = {
        "torch": torch.version,
        "built_for": built,
        "driver": host.driver_version,
        "driver_cuda": host.cuda_driver_version,
    }
    driver = f"driver {host.driver_version or 'n/a'}"
    if host.cuda_driver_version:
        driver += f" (CUDA {host.cuda_driver_version})"
    if built is None:
        text = f"torch {torch.version} is built without {word}, and {driver} is there"
        return failed(name, text, _INSTALL, value)
    newer = family == "cuda" and _major(built) > _major(host.cuda_driver_version, default=10**6)
    if newer and not torch.available:
        text = f"torch {torch.version} is built for CUDA {built}, newer than {driver}"
        return failed(name, text, f"Update the driver, or: {_INSTALL}", value)
    if not torch.available:
        because = f": {torch.problem}" if torch.problem else ""
        text = f"torch {torch.version} for {word} {built} does not reach the GPUs of {driver}"
        return failed(name, text + because, f"Restart after a driver update, or: {_INSTALL}", value)
    compatible = ", by CUDA's forward compatibility" if newer else ""
    return passed(name, f"torch {torch.version} for {word} {built}, {driver}{compatible}", value)


def _architecture(capability: tuple[int, int], torch: TorchFacts) -> Finding:
    """Binary code runs on its own major architecture from its minor one up; PTX on all later."""
    wanted = f"sm_{capability[0]}{capability[1]}"
    name = f"architecture {wanted}"
    for built in torch.architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", built)
        if match is None:
            continue
        kind, major, minor, exact = match[1], int(match[2]), int(match[3]), bool(match[4])
        if exact:
            fits = (major, minor) == capability
        elif kind == "sm":
            fits = major == capability[0] and minor <= capability[1]
        else:
            fits = (major, minor) <= capability
        if fits:
            return passed(name, f"torch has code for it ({built})", list(torch.architectures))
    text = f"torch {torch.version} has code for {', '.join(torch.architectures)} only"
    return failed(name, text, _INSTALL, list(torch.architectures))


def health(context: CheckContext) -> Sequence[Finding]:
    """One line for each device: lost, memory errors, slowed, or somebody else's."""
    need = Need(occupied=context.occupied)
    return [_health(device, why_held(device, need)) for device in units(context.machine)]


def _health(device: Device, held: str | None) -> Finding:
    name = f"GPU {device.index}" if device.mig_parent_uuid is None else device.uuid
    value = {
        "uuid": device.uuid,
        "name": device.name,
        "temperature_c": device.temperature_c,
        "ecc_uncorrected": device.ecc_uncorrected,
        "slowed_by": list(device.slowed_by),
        "memory_free_bytes": device.memory_free_bytes,
    }
    if device.lost:
        remedy = "Restart the machine; if it is lost again, have the card and its seat examined."
        return failed(name, f"lost: {device.problem or 'it does not answer'}", remedy, value)
    if device.ecc_uncorrected:
        text = f"{device.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
        remedy = f"Reset it (nvidia-smi --gpu-reset -i {device.index}); replace it if they return."
        return failed(name, text, remedy, value)
    if device.slowed_by:
        text = f"slowed by {' and '.join(device.slowed_by)}, {_sensors(device)}"
        return warned(name, text, "See to cooling, power supply and power limit.", value)
    if busy := held or why_in_use(device):
        remedy = "Leave it out (--gpus), or wait; it is not measured unless named by --gpus."
        return warned(name, busy, remedy, value)
    if device.problem:
        return warned(name, device.problem, "Look at the system log (dmesg).", value)
    errors = "" if device.ecc_uncorrected is None else ", no uncorrected memory errors"
    return passed(name, f"{memory_in_words(device)}, {_sensors(device)}{errors}", value)


def _sensors(device: Device) -> str:
    heat = "n/a" if device.temperature_c is None else f"{device.temperature_c:.0f} °C"
    power = "n/a" if device.power_w is None else f"{device.power_w:.0f} W"
    limit = "" if device.power_limit_w is None else f" of {device.power_limit_w:.0f} W"
    return f"{heat}, {power}{limit}"


def _major(version: str | None, default: int = 0) -> int:
    match = re.match(r"\d+", version or "")
    return int(match.group()) if match else default
