from __future__ import annotations

import math

import pytest
import torch
from sae_stand_ins import LoneWorld, make_task, rows_of, task_config
from torch import nn

from drumline.errors import DataError
from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.evaluation import evaluate_held_out
from drumline.training.source import Cursor, ShareOfStep

TINY = {"latents": 2, "k": 1, "bias_init": "zero", "scale_inputs": False, "aux_k": 0}


def identity_task(rows, **keys):
    task = make_task(rows, **{**TINY, **keys})
    sae = task.build_model().double()
    with torch.no_grad():
        sae.W_enc.copy_(torch.eye(2))
        sae.W_dec.copy_(torch.eye(2))
    task.initialise(sae)
    return task, sae


def test_held_out_metrics_equal_hand_computed_values():
    held_out = [[3.0, 1.0], [1.0, 2.0], [5.0, 0.0]]
    rows = torch.tensor([[9.0, 9.0], *held_out]).double()
    task, sae = identity_task(rows, evaluation={"samples": 3, "dense_above": 0.5})
    metrics = task.evaluate(sae)
    # top-1 reconstructions: [3, 0], [0, 2], [5, 0]; residuals 1, 1, 0; mean [3, 1]
    assert metrics["fvu"] == pytest.approx((1 + 1 + 0) / ((0 + 0) + (4 + 1) + (4 + 1)))
    assert metrics["l0"] == 1.0
    cosines = 3 / math.sqrt(10) + 2 / math.sqrt(5) + 1
    assert metrics["reconstruction_cosine"] == pytest.approx(cosines / 3)
    assert metrics["dense_latents"] == 1  # latent 0 fires on 2 of 3
    assert metrics["dense_fraction"] == 0.5
    assert metrics["silent_fraction"] == 0
    assert metrics["dead_latents"] == 0


def test_l0_counts_latents_that_fire_and_not_those_that_are_kept():
    rows = torch.tensor([[1.0, 1.0], [-1.0, -2.0], [1.0, 4.0]]).double()
    task, sae = identity_task(rows, evaluation={"samples": 2}, k=2)
    assert task.evaluate(sae)["l0"] == 1.0  # two on one sample, none on the other


def test_held_out_metrics_do_not_depend_on_chunks_or_ranks():
    torch.manual_seed(0)
    rows = rows_of(torch.randn(203, 6).double() + 50, evaluation={"samples": 150})
    sae = build_sae(task_config(latents=20, k=3), 6).double()

    parts = []

    class Gathering(LoneWorld):
        def all_reduce(self, tensor, op="sum"):
            parts.append(tensor)
            return sum(parts)

    alone = evaluate_held_out(sae, rows, LoneWorld(), task_config().evaluation)
    in_chunks = task_config(evaluation={"samples": 150, "chunk": 7}).evaluation
    for rank in range(3):
        together = evaluate_held_out(sae, rows, Gathering(rank, 3), in_chunks)
    assert together == pytest.approx(alone, rel=1e-10)


def test_training_fvu_is_a_ratio_of_sums_over_samples():
    rows = torch.tensor([[3.0, 1.0], [1.0, 2.0], [5.0, 0.0], [3.0, 1.0]]).double()
    task, sae = identity_task(rows, evaluation={"samples": 0})
    sums = task.loss(sae, rows).metric_sums
    shown = task.derive_metrics({name: value.item() / 4 for name, value in sums.items()})
    mean = rows.mean(dim=0)
    expected = (1 + 1 + 0 + 1) / (rows - mean).square().sum().item()
    assert shown["fvu"] == pytest.approx(expected)
    assert shown["l0"] == 1.0


def test_loss_and_step_sums_of_micro_batches_add_up():
    torch.manual_seed(0)
    rows = torch.randn(24, 6).double()
    for architecture in ("topk", "batchtopk", "jumprelu", "gated", "standard"):
        keys = {"architecture": architecture, "latents": 12, "k": 2, "batchtopk_group": 3}
        task = make_task(rows, evaluation={"samples": 0}, **keys)
        sae = task.build_model().double()
        task.initialise(sae)
        whole = task.loss(sae, rows[:12])
        parts = [task.loss(sae, part) for part in rows[:12].split((9, 3))]
        assert sum(p.loss_sum.item() for p in parts) == pytest.approx(whole.loss_sum.item(), 1e-12)
        for sums in ("metric_sums", "step_sums"):
            for name, value in getattr(whole, sums).items():
                added = sum(getattr(part, sums)[name] for part in parts)
                torch.testing.assert_close(added, value, rtol=1e-12, atol=1e-12)


def test_initialise_sets_scale_and_geometric_median():
    # norms 3 and 1: mean 2; the two points at [3, 0] outweigh the one at [-1, 0] and are the median
    rows = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [-1.0, 0.0]]).double()
    task = make_task(rows, latents=4, k=1, evaluation={"samples": 0})
    sae = task.build_model().double()
    task.initialise(sae)
    scale = math.sqrt(2) / 2.5
    assert float(sae.input_scale) == pytest.approx(scale)
    torch.testing.assert_close(sae.b_dec.data, torch.tensor([3 * scale, 0.0]).double())


def test_transcoder_scales_both_sides_on_their_own():
    inputs, targets = torch.full((8, 2), 1.0).double(), torch.full((8, 3), 10.0).double()
    task = make_task(inputs, targets, latents=4, k=1, evaluation={"samples": 4})
    sae = task.build_model().double()
    task.initialise(sae)
    assert float(sae.input_scale) == pytest.approx(1.0)
    assert float(sae.target_scale) == pytest.approx(0.1)
    torch.testing.assert_close(sae.b_dec.data, torch.ones(3).double())
    torch.testing.assert_close(sae.decode(torch.zeros(1, 4).double()), targets[:1])
    batch = next(iter(task.build_source().open(ShareOfStep(0, (1,), 4), Cursor()))).data
    assert [tuple(part.shape) for part in batch] == [(4, 2), (4, 3)]
    assert math.isfinite(task.loss(sae, batch).loss_sum.item())


def test_held_out_rows_are_never_trained_on():
    rows = torch.arange(20.0).repeat(2, 1).T
    task = make_task(rows, latents=4, k=1, evaluation={"samples": 5})
    batches = task.build_source().open(ShareOfStep(0, (1,), 5), Cursor())
    seen = sorted(value for _ in range(3) for value in next(batches).data[:, 0].tolist())
    assert seen == list(range(15))


def test_a_step_leaves_decoder_rows_at_unit_norm():
    torch.manual_seed(0)
    rows = torch.randn(40, 6).double()
    task = make_task(rows, latents=12, k=2, evaluation={"samples": 0})
    sae = task.build_model().double()
    optimizer = torch.optim.Adam(sae.parameters(), lr=0.1)
    task.initialise(sae)
    losses = task.loss(sae, rows)
    losses.loss_sum.backward()
    task.after_gradients(sae)
    along = (sae.W_dec.grad * sae.W_dec).sum(dim=1)
    assert along.abs().max() < 1e-6  # rows are of unit norm only to float32 at the start
    optimizer.step()
    assert (sae.W_dec.norm(dim=1) - 1).abs().max() > 1e-3
    task.after_step(sae, optimizer, losses.step_sums, 40)
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(12).double())


def test_state_goes_through_a_checkpoint():
    torch.manual_seed(0)
    rows = torch.randn(40, 6).double()
    keys = {"latents": 12, "k": 2, "dead_after_samples": 40, "evaluation": {"samples": 0}}
    task = make_task(rows, **keys)
    sae = task.build_model().double()
    task.initialise(sae)
    fired = torch.ones(12).double()
    fired[4] = 0
    task.after_step(sae, torch.optim.Adam(sae.parameters()), {"fired": fired}, 40)
    other = make_task(rows, **keys)
    other.build_model()
    other.load_state_dict(task.state_dict())
    assert other.activity.dead.numbers().tolist() == [4]
    assert other.step == 1
    first, second = (t.loss(sae, rows) for t in (task, other))
    assert first.loss_sum.item() == second.loss_sum.item()
    assert first.metric_sums["variance"] == second.metric_sums["variance"]


def test_sets_of_unequal_length_are_refused_with_both_lengths():
    with pytest.raises(DataError, match=r"8 rows, but .* 7"):
        make_task(torch.zeros(8, 2), torch.zeros(7, 2), latents=4, k=1)


def test_nothing_left_to_train_on_is_refused():
    with pytest.raises(DataError, match="holds out 8"):
        make_task(torch.zeros(8, 2), latents=4, k=1, evaluation={"samples": 8})


def test_all_rows_but_a_tenth_are_trained_on_by_default():
    assert rows_of(torch.zeros(50, 2)).held_out == 5
    assert rows_of(torch.zeros(200_000, 1)).held_out == 16_384


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "jumprelu", "gated", "standard"])
def test_training_explains_data_of_few_directions(architecture):
    torch.manual_seed(0)
    codes = torch.rand(512, 8) * (torch.rand(512, 8) < 0.25)
    rows = codes @ nn.functional.normalize(torch.randn(8, 16), dim=1)
    task = make_task(
        rows,
        architecture=architecture,
        latents=32,
        k=4,
        batchtopk_group=16,
        sparsity={"l1": 0.05, "l0": 0.01, "warmup_steps": 10},
        evaluation={"samples": 100},
    )
    sae = task.build_model()
    task.initialise(sae)
    optimizer = torch.optim.Adam(sae.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        losses = task.loss(sae, rows[:400])
        (losses.loss_sum / 400).backward()
        task.after_gradients(sae)
        optimizer.step()
        task.after_step(sae, optimizer, losses.step_sums, 400)
    assert task.evaluate(sae)["fvu"] < 0.1
