"""One NVML handle whose every answer is guarded on its own, and NVML's errors in plain words."""

from __future__ import annotations

from typing import Any

NOT_FOUND = 6
GONE = {
    15: "The device has fallen off the bus.",  # NVML_ERROR_GPU_IS_LOST
    28: "The driver no longer finds the device.",  # NVML_ERROR_GPU_NOT_FOUND
}
# A device that answers so simply has no such field, or not for this user or driver.
NOT_REPORTED = {
    2,  # INVALID_ARGUMENT: no such link, sensor or counter
    3,  # NOT_SUPPORTED
    4,  # NO_PERMISSION
    NOT_FOUND,
    13,  # FUNCTION_NOT_FOUND: the driver is older than this call
    21,  # NO_DATA
    25,  # ARGUMENT_VERSION_MISMATCH
    26,  # DEPRECATED
}
WRONG_WITH_DEVICE = {
    4: "This user may not read the device; check the rights of /dev/nvidia*.",
    NOT_FOUND: "The driver no longer finds the device.",
    8: "The device's external power is not connected.",
    10: "The driver did not answer in time.",
    11: "The kernel has an interrupt problem with the device.",
    14: "The device's infoROM is damaged.",
    16: "The device must be reset before it can be used.",
    **GONE,
}
WRONG_WITH_DRIVER = {
    4: "This user may not talk to the NVIDIA driver; check the rights of /dev/nvidia*.",
    9: "The NVIDIA driver is installed but not loaded; load it (modprobe nvidia) or restart.",
    12: "No NVIDIA driver is installed: its library libnvidia-ml.so.1 was not found.",
    17: "The operating system blocked the call to the NVIDIA driver.",
    18: "The NVIDIA kernel driver and its library are of different versions, as after an update "
    "without a restart; restart the machine.",
}
LIBRARY_NOT_FOUND = 12


def error_code(error: Exception) -> int | None:
    """NVML's number of an error."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def device_words(error: Exception) -> str:
    """What an error says of a device."""
    return WRONG_WITH_DEVICE.get(error_code(error) or 0, f"NVML reports: {error}.")


def driver_words(error: Exception) -> str:
    """What an error at the start says of the driver."""
    return WRONG_WITH_DRIVER.get(error_code(error) or 0, f"The NVIDIA driver reports: {error}.")


class NvmlHandle:
    """Asks one device. A field not reported is None; a device found gone is `lost` from then on
    and asked no more; any other error is kept, the first one, in `problem`.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.lost = False
        self.problem: str | None = None

    def get(self, function: str, *arguments: Any) -> Any:
        """The answer of one NVML function, or None. Never raises for what NVML says."""
        call = getattr(self.nvml, function, None)
        if call is None or self.lost:
            return None
        try:
            return call(self.handle, *arguments)
        except self.nvml.NVMLLibraryMismatchError:
            return None
        except self.nvml.NVMLError as error:
            self._note(error)
            return None

    def first(self, *calls: tuple[Any, ...]) -> Any:
        """The first answer that is not None; for functions that have an older form."""
        for function, *arguments in calls:
            answer = self.get(function, *arguments)
            if answer is not None:
                return answer
        return None

    def _note(self, error: Exception) -> None:
        code = error_code(error)
        if code in GONE:
            self.lost = True
            self.problem = GONE[code]
        elif code not in NOT_REPORTED:
            self.problem = self.problem or device_words(error)
