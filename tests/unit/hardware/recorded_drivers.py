"""Modules that answer like pynvml and amdsmi, from recordings in plain JSON.

A recording of NVML lists devices, each a map of function to answer, over a template named by
`like`. An answer is a value, or {"error": NAME}, {"struct": {...}}, {"structs": [...]}, or
{"for": {"arguments with commas": answer}}. What is not recorded is not supported. `moments` change
answers of a device, "*" all of them; a test moves on with `at(moment)`. Each call is bound to the
signature of the real pynvml, so a call that it would refuse fails here too.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

RECORDINGS = Path(__file__).parent / "recordings"


class RecordedNvml:
    def __init__(self, name: str) -> None:
        self._recording = json.loads((RECORDINGS / f"{name}.json").read_text())
        self._moment: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self._special = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shut_down,
            "nvmlDeviceGetCount": self._count,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._mig_handle,
        }

    def at(self, moment: str) -> None:
        self._moment = self._recording["moments"][moment]

    def break_driver(self, error: str) -> None:
        self._recording["init_error"] = error

    def change(self, device: str, answers: dict[str, Any]) -> None:
        self._moment = {**self._moment, device: answers}

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if not (name.startswith("nvml") and inspect.isfunction(real)):
            return real
        signature = inspect.signature(real)

        def call(*arguments: Any) -> Any:
            signature.bind(*arguments)
            self.calls[name] += 1
            return self._call(name, arguments)

        return call

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in self._special:
            return self._special[name](*arguments)
        if name.startswith("nvmlSystem"):
            return self._answer(self._recording["system"].get(name), arguments)
        handle, *rest = arguments
        return self._answer(self._recorded(handle, name), rest)

    def _recorded(self, handle: str, name: str) -> Any:
        now = self._moment.get(handle, {})
        answers = {**self._device(handle), **now}
        return now["*"] if "*" in now else answers.get(name)

    def _device(self, handle: str) -> dict[str, Any]:
        position, _, instance = handle.partition("/")
        device = self._recording["devices"][int(position)]
        if instance:
            return device["mig"][instance]
        return {**self._recording.get("templates", {}).get(device.get("like"), {}), **device}

    def _answer(self, answer: Any, arguments: Any) -> Any:
        if answer is None:
            raise _nvml_error("NOT_SUPPORTED")
        if not isinstance(answer, dict):
            return answer
        if "error" in answer:
            raise _nvml_error(answer["error"])
        if "for" in answer:
            key = ",".join(str(argument) for argument in arguments)
            return self._answer(answer["for"].get(key, answer.get("else")), ())
        if "structs" in answer:
            return [_struct(value) for value in answer["structs"]]
        return _struct(answer["struct"])

    def _init(self) -> None:
        if "init_error" in self._recording:
            raise _nvml_error(self._recording["init_error"])

    def _shut_down(self) -> None:
        return None

    def _count(self) -> int:
        return len(self._recording["devices"])

    def _handle(self, position: int) -> str:
        answer = self._moment.get(str(position), {}).get("handle")
        if answer is not None:
            raise _nvml_error(answer["error"])
        return str(position)

    def _mig_handle(self, parent: str, index: int) -> str:
        if str(index) not in self._device(parent).get("mig", {}):
            raise _nvml_error("NOT_FOUND")
        return f"{parent}/{index}"


class RecordedAmdSmi:
    """Answers like amdsmi 7. An error is {"error": STATUS}."""

    class AmdSmiException(Exception):
        pass

    class AmdSmiLibraryException(AmdSmiException):
        def __init__(self, err_code: int) -> None:
            super().__init__(err_code)
            self.err_code = err_code
            self.err_info = f"status {err_code}"

    class AmdSmiClkType(IntEnum):
        GFX = 0
        MEM = 4

    class AmdSmiTemperatureType(IntEnum):
        EDGE = 0
        HOTSPOT = 1

    class AmdSmiTemperatureMetric(IntEnum):
        CURRENT = 0

    def __init__(self, name: str) -> None:
        self._recording = json.loads((RECORDINGS / f"{name}.json").read_text())
        self.gone: set[str] = set()

    def amdsmi_init(self) -> None:
        if "init_error" in self._recording:
            raise self.AmdSmiLibraryException(self._recording["init_error"])

    def amdsmi_shut_down(self) -> None:
        return None

    def amdsmi_get_processor_handles(self) -> list[str]:
        return [str(place) for place in range(len(self._recording["devices"]))]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)
        return lambda handle, *arguments: self._call(name, handle, arguments)

    def _call(self, name: str, handle: str, arguments: tuple[Any, ...]) -> Any:
        if handle in self.gone:
            raise self.AmdSmiLibraryException(31)
        device = self._recording["devices"][int(handle)]
        answers = {**self._recording["templates"][device["like"]], **device}
        answer = answers.get(name, {"error": 2})
        if isinstance(answer, dict) and "for" in answer:
            key = ",".join(str(int(argument)) for argument in arguments)
            answer = answer["for"].get(key, {"error": 2})
        if isinstance(answer, dict) and "error" in answer:
            raise self.AmdSmiLibraryException(answer["error"])
        return answer


def _nvml_error(name: str) -> Exception:
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def _struct(fields: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            key: _struct(value) if isinstance(value, dict) else value
            for key, value in fields.items()
        }
    )
