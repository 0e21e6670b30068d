from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sae_formulas import (
    batchtopk_loss,
    gated_loss,
    jumprelu_gradients,
    standard_loss,
    topk_loss,
)
from sae_stand_ins import task_config
from torch import Tensor

from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.largest import LEAST, bin_size
from drumline.tasks.sae.model import SAE

D_IN, LATENTS, K, GROUP, SPARSITY, BANDWIDTH = 5, 14, 3, 3, 0.7, 0.6
PREFIXES = [[14], [4, 9, 14]]


def perturbed_sae(
    architecture: str, prefixes: list[int], *, latents: int = LATENTS, k: int = K
) -> SAE:
    """A float64 SAE away from its special starting point (tied weights, zero biases)."""
    torch.manual_seed(11)
    config = task_config(
        architecture=architecture,
        latents=latents,
        k=k,
        batchtopk_group=GROUP,
        matryoshka=prefixes,
        jumprelu={"threshold": 0.4, "bandwidth": BANDWIDTH},
    )
    sae = build_sae(config, D_IN).double()
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return sae


def samples(count: int = 12) -> Tensor:
    return torch.randn(count, D_IN, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def copied_weights(sae: SAE) -> dict[str, Tensor]:
    return {n: p.detach().clone().requires_grad_() for n, p in sae.named_parameters()}


def own_gradients(sae: SAE, batches: list[Tensor]) -> tuple[float, dict[str, Tensor]]:
    sae.zero_grad()
    total = 0.0
    for batch in batches:
        loss = sae(batch, sparsity=SPARSITY).loss.sum()
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad for n, p in sae.named_parameters()}


def direct(architecture: str, prefixes: list[int]) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    return {
        "topk": lambda x, w: topk_loss(x, w, K, prefixes),
        "batchtopk": lambda x, w: batchtopk_loss(x, w, K, GROUP, prefixes),
        "standard": lambda x, w: standard_loss(x, w, SPARSITY, prefixes),
        "gated": lambda x, w: gated_loss(x, w, SPARSITY, prefixes),
    }[architecture]


@pytest.mark.parametrize("prefixes", PREFIXES, ids=["flat", "matryoshka"])
@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "standard", "gated"])
def test_loss_and_gradient_equal_autograd_of_the_formula(architecture, prefixes):
    sae = perturbed_sae(architecture, prefixes)
    weights = copied_weights(sae)
    expected = direct(architecture, prefixes)(samples(), weights)
    expected.backward()
    loss, grads = own_gradients(sae, [samples()])
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, weight in weights.items():
        torch.testing.assert_close(grads[name], weight.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 7], ids=["less than a group", "a group", "a rest"])
@pytest.mark.parametrize("architecture", ["topk", "batchtopk"])
def test_where_the_largest_are_looked_for_in_bins(architecture: str, count: int) -> None:
    sae = perturbed_sae(architecture, [1024], latents=1024, k=2)
    assert bin_size(GROUP * 1024, GROUP * 2) == bin_size(1024, 2) >= LEAST
    formula = {
        "topk": lambda w: topk_loss(samples(count), w, 2, [1024]),
        "batchtopk": lambda w: batchtopk_loss(samples(count), w, 2, GROUP, [1024]),
    }[architecture]
    weights = copied_weights(sae)
    expected = formula(weights)
    expected.backward()
    loss, grads = own_gradients(sae, [samples(count)])
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, weight in weights.items():
        torch.testing.assert_close(grads[name], weight.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("prefixes", PREFIXES, ids=["flat", "matryoshka"])
def test_jumprelu_gradient_is_the_papers_pseudo_derivative(prefixes):
    sae = perturbed_sae("jumprelu", prefixes)
    weights = {n: p.detach() for n, p in sae.named_parameters()}
    expected = jumprelu_gradients(samples(), weights, SPARSITY, BANDWIDTH, prefixes)
    assert expected["log_threshold"].abs().max() > 0
    _, grads = own_gradients(sae, [samples()])
    for name, gradient in expected.items():
        torch.testing.assert_close(grads[name], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "jumprelu", "gated", "standard"])
def test_cutting_into_micro_batches_changes_nothing(architecture):
    sae = perturbed_sae(architecture, [4, 9, 14])
    whole, expected = own_gradients(sae, [samples()])
    expected = {name: grad.clone() for name, grad in expected.items()}
    second = (6, 3, 3) if architecture == "batchtopk" else (5, 4, 3)
    for sizes in ((9, 3), second):
        loss, grads = own_gradients(sae, list(samples().split(sizes)))
        assert loss == pytest.approx(whole, rel=1e-12)
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-12, atol=1e-12)


def test_auxk_gradient_equals_autograd_of_the_formula_and_touches_only_dead_latents():
    torch.manual_seed(2)
    config = task_config(architecture="topk", latents=LATENTS, k=K, aux_k=2, aux_coefficient=0.5)
    sae = build_sae(config, D_IN).double()
    dead = torch.tensor([1, 4, 5, 12])
    x = samples()

    def gradients(which: Tensor | None) -> dict[str, Tensor]:
        sae.zero_grad()
        sae(x, dead=None if which is None else lambda: which).loss.sum().backward()
        return {n: p.grad.clone() for n, p in sae.named_parameters()}

    without, given = gradients(None), gradients(dead)
    w = copied_weights(sae)
    seen = x - w["b_dec"].detach()
    with torch.no_grad():
        residual = x - sae.decode(sae.encode(x))
    expected = x.new_zeros(())
    for sample, left in zip(seen, residual, strict=True):
        before = w["W_enc"][dead] @ sample + w["b_enc"][dead]
        top = before.detach().sort(descending=True).indices[:2]
        modelled = before[top].clamp(min=0) @ w["W_dec"][dead[top]]
        expected = expected + 0.5 * ((left - modelled) ** 2).sum()
    expected.backward()
    living = torch.ones(LATENTS, dtype=torch.bool)
    living[dead] = False
    for name in ("W_enc", "W_dec", "b_enc"):
        added = given[name] - without[name]
        torch.testing.assert_close(added, w[name].grad, rtol=1e-10, atol=1e-11)
        assert torch.equal(given[name][living], without[name][living])
        assert added[dead].abs().max() > 0
    assert torch.equal(given["b_dec"], without["b_dec"])


@pytest.mark.parametrize("architecture", ["topk", "standard"])
def test_transcoder_encodes_the_input_without_the_decoder_bias(architecture):
    torch.manual_seed(4)
    config = task_config(architecture=architecture, latents=LATENTS, k=K, targets="t")
    sae = build_sae(config, D_IN, 4).double()
    with torch.no_grad():
        sae.b_dec.normal_()
    x, y = samples(), torch.randn(12, 4, dtype=torch.float64)
    got = sae(x, y, sparsity=0.0)
    latents = (x @ sae.W_enc.T).clamp(min=0)
    if architecture == "topk":
        latents = latents * (latents >= latents.sort(descending=True).values[:, K - 1 : K])
    expected = (y - latents @ sae.W_dec - sae.b_dec).square().sum(dim=1)
    torch.testing.assert_close(got.squared_error, expected, rtol=1e-12, atol=1e-12)


def test_parallel_part_of_the_decoder_gradient_is_removed_and_no_other():
    sae = perturbed_sae("topk", [14])
    sae.normalise_decoder()
    _, grads = own_gradients(sae, [samples()])
    before = grads["W_dec"].clone()
    sae.drop_parallel_gradient()
    after = sae.W_dec.grad
    assert (before * sae.W_dec).sum(dim=1).abs().max() > 0.1
    torch.testing.assert_close(
        (after * sae.W_dec).sum(dim=1), torch.zeros(LATENTS).double(), rtol=0, atol=1e-12
    )
    taken = before - after
    along = (taken * sae.W_dec).sum(dim=1, keepdim=True) * sae.W_dec
    torch.testing.assert_close(taken, along, rtol=1e-10, atol=1e-12)


def test_gradients_in_float32_under_bfloat16_autocast_reach_every_weight():
    for architecture in ("topk", "batchtopk", "jumprelu", "gated", "standard"):
        sae = perturbed_sae(architecture, [14]).float()
        with torch.autocast("cpu", torch.bfloat16):
            loss = sae(samples().float(), sparsity=SPARSITY).loss.sum()
        loss.backward()
        assert loss.dtype is torch.float32
        for name, parameter in sae.named_parameters():
            assert parameter.grad is not None, f"{architecture}: {name}"
            assert parameter.grad.abs().max() > 0, f"{architecture}: {name}"
