"""Each switch puts on what it says, and takes exactly that off again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.hardware import Machine
from drumline.hardware.link import Link
from drumline.training.performance.arithmetic import TF32, CudnnAutotune
from drumline.training.performance.communication import topology
from drumline.training.performance.compiled import Compile, CudaGraphs
from drumline.training.performance.fused import FusedOptimizer
from drumline.training.performance.layout import ChannelsLast
from drumline.training.performance.switch import Subject, Switch

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(144, 2)
    )


def subject_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Subject:
    return Subject(model, optimizer or torch.optim.Adam(model.parameters(), lr=0.01), CPU)


def step(subject: Subject) -> None:
    subject.optimizer.zero_grad()
    subject.model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    subject.optimizer.step()


def moments(subject: Subject) -> list[Tensor]:
    return [values["exp_avg"] for values in subject.optimizer.state.values()]


@pytest.mark.parametrize("trained_before", [False, True])
def test_channels_last_changes_layouts_and_no_value(trained_before: bool) -> None:
    wrapped: list[int] = []
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    subject = Subject(model, optimizer, CPU, rewrap=lambda: wrapped.append(1))
    if trained_before:
        step(subject)
    switch = ChannelsLast()
    strides = [p.stride() for p in model.parameters()]
    values = [p.detach().clone() for p in model.parameters()]
    first = [m.clone() for m in moments(subject)]
    assert switch.why_not(subject) is None
    switch.apply(subject)
    weight = model[0].weight
    assert isinstance(weight, Tensor)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert len(wrapped) == 1
    assert switch.why_not(subject) == "it is on already"
    pairs = zip(moments(subject), model.parameters(), strict=False)
    assert all(moment.stride() == parameter.stride() for moment, parameter in pairs)
    step(subject)
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)
    switch.undo(subject)
    assert [p.stride() for p in model.parameters()] == strides
    assert all(torch.equal(p, v) for p, v in zip(model.parameters(), values, strict=True))
    if trained_before:
        assert all(m.shape == f.shape for m, f in zip(moments(subject), first, strict=True))
    switch.undo(subject)  # a second time does nothing
    assert len(wrapped) == 2


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_training_in_channels_last_is_the_same_training(kind: Any, implementation: str) -> None:
    """Five steps, of which the third and fourth with the weights in the other layout."""
    ends = []
    for switched in (False, True):
        model = network().double()
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.01, **{implementation: True}, **options)
        subject, switch = Subject(model, optimizer, CPU), ChannelsLast()
        draw = torch.Generator().manual_seed(1)
        for number in range(5):
            if switched and number == 2:
                switch.apply(subject)
            if switched and number == 4:
                switch.undo(subject)
            optimizer.zero_grad()
            images = torch.randn(2, 3, 8, 8, generator=draw, dtype=torch.float64)
            model(images).square().sum().backward()
            optimizer.step()
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-11)


def test_channels_last_is_for_convolutions_whose_layout_is_free() -> None:
    assert ChannelsLast().why_not(subject_of(nn.Linear(2, 2))) is not None
    model = network()
    fixed = Subject(model, torch.optim.SGD(model.parameters()), CPU, fixed_layout="in DDP")
    assert ChannelsLast().why_not(fixed) == "in DDP"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_optimizer_goes_on_with_the_same_moments(kind: type[torch.optim.Optimizer]) -> None:
    """Three steps, one of them fused, are three steps of the plain implementation."""
    subjects = []
    for fused in (False, True):
        model = network()
        subject = subject_of(model, kind(model.parameters(), lr=0.01))  # type: ignore[call-arg]
        switch = FusedOptimizer()
        torch.manual_seed(5)
        step(subject)
        if fused:
            assert switch.why_not(subject) is None
            switch.apply(subject)
            assert switch.why_not(subject) == "it is on already"
        step(subject)
        if fused:
            switch.undo(subject)
            assert subject.optimizer.param_groups[0]["fused"] is None
        step(subject)
        subjects.append(subject)
    plain, switched = (list(s.model.parameters()) for s in subjects)
    for one, other in zip(plain, switched, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_optimizers_without_a_fused_implementation_say_so() -> None:
    model = network()
    subject = subject_of(model, torch.optim.RMSprop(model.parameters()))
    assert FusedOptimizer().why_not(subject) == "RMSprop has no fused implementation"


@pytest.mark.parametrize(
    "switch", [TF32(allowed=True), CudnnAutotune(), CudaGraphs(Compile())], ids=lambda s: s.name
)
def test_switches_of_cuda_do_not_apply_to_the_cpu(switch: Switch) -> None:
    assert switch.why_not(subject_of(network())) is not None


def test_tf32_has_a_tolerance_of_its_own() -> None:
    assert TF32(allowed=True).tolerance("fp32") == 1e-2
    assert FusedOptimizer().tolerance("fp32") == 1e-4


def test_settings_of_nccl_follow_the_slowest_link() -> None:
    machine = Machine.probe(simulate="4xH100")
    uuids = [device.uuid for device in machine.devices]
    assert topology(machine, uuids) == "nvlink"
    links = (*machine.links[:-1], Link(machine.links[-1].a, machine.links[-1].b, "pcie"))
    mixed = Machine(machine.host, machine.devices, links)
    assert topology(mixed, uuids) == "pcie"
    assert topology(Machine(machine.host, machine.devices), uuids) == "pcie"
