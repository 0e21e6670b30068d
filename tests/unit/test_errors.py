"""Errors as texts and as plain data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline import errors
from drumline.errors import BadInput, ConfigError, ConfigProblem, DrumlineError, MissingPackage


def test_the_text_is_what_happened_and_what_to_do() -> None:
    error = BadInput("The file a.yaml is empty.", remedy="Write keys into it.")
    assert str(error) == "The file a.yaml is empty. Write keys into it."
    assert str(BadInput("It is empty.")) == "It is empty."


def test_as_dict_is_json_whatever_the_values_are() -> None:
    error = DrumlineError("no", path=Path("runs/a"), rank=3, missing=[1, 2], nothing=None)
    assert json.loads(json.dumps(error.as_dict())) == {
        "code": "failed",
        "message": "no",
        "remedy": "",
        "values": {"path": "runs/a", "rank": 3, "missing": [1, 2], "nothing": None},
    }


def test_a_config_error_lists_every_problem_in_text_and_data() -> None:
    problems = [
        ConfigProblem("optimizer.lr", -1, "must be above 0", "Give a number above 0."),
        ConfigProblem("task.name", None, "is missing", "Give it."),
    ]
    error = ConfigError("run.yaml", problems)
    lines = str(error).splitlines()
    assert lines[0] == "run.yaml cannot be used:"
    assert lines[1].strip() == "optimizer.lr = -1: must be above 0. Give a number above 0."
    assert lines[2].strip() == "task.name: is missing. Give it."
    assert [problem["key"] for problem in error.as_dict()["problems"]] == [
        "optimizer.lr",
        "task.name",
    ]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.BadInput, 2),
        (errors.DeviceError, 2),
        (errors.DataError, 2),
        (errors.RunDirectoryError, 2),
        (errors.CheckpointError, 1),
        (errors.RankFailure, 1),
        (errors.NumericsError, 1),
        (errors.LaunchError, 1),
    ],
)
def test_exit_codes_are_those_documented(kind: type[DrumlineError], code: int) -> None:
    assert kind("x").exit_code == code


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_missing_package_says_how_to_install_it() -> None:
    error = MissingPackage("gguf", "sae", "Reading GGUF files")
    assert "pip install 'drumline[sae]'" in error.remedy
    assert error.values == {"package": "gguf"}
    assert error.exit_code == 2
