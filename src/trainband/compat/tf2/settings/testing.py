"""`tf.test`: unittest with comparisons of arrays."""

# ruff: noqa: N802, PT009, PT027 - the names are TensorFlow's, and the methods unittest's

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.structure import map_structure


class TestCase(unittest.TestCase):
    """A test case that compares tensors."""

    def evaluate(self, tensors: Any) -> Any:
        """The values as NumPy's."""
        return map_structure(lambda one: one.numpy() if hasattr(one, "numpy") else one, tensors)

    def get_temp_dir(self) -> str:
        """A directory of the test's own."""
        if not hasattr(self, "_directory"):
            self._directory = tempfile.TemporaryDirectory()
            self.addCleanup(self._directory.cleanup)
        return str(Path(self._directory.name))

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """All elements are equal."""
        np.testing.assert_array_equal(self.evaluate(a), self.evaluate(b), msg or "")

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None) -> None:
        """All elements are close."""
        left, right = self.evaluate(a), self.evaluate(b)
        if isinstance(left, dict):
            self.assertEqual(set(left), set(right), msg)
            for name in left:
                self.assertAllClose(left[name], right[name], rtol, atol, msg)
        else:
            np.testing.assert_allclose(left, right, rtol, atol, err_msg=msg or "")

    def assertNotAllClose(self, a: Any, b: Any, **settings: Any) -> None:
        """Not all elements are close."""
        with self.assertRaises(AssertionError):
            self.assertAllClose(a, b, **settings)

    def assertNear(self, f1: Any, f2: Any, err: float, msg: str | None = None) -> None:
        """Two numbers are close."""
        self.assertLessEqual(abs(float(f1) - float(f2)), err, msg)

    def assertAllInRange(self, target: Any, lower_bound: Any, upper_bound: Any) -> None:
        """All elements are in a range."""
        value = np.asarray(self.evaluate(target))
        self.assertTrue(bool(np.all((value >= lower_bound) & (value <= upper_bound))))

    def assertShapeEqual(self, input_a: Any, input_b: Any, msg: str | None = None) -> None:
        """Two shapes are equal."""
        self.assertEqual(tuple(np.shape(self.evaluate(input_a))), tuple(np.shape(self.evaluate(input_b))), msg)


class Benchmark:
    """The base of benchmarks, which nothing runs here."""


def get_build_info() -> dict[str, Any]:
    """How the library was built: XLA compiles everything."""
    return {"is_cuda_build": False, "is_rocm_build": False, "is_tensorrt_build": False}
