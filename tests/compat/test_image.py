"""`tf.image`: values are TensorFlow's, recorded and in a dataset's function, where NumPy computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compat import images_table
from tests.compat.golden_values import golden

import trainband.compat.tf1 as tf

GOLDEN = golden("images")


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    """All of the table, computed once."""
    return images_table.compute(tf)


@pytest.mark.parametrize("name", images_table.TABLE)
def test_value(computed: dict[str, Any], name: str) -> None:
    assert np.shape(computed[name]) == GOLDEN[name].shape
    np.testing.assert_allclose(computed[name].astype(np.float64), GOLDEN[name], rtol=2e-5, atol=2e-5)


def test_images_of_any_size_are_prepared_by_a_dataset() -> None:
    sizes = [(5, 7), (6, 4), (9, 8)]

    def prepare(image: Any) -> Any:
        cut = tf.random_crop(image, [4, 3, 3])
        turned = tf.image.random_flip_left_right(tf.image.resize_images(image, [6, 6]))
        changed = tf.image.random_contrast(tf.image.random_brightness(turned / 255.0, 0.2), 0.5, 1.5)
        begin, size, _ = tf.image.sample_distorted_bounding_box(tf.shape(image), [[[0.2, 0.2, 0.8, 0.8]]])
        return cut, changed, tf.shape(tf.slice(image, begin, size)), tf.shape(image)

    def images() -> Any:
        for height, width in sizes:
            yield np.arange(height * width * 3).reshape(height, width, 3)

    data = tf.data.Dataset.from_generator(images, tf.uint8, [None, None, 3]).map(prepare)
    assert [shape.as_list() for shape in data.output_shapes[:2]] == [[4, 3, 3], [6, 6, 3]]
    taken = data.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        for height, width in sizes:
            cut, changed, part, whole = session.run(taken)
            assert whole.tolist() == [height, width, 3]
            assert (np.diff(cut.astype(int), axis=1) == 3).all()
            assert (np.diff(cut.astype(int), axis=0) == 3 * width).all()
            assert np.isfinite(changed).all()
            assert 0 < part[0] <= height
            assert 0 < part[1] <= width


def test_images_are_turned_over_one_by_one_half_of_the_time() -> None:
    rows = tf.constant(np.tile(np.arange(2, dtype=np.float32)[None, :, None], (400, 1, 1, 1)))
    turned = tf.image.random_flip_left_right(rows, seed=1)
    with tf.Session() as session:
        found = session.run(turned)[:, 0, 0, 0]
    assert 150 < found.sum() < 250
    with pytest.raises(ValueError, match="non-negative"):
        tf.image.random_brightness(rows, -0.1)


def test_what_does_not_fit_is_refused() -> None:
    image = tf.zeros([4, 4, 3])
    with pytest.raises(ValueError, match="width must be >= target"):
        tf.image.crop_to_bounding_box(image, 0, 2, 2, 3)
    with pytest.raises(ValueError, match="3 or 4 dimensions"):
        tf.image.resize_images(tf.zeros([4]), [2, 2])
    assert tf.image.resize_images(image, [4, 4]) is image
