from __future__ import annotations

import torch
from sae_stand_ins import task_config

from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.topk import THRESHOLD_RATE, BatchTopKSAE


def identity_sae(architecture: str, width: int, **keys: object):
    """Latent j reads and writes coordinate j."""
    config = task_config(architecture=architecture, latents=width, aux_k=None, **keys)
    sae = build_sae(config, width).double()
    with torch.no_grad():
        sae.W_enc.copy_(torch.eye(width))
        sae.W_dec.copy_(torch.eye(width))
    return sae


def test_topk_keeps_the_largest_and_never_a_negative():
    sae = identity_sae("topk", 4, k=2)
    x = torch.tensor([[3.0, -9.0, 1.0, 2.0], [-1.0, -2.0, 5.0, -3.0]])
    expected = torch.tensor([[3.0, 0.0, 0.0, 2.0], [0.0, 0.0, 5.0, 0.0]]).double()
    assert torch.equal(sae.encode(x), expected)
    output = sae(x)
    assert output.active.tolist() == [2, 1]
    assert output.fired.tolist() == [1, 0, 1, 1]
    assert output.squared_error.tolist() == [81 + 1, 1 + 4 + 9]


def test_batchtopk_shares_its_budget_within_a_group_and_not_beyond():
    sae = identity_sae("batchtopk", 3, k=1, batchtopk_group=2)
    x = torch.tensor(
        [[9.0, 8.0, 1.0], [2.0, 3.0, 1.0], [5.0, 4.0, 3.0], [7.0, 6.0, 1.0], [0.5, 0.6, 0.4]]
    )
    output = sae(x)
    # groups {0,1}, {2,3} keep the two largest each; the short last group keeps one
    assert output.active.tolist() == [2, 0, 0, 2, 1]
    assert output.squared_error.tolist()[:4] == [1, 4 + 9 + 1, 25 + 16 + 9, 1]
    assert output.smallest_kept.tolist() == [8 + 6 + float(torch.tensor(0.6)), 3]


def test_batchtopk_infers_with_the_running_mean_of_the_smallest_kept_value():
    sae = identity_sae("batchtopk", 3, k=1, batchtopk_group=2)
    assert isinstance(sae, BatchTopKSAE)
    sae.follow_threshold(torch.tensor([6.0, 3.0]).double())
    assert float(sae.threshold) == 2.0
    sae.follow_threshold(torch.tensor([0.0, 0.0]).double())
    assert float(sae.threshold) == 2.0
    sae.follow_threshold(torch.tensor([12.0, 3.0]).double())
    assert float(sae.threshold) == 2.0 + THRESHOLD_RATE * (4.0 - 2.0)
    latents = sae.encode(torch.tensor([[2.5, 2.0, 9.0]]))
    assert latents.tolist() == [[2.5, 0.0, 9.0]]


def test_jumprelu_passes_only_above_the_threshold():
    sae = identity_sae("jumprelu", 3, jumprelu={"threshold": 0.5, "bandwidth": 0.1})
    assert sae.encode(torch.tensor([[0.4, 0.6, -1.0]])).gt(0).tolist() == [[False, True, False]]
    assert sae(torch.tensor([[0.4, 0.6, 2.0]]), sparsity=3.0).sparsity.tolist() == [2.0]


def test_matryoshka_counts_the_error_of_each_prefix():
    sae = identity_sae("standard", 3, matryoshka=[1, 3])
    output = sae(torch.tensor([[1.0, 2.0, 3.0]]), sparsity=0.0)
    assert output.loss.item() == 4 + 9
    assert output.squared_error.item() == 0


def test_reconstruction_is_in_the_units_of_the_input():
    sae = identity_sae("topk", 4, k=4)
    sae.set_scales(0.25, 0.25)
    with torch.no_grad():
        sae.b_dec.fill_(0.01)
    x = torch.tensor([[8.0, 4.0, 2.0, 1.0]]).double()
    torch.testing.assert_close(sae.reconstruct(x), x)
    assert sae.encode(x)[0, 0].item() == 2.0 - 0.01


def test_scales_and_threshold_are_saved_with_the_weights():
    names = set(identity_sae("batchtopk", 3, k=1).state_dict())
    assert names == {
        "W_enc", "b_enc", "W_dec", "b_dec", "input_scale", "target_scale", "threshold",
    }  # fmt: skip


def test_decoder_rows_start_at_unit_norm_and_the_encoder_tied():
    sae = build_sae(task_config(latents=50, k=3), 7).double()
    sae.normalise_decoder()
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(50).double())
    torch.testing.assert_close(sae.W_enc, sae.W_dec, rtol=1e-6, atol=1e-6)


def test_expansion_multiplies_the_input_width():
    assert build_sae(task_config(expansion=2.5, k=3), 8).W_dec.shape == (20, 8)
    assert build_sae(task_config(k=3), 8).W_dec.shape == (64, 8)
