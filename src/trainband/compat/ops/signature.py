"""Signature: how one version of TensorFlow calls an operation, and what its arguments mean to the function."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.ops.table import Op

Parameter = inspect.Parameter

V1_PARAMETERS = {
    "angle": "input=x name x",
    "atan2": "y=x x=y name",
    "imag": "input=x name x",
    "log_sigmoid": "x=features name features",
    "real": "input=x name x",
    "stop_gradient": "input=x name x",
    "swish": "features -beta=1.0 name",
    "weighted_cross_entropy": "labels=targets logits pos_weight name targets",
    "zeta": "x q=y name y",
}
"""TensorFlow 1's parameters of operations whose entries in the table do not say them; see `Signature.parse`."""


V2_PARAMETERS = {
    **dict.fromkeys("angle imag real stop_gradient".split(), "input=x name x"),
    "atan2": "y=x x=y name",
    "log_sigmoid": "x=features name features",
    "zeta": "x q=y name y",
    "swish": "features -beta=1.0 name",
    "eye": "num_rows num_columns batch_shape dtype name",
    "fill": "dims value name -layout",
    **dict.fromkeys("zeros ones".split(), "shape dtype name -layout"),
    **dict.fromkeys("zeros_like ones_like".split(), "input=tensor dtype name -layout tensor"),
    "linspace": "start stop num name !axis",
    "gather": "params indices -validate_indices axis batch_dims name",
    "scatter_nd": "indices updates shape -bad_indices_policy='' name",
    **dict.fromkeys(
        "tensor_scatter_nd_add tensor_scatter_nd_sub tensor_scatter_nd_min tensor_scatter_nd_max".split(),
        "tensor indices updates -bad_indices_policy='' name",
    ),
    "matmul": "a b transpose_a transpose_b adjoint_a adjoint_b -a_is_sparse=False -b_is_sparse=False !output_type name",
    "matvec": "a b transpose_a adjoint_a -a_is_sparse=False -b_is_sparse=False name",
    "lstsq": "matrix rhs l2_regularizer -fast=True name",
    "top_k": "input k -sorted=True !index_type name",
    "in_top_k": "targets predictions k name",
    "l2_normalize": "x axis epsilon name dim=axis",
    "bincount": "arr weights minlength maxlength dtype name !axis -binary_output=False count",
    **dict.fromkeys(
        "max_pool1d max_pool max_pool3d avg_pool1d avg_pool avg_pool3d".split(),
        "input=value ksize strides padding data_format name value",
    ),
    "pool": "input window_shape pooling_type strides padding data_format dilations name",
    "max_pool_with_argmax": "input ksize strides padding -data_format='NHWC' output_dtype include_batch_in_index name",
    "dilation2d": "input filters=filter strides padding -data_format='NHWC' dilations=rates name filter rates",
    "erosion2d": "value filters=kernel strides padding -data_format='NHWC' dilations=rates name kernel rates",
    "conv1d": "input filters=filter stride=strides padding data_format dilations name filter strides",
    **dict.fromkeys(
        "conv2d conv3d convolution".split(), "input filters=filter strides padding data_format dilations name filter"
    ),
    **dict.fromkeys(
        "conv1d_transpose conv2d_transpose conv3d_transpose".split(),
        "input=value filters=filter output_shape strides padding data_format dilations name value filter",
    ),
    "depthwise_conv2d": "input filter strides padding data_format dilations=rate name rate",
    "separable_conv2d": "input depthwise_filter pointwise_filter strides padding data_format dilations=rate name rate",
    "moments": "x axes -shift keepdims name",
    "ssim": "img1 img2 max_val filter_size filter_sigma k1 k2 -return_index_map=False name",
    **dict.fromkeys(
        "sparse_segment_sum sparse_segment_mean sparse_segment_sqrt_n".split(),
        "data indices segment_ids num_segments name -sparse_gradient=False",
    ),
}
"""TensorFlow 2's parameters where they are not the function's own, by the names of operations."""


@dataclass(frozen=True, eq=False)
class Signature:
    """The parameters of an operation as scripts write them.

    Attributes:
      shown: the whole, with `name`, and `seed` for random operations.
      aliases: parameters that are other names of the function's own.
      ignored: parameters that change nothing here.
      forbidden: parameters that must be left out.
      needed: parameters that must be given, by any of their names.
    """

    title: str
    shown: inspect.Signature
    aliases: Mapping[str, str]
    ignored: frozenset[str]
    forbidden: frozenset[str]
    needed: tuple[str, ...]
    defaults: Mapping[str, Any]

    @classmethod
    def parse(cls, op: Op, text: str = "") -> Signature:
        """Reads a list of parameters; without one, they are the function's, then `seed` if it is random, and `name`.

        In the list, `old=new` is another name of a parameter, `-x=False` is ignored, and `!x` must be left out. What
        follows `*` is by keyword only.
        """
        own = op.parameters
        words = text.split() or [*own, *(["seed"] if op.random else []), "name"]
        aliases: dict[str, str] = {}
        ignored, forbidden, found = set[str](), set[str](), list[Parameter]()
        kind: Any = Parameter.POSITIONAL_OR_KEYWORD
        optional = False
        aliased = {word.partition("=")[2] for word in words if "=" in word and word[0] != "-"}
        for word in words:
            if word == "*":
                kind = Parameter.KEYWORD_ONLY
                continue
            name, _, target = word.lstrip("-!").partition("=")
            default: Any = None
            if word[0] in "-!":
                (ignored if word[0] == "-" else forbidden).add(name)
                default = ast.literal_eval(target) if target else None
            elif target:
                aliases[name] = target
            elif name in own:
                default = own[name].default
                if own[name].kind is Parameter.VAR_POSITIONAL:
                    found.append(own[name].replace(annotation=Parameter.empty))
                    kind = Parameter.KEYWORD_ONLY
                    continue
                if default is Parameter.empty and (name in aliased or optional):
                    default = None
            optional = optional or (default is not Parameter.empty and kind is Parameter.POSITIONAL_OR_KEYWORD)
            found.append(Parameter(name, kind, default=default))
        return cls(
            title=next(iter((*op.names, *op.v1_names, op.name))).rpartition(".")[2],
            shown=inspect.Signature(found),
            aliases=aliases,
            ignored=frozenset(ignored),
            forbidden=frozenset(forbidden),
            needed=tuple(
                name
                for name, one in own.items()
                if one.default is Parameter.empty and one.kind is not Parameter.VAR_POSITIONAL
            ),
            defaults={name: () if one.kind is Parameter.VAR_POSITIONAL else one.default for name, one in own.items()},
        )

    def bind(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the function's arguments by name, what else was given: `name` and `seed`).

        Raises:
          TypeError: an argument is missing, or is not there.
          ValueError: one is given that must be left out.
        """
        try:
            given = self.shown.bind(*positional, **keywords).arguments
        except TypeError as exc:
            raise TypeError(f"{self.title}(): {exc}") from None
        values = dict(self.defaults)
        others: dict[str, Any] = {}
        seen: set[str] = set()
        for name, value in given.items():
            if name in self.forbidden:
                if value is not None:
                    raise ValueError(f"Only call `{self.title}` with named arguments (labels=..., logits=..., ...)")
            elif name in self.aliases:
                if value is not None and self.aliases[name] not in seen:
                    values[self.aliases[name]] = value
                    seen.add(self.aliases[name])
            elif name in values:
                if value is not None or self.defaults[name] is None or name in self.needed:
                    values[name] = value
                if value is not None:
                    seen.add(name)
            elif name not in self.ignored:
                others[name] = value
        for name in self.needed:
            if values[name] is Parameter.empty:
                raise TypeError(f"{self.title}() is missing the argument {name!r}.")
        return values, others
