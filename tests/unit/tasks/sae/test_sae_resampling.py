from __future__ import annotations

import pytest
import torch
from sae_stand_ins import LoneWorld, make_task, rows_of, task_config
from torch import Tensor

from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.resampling import ENCODER_FRACTION, Resampler, draw

DEAD = torch.tensor([2, 5])
ARCHITECTURES = ["topk", "batchtopk", "jumprelu", "gated", "standard"]


def trained(architecture: str, count: int = 300):
    """An SAE after two steps of Adam, so that all moments are non-zero, and its rows."""
    torch.manual_seed(1)
    inputs = torch.randn(count, 6, dtype=torch.float64) + 1
    config = {"architecture": architecture, "latents": 8, "k": 3, "batchtopk_group": 4}
    sae = build_sae(task_config(**config), 6).double()
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    optimizer = torch.optim.Adam(sae.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        sae(inputs, sparsity=0.1).loss.sum().backward()
        optimizer.step()
    return sae, optimizer, rows_of(inputs, evaluation={"samples": 0}, **config)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_dead_latents_start_again(architecture):
    sae, optimizer, rows = trained(architecture)
    before = {name: p.detach().clone() for name, p in sae.named_parameters()}
    moments = {p: optimizer.state[p]["exp_avg"].clone() for p in sae.parameters()}
    Resampler(rows, LoneWorld(), 7, 100, 4).resample(sae, optimizer, DEAD, step=50)
    living = torch.tensor([0, 1, 3, 4, 6, 7])
    for name, parameter in sae.named_parameters():
        if name == "b_dec":
            assert torch.equal(parameter, before[name])
            assert torch.equal(optimizer.state[parameter]["exp_avg"], moments[parameter])
            continue
        assert torch.equal(parameter[living], before[name][living])
        for moment in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[parameter][moment]
            assert state[DEAD].abs().max() == 0, f"{name} {moment}"
        kept = optimizer.state[parameter]["exp_avg"][living]
        assert torch.equal(kept, moments[parameter][living])
    assert not torch.equal(sae.W_enc[DEAD], before["W_enc"][DEAD])


def test_a_dead_latent_takes_the_direction_of_a_sample():
    sae, optimizer, rows = trained("topk")
    living = torch.tensor([0, 1, 3, 4, 6, 7])
    typical = sae.W_enc[living].norm(dim=1).mean().detach()
    Resampler(rows, LoneWorld(), 7, 100).resample(sae, optimizer, DEAD, step=50)
    centred = rows.inputs.rows - sae.b_dec
    directions = centred / centred.norm(dim=1, keepdim=True)
    cosines = sae.W_dec[DEAD] @ directions.T
    best = cosines.max(dim=1)
    torch.testing.assert_close(best.values, torch.ones(2).double(), rtol=1e-12, atol=1e-12)
    assert len(set(best.indices.tolist())) == 2
    torch.testing.assert_close(sae.W_enc[DEAD], sae.W_dec[DEAD] * ENCODER_FRACTION * typical)
    assert sae.b_enc[DEAD].tolist() == [0, 0]


def test_jumprelu_thresholds_start_again_at_their_first_value():
    sae, optimizer, rows = trained("jumprelu")
    Resampler(rows, LoneWorld(), 7, 100).resample(sae, optimizer, DEAD, step=50)
    torch.testing.assert_close(sae.log_threshold[DEAD].exp(), torch.full((2,), 0.05).double())


def test_samples_and_draw_follow_from_seed_and_step_alone():
    _, _, rows = trained("topk")

    def resampler(seed: int, rank: int = 0, size: int = 1) -> Resampler:
        return Resampler(rows, LoneWorld(rank, size), seed, 100)

    assert resampler(7).numbers(50) == resampler(7, 1, 3).numbers(50)
    assert len(set(resampler(7).numbers(50))) == 100
    assert resampler(7).numbers(50) != resampler(7).numbers(51)
    assert resampler(7).numbers(50) != resampler(8).numbers(50)
    losses = torch.rand(100).double()
    assert torch.equal(draw(losses, 5, 1), draw(losses, 5, 1))
    assert not torch.equal(draw(losses, 5, 1), draw(losses, 5, 2))


@pytest.mark.parametrize("architecture", ["topk", "batchtopk"])
def test_losses_of_all_ranks_add_up_to_one_ranks_bit_for_bit(architecture):
    sae, _, rows = trained(architecture, count=3000)

    def losses(rank: int, size: int) -> Tensor:
        resampler = Resampler(rows, LoneWorld(rank, size), 7, 2500, 4)
        with torch.no_grad():
            return resampler.losses(sae, resampler.numbers(50), 0.0)

    assert torch.equal(sum(losses(rank, 4) for rank in range(4)), losses(0, 1))


def test_draws_are_in_proportion_to_the_squared_loss():
    losses = torch.tensor([1.0, 2.0, 0.0, 3.0]).double()
    counts = torch.zeros(4)
    for seed in range(4000):
        counts[draw(losses, 1, seed)] += 1
    expected = torch.tensor([1, 4, 0, 9]) / 14 * 4000
    assert counts[2] == 0
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 1).all()


def test_more_dead_latents_than_samples_with_a_loss_are_still_served():
    assert draw(torch.tensor([0.0, 5.0]).double(), 3, 1).tolist() == [1, 1, 1]
    assert len(draw(torch.zeros(2).double(), 2, 1)) == 2


def test_task_resamples_when_due_and_counts_the_latents_as_alive():
    torch.manual_seed(0)
    task = make_task(
        torch.randn(60, 6).double(),
        latents=8,
        k=3,
        dead_after_samples=16,
        evaluation={"samples": 0},
        resampling={"every_steps": 2, "until_step": 2, "samples": 30},
    )
    sae = task.build_model().double()
    task.initialise(sae)
    optimizer = torch.optim.Adam(sae.parameters())
    fired = torch.ones(8).double()
    fired[DEAD] = 0
    before = sae.W_enc.detach().clone()
    for step in range(1, 5):
        task.after_step(sae, optimizer, {"fired": fired}, 8)
        changed = (sae.W_enc != before).any(dim=1).nonzero().view(-1)
        assert changed.tolist() == ([] if step == 1 else DEAD.tolist())
        assert task.activity.dead.numbers().tolist() == (DEAD.tolist() if step == 4 else [])
        if step == 2:
            resampled = sae.W_enc.detach().clone()
    assert torch.equal(sae.W_enc, resampled)
