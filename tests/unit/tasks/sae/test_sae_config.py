from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError
from sae_stand_ins import task_config

from drumline.config import parse_config
from drumline.config.describe import describe_config
from drumline.errors import ConfigError
from drumline.tasks.sae.build import build_sae


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"latents": 16, "k": 32}, ["k is 32", "16 latents", "lower k"]),
        ({"latents": 16, "k": 2, "aux_k": 17}, ["aux_k is 17", "16 latents", "at most 16"]),
        ({"architecture": "standard", "aux_k": 8}, ["aux_k 8", "standard", "resampling"]),
        ({"latents": 64, "expansion": 2}, ["latents 64", "expansion 2", "leave one out"]),
        ({"latents": 64, "matryoshka": [8, 32]}, ["[8, 32]", "64 latents", "end it with 64"]),
        ({"latents": 64, "matryoshka": [32, 8, 64]}, ["[32, 8, 64]", "ascending"]),
        ({"latents": 64, "matryoshka": [8, 8, 64]}, ["[8, 8, 64]", "each number once"]),
        ({"architecture": "gated", "decoder_norm": False}, ["gated", "decoder_norm"]),
        ({"targets": "t", "tied_init": True}, ["tied_init", "transcoder"]),
        ({"batchtopk_group": 0}, ["greater than 0"]),
        ({"k": -1}, ["greater than 0"]),
        ({"dead_after_samples": 0}, ["greater than 0"]),
        ({"bias_init": "median"}, ["geometric_median"]),
    ],
)
def test_contradictions_name_the_numbers_and_the_remedy(keys, words):
    with pytest.raises(ValidationError) as caught:
        task_config(**keys)
    for word in words:
        assert word in str(caught.value)


def test_size_rules_hold_for_an_expansion_once_the_width_is_known():
    with pytest.raises(ConfigError, match=r"k is 32, but there are only 16 latents") as caught:
        build_sae(task_config(expansion=2, k=32), 8)
    assert "lower k" in str(caught.value)


def test_run_config_finds_the_task_and_suggests_for_an_unknown_key():
    with pytest.raises(ConfigError, match="batchtopk_group"):
        parse_config({"steps": 1, "task": {"name": "sae", "activations": "a", "batchtopk_grup": 3}})


def test_every_key_has_a_meaning():
    keys = [key for key in describe_config("sae") if key.name.startswith("task.")]
    assert {"task.k", "task.resampling.every_steps", "task.evaluation.samples"} <= {
        key.name for key in keys
    }
    assert [key.name for key in keys if not key.meaning] == []


def test_sparsity_cost_rises_in_a_line():
    config = task_config(architecture="standard", sparsity={"l1": 4.0, "warmup_steps": 8})
    assert [config.sparsity_coefficient(step) for step in (0, 2, 8, 100)] == [0, 1, 4, 4]
    assert task_config(architecture="topk").sparsity_coefficient(100) == 0


def test_granularity_is_the_group_of_batchtopk_only():
    assert task_config(architecture="batchtopk", batchtopk_group=6).granularity == 6
    assert task_config(architecture="topk", batchtopk_group=6).granularity == 1


@pytest.mark.parametrize(("width", "expected"), [(576, 256), (512, 256), (1024, 512), (3, 1)])
def test_default_aux_k_is_the_power_of_two_up_to_half_the_width(width, expected):
    assert task_config().aux_count(width) == expected
    assert task_config(aux_k=0).aux_count(width) == 0
    assert task_config(architecture="gated").aux_count(width) == 0


def test_reading_the_config_class_needs_no_torch():
    code = "import drumline.tasks.sae.config, sys; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "False"
