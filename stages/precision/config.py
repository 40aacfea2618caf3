"""The arithmetic a model runs in."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import choose

MODES = ("fp32", "tf32", "amp", "bf16", "fp16")


@dataclass(frozen=True)
class PrecisionConfig:
    """How numbers are computed.

    mode         fp32: as the model is; tf32: float32 whose matrix products may round their operands to 10 bits of
                 mantissa (CUDA); amp: `torch.autocast`; bf16, fp16: parameters and inputs converted
    amp_dtype    what autocast computes in: bfloat16 or float16
    wide_products   auto | always | never: matrix products and convolutions of half-precision operands run in float32
                 on the CPU and round their result. auto: where the processor has no instructions for the half type
    """

    mode: str = "fp32"
    amp_dtype: str = "bfloat16"
    wide_products: str = "auto"

    def __post_init__(self) -> None:
        choose("precision.mode", self.mode, MODES)
        choose("precision.amp_dtype", self.amp_dtype, ("bfloat16", "float16"))
        choose("precision.wide_products", self.wide_products, ("auto", "always", "never"))
