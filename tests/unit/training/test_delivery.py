from __future__ import annotations

import pytest
import torch

from drumline.training.delivery import Delivery


def test_on_the_cpu_a_batch_is_where_it_should_be() -> None:
    delivery = Delivery(torch.device("cpu"))
    batch = {"x": torch.arange(3), "names": ["a", "b", "c"]}
    assert delivery.bring(batch)["x"] is batch["x"]
    delivery.release()


LONG = 300_000_000
"""Clock cycles: more than a tenth of a second on any card."""


@pytest.mark.gpu
def test_a_batch_comes_beside_what_is_left_of_a_step_in_the_place_of_the_one_before() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    delivery, seen, places = Delivery(device), [], []
    rest = torch.cuda.Event()
    for number in range(4):
        batch = torch.full((1 << 20,), float(number)).pin_memory()
        data = delivery.bring(batch)
        if number:
            delivered = torch.cuda.Event()
            delivered.record(delivery._stream)
            delivered.synchronize()
            assert not rest.query()  # the update of the step before still runs
        torch.cuda._sleep(LONG)  # what reads the batch does so late
        seen.append(data.sum())
        places.append(data.data_ptr())
        delivery.release()
        del data
        torch.cuda._sleep(LONG)
        rest.record()
    assert [float(value) for value in seen] == [number * 2.0**20 for number in range(4)]
    assert len(set(places)) == 1


@pytest.mark.gpu
def test_a_batch_that_was_not_released_is_waited_for_with_for_all_that_was_queued() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    delivery = Delivery(device)
    first = delivery.bring(torch.ones(1 << 20).pin_memory())
    torch.cuda._sleep(LONG)
    total = first.sum()
    del first
    second = delivery.bring(torch.zeros(1 << 20).pin_memory())
    assert float(total) == 2.0**20
    assert float(second.sum()) == 0.0
