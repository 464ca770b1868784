"""Readers of files, record files, and parsing."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.input.crc32c import crc32c
from trainband.compat.tf1.protos.example import Example, SequenceExample

# Written by TensorFlow 2.21: the records b"one" and b"".
RECORDS = bytes.fromhex("0300000000000000b099490e6f6e6501405508000000000000000029039807d8ea82a2")


def read_all(tensors: Any, *others: Any) -> tuple[list[Any], Any]:
    """What reading gives until the input ends, and other values then."""
    found: list[Any] = []
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        threads = tf.train.start_queue_runners(session)
        with pytest.raises(tf.errors.OutOfRangeError):
            found.extend(map(session.run, itertools.repeat(tensors)))
        last = session.run(list(others))
    for thread in threads:
        thread.join(10)
    return found, last


def names(*paths: Path) -> Any:
    return tf.train.string_input_producer([str(path) for path in paths], num_epochs=1, shuffle=False)


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    data = bytes(range(256)) * 9  # several blocks, and a rest
    expected = 0xFFFFFFFF
    for byte in data:
        expected ^= byte
        for _ in range(8):
            expected = (expected >> 1) ^ (0x82F63B78 if expected & 1 else 0)
    assert crc32c(data) == expected ^ 0xFFFFFFFF


def test_lines_and_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_bytes(b"head\n1,x\r\n2,y")
    second.write_bytes(b"head\n3,z\n\n")
    reader = tf.TextLineReader(skip_header_lines=1)
    found, (count, files) = read_all(
        reader.read(names(first, second)), reader.num_records_produced(), reader.num_work_units_completed()
    )
    assert [value for _, value in found] == [b"1,x", b"2,y", b"3,z", b""]
    assert found[2][0] == f"{second}:2".encode()
    assert (count, files) == (4, 2)
    tf.reset_default_graph()
    keys, values = tf.TextLineReader().read_up_to(names(first, second), 4)
    many, _ = read_all([keys, values])
    assert [len(one[1]) for one in many] == [4, 2]
    tf.reset_default_graph()
    whole, _ = read_all(tf.WholeFileReader().read(names(second)))
    assert whole == [(str(second).encode(), second.read_bytes())]
    tf.reset_default_graph()
    matched, missing = tf.matching_files(str(tmp_path / "*.csv")), tf.read_file(str(tmp_path / "c"))
    with tf.Session() as session:
        assert session.run(matched).tolist() == [str(first).encode(), str(second).encode()]
        session.run(tf.write_file(str(tmp_path / "new" / "c"), tf.read_file(str(first))))
        assert (tmp_path / "new" / "c").read_bytes() == first.read_bytes()
        with pytest.raises(tf.errors.NotFoundError, match="No such file"):
            session.run(missing)


def test_records_of_fixed_length(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"HH" + bytes(range(10)) + b"F")
    key, value = tf.FixedLengthRecordReader(4, header_bytes=2, footer_bytes=1).read(names(path))
    number = tf.decode_raw(value, tf.uint8)
    assert number.shape.as_list() == [None]
    found, _ = read_all([key, tf.cast(number[:2], tf.float32) * 2.0])
    assert [one[1].tolist() for one in found] == [[0, 2], [8, 10]]
    assert found[1][0] == f"{path}:1".encode()
    tf.reset_default_graph()
    hopping, _ = read_all(tf.FixedLengthRecordReader(4, hop_bytes=8).read(names(path))[1])
    assert hopping == [b"HH\x00\x01", b"\x06\x07\x08\x09"]


@pytest.mark.parametrize("kind", ["NONE", "ZLIB", "GZIP"])
def test_record_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data.tfrecord"
    options = tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, kind))
    written = [b"one", b"", bytes(2000)]
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        writer.write(written[0])
        writer.write(written[1])
    assert path.read_bytes() == RECORDS
    with tf.python_io.TFRecordWriter(str(path), options) as writer:
        for record in written:
            writer.write(record)
    assert list(tf.python_io.tf_record_iterator(str(path), options)) == written
    found, _ = read_all(tf.TFRecordReader(options=options).read(names(path)))
    assert [value for _, value in found] == written
    assert found[1][0] == f"{path}:19".encode()


def test_a_damaged_record_file_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    with tf.python_io.TFRecordWriter(path) as writer:
        writer.write(b"first")
        writer.write(b"second")
    good = path.read_bytes()
    for data, problem in (
        (good[:-1], "truncated record at 21 in"),
        (good[:25], "truncated record at 21 in"),
        (good[:34] + b"?" + good[35:], "corrupted record at 21 in"),
        (b"?" + good[1:], "corrupted record at 0 in"),
    ):
        path.write_bytes(data)
        with pytest.raises(tf.errors.DataLossError, match=f"{problem} {path}"):
            list(tf.python_io.tf_record_iterator(str(path)))
    with pytest.raises(tf.errors.NotFoundError):
        next(tf.python_io.tf_record_iterator(str(tmp_path / "none")))


def example(**features: Any) -> bytes:
    """A serialized Example."""
    found = Example()
    for name, values in features.items():
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(values[0])]
        getattr(found.features.feature[name], kind).value.extend(values)
    return bytes(found.SerializeToString())


FEATURES = {
    "image": tf.FixedLenFeature([2, 2], tf.float32),
    "label": tf.FixedLenFeature([], tf.int64, default_value=-1),
    "words": tf.VarLenFeature(tf.string),
    "steps": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    "sparse": tf.SparseFeature("place", "value", tf.float32, 10),
}


def test_examples_become_tensors() -> None:
    full = example(
        image=[1.0, 2.0, 3.0, 4.0], label=[7], words=[b"a", b"b"], steps=[1, 2, 3], place=[5, 2], value=[0.5, 0.2]
    )
    scarce = example(image=[0.0] * 4)
    one = tf.parse_single_example(full, FEATURES)
    many = tf.parse_example([full, scarce], FEATURES)
    assert one["image"].shape.as_list() == [2, 2]
    assert many["image"].shape.as_list() == [2, 2, 2]
    assert many["label"].shape.as_list() == [2]
    assert many["words"].shape.as_list() == [None, None]
    with tf.Session() as session:
        single, batch = session.run([one, many])
        assert single["image"].tolist() == [[1, 2], [3, 4]]
        assert single["label"] == 7
        assert single["words"].values.tolist() == [b"a", b"b"]
        assert single["words"].dense_shape.tolist() == [2]
        assert single["steps"].tolist() == [1, 2, 3]
        assert single["sparse"].indices.tolist() == [[2], [5]]
        assert single["sparse"].values.tolist() == [np.float32(0.2), 0.5]
        assert batch["label"].tolist() == [7, -1]
        assert batch["words"].indices.tolist() == [[0, 0], [0, 1]]
        assert batch["words"].dense_shape.tolist() == [2, 2]
        assert batch["steps"].tolist() == [[1, 2, 3], [0, 0, 0]]
        assert batch["sparse"].dense_shape.tolist() == [2, 10]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (example(label=[1]), "Feature: image .* is required but could not be found"),
        (example(image=[1.0]), "Key: image.*Values size: 1"),
        (example(image=[1, 2, 3, 4]), "Data types don't match. Expected type: float"),
        (b"\xff", "Could not parse"),
    ],
)
def test_wrong_examples_are_refused(message: bytes, problem: str) -> None:
    parsed = tf.parse_single_example(message, FEATURES)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=problem):
        session.run(parsed["image"])


def test_sequence_examples_become_tensors() -> None:
    message = SequenceExample()
    message.context.feature["length"].int64_list.value.append(2)
    for row in ([1.0, 2.0], [3.0, 4.0]):
        message.feature_lists.feature_list["x"].feature.add().float_list.value.extend(row)
    for texts in ([b"a"], [b"b", b"c"]):
        message.feature_lists.feature_list["w"].feature.add().bytes_list.value.extend(texts)
    context, steps = tf.parse_single_sequence_example(
        message.SerializeToString(),
        {"length": tf.FixedLenFeature([], tf.int64)},
        {"x": tf.FixedLenSequenceFeature([2], tf.float32), "w": tf.VarLenFeature(tf.string)},
    )
    assert steps["x"].shape.as_list() == [None, 2]
    with tf.Session() as session:
        found = session.run([context, steps])
    assert found[0]["length"] == 2
    assert found[1]["x"].tolist() == [[1, 2], [3, 4]]
    assert found[1]["w"].indices.tolist() == [[0, 0], [1, 0], [1, 1]]


def test_text_becomes_numbers() -> None:
    lines = ["1,0.5,a", '2,,"b, ""c"""']
    columns = tf.decode_csv(lines, [[0], [9.0], [""]])
    single = tf.decode_csv("7;8", [tf.constant([], tf.int64), [1.0]], field_delim=";")
    raw = tf.decode_raw(["\x01\x00\x02\x00", "\x03\x00\x04\x00"], tf.int16)
    assert columns[0].shape.as_list() == [2]
    assert raw.shape.as_list() == [2, None]
    with tf.Session() as session:
        found = session.run(columns)
        assert found[0].tolist() == [1, 2]
        assert found[1].tolist() == [0.5, 9.0]
        assert found[2].tolist() == [b"a", b'b, "c"']
        assert session.run(single) == [7, 8.0]
        assert session.run(raw).tolist() == [[1, 2], [3, 4]]
        assert session.run(tf.string_to_number(["1.5", "-2"])).tolist() == [1.5, -2.0]
        for bad, problem in (
            (tf.decode_csv(["1,2"], [[0]]), "Expect 1 fields but have 2 in record 0"),
            (tf.decode_csv(["x"], [[0]]), "Field 0 in record 0 is not a valid int32: x"),
            (tf.decode_csv([""], [tf.int32]), "Field 0 is required but missing in record 0"),
            (tf.string_to_number("x"), "could not correctly convert string: x"),
            (tf.decode_raw("abc", tf.int16), "not a multiple of 2"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
                session.run(bad)


def test_ragged_examples_are_batched_as_sparse_tensors(tmp_path: Path) -> None:
    path = tmp_path / "words.tfrecord"
    with tf.python_io.TFRecordWriter(path) as writer:
        for words in ([b"a"], [b"b", b"c", b"d"], [b"e"]):
            writer.write(example(words=words, label=[len(words)]))
    _, message = tf.TFRecordReader().read(names(path))
    parsed = tf.parse_single_example(
        message, {"words": tf.VarLenFeature(tf.string), "label": tf.FixedLenFeature([], tf.int64)}
    )
    found, _ = read_all(tf.train.batch(parsed, 2, allow_smaller_final_batch=True))
    assert found[0]["words"].indices.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2]]
    assert found[0]["words"].dense_shape.tolist() == [2, 3]
    assert found[0]["label"].tolist() == [1, 3]
    assert found[1]["words"].values.tolist() == [b"e"]


def test_several_threads_read_each_record_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.txt" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_text("".join(f"{i * 50 + n}\n" for n in range(50)), encoding="utf-8")
    _, line = tf.TextLineReader().read(names(*paths))
    number = tf.string_to_number(line, tf.int32)
    batch = tf.train.shuffle_batch([number], 20, capacity=60, min_after_dequeue=20, num_threads=3)
    found, _ = read_all(batch)
    assert sorted(np.concatenate(found)) == list(range(200))
    assert threading.active_count() < 50


# As TensorFlow 2.21 gives them, for texts of each kind of length that the hashes tell apart.
TEXTS = ["a", "hello", "hello wor", "x" * 20, "trainband" * 5, "yz" * 50, "b" * 64, "é" * 64, ""]
FAST = [
    235667560134047203,
    327607912752483560,
    568376189322566502,
    162637696499928516,
    1128052880807568983,
    70775701440840266,
    10154984821488264,
    678125679563506452,
    784024612572774479,
]
OLD = [
    690789896157841916,
    178939718873546058,
    241145650156480731,
    342970775939365677,
    410606029443206830,
    459011627817716647,
    146047709294246454,
    158418167515734185,
    105434511174508091,
]


def test_text() -> None:
    words = tf.constant(["Hello", "wörld"])
    cases = {
        "join": (tf.string_join([words, "!"], separator=" "), ["Hello !", "wörld !"]),
        "substr": (tf.substr(words, 1, 2), ["el", "ö"]),
        "replace": (tf.regex_replace(words, "l(.)", "<\\1>"), ["He<l>o", "wör<d>"]),
        "lower": (tf.strings.lower(words), ["hello", "wörld"]),
        "strip": (tf.string_strip([" a "]), ["a"]),
        "numbers": (tf.as_string([1, -20]), ["1", "-20"]),
        "floats": (tf.as_string([1.5, 2.25], precision=1), ["1.5", "2.2"]),
        "base": (tf.decode_base64(tf.encode_base64(words)), ["Hello", "wörld"]),
        "reduced": (tf.reduce_join([["a", "b"], ["c", "d"]], 1), ["ab", "cd"]),
    }
    with tf.Session() as session:
        found = session.run({name: tensor for name, (tensor, _) in cases.items()})
        for name, (_, expected) in cases.items():
            assert [one.decode() for one in found[name]] == expected, name
        assert session.run(tf.strings.length(words)).tolist() == [5, 6]
        assert session.run(tf.strings.regex_full_match(words, "H.*")).tolist() == [True, False]
        parts = session.run(tf.string_split(["a b  c", "", "d"]))
        assert parts.indices.tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]
        assert parts.values.tolist() == [b"a", b"b", b"c", b"d"]
        with pytest.raises(tf.errors.InvalidArgumentError, match="pos 9 out of range"):
            session.run(tf.substr("abc", 9, 1))
        fast = session.run(tf.string_to_hash_bucket_fast(TEXTS, 1 << 60))
        old = session.run(tf.string_to_hash_bucket(TEXTS, 1 << 60))
    assert fast.tolist() == FAST
    assert old.tolist() == OLD


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("red\ngreen\nblue\n", encoding="utf-8")
    lookup = tf.contrib.lookup
    by_file = lookup.index_table_from_file(str(path), num_oov_buckets=2)
    by_list = lookup.index_table_from_tensor(["a", "b"], default_value=7)
    back = lookup.index_to_string_table_from_file(str(path))
    own = lookup.HashTable(lookup.KeyValueTensorInitializer(["x"], [1.5]), -1.0)
    sparse = by_list.lookup(tf.string_split(["a z", "b"]))
    found = by_file.lookup(tf.constant([["blue", "red"], ["grey", "blue"]]))
    assert found.shape.as_list() == [2, 2]
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
            session.run(found)
        session.run(tf.tables_initializer())
        numbers = session.run(found)
        assert numbers[0].tolist() == [2, 0]
        assert numbers[1, 0] in (3, 4)
        assert session.run(sparse).values.tolist() == [0, 7, 1]
        assert session.run(back.lookup(tf.constant([1, 9], tf.int64))).tolist() == [b"green", b"UNK"]
        assert session.run([own.lookup(tf.constant(["x", "y"])), own.size()])[0].tolist() == [1.5, -1.0]
        assert session.run(by_file.size()) == 5
    with pytest.raises(TypeError, match="Keys must be dtype"):
        by_list.lookup(tf.constant([1.0]))


def test_images() -> None:
    pytest.importorskip("PIL")
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    stored = tf.image.encode_png(tf.constant(picture))
    decoded, gray = tf.image.decode_png(stored, channels=3), tf.image.decode_image(stored, channels=1)
    smooth = tf.image.decode_jpeg(tf.image.encode_jpeg(tf.constant(picture), quality=100))
    wrong = tf.image.decode_png("no image")
    assert decoded.shape.as_list() == [None, None, 3]
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(decoded), picture)
        assert session.run(gray).shape == (4, 4, 1)
        assert np.abs(session.run(smooth).astype(int) - picture).max() < 30
        assert session.run(tf.reduce_sum(tf.cast(decoded, tf.float32))) == picture.sum()
        with pytest.raises(tf.errors.InvalidArgumentError, match="image"):
            session.run(wrong)
