"""`tf.data` of TensorFlow 2's face: elements as TensorFlow gives them, and how they are computed."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compat_tf2.datasets_table import CASES, GOLDEN, outcome

import trainband.compat.tf2
from trainband.compat.tf2.data import shuffling
from trainband.compat.tf2.data.blocks import Block
from trainband.compat.tf2.data.dataset import Dataset
from trainband.compat.tf2.data.passes import Pass
from trainband.compat.tf2.eager.deferred import DEFERRED

tf: Any = trainband.compat.tf2

SEEN = ("map by numpy", "text in parts")
"""Functions that are not traced: their specs come from the first elements, where TensorFlow knows less."""


def values(dataset: Any) -> list[Any]:
    """The elements, as Python's values."""
    return [np.asarray(one).tolist() for one in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("name", CASES)
def test_elements_specs_and_errors_are_tensorflows(name: str) -> None:
    wanted = json.loads(GOLDEN.read_text())[name]
    found = json.loads(json.dumps(outcome(tf, CASES[name])))
    if name in SEEN:
        del wanted["spec"], found["spec"]
    assert found == wanted


SOURCES: dict[str, Callable[[], Any]] = {
    "rows": lambda: Dataset.from_tensor_slices(np.arange(1000)),
    "numbers": lambda: Dataset.range(1000),
    "two arrays": lambda: Dataset.from_tensor_slices(np.arange(500)).concatenate(Dataset.range(500, 1000)),
    "computed": lambda: Dataset.range(999, -1, -1).map(lambda x: 999 - x),
    "generator": lambda: Dataset.from_generator(lambda: iter(range(1000)), output_types=tf.int64),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [1, 7, 300, 5000])
def test_shuffle_gives_every_element_from_a_buffer(source: str, size: int) -> None:
    found = values(SOURCES[source]().shuffle(size))
    assert sorted(found) == list(range(1000))
    assert all(one < place + size for place, one in enumerate(found))  # it was in the buffer by then
    assert (found == list(range(1000))) == (size == 1)
    if size > 1000:
        assert abs(np.mean(found[:500]) - 500) < 60


def test_shuffle_of_unlike_elements() -> None:
    found = values(Dataset.range(1, 30).map(lambda n: tf.fill([tf.cast(n, tf.int32)], n)).shuffle(10))
    assert sorted(map(len, found)) == list(range(1, 30))
    assert [len(one) for one in found] != list(range(1, 30))


def test_shuffle_by_seeds() -> None:
    def order(**settings: Any) -> list[Any]:
        return values(Dataset.range(50).shuffle(50, **settings))

    assert order(seed=3) == order(seed=3) != order(seed=4)
    assert order() != order()
    tf.random.set_seed(1)
    first = order()
    tf.random.set_seed(1)
    assert order() == first


def test_shuffle_again_in_each_epoch_unless_told_otherwise() -> None:
    dataset = Dataset.range(50).shuffle(50, seed=1)
    both = values(dataset.repeat(2))
    assert both[:50] != both[50:]
    assert values(dataset) != values(dataset)
    fixed = Dataset.range(50).shuffle(50, seed=1, reshuffle_each_iteration=False)
    both = values(fixed.repeat(2))
    assert both[:50] == both[50:] == values(fixed)


def test_arrays_are_the_scripts_no_more() -> None:
    x = np.arange(4)
    dataset = Dataset.from_tensor_slices(x)
    x[:] = 9
    assert values(dataset) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        next(dataset.batch(2).as_numpy_iterator())[0] = 9
    next(iter(dataset.batch(2))).numpy()[0] = 9
    assert values(dataset) == [0, 1, 2, 3]


def test_a_batch_is_taken_at_once() -> None:
    blocks = list(Dataset.from_tensor_slices(np.zeros((1000, 8))).shuffle(100).repeat(2).recipe.start(Pass()))
    assert all(type(one) is Block and one.columns is blocks[0].columns for one in blocks)
    assert len(blocks) < 20


def test_a_function_of_numbers_is_traced_once() -> None:
    calls = []

    def double(x: Any) -> Any:
        calls.append(x)
        return x * 2

    assert values(Dataset.range(300).map(double)) == list(range(0, 600, 2))
    assert len(calls) == 1


def test_what_is_known_while_a_function_is_traced_is_computed_then() -> None:
    calls = []

    def solved(x: Any) -> Any:
        calls.append(x)
        return tf.linalg.matvec(tf.linalg.inv(tf.constant([[2.0, 0.0], [0.0, 4.0]])), tf.stack([x, x]))

    assert values(Dataset.from_tensor_slices(np.ones(3, np.float32)).map(solved)) == [[0.5, 0.25]] * 3
    assert len(calls) == 1


def test_a_function_reads_variables_when_elements_are_computed() -> None:
    factor = tf.Variable(2, dtype=tf.int64)
    calls = []

    def scaled(x: Any) -> Any:
        calls.append(x)
        return x * factor

    dataset = Dataset.range(3).map(scaled)
    assert values(dataset) == [0, 2, 4]
    factor.assign(3)
    assert values(dataset) == [0, 3, 6]
    assert len(calls) == 2  # a trace that finds the variable, and one with its value as an argument


@pytest.mark.parametrize("threads", [None, 4, tf.data.AUTOTUNE])
def test_a_function_that_decides_by_values_runs_for_each_element(threads: Any) -> None:
    dataset = Dataset.range(20).map(lambda x: x if x % 3 == 0 else -x, num_parallel_calls=threads)
    assert values(dataset) == [x if x % 3 == 0 else -x for x in range(20)]


def test_python_functions_see_each_element() -> None:
    seen: list[int] = []

    def look(x: Any) -> Any:
        seen.append(int(x.numpy()))
        return x

    assert values(Dataset.range(4).map(lambda x: tf.py_function(look, [x], tf.int64) + 1)) == [1, 2, 3, 4]
    assert seen == [0, 1, 2, 3]


def test_random_numbers_differ_between_elements_and_passes_and_follow_the_seed() -> None:
    def drawn() -> list[list[Any]]:
        dataset = Dataset.range(200).map(lambda _: tf.random.uniform([]))
        return [values(dataset), values(dataset)]

    tf.random.set_seed(5)
    first, second = drawn()
    assert len(set(first + second)) == 400
    tf.random.set_seed(5)
    assert drawn() == [first, second]


def test_random_numbers_are_the_same_whichever_thread_comes_first() -> None:
    def drawn(threads: int | None) -> list[Any]:
        tf.random.set_seed(2)
        return values(Dataset.range(40).map(lambda x: tf.random.uniform([]) if x > -1 else 0.0, threads))

    assert drawn(8) == drawn(None)


def test_what_a_pipeline_computes_does_not_change_the_programs_of_a_loop() -> None:
    weight = tf.Variable(np.ones((4, 2), np.float32))
    dataset = Dataset.from_tensor_slices(np.ones((160, 4), np.float32)).batch(8)
    dataset = dataset.map(lambda x: x * 2 if x[0, 0] > 0 else x).prefetch(2)  # not traced, in a thread

    def epoch() -> None:
        for x in dataset:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(x, weight) ** 2)
            weight.assign_sub(0.001 * tape.gradient(loss, weight))
            float(loss)

    epoch()
    before = DEFERRED.programs_compiled
    epoch()
    assert DEFERRED.programs_compiled == before


def test_functions_take_new_elements_each_time() -> None:
    def step(iterator: Any) -> Any:
        return next(iterator) * 2

    doubled = tf.function(step)
    iterator = iter(Dataset.range(4))
    assert [int(doubled(iterator)) for _ in range(4)] == [0, 2, 4, 6]

    def total(dataset: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for x in dataset:
            found += x
        return found

    reduced = tf.function(lambda dataset: dataset.reduce(np.int64(0), lambda state, x: state + x))
    drawn = Dataset.range(100).shuffle(100).take(50)
    assert len({int(reduced(drawn)) for _ in range(5)}) > 2  # two of five sums may be alike
    summed = tf.function(total)
    assert [int(summed(Dataset.range(n))) for n in (3, 3, 4)] == [3, 3, 6]


def test_what_is_shown() -> None:
    assert repr(Dataset.range(3).batch(2)) == (
        "<_BatchDataset element_spec=TensorSpec(shape=(None,), dtype=tf.int64, name=None)>"
    )
    assert "division by zero" in repr(Dataset.range(3).map(lambda _: 1 / 0))


def test_lengths() -> None:
    assert len(Dataset.range(7).batch(2)) == 4
    with pytest.raises(TypeError, match="The dataset is infinite"):
        len(Dataset.range(3).repeat())
    with pytest.raises(TypeError, match="The dataset length is unknown"):
        len(Dataset.range(3).filter(lambda x: x > 1))
    assert int(tf.data.experimental.cardinality(Dataset.range(3).repeat())) == tf.data.INFINITE_CARDINALITY


def test_iterators() -> None:
    iterator = iter(Dataset.range(1))
    assert int(iterator.get_next_as_optional().get_value()) == 0
    assert not bool(iterator.get_next_as_optional().has_value())
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        iterator.get_next()
    assert int(Dataset.range(5, 6).get_single_element()) == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than one element"):
        Dataset.range(2).get_single_element()
    assert int(Dataset.range(5).reduce(np.int64(0), lambda state, x: state + x)) == 10


def test_an_error_comes_in_its_place_through_prefetching() -> None:
    def broken() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("no more disk")

    iterator = iter(Dataset.from_generator(broken, output_types=tf.int32).prefetch(1))
    assert [int(next(iterator)), int(next(iterator))] == [1, 2]
    with pytest.raises(OSError, match="no more disk"):
        next(iterator)


def test_threads_end_with_the_loop() -> None:
    for _ in Dataset.range(100).map(lambda x: x + 1).prefetch(2):
        break
    assert not [one for one in threading.enumerate() if one.name == "dataset-prefetch"]


def test_cache_keeps_a_whole_pass_alone(tmp_path: Path) -> None:
    passes: list[int] = []

    def numbers() -> Iterator[int]:
        passes.append(1)
        yield from range(3)

    for place in ("", str(tmp_path / "cache")):
        passes.clear()
        dataset = Dataset.from_generator(numbers, output_types=tf.int32).cache(place)
        next(iter(dataset))
        assert values(dataset) == values(dataset) == [0, 1, 2]
        assert len(passes) == 2


def test_elements_are_saved_and_loaded(tmp_path: Path) -> None:
    dataset = Dataset.from_tensor_slices({"a": [1, 2], "b": ["x", "yz"]})
    dataset.save(str(tmp_path / "set"))
    assert list(Dataset.load(str(tmp_path / "set")).as_numpy_iterator()) == list(dataset.as_numpy_iterator())
    with pytest.raises(tf.errors.NotFoundError):
        Dataset.load(str(tmp_path / "other"))


def test_sampling_follows_the_weights() -> None:
    parts = [Dataset.from_tensors(n).repeat() for n in range(2)]
    found = values(Dataset.sample_from_datasets(parts, weights=[0.25, 0.75], seed=1).take(1000))
    assert 700 < sum(found) < 800


@pytest.mark.parametrize(
    ("count", "batch", "replicas", "first", "second"),
    [  # TensorFlow's, of its own rebatching and sharding
        (9, 4, 2, [[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]),
        (10, 5, 2, [[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]]),
        (13, 10, 4, [[0, 1, 2], [6, 7, 8], [10], [12]], [[3, 4, 5], [9], [11], []]),
    ],
)
def test_batches_are_divided_over_replicas_and_workers(
    count: int, batch: int, replicas: int, first: list[Any], second: list[Any]
) -> None:
    dataset = Dataset.range(count).batch(batch)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    for number, wanted in enumerate((first, second)):
        assert values(dataset.rebatched(replicas).auto_sharded(2, number)) == wanted
        assert values(dataset.prefetch(1).with_options(options).auto_sharded(2, number).rebatched(replicas)) == wanted


def _records(folder: Path, files: int) -> list[str]:
    names = [str(folder / f"{number}.tfrecord") for number in range(files)]
    for number, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for place in range(3):
                value = number * 10 + place
                feature = {
                    "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[value])),
                    "raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([value] * 4)])),
                    "some": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * place)),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return names


def test_sharding_by_files(tmp_path: Path) -> None:
    names = _records(tmp_path, 3)
    policy = tf.data.experimental.AutoShardPolicy

    def number(text: Any) -> Any:
        return tf.io.parse_single_example(text, {"n": tf.io.FixedLenFeature([], tf.int64)})["n"]

    listed = Dataset.list_files(str(tmp_path / "*"), shuffle=False).interleave(tf.data.TFRecordDataset, cycle_length=1)
    for dataset in (tf.data.TFRecordDataset(names).map(number), listed.map(number).prefetch(1)):
        assert values(dataset.auto_sharded(2, 0)) == [0, 1, 2, 20, 21, 22]
        assert values(dataset.auto_sharded(2, 1)) == [10, 11, 12]
        assert values(dataset.auto_sharded(4, 1)) == [1, 12]  # too few files
        assert values(dataset.auto_sharded(2, 1, policy.DATA)) == [1, 10, 12, 21]
        assert values(dataset.auto_sharded(2, 1, policy.OFF)) == values(dataset)
        with pytest.raises(tf.errors.InvalidArgumentError, match="aren't enough input files"):
            dataset.auto_sharded(4, 1, policy.FILE)
    shuffled = Dataset.list_files(str(tmp_path / "*")).interleave(tf.data.TFRecordDataset).map(number)
    parts = [values(shuffled.auto_sharded(2, place)) for place in (0, 1)]  # shuffled in each worker in another order
    assert [sorted(part) for part in parts] == [[0, 1, 2, 20, 21, 22], [10, 11, 12]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="shardable source"):
        Dataset.range(3).auto_sharded(2, 1, policy.FILE)
    hinted = Dataset.range(6).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT).batch(2)
    assert values(hinted.auto_sharded(2, 1, policy.HINT)) == [[1, 3], [5]]


@pytest.mark.parametrize("kind", ["shuffle", "sample", "hint"])
def test_workers_of_a_job_shuffle_alike_without_a_seed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each divides the elements in the same order, else some would come to both workers and some to neither."""
    policy = tf.data.experimental.AutoShardPolicy
    monkeypatch.setattr("trainband.compat.tf2.eager.seeds._SEEDS.is_given", False)

    def epochs_of_worker(place: int, job: str) -> list[list[int]]:
        monkeypatch.setattr(shuffling, "_UNSEEDED", itertools.count())  # as in a process of its own
        dataset = Dataset.range(100)
        if kind == "sample":
            halves = [dataset.take(50), dataset.skip(50)]
            dataset = Dataset.sample_from_datasets(halves, rerandomize_each_iteration=True)
        else:
            dataset = dataset.shuffle(30)
        values(dataset.take(place))  # what one worker alone looks at
        if kind == "hint":
            dataset = dataset.shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)
        part = dataset.auto_sharded(2, place, policy.HINT if kind == "hint" else policy.DATA, job=job)
        return [values(part) for _ in range(2)]

    mine = epochs_of_worker(0, "a job")
    for one, other in zip(mine, epochs_of_worker(1, "a job"), strict=True):
        assert sorted(one + other) == list(range(100))
    assert mine[0] != mine[1]
    assert epochs_of_worker(0, "another job") != mine


def test_records_are_parsed(tmp_path: Path) -> None:
    features = {
        "n": tf.io.FixedLenFeature([], tf.int64),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "some": tf.io.VarLenFeature(tf.float32),
    }

    def parsed(text: Any) -> Any:
        found = tf.io.parse_single_example(text, features)
        image = tf.reshape(tf.io.decode_raw(found["raw"], tf.uint8), [2, 2])
        return tf.cast(image, tf.float32) / 2, found["n"], tf.sparse.to_dense(found["some"])

    dataset = tf.data.TFRecordDataset(_records(tmp_path, 2)).map(parsed, num_parallel_calls=2)
    images, numbers, some = next(dataset.padded_batch(6).as_numpy_iterator())
    assert numbers.tolist() == [0, 1, 2, 10, 11, 12]
    assert images[:, 1, 1].tolist() == [0, 0.5, 1, 5, 5.5, 6]
    assert some.tolist() == [[0, 0], [0.5, 0], [0.5, 0.5]] * 2
    whole = (
        tf.data.TFRecordDataset(_records(tmp_path, 2)).batch(6).map(lambda text: tf.io.parse_example(text, features))
    )
    assert tf.sparse.to_dense(next(iter(whole))["some"]).numpy().tolist() == some.tolist()


def test_records_are_written(tmp_path: Path) -> None:
    name = str(tmp_path / "records")
    tf.data.experimental.TFRecordWriter(name, "GZIP").write(Dataset.from_tensor_slices(["a", "b"]))
    assert list(tf.data.TFRecordDataset(name, "GZIP").as_numpy_iterator()) == [b"a", b"b"]


def test_text(tmp_path: Path) -> None:
    name = str(tmp_path / "words.csv")
    tf.io.write_file(name, "a,1\nbc,2\n")
    lines = tf.data.TextLineDataset(name)
    assert list(lines.map(lambda one: tf.io.decode_csv(one, [[""], [0]])).as_numpy_iterator()) == [
        (b"a", 1),
        (b"bc", 2),
    ]
    assert list(tf.data.experimental.CsvDataset(name, [tf.string, tf.int32]).as_numpy_iterator())[1] == (b"bc", 2)
    assert tf.io.read_file(name).numpy() == b"a,1\nbc,2\n"
    keys = tf.constant(["a", "bc"])
    assert (keys == "a").numpy().tolist() == [True, False]
    assert keys[1].numpy() == b"bc"
    assert tf.strings.join([keys, keys], "-").numpy().tolist() == [b"a-a", b"bc-bc"]
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, [4, 5]), -1)
    assert values(Dataset.from_tensor_slices(["bc", "d", "a"]).map(table.lookup).batch(3)) == [[5, -1, 4]]
    with pytest.raises(tf.errors.NotFoundError, match="No such file"):
        list(tf.data.TextLineDataset(str(tmp_path / "none")))


def test_what_python_computes_first_is_parted_from_what_is_compiled() -> None:
    traces, seen = [], []

    def read(text: bytes) -> Any:
        seen.append(text)
        return np.frombuffer(text, np.uint8)

    def parsed(text: Any, n: Any) -> Any:
        traces.append(text)
        numbers = tf.ensure_shape(tf.numpy_function(read, [text], tf.uint8), [2])
        return tf.cast(numbers, tf.float32) + tf.random.uniform([2], 0, 0.5), n * 2, text

    dataset = Dataset.from_tensor_slices(([b"ab", b"cd", b"ef"] * 30, np.arange(90))).map(parsed)
    numbers, doubled, text = next(dataset.batch(90).as_numpy_iterator())
    assert np.floor(numbers[:3]).tolist() == [[97, 98], [99, 100], [101, 102]]
    assert len(np.unique(numbers % 1)) > 170
    assert doubled.tolist() == list(range(0, 180, 2))
    assert text.tolist() == [b"ab", b"cd", b"ef"] * 30
    assert seen == text.tolist()
    assert len(traces) == 2  # a run that is noted, and a trace


def test_what_python_computes_may_have_other_shapes_each_time() -> None:
    words = ["a", "a b", "a b c"] * 10
    dataset = Dataset.from_tensor_slices(words).map(lambda text: tf.size(tf.strings.split(text)) * 2)
    assert values(dataset) == [2, 4, 6] * 10
    decided = Dataset.from_tensor_slices(words).map(lambda text: text if tf.strings.length(text) > 1 else "none")
    assert values(decided)[:3] == [b"none", b"a b", b"a b c"]
    many = Dataset.from_tensor_slices(["x " * n for n in range(1, 40)]).map(lambda text: tf.strings.split(text))
    assert [len(one) for one in values(many)] == list(range(1, 40))
