"""What a whole dataset comes to in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.datasets.elements import common, flatten, pack
from trainband.compat.tf1.datasets.function import Function
from trainband.compat.tf1.datasets.run import Input, Recipe, Run
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.hosted import record_source


def reduced(
    dataset: Recipe, initial_state: Any, function: Callable[..., Any], wrap: Callable[[Tensor, Any], Recipe]
) -> Any:
    """The state that is left when a function of it and an element has gone over all elements."""
    first = [Input.make(leaf) for leaf in flatten(initial_state)]
    state = pack(initial_state, [part.spec for part in first])
    recorded = Function(function, (state, dataset.element_spec), wrap)
    structure = common(state, recorded.structure)

    def all_of_it(run: Run) -> Sequence[Any]:
        current = tuple(part.of(run) for part in first)
        for element in dataset.start(run):
            current = recorded.results(run, (*current, *element))
        return current

    inputs = [*recorded.captured, *(tensor for part in first for tensor in part.tensors)]
    return _computed("ReduceDataset", dataset, structure, inputs, lambda run, _: all_of_it(run))


def single(dataset: Recipe) -> Any:
    """The only element."""

    def only(run: Run, op: Operation) -> Sequence[Any]:
        elements = dataset.start(run)
        element = next(elements, None)
        if element is None:
            raise InvalidArgumentError(None, op, "Dataset was empty.")
        if next(elements, None) is not None:
            raise InvalidArgumentError(None, op, "Dataset had more than one element.")
        return element

    return _computed("DatasetToSingleElement", dataset, dataset.element_spec, [], only)


def _computed(
    type_: str, dataset: Recipe, structure: Any, inputs: Sequence[Any], result: Callable[[Run, Operation], Any]
) -> Any:
    tensors = list(dict.fromkeys([*dataset.inputs, *inputs]))
    specs = flatten(structure)

    def compute(resources: dict[Any, Any], *values: Any) -> Sequence[Any]:
        run = Run(dict(zip(tensors, values, strict=True)), resources)
        try:
            found: Sequence[Any] = result(run, op)
        finally:
            run.close()
        return found

    op = record_source(
        type_,
        compute,
        tensors,
        dtypes=[spec.dtype for spec in specs],
        shapes=[spec.shape for spec in specs],
        name=type_,
    )
    return pack(structure, op.outputs)
