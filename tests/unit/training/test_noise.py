"""Random numbers that belong to counters."""

import pytest
import torch

from drumline.training.noise import mixed, seed_generators, uniform
from drumline.training.order import mix

UNSIGNED = 2**64


def test_bits_are_those_of_the_numpy_twin() -> None:
    keys = [0, 1, 5, -3, 2**40, 2**63 - 1, -(2**63)]
    found = mixed(7, torch.tensor(keys), 2).tolist()
    assert [number % UNSIGNED for number in found] == [mix(7, key, 2) for key in keys]


def test_keys_broadcast() -> None:
    found = mixed(torch.arange(3).unsqueeze(1), torch.arange(4))
    assert found.shape == (3, 4)
    assert int(found[2, 3]) % UNSIGNED == mix(2, 3)


def test_numbers_are_uniform_and_never_at_the_ends() -> None:
    found = uniform(3, torch.arange(50_000), numbers=2)
    assert found.dtype == torch.float64 and found.shape == (50_000, 2)
    assert float(found.min()) > 0 and float(found.max()) < 1
    # Standard error of the mean of 100,000 uniforms: sqrt(1 / 12 / 1e5) = 0.0009.
    assert abs(float(found.mean()) - 0.5) < 0.004
    assert abs(float(found.var()) * 12 - 1) < 0.02
    correlation = torch.corrcoef(torch.stack([found[:-1, 0], found[1:, 0], found[:-1, 1]]))
    assert float((correlation - torch.eye(3)).abs().max()) < 0.02


def test_a_number_does_not_depend_on_what_is_asked_beside_it() -> None:
    many = uniform(9, torch.arange(10), numbers=4)
    assert torch.equal(uniform(9, torch.tensor([6]), numbers=2), many[6:7, :2])


def test_generators_are_seeded_as_torch_does() -> None:
    seed_generators(2**62 + 5)
    found = torch.rand(3)
    torch.manual_seed(2**62 + 5)
    assert torch.equal(found, torch.rand(3))


@pytest.mark.gpu
def test_generators_of_gpus_are_seeded_as_torch_does() -> None:
    torch.rand(1, device="cuda")
    seed_generators(7)
    found = torch.rand(3, device="cuda")
    torch.manual_seed(7)
    assert torch.equal(found, torch.rand(3, device="cuda"))
