"""Every example does what its first lines say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from real_commands import ROOT, drumline, python
from safetensors.numpy import load_file

EXAMPLES = ROOT / "examples"
WORST_ERROR = re.compile(r"worst error ([0-9.e-]+)")


def worst_errors(output: str) -> list[float]:
    return [float(value) for value in WORST_ERROR.findall(output)]


def test_own_model_gives_one_result_however_it_is_started(tmp_path: Path) -> None:
    script = EXAMPLES / "own_model.py"
    (alone,) = worst_errors(python(tmp_path, script))
    drumline(tmp_path, "run", script, "--gpus", "cpu:2")
    (run,) = tmp_path.glob("runs/own_model-*")
    launched = json.loads((run / "result.json").read_text())["metrics"]["worst_error"]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    under_torchrun = worst_errors(python(tmp_path, *torchrun, script))
    assert len(under_torchrun) == 3
    assert alone < 0.1  # a network that learned nothing is off by 1
    for other in (launched, *under_torchrun):
        assert other == pytest.approx(alone, rel=1e-3)  # fp32 sums in another order


def test_own_loop_gives_one_result_however_it_is_started(tmp_path: Path) -> None:
    script, loss = EXAMPLES / "own_loop.py", re.compile(r"epoch 50: loss ([0-9.e-]+) on (\d) ranks")
    (alone,) = loss.findall(python(tmp_path, script))
    drumline(tmp_path, "run", script, "--gpus", "cpu:2")
    (log,) = tmp_path.glob("runs/own_loop-*/logs/rank-0.log")
    (launched,) = loss.findall(log.read_text())
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    (under_torchrun,) = loss.findall(python(tmp_path, *torchrun, script))
    assert [found[1] for found in (alone, launched, under_torchrun)] == ["1", "2", "3"]
    assert float(alone[0]) < 1e-3  # the variance of the sine here is 0.5
    for other in (launched, under_torchrun):
        assert float(other[0]) == pytest.approx(float(alone[0]), rel=0.02)  # fp32 sums differ
    assert (tmp_path / "own_loop/model.safetensors").is_file()


def test_a_pipeline_gives_the_result_of_one_process(tmp_path: Path) -> None:
    script = EXAMPLES / "pipeline.py"
    python(tmp_path, script)
    drumline(tmp_path, "run", script, "--pipeline", "2", "--gpus", "cpu:2")
    losses = []
    for run in sorted(tmp_path.glob("runs/pipeline-*")):
        result = json.loads((run / "result.json").read_text())
        assert result["metrics"] == {"accuracy": 1.0}
        lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
        losses.append([event["loss"] for event in lines if event["kind"] == "step"])
    alone, in_stages = losses
    assert in_stages[0] == pytest.approx(alone[0], rel=1e-4)  # fp32 sums in another order
    assert in_stages[-1] < 0.1 < alone[0]


def test_performance_says_what_it_tried_and_then_trains(tmp_path: Path) -> None:
    told = python(tmp_path, EXAMPLES / "performance.py")
    for switch in ("tf32", "channels_last", "cuda_graphs"):
        assert re.search(rf"^{switch} +not applicable: ", told, re.MULTILINE), told
    for switch in ("fused_optimizer", "compile", "loader"):
        assert re.search(rf"^{switch} +\w", told, re.MULTILINE), told
    assert "it failed" not in told
    (loss,) = re.findall(r"trained on 1 ranks: loss ([0-9.e-]+)", told)
    assert float(loss) < 0.05  # the variance of the sine here is 0.5


def test_the_task_of_the_handbook_learns(tmp_path: Path) -> None:
    page = (ROOT / "docs/training.md").read_text()
    code = re.search(r"```python\n# squares.py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    (tmp_path / "squares.py").write_text(code[1])
    config = {
        "epochs": 20,
        "global_batch": 64,
        "devices": "cpu:2",
        "run_dir": "run",
        "task": {"name": "squares:SquaresConfig", "hidden": 64},
        "optimizer": {"lr": 0.01},
    }
    (tmp_path / "squares.json").write_text(json.dumps(config))
    drumline(tmp_path, "train", "squares.json")
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
    assert steps[-1]["loss"] < 1e-3  # the variance of x^2 over [-1, 1] is 0.089
    assert 0 < steps[-1]["metrics"]["absolute_error"] < 0.03


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    python(folder, EXAMPLES / "make_small_activations.py")
    return folder


@pytest.mark.parametrize(("name", "least"), [("sae_small", 230), ("transcoder", 200)])
def test_small_configs_find_the_true_features(name: str, least: int, small: Path) -> None:
    config = EXAMPLES / f"{name}.yaml"
    drumline(small, "train", config, f"run_dir=runs/{name}", "--gpus", "cpu:2")
    told = python(small, EXAMPLES / "make_small_activations.py", "--compare", Path("runs") / name)
    counted = re.search(r"found (\d+) of 256 features; mean max cosine ([0-9.]+)", told)
    assert counted is not None
    (checkpoint,) = (small / "runs" / name / "checkpoints").glob("step-*710")
    rows = load_file(checkpoint / "model.safetensors")["W_dec"].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    truth = np.load(small / "small/truth.npz")["targets" if name == "transcoder" else "activations"]
    nearest = np.array([max(float(row @ feature) for row in rows) for feature in truth])
    assert int(counted[1]) == int((nearest > 0.9).sum()) >= least
    assert float(counted[2]) == pytest.approx(nearest.mean(), abs=6e-4)


def test_the_large_config_plans_on_any_machine(small: Path) -> None:
    change = "task.activations=small/activations.npy"
    for ranks in (1, 8):
        told = drumline(
            small, "train", EXAMPLES / "sae_smollm2.yaml", change, "--dry-run", "--json",
            "--gpus", f"cpu:{ranks}",
        )  # fmt: skip
        plan = json.loads(told)["plan"]
        assert plan["shares"] == [4096 // ranks] * ranks


@pytest.mark.parametrize("name", ["cartpole_memory", "pendulum_memory"])
def test_policies_with_memory_train_and_are_evaluated(name: str, tmp_path: Path) -> None:
    """Two rollouts of them; that they learn is shown by benchmarks/learning_curves.py."""
    config = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    rollout = config["task"]["environments"] * config["task"]["rollout_steps"]
    short = [f"total_steps={2 * rollout}", "rollout_epochs=2", "task.evaluation.episodes=4"]
    words = ["train", EXAMPLES / f"{name}.yaml", *short, "run_dir=run"]
    told = drumline(tmp_path, *words, "--gpus", "cpu:2", "--json")
    trained = json.loads(told)
    assert trained["metrics"]["episodes"] == 4
    assert trained["step"] == 2 * 2 * rollout // config["global_batch"]
    again = json.loads(drumline(tmp_path, "evaluate", "run", "--gpus", "cpu", "--json"))
    assert again["step"] == trained["step"]
    assert again["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)


def test_the_environment_of_the_handbook_is_learned(tmp_path: Path) -> None:
    page = (ROOT / "docs/clstm_ppo.md").read_text()
    code = re.search(r"```python\n# coins.py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    (tmp_path / "coins.py").write_text(code[1])
    sizes = ["environments=32", "rollout_steps=16", "total_steps=10000", "global_batch=128"]
    environment = "task.environment={name: 'coins:CoinsConfig'}"
    config = EXAMPLES / "cartpole_memory.yaml"
    drumline(tmp_path, "train", config, *sizes, environment, "run_dir=run", "--gpus", "cpu:1")
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["metrics"]["episode_return"] == 8  # without memory half of it
