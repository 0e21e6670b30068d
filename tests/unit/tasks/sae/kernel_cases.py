"""Inputs of the SAE's kernels, and what they give by plain float64 arithmetic.

As a script it runs Triton's kernels on inputs of a file, with what TRITON_INTERPRET says, and
writes what they gave: `python kernel_cases.py IN OUT`; without files it compiles them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Answers = dict[str, Tensor]
ENTRIES = (0, 7, 1, 0, 300, 0)
"""Entries of each bag: none, some, one, and far more than in the others; the last has none."""
KERNELS = (
    *("_bag_sum", "_bag_products", "_highest_bins", "_largest_in_bins"),
    *("_normalise_rows", "_drop_parallel"),
)
BINS, SIZE, COUNT = 96, 16, 50
"""Rows of so many bins of so many numbers, of which so many are looked for."""


def inputs(width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(width)
    counts = torch.tensor(ENTRIES)
    entries, rows = int(counts.sum()), 23

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    table = normal(rows, width)
    table[3] = 0.0
    long = normal(5, BINS * SIZE).to(torch.float32 if dtype is torch.float64 else dtype)
    long[1] = torch.randint(-2, 3, long[1].shape, generator=generator)  # many are equal
    long[2] = -long[2].abs() - 1
    long[3, :COUNT] = 7.0  # all in the same bins, and equal
    return {
        "index": torch.randint(0, rows, (entries,), generator=generator),
        "bags": torch.repeat_interleave(torch.arange(len(counts)), counts),
        "starts": counts.cumsum(0) - counts,
        "weights": normal(entries),
        "table": table,
        "sums": normal(len(counts), width),
        "change": normal(rows, width),
        "long": long,
    }


def expected(given: dict[str, Tensor]) -> Answers:
    """The same in float64, entry by entry."""
    exact = {n: t.double() if t.is_floating_point() else t for n, t in given.items()}
    summed = torch.zeros_like(exact["sums"])
    products = []
    for bag, row, weight in zip(
        given["bags"].tolist(), given["index"].tolist(), exact["weights"], strict=True
    ):
        summed[bag] += weight * exact["table"][row]
        products.append(exact["sums"][bag] @ exact["table"][row])
    normalised, dropped = exact["table"].clone(), exact["change"].clone()
    for row, direction in enumerate(exact["table"]):
        length = direction @ direction
        if length > 0:
            normalised[row] = direction / length.sqrt()
            dropped[row] -= (exact["change"][row] @ direction) / length * direction
    return {
        "bag_sum": summed,
        "bag_products": torch.stack(products),
        "normalise_rows": normalised,
        "drop_parallel": dropped,
        "largest_of_rows": exact["long"].sort(dim=1, descending=True).values[:, :COUNT],
    }


def answers(kernels: Any, given: dict[str, Tensor]) -> Answers:
    """What kernels make of inputs; of the largest, what stands at their places."""
    g = given
    products = kernels.bag_products(g["sums"], g["bags"], g["index"], g["table"], g["starts"])
    places = kernels.largest_of_rows(g["long"], COUNT, SIZE)
    assert bool((places.diff(dim=1) > 0).all())
    largest = g["long"].gather(1, places).sort(dim=1, descending=True).values
    rows, change = g["table"].clone(), g["change"].clone()
    kernels.normalise_rows(rows)
    kernels.drop_parallel(change, g["table"])
    return {
        "bag_sum": kernels.bag_sum(g["index"], g["table"], g["starts"], g["weights"]),
        "bag_products": products,
        "normalise_rows": rows,
        "drop_parallel": change,
        "largest_of_rows": largest,
    }


def compiled(kernels: Any) -> list[str]:
    """Every kernel made into a program for an H100 or H200, which takes no GPU; their names."""
    import triton.language as tl
    from triton import compile as translate
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    known = dict.fromkeys(["entries", "bags", "width", "count", "bins", "left"], "i32")
    known |= {"index": "*i64", "starts": "*i64", "chosen": "*i32", "places": "*i64"}
    kinds = {"fp32": (tl.float32, 32), "fp64": (tl.float64, 0), "bf16": (tl.float32, 16)}
    made = []
    for kind, (wide, bits) in kinds.items():
        fixed = {"wide": wide, "block": 256, "bits": bits, "tile": 1024}
        for program in KERNELS:
            kernel = getattr(kernels, program)
            if "bits" in kernel.arg_names and not bits:
                continue  # the largest are not looked for in float64
            constants = {name: fixed[name] for name in kernel.arg_names if name in fixed}
            types = known | dict.fromkeys(constants, "constexpr")
            signature = {name: types.get(name, f"*{kind}") for name in kernel.arg_names}
            source = ASTSource(kernel, signature, constants)
            assert translate(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
            made.append(f"{program} {kind}")
    return made


if __name__ == "__main__":
    from drumline.tasks.sae import triton_kernels

    if len(sys.argv) == 1:
        print("\n".join(compiled(triton_kernels)))
    else:
        cases = torch.load(Path(sys.argv[1]))
        torch.save([answers(triton_kernels, given) for given in cases], Path(sys.argv[2]))
