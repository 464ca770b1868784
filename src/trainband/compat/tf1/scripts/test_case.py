"""`tf.test.TestCase`: unittest's, with sessions and comparisons of arrays."""

from __future__ import annotations

import random
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph, reset_default_graph
from trainband.compat.tf1.operations.random import set_random_seed
from trainband.compat.tf1.scripts.flags import FLAGS
from trainband.compat.tf1.sessions.session import Session
from trainband.runtime.overrides import override


class TestCase(unittest.TestCase):
    """A test, which begins with an empty default graph and fixed seeds."""

    __test__ = False  # pytest would collect this class itself

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__test__ = True

    @override
    def setUp(self) -> None:
        reset_default_graph()
        random.seed(1234)
        np.random.seed(1234)
        set_random_seed(1234)
        self._session: Session | None = None

    @override
    def tearDown(self) -> None:
        if self._session is not None:
            self._session.close()

    def get_temp_dir(self) -> str:
        """A directory of this test's."""
        return tempfile.mkdtemp(prefix=f"{type(self).__name__}-")

    @contextmanager
    def session(
        self, graph: Any = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """A session, as default."""
        del use_gpu, force_gpu
        with Session(graph=graph, config=config) as session:
            yield session

    @contextmanager
    def cached_session(
        self, graph: Any = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """The test's session, as default; it is the same each time."""
        del use_gpu, force_gpu
        if self._session is None:
            self._session = Session(graph=graph, config=config)
        with self._session.graph.as_default(), self._session.as_default() as session:
            yield session

    def test_session(
        self, graph: Any = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Any:
        """`cached_session`. unittest takes it for a test, and skips it."""
        if self.id().endswith(".test_session"):
            self.skipTest("Not a test.")
        return self.cached_session(graph, config, use_gpu, force_gpu)

    def evaluate(self, tensors: Any) -> Any:
        """What a run in the default session, or a fresh one, gives."""
        session = self._session or Session(graph=get_default_graph())
        return session.run(tensors)

    def assertAllClose(  # noqa: N802 - TensorFlow's names
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Compare arrays, or lists and dictionaries of them."""
        if isinstance(a, dict):
            self.assertEqual(set(a), set(b), msg)
            for name in a:
                self.assertAllClose(a[name], b[name], rtol, atol, msg)
        elif isinstance(a, list | tuple) and a and isinstance(a[0], np.ndarray | list | tuple | dict | Tensor):
            self.assertEqual(len(a), len(b), msg)
            for one, other in zip(a, b, strict=True):
                self.assertAllClose(one, other, rtol, atol, msg)
        else:
            left, right = self._array(a), self._array(b)
            self.assertEqual(left.shape, right.shape, msg)
            np.testing.assert_allclose(left, right, rtol, atol, err_msg=msg or "")

    def assertAllCloseAccordingToType(  # noqa: N802
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, half_rtol: float = 1e-3, half_atol: float = 1e-3,
        msg: str | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Compare arrays, those of float16 less exactly."""
        half = any(self._array(one).dtype.itemsize == 2 for one in (a, b))
        self.assertAllClose(a, b, half_rtol if half else rtol, half_atol if half else atol, msg)

    def assertNotAllClose(self, a: Any, b: Any, **keywords: Any) -> None:  # noqa: N802
        """The reverse of `assertAllClose`."""
        try:
            self.assertAllClose(a, b, **keywords)
        except AssertionError:
            return
        raise AssertionError("The two values are close at all elements.")

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:  # noqa: N802
        """Compare arrays exactly."""
        left, right = self._array(a), self._array(b)
        self.assertEqual(left.shape, right.shape, msg)
        np.testing.assert_array_equal(left, right, err_msg=msg or "")

    def assertNotAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:  # noqa: N802
        """The reverse of `assertAllEqual`."""
        try:
            self.assertAllEqual(a, b)
        except AssertionError:
            return
        raise AssertionError(msg or "The two values are equal at all elements.")

    def assertAllGreater(self, a: Any, comparison_target: Any) -> None:  # noqa: N802
        """Every element is greater."""
        self.assertGreater(self._array(a).min(), comparison_target)

    def assertAllLess(self, a: Any, comparison_target: Any) -> None:  # noqa: N802
        """Every element is less."""
        self.assertLess(self._array(a).max(), comparison_target)

    def assertAllGreaterEqual(self, a: Any, comparison_target: Any) -> None:  # noqa: N802
        """Every element is at least this."""
        self.assertGreaterEqual(self._array(a).min(), comparison_target)

    def assertAllLessEqual(self, a: Any, comparison_target: Any) -> None:  # noqa: N802
        """Every element is at most this."""
        self.assertLessEqual(self._array(a).max(), comparison_target)

    def assertAllInSet(self, target: Any, expected_set: Any) -> None:  # noqa: N802
        """Every element is one of these."""
        self.assertLessEqual(set(self._array(target).ravel().tolist()), set(expected_set))

    def assertNear(self, f1: Any, f2: Any, err: float, msg: str | None = None) -> None:  # noqa: N802
        """Compare two numbers."""
        self.assertTrue(f1 == f2 or abs(f1 - f2) <= err, msg or f"{f1!r} != {f2!r} +/- {err!r}")

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: str | None = None) -> None:  # noqa: N802
        """Compare two vectors."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(other), err, msg)

    def assertNDArrayNear(self, ndarray1: Any, ndarray2: Any, err: float, msg: str | None = None) -> None:  # noqa: N802
        """The Euclidean distance of two arrays."""
        self.assertLessEqual(float(np.linalg.norm(self._array(ndarray1) - self._array(ndarray2))), err, msg)

    def assertShapeEqual(self, np_array: Any, tf_tensor: Any, msg: str | None = None) -> None:  # noqa: N802
        """An array has the shape of a tensor."""
        self.assertEqual(list(np_array.shape), tf_tensor.get_shape().as_list(), msg)

    def assertDeviceEqual(self, device1: Any, device2: Any, msg: str | None = None) -> None:  # noqa: N802
        """Two devices are the same."""
        self.assertEqual(str(device1), str(device2), msg)

    def assertStartsWith(  # type: ignore[override,unused-ignore]  # noqa: N802
        self, actual: str, expected_start: str, msg: str | None = None
    ) -> None:
        """A text begins with another."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r} does not start with {expected_start!r}")

    @contextmanager
    def assertRaisesWithPredicateMatch(  # noqa: N802
        self, exception_type: type[Exception], expected_err_re_or_predicate: str | Callable[[Exception], bool]
    ) -> Iterator[None]:
        """An error is raised whose text matches, or which a function accepts."""
        with self.assertRaises(exception_type) as caught:
            yield
        if isinstance(expected_err_re_or_predicate, str):
            self.assertRegex(str(caught.exception), expected_err_re_or_predicate)
        else:
            self.assertTrue(expected_err_re_or_predicate(caught.exception), str(caught.exception))

    def assertRaisesOpError(self, expected_err_re_or_predicate: Any) -> Any:  # noqa: N802
        """An operation fails with a text that matches."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def assertItemsEqual(self, first: Any, second: Any, msg: str | None = None) -> None:  # noqa: N802
        """Compare in any order, as Python 2 called it."""
        self.assertCountEqual(first, second, msg)

    def _array(self, value: Any) -> Any:
        return np.asarray(self.evaluate(value) if isinstance(value, Tensor) else value)


def main(argv: list[str] | None = None) -> NoReturn:
    """Read the flags and run the tests of the script."""
    rest = FLAGS(list(argv or sys.argv), known_only=True)
    unittest.main(argv=rest)
    raise SystemExit(0)


def test_src_dir_path(relative_path: str) -> str:
    """A path below the current directory."""
    return str(Path.cwd() / relative_path)


test_src_dir_path.__test__ = False  # type: ignore[attr-defined]
