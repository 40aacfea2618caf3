"""Which composite ATen operators are broken up at capture, as data.

Comes in: nothing. Goes out: the table that AOTAutograd takes, from overload to torch's own decomposition.

Two rules decide. An operator that fusion lowers as one thing (normalisations, softmax, gelu, silu, means) or that
runs as one external call (matrix products, convolution, attention, embedding, pooling, resampling) stays whole; it is
in `WHOLE`, where a test checks that no decomposition of it slips in. What is left of ATen's long tail is broken into
pointwise operators, reductions and views, so that fusion needs no rule for `hardswish_backward`. The names are spelled
out rather than taken from torch's list, so that every torch in range gives the same graph.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

from stages.ir.memory import overlaps
from stages.ir.strides import pointwise_strides

_WHOLE = """
native_layer_norm native_group_norm _fused_rms_norm _native_batch_norm_legit_no_training
_softmax _log_softmax _safe_softmax gelu silu var_mean mean
addmm mm bmm baddbmm convolution convolution_backward embedding embedding_dense_backward _embedding_bag
_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_flash_attention_for_cpu
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d grid_sampler_2d
addcdiv addcmul celu clamp_max clamp_min deg2rad rad2deg elu floor_divide frac glu hardshrink hardsigmoid hardswish
hardtanh heaviside leaky_relu lerp logaddexp logit log_sigmoid_forward masked_fill mish nan_to_num _prelu_kernel rsub
sgn sinc softplus softshrink threshold xlogy
avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices _adaptive_avg_pool2d _adaptive_avg_pool3d
constant_pad_nd index index_put scatter gather index_select cumsum sort topk
"""

_POINTWISE = """
dot vdot mv addr fill isneginf isposinf logaddexp2 mvlgamma relu6 special_entr special_log_ndtr special_xlog1py
"""

_POINTWISE_BACKWARD = """
elu_backward gelu_backward glu_backward hardsigmoid_backward hardswish_backward hardtanh_backward
leaky_relu_backward logit_backward log_sigmoid_backward mish_backward _prelu_kernel_backward sigmoid_backward
silu_backward softplus_backward tanh_backward threshold_backward
"""

_LOSSES = """
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss huber_loss_backward
mse_loss mse_loss_backward nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward multi_margin_loss
multilabel_margin_loss_forward
"""

_REDUCTIONS = """
all aminmax count_nonzero linalg_vector_norm logsumexp.default nansum norm renorm std.correction std_mean.correction
sum.default trace _softmax_backward_data _log_softmax_backward_data
"""

# In training, batch normalisation is a reduction and pointwise arithmetic; its inference form is in WHOLE. Both
# `native_batch_norm` and cuDNN's form become `_native_batch_norm_legit_no_training` outside training.
_NORMALISATIONS = """
native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update_functional
native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward _weight_norm_interface
"""

_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten.native_batch_norm.default,
)

_CREATION = """
arange.default arange.start empty_like eye hann_window linspace logspace new_empty new_full new_ones new_zeros ones
ones_like zero zeros zeros_like
"""

_VIEWS_AND_COPIES = """
affine_grid_generator alias_copy block_diag channel_shuffle col2im im2col diag_embed diagonal_backward diagonal_copy
expand_copy index_add index_copy index_fill isin linalg_cross
pixel_shuffle pixel_unshuffle
reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
replication_pad1d replication_pad2d replication_pad3d _reshape_alias resize_as roll rot90 select_backward
select_scatter slice_backward split.Tensor split_with_sizes_copy squeeze.default squeeze.dim
squeeze_copy stack t t_copy take transpose.int transpose_copy tril triu unbind unfold_backward unfold_copy
_unsafe_index _unsafe_index_put _unsafe_view unsafe_split.Tensor unsafe_split_with_sizes unsqueeze_copy
_chunk_cat
"""

WHOLE = _WHOLE.split()

DECOMPOSED = [
    name
    for group in (
        _POINTWISE,
        _POINTWISE_BACKWARD,
        _LOSSES,
        _REDUCTIONS,
        _NORMALISATIONS,
        _CREATION,
        _VIEWS_AND_COPIES,
    )
    for name in group.split()
]


def _slices(value: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    """`split_with_sizes` as slices, which are index arithmetic; torch's own decomposition gives `as_strided`."""
    ends = itertools.accumulate(sizes)
    return [torch.ops.aten.slice.Tensor(value, dim, end - size, end) for size, end in zip(sizes, ends)]


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`one_hot` as eager computes it, which refuses a class out of range; for FakeTensors torch only compares."""
    if num_classes <= 0:
        whole: torch.Tensor = torch.ops.aten.one_hot.default._op_dk(_COMPOSITE, x, num_classes)
        return whole
    zeros = torch.zeros((*x.shape, num_classes), dtype=torch.long, device=x.device)
    return zeros.scatter(-1, x.unsqueeze(-1), 1) if x.numel() else zeros


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# Composite operators that are traced as these functions.
_OWN_KERNELS = {"one_hot": _one_hot}

# Operators of WHOLE that torch takes apart by a kernel written in Python before any table is asked.
_OVERLOADS_WITH_PYTHON_KERNELS = """
upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
upsample_nearest1d.default upsample_nearest2d.default upsample_nearest3d.default
upsample_bilinear2d.vec upsample_bilinear2d.default upsample_bicubic2d.vec upsample_bicubic2d.default
"""


def _group_norm(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`native_group_norm` as eager lays its result out on a CPU: channels last where the input is.

    torch's FakeTensors give contiguous strides (ATen/native/group_norm.cpp has it right). Elsewhere it stays whole.
    """
    layout = torch._prims_common.suggest_memory_format(x)
    if x.device.type != "cpu" or layout is torch.contiguous_format:
        return NotImplemented
    y, mean, rstd = torch.ops.aten.native_group_norm.default(x.contiguous(), *args, **kwargs)
    return y.contiguous(memory_format=layout), mean, rstd


def _batch_norm(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A batch normalisation as eager lays its result out on a CPU: channels last where x is, otherwise contiguous.

    inner   the operator, or torch's decomposition of it, whose FakeTensors keep x's strides
    """

    def decomposed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        layout = torch._prims_common.suggest_memory_format(x)
        if x.device.type == "cpu" and not x.is_contiguous(memory_format=layout):
            return inner(x.contiguous(memory_format=layout), *args, **kwargs)
        return NotImplemented if isinstance(inner, torch._ops.OpOverload) else inner(x, *args, **kwargs)

    return decomposed


def _channel_shuffle(inner: Callable[..., Any]) -> Callable[..., Any]:
    """`channel_shuffle` as eager lays its result out on a CPU: channels last where the input is."""

    def decomposed(x: torch.Tensor, groups: int) -> torch.Tensor:
        result: torch.Tensor = inner(x, groups)
        layout = torch._prims_common.suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
        return result.contiguous(memory_format=layout)

    return decomposed


# Composite operators that copy a tensor and then write to a part of it.
_SCATTERS = "slice_scatter diagonal_scatter as_strided_scatter"


def _scatter(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """An operator of `_SCATTERS` as eager has it for an expanded tensor: the copy is none.

    FakeTensors of torch 2.11 are expanded as the argument is, memory that cannot hold the result.
    """

    def decomposed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return operator(x.clone(), *args, **kwargs) if overlaps(x.shape, x.stride()) else NotImplemented

    return decomposed


# Composite operators that eager refuses where their tensors are on several devices, and that torch takes apart into
# `index` and `index_put`, which take indices from the CPU.
_ON_ONE_DEVICE = "index_add index_copy take"


def _on_one_device(operator: torch._ops.OpOverload, inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, torch's decomposition of `operator`, of tensors on one device."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(f"{operator} is given tensors on several devices")
        return inner(*args, **kwargs)

    return decomposed


def _log_sigmoid(x: torch.Tensor) -> Any:
    """`log_sigmoid_forward` as eager lays its result out on a CPU: contiguous. torch's FakeTensors keep x's strides."""
    if x.device.type != "cpu" or x.is_contiguous():
        return NotImplemented
    return torch.ops.aten.log_sigmoid_forward.default(x.contiguous())


# Pointwise operators of two tensors whose FakeTensors have the strides of the last one, where eager asks the first.
_BINARY = "copysign.Tensor floor_divide.default special_xlog1py.default xlogy.Tensor"


def _binary(inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, an operator of `_BINARY` or torch's decomposition of it, laid out as eager does: as an addition."""

    def decomposed(x: torch.Tensor, y: torch.Tensor) -> Any:
        shape = torch.broadcast_shapes(x.shape, y.shape)
        if 0 in shape or (x.is_contiguous() and y.is_contiguous()):
            return NotImplemented if isinstance(inner, torch._ops.OpOverload) else inner(x, y)
        strides = pointwise_strides(shape, (x, y), scalars=False)
        result: torch.Tensor = inner(x.contiguous(), y.contiguous())
        if result.stride() == strides:
            return result
        return torch.ops.aten.copy.default(result.new_empty_strided(result.shape, strides), result)

    return decomposed


def _of_one_type(inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, torch's decomposition of the gradient of a softmax, where all types are one, or where it is that of a
    float32 softmax of half numbers on CUDA. Otherwise the operator stays whole, and says what eager says."""

    def decomposed(gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        rounded = gradient.device.type == "cuda" and (gradient.dtype, input_dtype) == (torch.float32, torch.float16)
        if gradient.dtype != output.dtype or not (gradient.dtype == input_dtype or rounded):
            return NotImplemented
        return inner(gradient, output, dim, input_dtype)

    return decomposed


def _native_dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """In eager's order (ATen/native/Dropout.cpp): torch scales the mask, which rounds the scale."""
    result = gradient * mask * scale
    if result.device.type == "cpu":
        return result
    return result.clone(memory_format=torch._prims_common.suggest_memory_format(gradient))


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """While tracing: without torch's Python kernels for what is in `WHOLE`, and with our own of `_OWN_KERNELS`.

    torch.export keeps operators whole in the same way. The kernels are the process's, so hold Dynamo's compile lock.
    """
    saved = []
    for name in _OVERLOADS_WITH_PYTHON_KERNELS.split():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        saved.append((operator, dict(operator.py_kernels)))
        operator.py_kernels.clear()
        operator._dispatch_cache.clear()
    for name, kernel in _OWN_KERNELS.items():
        operator = getattr(torch.ops.aten, name).default
        saved.append((operator, dict(operator.py_kernels)))
        operator.py_kernels[_COMPOSITE] = kernel
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in saved:
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """Overload -> decomposition, for every name of `DECOMPOSED` that this torch knows."""
    operators = []
    for name in DECOMPOSED:
        packet, _, overload = name.partition(".")
        operator = getattr(torch.ops.aten, packet, None)
        if operator is not None:
            operators.append(getattr(operator, overload) if overload else operator)
    ours: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.split_with_sizes.default: _slices,
        torch.ops.aten.native_group_norm.default: _group_norm,
        torch.ops.aten.log_sigmoid_forward.default: _log_sigmoid,
        torch.ops.aten.native_dropout_backward.default: _native_dropout_backward,
    }
    found = get_decompositions(operators)
    for operator in _BATCH_NORMS:
        ours[operator] = _batch_norm(found.get(operator, operator))
    for operator in (torch.ops.aten._softmax_backward_data.default, torch.ops.aten._log_softmax_backward_data.default):
        ours[operator] = _of_one_type(found[operator])
    for name in _BINARY.split():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        ours[operator] = _binary(found.get(operator, operator))
    for name in _SCATTERS.split():
        operator = getattr(torch.ops.aten, name).default
        ours[operator] = _scatter(operator)
    for name in _ON_ONE_DEVICE.split():
        operator = getattr(torch.ops.aten, name).default
        ours[operator] = _on_one_device(operator, found[operator])
    ours[torch.ops.aten.channel_shuffle.default] = _channel_shuffle(found[torch.ops.aten.channel_shuffle.default])
    return {**found, **ours}
