"""Images changed by chance, and boxes whose number is known only in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import boxes as box_ops
from trainband.compat.ops import colors, cropping
from trainband.compat.ops import random as random_ops
from trainband.compat.ops.array import shape
from trainband.compat.ops.dtypes import float32, int32
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.operations.recorder import recorded

_uniform: Callable[..., Any] = recorded(random_ops.random_uniform)


def random_flip_left_right(image: Any, seed: int | None = None) -> Any:
    """An image turned over from left to right, with probability one half; of several, each by itself."""
    return _flipped(image, -2, seed, "random_flip_left_right")


def random_flip_up_down(image: Any, seed: int | None = None) -> Any:
    """An image turned upside down, with probability one half; of several, each by itself."""
    return _flipped(image, -3, seed, "random_flip_up_down")


def _flipped(image: Any, axis: int, seed: int | None, name: str) -> Any:
    with name_scope(name):
        whole = convert(image)
        count = [] if whole.shape.ndims != 4 else [_sizes(whole)[0]]
        return recorded(cropping.flip_where)(whole, _uniform(count, seed=seed), axis)


def _sizes(tensor: Tensor) -> Any:
    """The sizes of a tensor in a run."""
    return recorded(shape)(tensor)


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """An image brighter or darker by up to `max_delta`.

    Raises:
      ValueError: that is negative.
    """
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return recorded(colors.adjust_brightness)(image, _uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """An image whose contrast is scaled by a number between the two.

    Raises:
      ValueError: the numbers are not in order, or negative.
    """
    return recorded(colors.adjust_contrast)(image, _between(lower, upper, seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """An image whose saturation is scaled by a number between the two.

    Raises:
      ValueError: the numbers are not in order, or negative.
    """
    return recorded(colors.adjust_saturation)(image, _between(lower, upper, seed))


def _between(lower: float, upper: float, seed: int | None) -> Any:
    if upper <= lower:
        raise ValueError("upper must be > lower.")
    if lower < 0:
        raise ValueError("lower must be non-negative.")
    return _uniform([], lower, upper, seed=seed)


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """An image whose hue is turned by up to `max_delta`.

    Raises:
      ValueError: that is not between 0 and 0.5.
    """
    if not 0 <= max_delta <= 0.5:
        raise ValueError("max_delta must be <= 0.5 and non-negative.")
    return recorded(colors.adjust_hue)(image, _uniform([], -max_delta, max_delta, seed=seed))


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Any:
    """A part of an array of this size, anywhere in it; -1 takes all of an axis."""
    with name_scope(name, "random_crop"):
        wanted = convert(size, int32 if not isinstance(size, Tensor) else None)
        rank = wanted.shape.sizes[0] if wanted.shape.sizes else None
        draw = _uniform([rank] if rank is not None else _sizes(wanted), seed=seed)
        return recorded(cropping.cut_at_random)(value, draw, wanted)


def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: int | None = None,
    seed2: int | None = None,  # noqa: ARG001
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = None,
    area_range: Any = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> Any:
    """(begin, size, box) of a part of an image, chosen by chance, that shows enough of one of the boxes.

    Raises:
      ValueError: there are no boxes, and `use_image_if_no_bounding_boxes` is not set.
    """
    given = convert(bounding_boxes, None if isinstance(bounding_boxes, Tensor) else float32)
    if given.shape.sizes is not None and 0 in given.shape.sizes and not use_image_if_no_bounding_boxes:
        raise ValueError(
            "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to not "
            "provide any bounding boxes."
        )
    whole = convert(image_size)
    found = recorded(box_ops.sampled_box)(
        whole,
        given,
        min_object_covered,
        tuple(aspect_ratio_range or (0.75, 1.33)),
        tuple(area_range or (0.05, 1.0)),
        max_attempts or 100,
        seed=seed,
        name=name,
    )
    return recorded(box_ops.box_parts)(found, whole)


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Any:
    """The numbers of the boxes that overlap none with a higher score too much, the best first."""

    def compute(_: Any, *values: Any) -> list[Any]:
        corners, points, most, overlap, least = values
        return [box_ops.suppressed(corners, points, int(most), float(overlap), float(least))]

    inputs = [convert(one) for one in (boxes, scores, max_output_size, iou_threshold, score_threshold)]
    op = record_source(
        "NonMaxSuppressionV3", compute, inputs, dtypes=[int32], shapes=[[None]], name=name or "NonMaxSuppressionV3"
    )
    return op.outputs[0]
