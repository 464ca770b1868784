"""`tf.data`: what comes in which order, of which shape, from where a session stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.datasets.prefetching import Prefetching

Data = tf.data.Dataset
X = np.arange(12, dtype=np.float32).reshape(6, 2)


def plain(value: Any) -> Any:
    """Lists in place of arrays."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def elements(dataset: Any, most: int = 100) -> list[Any]:
    """All elements of a dataset."""
    taken = dataset.make_one_shot_iterator().get_next()
    found: list[Any] = []
    with tf.Session() as session, suppress(tf.errors.OutOfRangeError):
        while len(found) < most:
            found.append(plain(session.run(taken)))
    return found


CASES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "slices": (
        lambda: Data.from_tensor_slices(({"x": X[:2]}, ["a", "b"])),
        [({"x": [0, 1]}, b"a"), ({"x": [2, 3]}, b"b")],
    ),
    "range": (lambda: Data.range(10, 0, -3), [10, 7, 4, 1]),
    "zip": (lambda: Data.zip((Data.range(5), {"q": Data.range(8, 10)})), [(0, {"q": 8}), (1, {"q": 9})]),
    "concatenate": (lambda: Data.range(2).concatenate(Data.range(3)), [0, 1, 0, 1, 2]),
    "map": (lambda: Data.range(3).map(lambda v: [v, tf.cast(v, tf.float32) / 2.0]), [(0, 0.0), (1, 0.5), (2, 1.0)]),
    "map_text": (lambda: Data.from_tensor_slices(["a"]).map(lambda t: (tf.stack([t, t]), 1)), [([b"a", b"a"], 1)]),
    "map_computed_shape": (lambda: Data.range(3).map(tf.range), [[], [0], [0, 1]]),
    "map_py_func": (
        lambda: Data.range(1, 3).map(lambda v: tf.py_func(lambda n: np.full(n, n), [v], tf.int64) * 2, 2),
        [[2], [4, 4]],
    ),
    "map_cond": (lambda: Data.range(3).map(lambda v: tf.cond(tf.equal(v, 1), lambda: v * 10, lambda: v)), [0, 10, 2]),
    "flat_map": (lambda: Data.range(4).flat_map(Data.range), [0, 0, 1, 0, 1, 2]),
    "interleave": (
        lambda: Data.range(7).interleave(lambda v: Data.from_tensors(v).repeat(v + 1), cycle_length=3, block_length=2),
        [0, 1, 1, 2, 2, 3, 3, 2, 3, 3, 4, 4, 5, 5, 4, 4, 5, 5, 6, 6, 4, 5, 5, 6, 6, 6, 6, 6],
    ),
    "padded_batch": (
        lambda: Data.range(1, 4).map(lambda v: tf.fill([v], v)).padded_batch(2, [None], tf.constant(-1, tf.int64)),
        [[[1, -1], [2, 2]], [[3, 3, 3]]],
    ),
    "repeat_take_skip": (lambda: Data.range(3).repeat(3).skip(2).take(4), [2, 0, 1, 2]),
    "filter": (lambda: Data.range(8).filter(lambda v: tf.equal(v % 3, 0)), [0, 3, 6]),
    "filter_text": (lambda: Data.from_tensor_slices(list("aba")).filter(lambda t: tf.equal(t, "a")), [b"a", b"a"]),
    "shard": (lambda: Data.range(8).shard(3, 1), [1, 4, 7]),
    "cache": (lambda: Data.range(3).cache().repeat(2), [0, 1, 2, 0, 1, 2]),
    "prefetch": (lambda: Data.range(5).prefetch(1).map(lambda v: v + 1).prefetch(9), [1, 2, 3, 4, 5]),
    "window": (
        lambda: Data.range(7).window(3, 2, 2).flat_map(lambda w: w.batch(3)),
        [[0, 2, 4], [2, 4, 6], [4, 6], [6]],
    ),
    "unbatch": (lambda: Data.from_tensor_slices(X).batch(4).apply(tf.contrib.data.unbatch()).take(1), [[0, 1]]),
    "group_by_window": (
        lambda: Data.range(9).apply(tf.contrib.data.group_by_window(lambda v: v % 2, lambda _, w: w.batch(4), 3)),
        [[0, 2, 4], [1, 3, 5], [6, 8], [7]],
    ),
    "bucket_by_sequence_length": (
        lambda: (
            Data.from_tensor_slices([3, 1, 5, 2, 4])
            .map(lambda n: tf.fill([n], n))
            .apply(tf.data.experimental.bucket_by_sequence_length(lambda v: tf.shape(v)[0], [3], [2, 2]))
        ),
        [[[3, 3, 3, 0, 0], [5, 5, 5, 5, 5]], [[1, 0], [2, 2]], [[4, 4, 4, 4]]],
    ),
    "scan": (
        lambda: Data.range(4).apply(tf.data.experimental.scan(np.int64(1), lambda s, v: (s + v, s * v))),
        [0, 1, 4, 12],
    ),
    "ignore_errors": (
        lambda: (
            Data.from_tensor_slices([1.0, 0.0, 2.0])
            .map(lambda v: tf.check_numerics(1 / v, "bad"))
            .apply(tf.contrib.data.ignore_errors())
        ),
        [1.0, 0.5],
    ),
    "generator": (
        lambda: Data.from_generator(lambda n: ({"a": [i] * i} for i in range(n)), {"a": tf.int32}, {"a": [None]}, [3]),
        [{"a": []}, {"a": [1]}, {"a": [2, 2]}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_elements_come_in_the_order_of_tensorflow(name: str) -> None:
    make, wanted = CASES[name]
    assert elements(make()) == wanted


def test_shapes_are_known_as_far_as_in_tensorflow() -> None:
    data = Data.from_tensor_slices((X, list("abcdef")))
    assert str(data.batch(4).output_shapes) == str((tf.TensorShape([None, 2]), tf.TensorShape([None])))
    assert data.batch(4, drop_remainder=True).output_shapes[0].as_list() == [4, 2]
    assert data.padded_batch(2, ([7], [])).output_shapes[0].as_list() == [None, 7]
    assert data.output_types == (tf.float32, tf.string)
    assert data.make_one_shot_iterator().get_next()[0].name == "IteratorGetNext:0"
    with pytest.raises(ValueError, match="not compatible"):
        data.padded_batch(2, ([1], []))


def test_a_chunk_of_elements_is_what_single_ones_are() -> None:
    data = Data.range(300).map(lambda v: tf.sqrt(tf.cast(v, tf.float64)) + tf.constant([0.0, 1.0], tf.float64))
    found = elements(data, 1000)
    np.testing.assert_allclose(found, np.sqrt(np.arange(300.0))[:, None] + [0, 1])


def test_random_numbers_differ_between_elements_and_follow_from_the_seed() -> None:
    def drawn() -> list[float]:
        tf.reset_default_graph()
        tf.set_random_seed(3)
        return elements(Data.range(20).map(lambda _: tf.random_uniform([])))

    first = drawn()
    assert len(set(first)) == 20
    assert drawn() == first


def test_shuffling_is_another_in_each_pass_and_the_same_for_a_seed() -> None:
    def passes(**settings: Any) -> list[list[int]]:
        found = elements(Data.range(20).shuffle(8, **settings).repeat(2))
        return [found[:20], found[20:]]

    first, second = passes(seed=1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert max(place - number for place, number in enumerate(first)) > 0
    assert all(number < place + 8 for place, number in enumerate(first))
    assert passes(seed=1) == [first, second]
    first, second = passes(seed=1, reshuffle_each_iteration=False)
    assert first == second


def test_an_error_comes_in_its_place() -> None:
    def once() -> Any:
        yield 1
        yield [2]

    taken = Data.from_generator(once, tf.int64, []).prefetch(3).make_one_shot_iterator().get_next()
    ragged = Data.range(1, 4).map(tf.range).batch(2).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(taken) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"element of shape \(1,\)"):
            session.run(taken)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot batch tensors with different shapes"):
            session.run(ragged)
    with pytest.raises(ValueError, match="cannot be applied"):
        Data.from_tensor_slices(X).map(lambda row: tf.matmul(row[None], tf.ones([3, 1])))


def test_an_initializable_iterator_begins_with_what_is_fed_then() -> None:
    limit = tf.placeholder(tf.int64, [])
    offset = tf.Variable(10, dtype=tf.int64)
    data = Data.range(limit).map(lambda v: v + limit * 100 + offset)
    with pytest.raises(ValueError, match="make_initializable_iterator"):
        data.make_one_shot_iterator()
    iterator = data.make_initializable_iterator()
    taken = iterator.get_next()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            session.run(taken)
        session.run(iterator.initializer, {limit: 2})
        assert [session.run(taken) for _ in range(2)] == [210, 211]
        session.run(iterator.initializer, {limit: 1})
        assert session.run(taken) == 110
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError, match=r"^End of sequence"):
                session.run(taken)


def test_each_session_has_its_own_position() -> None:
    taken = Data.range(5).make_one_shot_iterator().get_next()
    with tf.Session() as first, tf.Session() as second:
        assert [first.run(taken), first.run(taken), second.run(taken)] == [0, 1, 0]


def test_an_iterator_over_any_dataset_of_a_structure() -> None:
    iterator = tf.data.Iterator.from_structure((tf.int64, tf.string), ([None], [None]))
    taken = iterator.get_next()
    starts = [
        iterator.make_initializer(Data.from_tensor_slices((np.array([n]), ["x"])).batch(2).repeat()) for n in (1, 2)
    ]
    with pytest.raises(TypeError):
        iterator.make_initializer(Data.range(3))
    with tf.Session() as session:
        for start, wanted in zip(starts, (1, 2), strict=True):
            session.run(start)
            assert plain(session.run(taken)) == ([wanted], [b"x"])


def test_an_iterator_chosen_by_its_handle() -> None:
    training, test = Data.range(100).repeat(), Data.range(1000, 1002)
    handle = tf.placeholder(tf.string, [])
    taken = tf.data.Iterator.from_string_handle(handle, training.output_types, training.output_shapes).get_next() * 2
    iterators = training.make_one_shot_iterator(), test.make_initializable_iterator()
    with tf.Session() as session:
        for_training, for_test = session.run([one.string_handle() for one in iterators])
        session.run(iterators[1].initializer)
        order = [for_training, for_test, for_training, for_test]
        assert [session.run(taken, {handle: one}) for one in order] == [0, 2000, 2, 2002]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(taken, {handle: for_test})
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(taken, {handle: "another"})


def test_a_monitored_session_begins_iterators_and_ends_with_the_data() -> None:
    features = {"x": tf.constant(X)}
    iterator = Data.from_tensor_slices((features, np.arange(6))).shuffle(6).batch(2).make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    batch, labels = iterator.get_next()
    weight = tf.get_variable("w", [2, 1], initializer=tf.zeros_initializer())
    loss = tf.losses.mean_squared_error(tf.cast(labels, tf.float32)[:, None], tf.matmul(batch["x"], weight))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    runs = 0
    with tf.train.MonitoredTrainingSession() as session:
        while not session.should_stop():
            session.run(train)
            runs += 1
    assert runs == 3


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x,1\ny,2\r\n,3")
    (tmp_path / "b.txt").write_bytes(b"z,\n")
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert elements(tf.data.TextLineDataset(names)) == [b"x,1", b"y,2", b",3", b"z,"]
    assert elements(Data.list_files(str(tmp_path / "*.txt"), shuffle=False)) == [name.encode() for name in names]
    records = tf.data.FixedLengthRecordDataset(names[0], 2, header_bytes=1, footer_bytes=2)
    assert elements(records) == [b",1", b"\ny", b",2", b"\r\n"]
    rows = tf.data.experimental.CsvDataset(names, ["d", 7])
    assert elements(rows) == [(b"x", 1), (b"y", 2), (b"d", 3), (b"z", 7)]
    with pytest.raises(tf.errors.NotFoundError):
        elements(tf.data.TextLineDataset("/does/not/exist"))
    kept = Data.from_tensor_slices((X, list("abcdef"))).cache(str(tmp_path / "cache")).repeat(2)
    found = elements(kept)
    assert found[:6] == found[6:]
    assert elements(kept) == found


def test_records_are_parsed_in_a_map(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    with tf.python_io.TFRecordWriter(path) as writer:
        for i in range(4):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([i] * 2 * (i + 1))])),
                "height": tf.train.Feature(int64_list=tf.train.Int64List(value=[i + 1])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    def parse(record: Any) -> Any:
        wanted = {"image": tf.FixedLenFeature([], tf.string), "height": tf.FixedLenFeature([], tf.int64)}
        found = tf.parse_single_example(record, wanted)
        image = tf.reshape(tf.decode_raw(found["image"], tf.uint8), tf.stack([found["height"], 2, 1]))
        return {"image": tf.image.resize_images(image, [1, 2])}, found["height"]

    data = tf.data.TFRecordDataset([path]).map(parse)
    assert elements(data.batch(2))[1] == ({"image": [[[[2.0], [2.0]]], [[[3.0], [3.0]]]]}, [3, 4])


def test_a_whole_dataset_as_one_value() -> None:
    total = Data.range(5).reduce(np.int64(2), lambda state, v: state * 2 + v)
    only = tf.data.experimental.get_single_element(Data.from_tensors((1, "a")))
    with tf.Session() as session:
        assert session.run(total) == 90
        assert session.run(only) == (1, b"a")


def test_prefetching_goes_ahead_by_a_thread_that_ends() -> None:
    given, asked = threading.Semaphore(0), threading.Semaphore(0)

    def numbers() -> Any:
        for number in range(100):
            asked.release()
            given.acquire()
            yield (number,)

    ahead = Prefetching(numbers(), 2)
    given.release(3)
    assert next(ahead) == (0,)
    for _ in range(3):  # the third is asked for although nobody has taken the second
        assert asked.acquire(timeout=10)
    given.release(100)
    assert next(ahead) == (1,)
    ahead.close()
    assert "dataset-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_sparse_tensors_are_elements_and_are_batched() -> None:
    def row(number: Any) -> Any:
        return tf.SparseTensor(tf.range(number)[:, None], tf.ones([tf.to_int32(number)]), tf.stack([number]))

    dataset = tf.data.Dataset.range(1, 4).map(lambda n: {"n": n, "row": row(n)})
    assert dataset.output_classes == {"n": tf.Tensor, "row": tf.SparseTensor}
    assert dataset.output_types == {"n": tf.int64, "row": tf.float32}
    batched = dataset.batch(3)
    assert batched.output_shapes["row"].as_list() == [None, None]
    again = tf.data.Iterator.from_structure(batched.output_types, batched.output_shapes, None, batched.output_classes)
    begin, element = again.make_initializer(batched), again.get_next()
    with tf.Session() as session:
        session.run(begin)
        found = session.run(element)
    assert found["row"].indices.tolist() == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert found["row"].dense_shape.tolist() == [3, 3]


def test_the_rows_of_a_sparse_tensor() -> None:
    value = tf.SparseTensorValue(np.array([[0, 1], [2, 0]]), np.array([5, 6]), np.array([3, 2]))
    parts = tf.data.Dataset.from_sparse_tensor_slices(value).make_one_shot_iterator().get_next()
    whole = tf.data.Dataset.from_tensor_slices((np.arange(3), value)).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert [one.tolist() for one in session.run(parts)] == [[[1]], [5], [2]]
        found = [session.run(whole) for _ in range(3)]
    assert [number for number, _ in found] == [0, 1, 2]
    assert [sparse.values.tolist() for _, sparse in found] == [[5], [], [6]]
    assert found[2][1].indices.tolist() == [[0]]
