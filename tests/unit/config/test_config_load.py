"""Reading and checking a config: every wrong key is named, with its value and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from drumline.config import (
    DistributedConfig,
    Mode,
    OptimizerConfig,
    Precision,
    RunConfig,
    Section,
    TaskConfig,
    load_config,
    parse_config,
)
from drumline.config.load import apply_overrides, override, read_mapping
from drumline.config.section import import_object, task_config_class
from drumline.errors import BadInput, ConfigError


class Inner(Section):
    """A section inside a task."""

    width: int = Field(4, gt=0, description="width of it")


class StandInTaskConfig(TaskConfig):
    """A task of this test."""

    implementation: ClassVar[str] = "no_such:Task"
    size: int = Field(3, gt=0, lt=100, description="size of it")
    label: str = Field("x", description="label of it")
    inner: Inner = Field(Inner(), description="inside")


NOT_A_TASK = 3
NAME = f"{__name__}:StandInTaskConfig"
SMALLEST: dict[str, Any] = {"steps": 1}


def problems_of(data: dict[str, Any]) -> dict[str, Any]:
    """The problems by key."""
    with pytest.raises(ConfigError) as raised:
        parse_config(data)
    assert raised.value.exit_code == 2
    return {problem.key: problem for problem in raised.value.problems}


def test_every_problem_is_listed_with_key_value_and_remedy() -> None:
    problems = problems_of(
        {
            "steps": 0,
            "seed": -3,
            "optimzer": {},
            "precision": "fp8",
            "global_batch": "many",
            "data_workers": 1.5,
            "distributed": {"mode": "ddp", "timeout_s": 0, "shares": 3},
            "checkpoint": {"keep_best": {"goal": "less"}},
            "schedule": {"final_fraction": 2},
            "optimizer": {"betas": [0.9, 1.0], "lr": float("inf")},
            "task": {"name": NAME, "size": 100, "inner": {"width": 0, "wdth": 1}},
        }
    )
    values = {key: problem.value for key, problem in problems.items()}
    assert values == {
        "steps": 0,
        "seed": -3,
        "optimzer": {},
        "precision": "fp8",
        "global_batch": "many",
        "data_workers": 1.5,
        "distributed.mode": "ddp",
        "distributed.timeout_s": 0,
        "distributed.shares": 3,
        "checkpoint.keep_best.metric": None,
        "checkpoint.keep_best.goal": "less",
        "schedule.final_fraction": 2,
        "optimizer.betas.1": 1.0,
        "optimizer.lr": float("inf"),
        "task.size": 100,
        "task.inner.width": 0,
        "task.inner.wdth": 1,
    }
    assert all(problem.remedy for problem in problems.values())
    remedies = {key: problem.remedy for key, problem in problems.items()}
    assert remedies["steps"] == "Give a number above 0."
    assert remedies["seed"] == "Give a number from 0."
    assert remedies["schedule.final_fraction"] == "Give a number up to 1."
    assert remedies["task.size"] == "Give a number below 100."
    assert remedies["optimzer"] == "Did you mean optimizer?"
    assert remedies["task.inner.wdth"] == "Did you mean width?"
    assert remedies["global_batch"] == "Give a whole number."
    assert all(mode.value in remedies["distributed.mode"] for mode in Mode)
    assert all(precision.value in remedies["precision"] for precision in Precision)


def test_an_unknown_key_far_from_all_others_gets_the_list_of_known_ones() -> None:
    (problem,) = problems_of({**SMALLEST, "logging": {"zzz": 1}}).values()
    assert problem.key == "logging.zzz"
    for known in ("every_steps", "trackers", "wandb_project", "wandb_mode"):
        assert known in problem.remedy


def test_an_unknown_key_may_be_called_like_a_class() -> None:
    assert list(problems_of({**SMALLEST, "OptimizerConfig": 1})) == ["OptimizerConfig"]


@pytest.mark.parametrize(
    ("extra", "said"),
    [({}, "neither was given"), ({"steps": 3, "epochs": 2}, "both were given")],
)
def test_either_steps_or_epochs(extra: dict[str, Any], said: str) -> None:
    (problem,) = problems_of(extra).values()
    assert said in problem.what


def test_shares_must_sum_to_the_global_batch() -> None:
    data = {**SMALLEST, "global_batch": 12, "distributed": {"shares": [9, 4]}}
    (problem,) = problems_of(data).values()
    assert "sum to 13" in problem.what
    assert "12" in problem.what
    data["distributed"] = {"shares": [9, 3]}
    assert parse_config(data).distributed.shares == [9, 3]


@pytest.mark.parametrize(
    ("given", "fixed"),
    [("equal", None), ("measured", None), (None, None), ([9, 3], [9, 3]), ([12, 0], [12, 0])],
)
def test_shares_are_equal_measured_or_counts(given: Any, fixed: list[int] | None) -> None:
    data = {**SMALLEST, "global_batch": 12, "distributed": {"shares": given}}
    found = parse_config(data).distributed
    assert (found.shares, found.fixed_shares) == (given or "equal", fixed)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("mesured", "Did you mean measured?"),
        (3, "Use equal, measured, or a list like [9, 3]."),
        ([], "Use equal, measured, or a list like [9, 3]."),
        ([9, -3], "Use equal, measured, or a list like [9, 3]."),
        ([9, "x"], "Use equal, measured, or a list like [9, 3]."),
        ([9.5, 2.5], "Use equal, measured, or a list like [9, 3]."),
        ([True, 11], "Use equal, measured, or a list like [9, 3]."),
    ],
)
def test_other_shares_are_one_problem_with_a_remedy(given: Any, remedy: str) -> None:
    data = {**SMALLEST, "global_batch": 12, "distributed": {"shares": given}}
    (problem,) = problems_of(data).values()
    assert (problem.key, problem.remedy) == ("distributed.shares", remedy)


@pytest.mark.parametrize(
    "keys", [{"mode": "sharded"}, {"mode": "hybrid"}, {"sync_batchnorm": True}]
)
def test_ranks_that_wait_in_every_layer_cannot_be_measured(keys: dict[str, Any]) -> None:
    data = {**SMALLEST, "distributed": {"shares": "measured", **keys}}
    (problem,) = problems_of(data).values()
    assert problem.key == "distributed"
    assert "at its own pace" in problem.what
    assert parse_config({**SMALLEST, "distributed": keys})


def test_an_unknown_task_is_one_problem_among_others() -> None:
    problems = problems_of({**SMALLEST, "seed": -1, "task": {"name": "saee"}})
    assert set(problems) == {"task.name", "seed"}
    assert problems["task.name"].value == "saee"
    assert "Did you mean sae?" in problems["task.name"].remedy


@pytest.mark.parametrize(
    "name", ["no_such_module:X", f"{__name__}:Absent", f"{__name__}:NOT_A_TASK", ":", "a:", "42"]
)
def test_a_task_that_cannot_be_used_is_named(name: str) -> None:
    (problem,) = problems_of({**SMALLEST, "task": {"name": name}}).values()
    assert (problem.key, problem.value) == ("task.name", name)
    assert problem.remedy


def test_a_task_without_a_name_is_told_so() -> None:
    problems = problems_of({**SMALLEST, "task": {"nme": NAME}})
    assert problems["task.name"].what == "is missing"
    assert problems["task.nme"].remedy == "Did you mean name?"


def test_a_task_by_module_and_class_gets_its_own_keys() -> None:
    config = parse_config({**SMALLEST, "task": {"name": NAME, "inner": {"width": 7}}})
    assert isinstance(config.task, StandInTaskConfig)
    assert (config.task.size, config.task.inner.width, config.task.granularity) == (3, 7, 1)


def test_a_task_by_its_registered_name() -> None:
    assert task_config_class("sae").__name__ == "SAETaskConfig"


def test_import_object_lets_import_errors_pass() -> None:
    assert import_object(f"{__name__}:NAME") == NAME
    with pytest.raises(ModuleNotFoundError):
        import_object("no_such_module:X")


def test_numbers_may_stand_for_texts() -> None:
    config = parse_config({**SMALLEST, "devices": 2, "name": 2024})
    assert (config.devices, config.name) == ("2", "2024")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("optimizer.lr=1e-3", ["optimizer", "lr"], 0.001),
        ("optimizer.lr=0.5", ["optimizer", "lr"], 0.5),
        ("distributed.shares=[9, 3]", ["distributed", "shares"], [9, 3]),
        ("distributed.shares=null", ["distributed", "shares"], "equal"),
        ("micro_batch=", ["micro_batch"], None),
        ("devices=0,2", ["devices"], "0,2"),
        ("devices=4", ["devices"], "4"),
        ("name=a=b", ["name"], "a=b"),
        ("checkpoint.at_end=false", ["checkpoint", "at_end"], False),
        ("optimizer.betas=[0.5, 0.9]", ["optimizer", "betas"], (0.5, 0.9)),
        ("run_dir=some/where", ["run_dir"], Path("some/where")),
    ],
)
def test_overrides_give_the_value_of_their_key(text: str, path: list[str], value: object) -> None:
    start = {**SMALLEST, "global_batch": 12}
    found: Any = parse_config(apply_overrides(start, [text]))
    for part in path:
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value) or isinstance(found, Path)


def test_overrides_make_sections_that_are_not_there_and_leave_the_input_alone() -> None:
    data: dict[str, Any] = {"steps": 1, "checkpoint": None}
    changed = apply_overrides(data, ["checkpoint.keep_best.metric=fvu", "steps=4", "steps=5"])
    assert changed == {"steps": 5, "checkpoint": {"keep_best": {"metric": "fvu"}}}
    assert data == {"steps": 1, "checkpoint": None}
    assert parse_config(changed).checkpoint.keep_best is not None


@pytest.mark.parametrize("text", ["steps", "=3", ""])
def test_an_override_without_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="key=value"):
        apply_overrides({}, [text])


def test_a_value_that_is_not_yaml_is_taken_as_text() -> None:
    assert apply_overrides({}, ["name=[a"]) == {"name": "[a"}


def test_override_of_a_config_checks_again() -> None:
    config = parse_config(SMALLEST)
    assert override(config, []) is config
    assert override(config, ["optimizer.lr=0.25"]).optimizer.lr == 0.25
    with pytest.raises(ConfigError):
        override(config, ["optimizer.lr=-1"])


def test_yaml_and_json_files_give_the_same(tmp_path: Path) -> None:
    data = {"steps": 3, "optimizer": {"lr": 0.01}, "task": {"name": NAME, "size": 5}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(data))
    (tmp_path / "a.json").write_text(json.dumps(data))
    one, other = load_config(tmp_path / "a.yaml"), load_config(tmp_path / "a.json", ["steps=3"])
    assert one == other == parse_config(data)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", b"steps: [1", "not YAML"),
        ("a.yaml", b"- 1\n- 2\n", "no mapping"),
        ("a.yaml", b"", "no mapping"),
        ("a.json", b"{'steps': 1}", "not JSON"),
        ("a.json", b"3", "no mapping"),
        ("a.yaml", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_config_is_bad_input(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said) as raised:
        read_mapping(tmp_path / name)
    assert name in raised.value.message
    assert raised.value.remedy
    assert len(raised.value.message.splitlines()) == 1


def test_a_missing_file_and_a_folder_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        load_config(tmp_path)


def test_the_problems_of_a_file_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("stps: 1")
    with pytest.raises(ConfigError, match=r"mine\.yaml") as raised:
        load_config(tmp_path / "mine.yaml")
    assert "Did you mean steps?" in str(raised.value)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (DistributedConfig(), "timeout_s", 1.0),
        (OptimizerConfig(), "lr", 1.0),
        (RunConfig(steps=1), "seed", 4),
        (StandInTaskConfig(name="x"), "size", 4),
    ],
)
def test_configs_are_frozen(section: Section, key: str, value: object) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(section, key, value)


@settings(max_examples=60, deadline=None)
@given(
    data=st.fixed_dictionaries(
        {"steps": st.integers(1, 10**9)},
        optional={
            "seed": st.integers(0, 2**63 - 1),
            "name": st.text(max_size=8),
            "micro_batch": st.none() | st.integers(1, 10**6),
            "clip_norm": st.none() | st.floats(1e-30, 1e30),
            "precision": st.sampled_from([p.value for p in Precision]),
            "run_dir": st.none() | st.just("runs/a"),
            "optimizer": st.fixed_dictionaries(
                {"lr": st.floats(1e-30, 1e30)},
                optional={"betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)).map(list)},
            ),
            "checkpoint": st.just({"keep_best": {"metric": "fvu", "goal": "max"}}),
            "distributed": st.fixed_dictionaries(
                {"mode": st.sampled_from([mode.value for mode in Mode])}
            ),
            "task": st.fixed_dictionaries({"name": st.just(NAME), "size": st.integers(1, 99)}),
        },
    )
)
def test_a_config_survives_being_written_and_read(data: dict[str, Any]) -> None:
    config = parse_config(data)
    assert parse_config(config.model_dump(mode="json")) == config
    through_yaml = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    assert parse_config(through_yaml) == config


def test_a_misspelt_key_of_the_task_is_recognised_where_task_was_left_out() -> None:
    data = {"steps": 1, "global_batch": 4, "task": {"name": "sae", "activations": "a.npy"}}
    with pytest.raises(ConfigError) as caught:
        parse_config(apply_overrides(data, ["latent=8"]))
    (problem,) = [p for p in caught.value.problems if p.key == "latent"]
    assert problem.remedy == "Did you mean task.latents?"
