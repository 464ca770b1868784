"""Predictor: a function of a model's params and a batch, and the way from a checkpoint's tensors to these params."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.export import nested
from trainband.errors import DataError, ModelError, ModelMismatch
from trainband.model.contents import tensor_of
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.mesh_context import DATA, on_mesh
from trainband.model.signature import (
    BATCH,
    Signature,
    TensorSpec,
    named_leaves,
    specs_of,
    specs_of_example,
    structs,
)
from trainband.model.variables import PyTree, Variables

_RANDOM_BATCH = 4
"""Number of examples in a batch made for tracing when only shapes are known."""


class Predictor:
    """The function of a model to export or serve, with the structure of its params.

    Args:
      function: `function(params, batch) -> outputs`; of a model with a state `function(params, state, batch)`; of an
        NNX module `function(model, batch)`, after `model.eval()`. Batches and outputs are pytrees of arrays.
      example: a batch to trace it with and to try it on: its first axis counts examples.
      init: as for `Trainer`: defines the params' structure, against which loaded weights are checked. Without it, and
        without a module, params are nested dicts (lists, if all keys of a level are 0, 1, 2 ...), as a checkpoint
        names them.
      init_state: as for `Trainer`.
      module: a Flax NNX module, used for its structure only.
      axes: the mesh axes that a `PartitionSpec` in the function may name.
    """

    def __init__(
        self,
        function: Callable[..., PyTree],
        *,
        example: PyTree = None,
        init: Callable[[jax.Array], PyTree] | None = None,
        init_state: Callable[[jax.Array], PyTree] | None = None,
        module: Any = None,
        axes: tuple[str, ...] = (DATA,),
    ) -> None:
        if not callable(function):
            raise ModelError(f"a Predictor needs a function of params and a batch, got {function!r}.")
        self.function = function
        self.example = example
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._axes = axes
        self._parts = None
        self._variables: Variables | None = None
        if module is not None:
            if init is not None or init_state is not None:
                raise ModelError("a Predictor of a module takes neither init= nor init_state=.")
            from trainband.model.nnx_parts import Parts  # here: it needs Flax

            self._parts = Parts.of(module)
            self._variables = Variables.of(*self._parts.values(module))
        elif init is not None:
            key = jax.random.key(0)
            state = None if init_state is None else jax.eval_shape(init_state, key)
            self._variables = Variables.of(jax.eval_shape(init, key), state)
        self._accepts_state = self._parts is None and _accepts_state(function)

    def program(
        self,
        weights: Mapping[str, NDArray[Any]],
        *,
        example: PyTree = None,
        inputs: tuple[TensorSpec, ...] = (),
        batch: int | None = None,
        source: str = "",
        global_step: int = 0,
        shapes: Mapping[str, Any] | None = None,
        decode: Callable[[Tensors], Mapping[str, Any]] | None = None,
    ) -> InferenceProgram:
        """Returns the function with these weights.

        Args:
          weights: a checkpoint's `params/...` and `model_state/...`, or the input of `decode` that yields them.
          example: in place of the predictor's own.
          inputs: the tensors of a batch, if there is no example: one tensor, or several as a dict by name.
          batch: how many examples every call has; any number when `None`.
          source, global_step: of the weights.
          shapes: of the checkpoint's tensors, if `decode` makes them; anything with a shape and a dtype.
          decode: the checkpoint's tensors from the weights; traceable.

        Raises:
          DataError: there is no example, or its arrays differ in their number of examples.
          ModelMismatch: the weights belong to another model.
          ModelError: the function cannot be traced.
        """
        tree = self._example(example, inputs)
        if batch is not None:
            tree = jax.tree.map(lambda leaf: np.resize(leaf, (batch, *leaf.shape[1:])) if leaf.ndim else leaf, tree)
        named = named_leaves(tree, "input")
        specs = specs_of_example(named, batch)
        if inputs:  # in the order of the tree: a dict is sorted by name
            given = {spec.name: spec for spec in inputs}
            specs = tuple(given[name] for name in named)
        treedef = jax.tree.structure(tree)
        self._require(weights if shapes is None else shapes, source)
        computed = on_mesh(self._of_tensors, axes=self._axes)

        def function(weights: Tensors, inputs: Tensors) -> dict[str, Any]:
            held = weights if decode is None else decode(weights)
            return named_leaves(
                computed(held, jax.tree.unflatten(treedef, [inputs[spec.name] for spec in specs])), "output"
            )

        abstract = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in weights.items()}
        try:
            outputs = jax.eval_shape(function, abstract, structs(specs))
        except Exception as exc:
            if (
                inputs
                and isinstance(tree, dict)
                and (named_input := self._wants_array(computed, abstract, decode, specs))
            ):
                raise named_input from exc
            raise self._untraceable(exc, batch is None) from exc
        return InferenceProgram(
            function=function,
            weights=weights,
            signature=Signature(specs, specs_of(outputs)),
            name=self.name,
            example={name: np.asarray(leaf) for name, leaf in named_leaves(tree, "input").items()},
            source=source,
            global_step=global_step,
        )

    def _of_tensors(self, tensors: Tensors, batch: PyTree) -> PyTree:
        """Applies the user's function to a checkpoint's tensors and a batch; traceable."""
        if self._variables is not None:
            params, state = self._variables.split([tensors[tensor_of(entry)] for entry in self._variables.entries])
        else:
            held = nested(tensors)
            params, state = _lists(held.get("params", {})), _lists(held.get("model_state"))
            if isinstance(params, dict) and params.keys() == {"params"} and not isinstance(params["params"], dict):
                params = params["params"]  # the params are one bare array
        if self._parts is not None:
            return self.function(self._parts.merged(params, state or {}, evaluates=True), batch)
        return self.function(params, state, batch) if self._accepts_state else self.function(params, batch)

    def _require(self, shapes: Mapping[str, Any], source: str) -> None:
        if self._variables is None:
            return
        where = source or "the given weights"
        wanted = {tensor_of(entry): entry for entry in self._variables.entries}
        for name, entry in wanted.items():
            if name not in shapes:
                raise ModelMismatch(f"{where} is of another model: {self.name} needs {entry}, but {name} is missing.")
            found = shapes[name]
            if tuple(found.shape) != entry.shape or np.dtype(found.dtype).name != entry.dtype:
                raise ModelMismatch(
                    f"{where} is of another model: {self.name} needs {entry}, but {name} is "
                    f"{np.dtype(found.dtype).name}[{','.join(map(str, found.shape))}]."
                )
        for name in shapes:
            if name not in wanted:
                raise ModelMismatch(f"{where} is of another model: it has {name}, which {self.name} does not have.")

    def _example(self, example: PyTree, inputs: tuple[TensorSpec, ...]) -> PyTree:
        tree = self.example if example is None else example
        if tree is None:
            if not inputs:
                raise DataError(
                    f"{self.name} has no example: give a batch (example=..., or --example data.npz), or describe one "
                    "(--input images:float32[batch,28,28])."
                )
            made = {spec.name: _made_up(spec) for spec in inputs}
            return made["input"] if made.keys() == {"input"} else made
        tree = jax.tree.map(np.asarray, tree)
        counts = {len(leaf) for leaf in jax.tree.leaves(tree) if leaf.ndim}
        if len(counts) != 1 or 0 in counts:
            raise DataError(
                f"the example of {self.name} must be arrays with equally many examples, one or more, along their first "
                f"axis; they have {sorted(counts) or 'none'}."
            )
        return tree

    def _wants_array(
        self, computed: Any, abstract: Tensors, decode: Any, specs: tuple[TensorSpec, ...]
    ) -> ModelError | None:
        """Returns the error for a function that takes an array but was given a dict because its input has a name."""
        if len(specs) != 1:
            return None

        def function(weights: Tensors, array: Any) -> Any:
            return computed(weights if decode is None else decode(weights), array)

        (spec,) = specs
        try:
            jax.eval_shape(function, abstract, structs(specs)[spec.name])
        except Exception:
            return None
        bare = f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
        return ModelError(
            f"{self.name} takes an array, but an input with a name makes the batch a dict, {{{spec.name!r}: array}}; "
            f"leave the name out (--input {bare}), or read batch[{spec.name!r}] in the function."
        )

    def _untraceable(self, exc: Exception, dynamic: bool) -> ModelError:
        reason = (str(exc).splitlines() or [""])[0]
        line = line_of(exc)
        what = f"{self.name} cannot be traced{f' ({line})' if line else ''}: {type(exc).__name__}: {reason}"
        if isinstance(exc, ModelError):
            return exc
        if isinstance(exc, KeyError | AttributeError | IndexError) and self._variables is None:
            what += (
                ". Params are nested dicts here, as the checkpoint names them; if their structure differs, give "
                "trainband.Predictor(function, init=...) (or module=...) instead of the function"
            )
        elif dynamic:
            what += (
                f". It was traced with {BATCH} examples, an unknown number: write x.shape[0] rather than "
                "len(x), or fix the number (batch=32, or --batch 32)"
            )
        return ModelError(f"{what}.")


def _accepts_state(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 3


def _lists(tree: Any) -> Any:
    """Converts nested dicts to lists if all keys of a level are 0, 1, 2 ..."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _lists(value) for key, value in tree.items()}
    if inner and set(inner) == {str(at) for at in range(len(inner))}:
        return [inner[str(at)] for at in range(len(inner))]
    return inner


def _made_up(spec: TensorSpec) -> NDArray[Any]:
    shape = tuple(_RANDOM_BATCH if isinstance(length, str) else length for length in spec.shape)
    random = np.random.default_rng(0)
    if jnp.issubdtype(jnp.dtype(spec.dtype), jnp.floating):
        return random.standard_normal(shape).astype(spec.dtype)
    return random.integers(0, 2, shape).astype(spec.dtype)


def line_of(exc: BaseException) -> str:
    """Returns the innermost line of the user's own files that raised, as `program.py:12`; empty if there is none."""
    found = ""
    for frame, line in traceback.walk_tb(exc.__traceback__):
        file = frame.f_code.co_filename
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if "site-packages" not in file and package != "trainband" and not file.startswith((sys.prefix, "<")):
            found = f"{Path(file).name}:{line}"
    return found
