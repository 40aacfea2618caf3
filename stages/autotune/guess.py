"""Contests between the library's steps and one kernel where nothing is timed: decided by the cost model.

Comes in: `Contest`s from fusion. Goes out: a `Verdict` for each. The library's products are well tuned and ours here
are not: a product goes to one kernel only where that saves whole launches and passes through memory, and where the
cost model says that they cost more than an untuned product may lose.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.autotune.config import AutotuneConfig
from stages.autotune.judge import gpu_facts, launches
from stages.autotune.products import GpuFacts, candidates, estimate
from stages.ir.contest import Contest, Verdict
from stages.ir.kernel import traffic
from stages.ir.matmul import Matmul, matmul_of

# How much longer than the cost model says an untuned product is taken to be, by bytes of an element. A margin that was
# chosen, not measured: of 14 products of half types the first candidate was within 1 % of our best on 11 and 24 %
# off at worst (docs/measurements/h200_gemm.md); none of float32 were timed.
SLACK = {2: 1.06, 4: 1.3}


def guess(
    contests: Sequence[Contest], config: AutotuneConfig, device: torch.device, gpu: GpuFacts | None = None
) -> list[Verdict]:
    """A verdict for each contest: the template under the first candidate of `config.products` where it should gain.

    gpu   what the cost model knows of the GPU; None: asked of `device`
    """
    facts = gpu or gpu_facts(device)
    return [_verdict(contest, config, facts) for contest in contests]


def _verdict(contest: Contest, config: AutotuneConfig, gpu: GpuFacts) -> Verdict:
    kernel = contest.template.kernel
    product = matmul_of(kernel)
    assert product is not None, "fusion sets up contests of matrix products"
    found = candidates(kernel, product, config.products, gpu)
    if not found:
        return Verdict(None, "no schedule of autotune.products suits it")
    others = launches(contest)
    if not others:
        return Verdict(None, "the library computes it in one step, and nothing is timed (autotune.trials is 1)")
    slack = SLACK[product.first.dtype.itemsize]
    ours = estimate(product, sum(traffic(kernel)), found[0], gpu)
    library = min(estimate(product, _moved(product), schedule, gpu) for schedule in found)
    around = sum(gpu.first + gpu.launch + sum(traffic(step.kernel)) / gpu.bandwidth for step in others)
    told = f"{1e6 * slack * ours:.1f} µs as one kernel, {1e6 * (library + around):.1f} µs as {len(contest.library)}"
    return Verdict(found[0] if slack * ours < library + around else None, f"by the cost model {told}")


def _moved(product: Matmul) -> int:
    """Bytes that the product alone reads and writes at the least."""
    elements = product.m * product.k + product.k * product.n + product.m * product.n
    return product.count * elements * product.first.dtype.itemsize
