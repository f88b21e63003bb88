"""Declares an operator with PyTorch's dispatcher: its schema, its shapes, its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp import register_decomposition
from torch.autograd import Function

from .._checks import HALF
from .._transforms import has_tangent, is_eager
from . import _native, _triton

_LIBRARY = torch.library.Library("fenchel", "DEF")
_LOST = (
    "fenchel::{name} has no derivative in this graph, as one that was exported, or compiled before "
    "forward mode was asked for: differentiate the model itself."
)
ROWWISE: list[Any] = []
"""The operators whose results have the batch of their arguments, row by row."""


def _cast(values: tuple, dtype: torch.dtype) -> list:
    """Arguments with every floating tensor among them in that type."""
    return [
        value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in values
    ]


def _single(value: Any) -> Any:
    """A tensor of half precision in float32; anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _rounded(fake: Callable[..., Any], arguments: tuple, out: Any) -> Any:
    """Results in the types that `fake` says, to half precision by way of float32, and in the order
    in memory that compilers take from it."""
    types = fake(torch.empty_like(arguments[0], device="meta"), *arguments[1:])

    def cast(value: Tensor, like: Tensor) -> Tensor:
        if like.dtype == torch.float64:  # which a device may lack
            return value.to(widest(value.device)).contiguous()
        return (value.float() if like.dtype in HALF else value).to(like.dtype).contiguous()

    if isinstance(out, tuple):
        return tuple(cast(o, t) for o, t in zip(out, types, strict=True))
    return cast(out, types)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def _in_widest(reference: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The reference in the device's widest type, rounded at the end to the type that came in."""

    def run(*arguments: Any) -> Any:
        out = reference(*_cast(arguments, widest(arguments[0].device)))
        return _rounded(fake, arguments, out)

    return run


def _on_device(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with its first argument's device as the current one."""

    def cuda(*arguments: Any) -> Any:
        if arguments[0].get_device() == torch._C._cuda_getDevice():
            return kernel(*arguments)
        with torch.cuda.device_of(arguments[0]):
            return kernel(*arguments)

    return cuda


def _through_host(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A CPU kernel for CUDA tensors: it waits for its arguments, but not until results are back."""

    def on_host(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return pinned.copy_(value, non_blocking=True)

    def cuda(*arguments: Any) -> Any:
        device = arguments[0].device
        host = [on_host(value) for value in arguments]
        torch.cuda.current_stream(device).synchronize()
        out = kernel(*host)
        results = out if isinstance(out, tuple) else (out,)
        sent = tuple(o.pin_memory().to(device, non_blocking=True) for o in results)
        return sent if isinstance(out, tuple) else sent[0]

    return cuda


def like(rows: Tensor, *_: Any) -> Tensor:
    """The shape of a result that has the rows' own."""
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


def _batched(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an operator on rows (..., d) under torch.vmap: one call with a batch more."""

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
        pairs = list(zip(arguments, in_dims, strict=True))
        rank = arguments[0].ndim - (in_dims[0] is not None)

        def front(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
            value = value[(slice(None), *[None] * (rank + 1 - value.ndim))]
            return value.expand(info.batch_size, *value.shape[1:])

        out = operator(*(front(value, dim) for value, dim in pairs))
        return out, (0,) * len(out) if isinstance(out, tuple) else 0

    return rule


def _followed(name: str, operator: Any) -> Callable[..., Any]:
    """The operator where derivatives are followed. What differentiates it is an autograd function
    around it; a graph that holds the operator alone has lost that function."""

    def autograd(keys: Any, *arguments: Any) -> Any:
        for x in arguments:
            if not isinstance(x, Tensor) or not x.is_floating_point():
                continue
            if torch._C._is_fwd_grad_enabled() and has_tangent(x):
                raise NotImplementedError(_LOST.format(name=name))
            if x.requires_grad and torch.is_grad_enabled():
                return _Lost.apply(name, operator, *arguments)
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    return autograd


class _Lost(Function):
    """An operator that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, name: str, operator: Any, *arguments: Any) -> Any:
        ctx.name = name
        return operator(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(_LOST.format(name=ctx.name))


def refuse_onnx(name: str) -> None:
    """Raises for an operator that has no decomposition."""
    raise NotImplementedError(
        f"{name} cannot be exported to ONNX: how many steps it takes depends on the scores. Export "
        "sparsemax or entmax, or leave this mapping out of the exported part."
    )


def _on_cpu(
    native: Callable[..., Any], fake: Callable[..., Any], fallback: Callable[..., Any]
) -> Callable[..., Any]:
    """The native kernel for arguments of any strides and half precision too."""

    def cpu(*arguments: Any) -> Any:
        rows = arguments[0]
        if rows.dtype in HALF:
            return _rounded(fake, arguments, cpu(*map(_single, arguments)))
        if rows.shape[-1] > _native.LONGEST_ROW:
            return fallback(*arguments)
        for value in arguments:
            if isinstance(value, Tensor) and not value.is_contiguous():
                arguments = tuple(v.contiguous() if isinstance(v, Tensor) else v for v in arguments)
                break
        return native(*arguments)

    return cpu


class _Overload(NamedTuple):
    """A registered operator, and its kernels for eager calls; None where there is none."""

    operator: Any
    cpu: Callable[..., Any] | None
    cuda: Callable[..., Any] | None


def _register(
    schema: str,
    *,
    fake: Callable[..., Any] = like,
    reference: Callable[..., Any],
    native: Callable[..., Any] | None = None,
    triton: Callable[..., Any] | None,
    decomposition: Callable[..., Any] | None = None,
    in_onnx: bool = True,
    rowwise: bool = True,
) -> _Overload:
    """Registers `fenchel::schema`; see `declare`."""
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    fallback = _in_widest(reference, fake)
    _LIBRARY.impl(name, fallback, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, fake, "Meta")
    cpu = cuda = None
    if native is not None and _native.LIBRARY is not None:
        cpu = _on_cpu(native, fake, fallback)
        _LIBRARY.impl(name, cpu, "CPU")
        if triton is None:
            cuda = _on_device(_through_host(cpu))
    if triton is not None and _triton.AVAILABLE:
        cuda = _on_device(triton)
    if cuda is not None:
        _LIBRARY.impl(name, cuda, "CUDA")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.fenchel, packet), overload or "default")
    _LIBRARY.impl(name, _followed(packet, operator), "Autograd", with_keyset=True)
    if rowwise:
        ROWWISE.append(operator)
        torch.library.register_vmap(operator, _batched(operator), lib=_LIBRARY)
    if decomposition is not None:
        _LIBRARY.impl(name, decomposition, "Tracer")
        _decompose(operator, decomposition, fake)
    elif not in_onnx:
        _decompose(operator, lambda *_: refuse_onnx(packet), like)
    return _Overload(operator, cpu, cuda)


def _decompose(operator: Any, decomposition: Callable[..., Any], fake: Callable[..., Any]) -> None:
    register_decomposition(operator)(decomposition)
    # Without this, shapes that are symbols would be found by way of the decomposition.
    register_decomposition(operator, type="meta")(fake)


def _caller(scalar: _Overload, tensor: _Overload) -> Callable[..., Any]:
    """Calls the overload that the type of the last argument asks for. An eager call goes to the
    kernel at once: for small inputs the dispatcher would take most of the time. The function's
    attribute `eager` is for callers that know that theirs is one."""
    (_, cpu, cuda), by_number, by_tensor = scalar, scalar.operator, tensor.operator

    def eager(*arguments: Any) -> Any:
        rows = arguments[0]
        if cpu is not None and rows.is_cpu:
            return cpu(*arguments)
        if cuda is not None and rows.is_cuda:
            return cuda(*arguments)
        return (by_tensor if isinstance(arguments[-1], Tensor) else by_number)(*arguments)

    def call(*arguments: Any) -> Any:
        if is_eager(*arguments):
            return eager(*arguments)
        return (by_tensor if isinstance(arguments[-1], Tensor) else by_number)(*arguments)

    call.eager = eager  # type: ignore[attr-defined]
    return call


def declare(schema: str, **kernels: Any) -> Callable[..., Any]:
    """Registers `fenchel::schema` and returns a function that calls it.

    Args:
        schema: name, arguments and results; the first argument holds the rows (..., d).
        fake: the shapes and types of the results, for tracing.
        reference: plain PyTorch in float64, for every device.
        native: the C++ kernel, for contiguous float32 or float64 tensors on the CPU; the reference
            if None.
        triton: the Triton kernel, for CUDA tensors of any floating type and any strides; if None,
            these go to the host and back where there is a C++ kernel.
        decomposition: the same in plain torch operations that do not depend on the values, for
            graphs that leave PyTorch: ONNX and TorchScript.
        in_onnx: False if the ONNX exporter is to refuse the operator.
        rowwise: whether all tensors have the batch of the first, (..., 1) or wider, and each row's
            results depend on that row alone.
    """
    overload = _register(schema, **kernels)
    return _caller(overload, overload)


def declare_with(
    parameter: str, schema: str, results: str = "Tensor", **kernels: Any
) -> Callable[..., Any]:
    """An operator whose last argument is a number or a tensor with one value per row (..., 1).

    Args:
        parameter: the argument's name.
        schema: name and other arguments, as in "entmax(Tensor scores".
        results: the result types.
        kernels: as for `declare`.
    """
    name, _, arguments = schema.partition("(")
    scalar = _register(f"{name}({arguments}, float {parameter}) -> {results}", **kernels)
    tensor = _register(f"{name}.Tensor({arguments}, Tensor {parameter}) -> {results}", **kernels)
    return _caller(scalar, tensor)


def declare_inplace_with(
    parameter: str,
    schema: str,
    functional: Callable[..., Tensor],
    *,
    native: Callable[..., None],
    triton: Callable[..., Any],
) -> Callable[..., Any]:
    """An operator that writes what `functional` returns over its first argument.

    Args:
        parameter, schema: as for `declare_with`.
        functional: the same into a new tensor.
        native, triton: kernels that write over contiguous rows.
    """

    def replace(*arguments: Any) -> None:
        arguments[0].copy_(functional(*arguments))

    def cpu(*arguments: Any) -> None:
        rows = arguments[0]
        slow = rows.dtype in HALF or rows.shape[-1] > _native.LONGEST_ROW
        (replace if slow else native)(*arguments)

    def overload(name: str, kind: str) -> _Overload:
        _LIBRARY.define(f"{name}({arguments}, {kind} {parameter}) -> ()")
        _LIBRARY.impl(name, replace, "CompositeExplicitAutograd")
        if _native.LIBRARY is not None:
            _LIBRARY.impl(name, cpu, "CPU")
        if _triton.AVAILABLE:
            _LIBRARY.impl(name, _on_device(triton), "CUDA")
        operator = getattr(getattr(torch.ops.fenchel, stem), name.partition(".")[2] or "default")
        return _Overload(operator, None, None)

    stem, _, arguments = schema.partition("(")
    return _caller(overload(stem, "float"), overload(f"{stem}.Tensor", "Tensor"))
