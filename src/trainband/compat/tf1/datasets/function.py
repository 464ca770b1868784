"""Function: what a script does with each element, recorded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.datasets.elements import Element, Spec, flatten, pack, with_sparse_tensors
from trainband.compat.tf1.datasets.program import Program
from trainband.compat.tf1.datasets.run import Recipe, Run
from trainband.compat.tf1.graphs.graph import Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.region import Body, read_before
from trainband.compat.tf1.graphs.where import user_line


class Function:
    """A function of elements, recorded into a region of the graph.

    Args:
      function: of tensors in the structure; of several if that is a tuple.
      structure: of the elements.
      wrap: makes what the function gets for a leaf that is a dataset, of the tensor that stands for it.
      keeps: whether the element itself comes after the results.

    Attributes:
      structure: of the results.
      dataset: the result, if it is a dataset.
      captured: the tensors from outside that it uses.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        structure: Any,
        wrap: Callable[[Tensor, Any], Recipe],
        *,
        keeps: bool = False,
    ) -> None:
        graph = get_default_graph()
        region = Region(graph.region, dynamic=True)
        leaves: list[Spec] = flatten(structure)
        with graph.outside_scopes(), graph.name_scope("dataset_function"), graph.recording(region):
            arguments = [_argument(spec) for spec in leaves]
            given = pack(
                structure,
                [
                    tensor if spec.nested is None else wrap(tensor, spec.nested)
                    for tensor, spec in zip(arguments, leaves, strict=True)
                ],
            )
            result = function(*given) if isinstance(given, tuple) else function(given)
            result = with_sparse_tensors(tuple(result) if isinstance(result, list) else result)
            self.dataset: Recipe | None = result if hasattr(result, "start") else None
            if result is None:
                raise TypeError(f"A function of elements must return something (at {user_line()}).")
            if self.dataset is not None:
                outputs = list(self.dataset.inputs)
            else:
                outputs = [convert(one) for one in flatten(result)]
                self.structure = pack(result, [Spec(one.dtype, one.shape) for one in outputs])
            if keeps:
                outputs += arguments
        outputs = _reading_outside(region, outputs, arguments)
        self.captured = [tensor for tensor in Body(region, outputs, arguments).captured if not _is_const(tensor)]
        self.program = Program(region, arguments, self.captured, outputs)
        self.outputs = outputs

    def results(self, run: Run, element: Element) -> Any:
        """The results for one element."""
        return self.program.state(run).one(element)

    def opened(self, run: Run, element: Element) -> Any:
        """The elements of the dataset that the function gives for one element."""
        assert self.dataset is not None
        values = dict(zip(self.outputs, self.results(run, element), strict=True))
        return self.dataset.start(run.child(values))


def _is_const(tensor: Tensor) -> bool:
    return tensor.op.type == "Const"


def _argument(spec: Spec) -> Tensor:
    def compute() -> Any:
        raise RuntimeError("An element has a value only inside the function that a dataset applies to it.")

    found: Tensor = record("Arg", compute, dtypes=[spec.dtype], shapes=[spec.shape], name="arg").outputs[0]
    return found


def _reading_outside(region: Region, outputs: Sequence[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """Has a region use variables as they are outside of it, when its iterator begins; returns its outputs."""
    body = Body(region, outputs, arguments)
    outside = read_before([body], [])
    instead = {tensor: outside[name] for name, (_, tensors) in body.hoisted.items() for tensor in tensors}
    for op in region.operations:
        op.inputs = tuple(instead.get(one, one) for one in op.inputs)
    return [instead.get(one, one) for one in outputs]
