import torch

from drumline.tasks.sae.positions import kept_positions


def test_positions_far_above_their_own_sequences_median_are_left_out() -> None:
    norms = torch.tensor([[900.0, 1.0, 2.0, 3.0, 31.0], [50.0, 40.0, 30.0, 20.0, 10.0]])
    hidden = norms[..., None] * torch.tensor([0.6, 0.8])
    kept = kept_positions(hidden, drop_first=True, outlier_ratio=10.0)
    # The medians are 3 and 30: 31 is more than 10 times 3, 50 is not more than 10 times 30.
    assert kept.tolist() == [[False, True, True, True, False], [False, True, True, True, True]]


def test_without_a_ratio_all_but_the_first_are_kept() -> None:
    hidden = torch.tensor([[1.0, 1e6, 1.0]])[..., None]
    assert kept_positions(hidden, drop_first=True, outlier_ratio=None).tolist() == [
        [False, True, True]
    ]
    assert kept_positions(hidden, drop_first=False, outlier_ratio=None).all()
