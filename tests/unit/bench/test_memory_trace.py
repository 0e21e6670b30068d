"""Traces against arithmetic and against what real tensors do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.bench.cuda_operators import cuda_operators
from drumline.bench.memory_trace import trace_own_model, trace_task
from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.planning.memory_trace import MemoryTrace, replay

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks" / "sae"))
from sae_stand_ins import rows_under

from drumline.tasks.sae.task import SAETask

FLOAT = 4
WIDTH, HIDDEN = 64, 512
WEIGHTS = 2 * WIDTH * HIDDEN * FLOAT


class Vectors:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), float(index))


def mlp() -> nn.Module:
    up, down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)
    return nn.Sequential(up, nn.ReLU(), down)


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().sum(dim=1)


def config_of(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({"steps": 9, **keys})


def trace_mlp(batch: int, *, world_size: int = 1, **keys: Any) -> MemoryTrace:
    config = config_of(global_batch=batch * world_size, **keys)
    return trace_own_model(mlp, Vectors(), squares, config, world_size=world_size)


def at_peak(trace: MemoryTrace) -> dict[str, int]:
    return replay(trace, lambda _: 0).at_peak


def passing(trace: MemoryTrace) -> int:
    peak = at_peak(trace)
    return peak["activations"] + peak["temporaries"]


def test_with_a_tiny_batch_the_peak_is_weights_gradients_and_moments() -> None:
    peak = at_peak(trace_mlp(1))
    assert peak["parameters"] == WEIGHTS
    assert peak["gradients"] == WEIGHTS
    assert peak["optimizer"] == 2 * WEIGHTS + 2 * FLOAT  # two moments; one step count a weight
    assert peak["batch"] == WIDTH * FLOAT


def test_with_a_large_batch_the_peak_is_in_the_backward_of_the_relu() -> None:
    batch = 8192
    trace = trace_mlp(batch)
    peak = at_peak(trace)
    hidden = batch * HIDDEN * FLOAT  # the ReLU's output, and gradients of its output and input
    assert 0 <= passing(trace) - 3 * hidden < 100  # and the losses, scalars
    assert peak["batch"] == batch * WIDTH * FLOAT
    assert peak["gradients"] == WEIGHTS // 2  # the second layer's, made before
    assert peak["optimizer"] == 2 * WEIGHTS + 2 * FLOAT  # of the step before


def test_micro_batches_change_only_what_passes() -> None:
    whole, cut = trace_mlp(8192), trace_mlp(8192, micro_batch=2048)
    assert at_peak(cut)["batch"] == at_peak(whole)["batch"]
    assert 0 <= passing(cut) - 3 * 2048 * HIDDEN * FLOAT < 100 + WEIGHTS // 2
    fixed = [at_peak(t)["parameters"] + at_peak(t)["optimizer"] for t in (whole, cut)]
    assert fixed[0] == fixed[1]


def test_micro_batches_that_only_repeat_others_are_not_traced() -> None:
    few, many = trace_mlp(6, micro_batch=1), trace_mlp(8192, micro_batch=1)
    assert len(few.events) == len(many.events)
    assert at_peak(many) == {**at_peak(few), "batch": 8192 * WIDTH * FLOAT}


def test_ddp_adds_a_set_of_gradients_and_a_copy_of_small_ones_while_they_travel() -> None:
    trace = trace_mlp(1, world_size=2)
    seen = list(zip(trace.sizes, trace.categories, strict=True))
    whole = [size for size, kind in seen if kind == "buckets"]
    assert whole[0] == WEIGHTS == sum(whole[1:])  # packed anew after the first summed backward
    assert seen.count((WEIGHTS, "temporaries")) == 1 + trace.steps  # weights once, then parcels
    alone, paired = at_peak(trace_mlp(1)), at_peak(trace)
    assert paired["buckets"] == paired["gradients"] == paired["temporaries"] == WEIGHTS
    assert paired["optimizer"] == alone["optimizer"]


@pytest.mark.parametrize(
    ("name", "keys", "kept"),
    [
        ("adam", {"implementation": "foreach"}, 2),
        ("adamw", {"implementation": "plain"}, 2),
        ("sgd", {}, 0),
        ("sgd", {"momentum": 0.9}, 1),
    ],
)
def test_state_of_each_optimizer(name: str, keys: dict[str, Any], kept: int) -> None:
    peak = at_peak(trace_mlp(1, optimizer={"name": name, **keys}))
    assert peak["optimizer"] // WEIGHTS == kept


def test_foreach_takes_more_than_fused_while_it_steps() -> None:
    foreach = trace_mlp(1, optimizer={"implementation": "foreach"})
    assert passing(trace_mlp(1)) < WEIGHTS <= passing(foreach)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_keeps_halves_and_a_copy_of_each_weight(precision: str) -> None:
    batch = 8192
    trace = trace_mlp(batch, precision=precision)
    half = 2 * batch * HIDDEN
    extra = passing(trace) - 3 * half
    inputs = 2 * batch * WIDTH  # the batch cast to halves
    assert inputs <= extra <= inputs + WEIGHTS + 100


def test_fp64_doubles_the_weights() -> None:
    assert at_peak(trace_mlp(1, precision="fp64"))["parameters"] == 2 * WEIGHTS


def test_a_step_that_needs_values_is_refused_with_a_reason() -> None:
    def looks(model: nn.Module, batch: Tensor) -> Tensor:
        return squares(model, batch) * torch.from_numpy(batch.numpy())[:, 0]

    with pytest.raises(BadInput, match="cannot be traced without values"):
        trace_own_model(mlp, Vectors(), looks, config_of(global_batch=2))


def test_selections_by_value_take_the_part_they_are_given() -> None:
    def positive_only(model: nn.Module, batch: Tensor) -> Tensor:
        losses = squares(model, batch)
        return losses + losses[losses > 0].sum()

    config = config_of(global_batch=1000)
    found = []
    for selected in (0.0, 0.5):
        trace = trace_own_model(mlp, Vectors(), positive_only, config, selected=selected)
        assert trace.selections == ("index by a mask",)
        found.append(Counter(trace.sizes)[500 * FLOAT])
    assert found[0] == 0 and found[1] > 0


class Mixed(nn.Module):
    """Many kinds of operators, none of which CUDA does otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 48)
        self.norm = nn.LayerNorm(48)
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        def inner(hidden: Tensor) -> Tensor:
            return F.gelu(self.up(self.norm(hidden)))

        hidden = self.table(tokens)
        return self.down(checkpoint(inner, hidden, use_reentrant=False))


def steps_of(recorder: AllocationRecorder, implementation: dict[str, bool]) -> list[int]:
    """Sizes allocated (positive) and freed (negative) over two real steps."""
    torch.manual_seed(0)
    model = Mixed()
    tokens = torch.zeros(24, dtype=torch.int64)
    with recorder:
        optimizer = torch.optim.Adam(model.parameters(), **implementation)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens).backward()
            nn.utils.get_total_norm([p.grad for p in model.parameters()])
            optimizer.step()
        recorder.stop()
    return [recorder.sizes[abs(event) - 1] * (1 if event > 0 else -1) for event in recorder.events]


@pytest.mark.parametrize("implementation", [{"fused": True}, {"foreach": True}])
def test_fake_tensors_come_and_go_as_real_ones_do(implementation: dict[str, bool]) -> None:
    real = steps_of(AllocationRecorder(kernels=False), implementation)
    with FakeTensorMode():
        fake = steps_of(AllocationRecorder(kernels=False), implementation)
    assert len(real) > 100
    assert [size for size in fake if abs(size) > 64] == [size for size in real if abs(size) > 64]


@pytest.mark.parametrize("architecture", ["topk", "batchtopk", "jumprelu", "gated", "standard"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_sae_is_traced(architecture: str, world_size: int) -> None:
    width, latents, batch = 48, 512, 128
    task_keys = {"name": "sae", "activations": "memory", "latents": latents}
    config = config_of(
        global_batch=batch * world_size, task={**task_keys, "architecture": architecture}
    )

    def traced(selected: float | list[float]) -> MemoryTrace:
        task = SAETask(lambda found: rows_under(found, torch.zeros(600, width)))
        return trace_task(task, config, world_size=world_size, selected=selected)

    trace = traced(0.0)
    peak = at_peak(trace)
    weights = FLOAT * 2 * latents * width
    assert weights < peak["parameters"] <= weights + FLOAT * (width + 4 * latents)
    assert peak["optimizer"] >= 2 * weights
    by_count = architecture in ("topk", "batchtopk")  # those have AuxK, on the dead latents
    assert ("nonzero" in trace.selections) == by_count
    more = sum(traced([0.5] * trace.steps).sizes) - sum(trace.sizes)
    assert (more > weights) == by_count


def kept(function: Callable[[Tensor], Tensor], entered: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes a function keeps for its backward, without its result."""
    with FakeTensorMode(), cuda_operators():
        source = torch.empty(entered, dtype=dtype, requires_grad=True)
        with AllocationRecorder() as recorder:
            out = function(source)
            alive = {event - 1 for event in recorder.events if event > 0}
            alive -= {-event - 1 for event in recorder.events if event < 0}
            recorder.stop()
        return sum(recorder.sizes[number] for number in alive) - out.untyped_storage().nbytes()


def test_dropout_keeps_a_mask_of_booleans() -> None:
    assert kept(lambda x: F.dropout(x, 0.1), (1000,), torch.float32) == 1000


def test_attention_keeps_one_number_a_row_and_no_scores() -> None:
    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1, is_causal=True)

    assert kept(attend, (2, 4, 128, 16), torch.bfloat16) == 2 * 4 * 128 * 4


def test_multi_head_attention_is_fused_too() -> None:
    def attend(x: Tensor) -> Tensor:
        heads = nn.MultiheadAttention(32, 4, batch_first=True)
        return heads(x, x, x, need_weights=False)[0]

    used = kept(attend, (2, 256, 32), torch.float32)
    assert used < 2 * 4 * 256 * 256 * 4  # less than the scores alone


def test_autocast_runs_softmax_in_float32_as_on_cuda() -> None:
    def probabilities(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = F.softmax(x, dim=-1)
        assert out.dtype is torch.float32
        return out

    kept(probabilities, (8, 16), torch.bfloat16)


def test_kernels_are_the_cpus_again_afterwards() -> None:
    with cuda_operators():
        pass
    query = torch.randn(1, 2, 5, 8)
    scores = torch.softmax(query @ query.transpose(-1, -2) / 8**0.5, dim=-1)
    found = F.scaled_dot_product_attention(query, query, query)
    torch.testing.assert_close(found, scores @ query)


def taken_by(function: Callable[[Tensor], object], entered: Tensor) -> list[int]:
    """Sizes of what an operator's kernel takes for itself, before its results."""
    with FakeTensorMode() as fake:
        source = fake.from_tensor(entered)
        recorders = [AllocationRecorder(kernels=kernels) for kernels in (True, False)]
        for recorder in recorders:
            with recorder:
                function(source)
                recorder.stop()
    more = Counter(recorders[0].sizes) - Counter(recorders[1].sizes)
    return sorted(more.elements())


@pytest.mark.parametrize(
    ("dtype", "into", "taken"),
    [
        (torch.bool, None, [100 * 8]),  # counted in int64
        (torch.float32, torch.float64, [100 * 8]),
        (torch.bfloat16, torch.float32, []),  # the one cast that a kernel does on the way
        (torch.float32, None, []),
    ],
)
def test_a_sum_into_another_dtype_is_cast_first(
    dtype: torch.dtype, into: torch.dtype | None, taken: list[int]
) -> None:
    assert taken_by(lambda x: x.sum(dim=0, dtype=into), torch.zeros(20, 5, dtype=dtype)) == taken


def test_long_sorts_need_a_second_buffer_and_short_ones_none() -> None:
    assert taken_by(lambda x: x.sort(dim=-1), torch.zeros(64, 1000)) == []
    assert taken_by(lambda x: x.sort(dim=0), torch.zeros(8192, 2)) == [16_384 * 8, 16_384 * 12]


def test_the_gradient_of_an_embedding_sorts_its_indices() -> None:
    def gradient(tokens: Tensor) -> Tensor:
        grads = torch.empty(*tokens.shape, 64)
        return torch.ops.aten.embedding_dense_backward(grads, tokens, 100, -1, False)

    few, many = (torch.zeros(count, dtype=torch.int64) for count in (3000, 4000))
    assert taken_by(gradient, few) == []
    assert max(taken_by(gradient, many)) == (400 + 100) * 64 * FLOAT


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_keeps_one_reserve(kind: Any) -> None:
    used = kept(lambda x: kind(16, 32, batch_first=True)(x)[0], (64, 20, 16), torch.float32)
    unit = 64 * 20 * 32 * 4
    assert 4 * unit < used < 9 * unit


def test_the_weights_of_a_recurrent_layer_are_one_piece() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch.unsqueeze(1))[0].sum(dim=(1, 2))

    def build() -> nn.Module:
        return nn.LSTM(WIDTH, 8)

    trace = trace_own_model(build, Vectors(), loss, config_of(global_batch=4))
    seen = zip(trace.sizes, trace.categories, strict=True)
    flat = 4 * 8 * (WIDTH + 8 + 2) * FLOAT
    assert [size for size, category in seen if category == "parameters"] == [flat]


@pytest.mark.parametrize(
    ("keys", "made"),
    [
        ({}, [WEIGHTS, WEIGHTS // 2, WEIGHTS // 2]),  # all in one; each reaches the cap alone
        ({"find_unused_parameters": True}, [WEIGHTS // 2] * 2),  # never packed anew
    ],
)
def test_buckets_are_packed_as_ddp_packs_them(keys: dict[str, Any], made: list[int]) -> None:
    trace = trace_mlp(1, world_size=2, distributed={"bucket_cap_mb": 0.05, **keys})
    seen = zip(trace.sizes, trace.categories, strict=True)
    assert [size for size, category in seen if category == "buckets"] == made


def test_a_selection_rises_to_the_part_it_is_given() -> None:
    def positive_only(model: nn.Module, batch: Tensor) -> Tensor:
        losses = squares(model, batch)
        return losses + losses[losses > 0].sum()

    config = config_of(global_batch=1000)
    trace = trace_own_model(mlp, Vectors(), positive_only, config, selected=0.5)
    sizes = {size // FLOAT for size in trace.sizes}
    assert {500, 485, 470, 455} <= sizes
    assert (trace.steps, trace.selected) == (4, 0.5)


def test_data_on_the_host_is_no_memory_of_the_device() -> None:
    rows = torch.zeros(600, 48)
    keys = {"name": "sae", "activations": "memory", "latents": 512}
    config = config_of(global_batch=128, task=keys)
    trace = trace_task(SAETask(lambda found: rows_under(found, rows)), config)
    assert rows.nbytes not in trace.sizes
