"""Records of examples: written to files, and read back through interleave, parse, filter and batch into training."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

random = np.random.RandomState(1)
directory = tempfile.mkdtemp()


def example(image, label, words):
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "weight": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5 + label])),
        "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=words)),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


patterns = random.uniform(size=(4, 36)) * 200
for shard in range(4):
    with tf.io.TFRecordWriter(os.path.join(directory, "part-%d.tfrecord" % shard)) as writer:
        for _ in range(40):
            label = random.randint(4)
            image = np.clip(patterns[label] + random.normal(scale=30, size=36), 0, 255).astype(np.uint8)
            words = [b"word%d" % number for number in range(random.randint(1, 4))]
            writer.write(example(image, label, words).SerializeToString())

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "weight": tf.io.FixedLenFeature([], tf.float32),
    "words": tf.io.VarLenFeature(tf.string),
    "absent": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
}


def parse(serialized):
    parsed = tf.io.parse_single_example(serialized, FEATURES)
    image = tf.cast(tf.io.decode_raw(parsed["image"], tf.uint8), tf.float32) / 255.0
    image = tf.reshape(image, [36])
    words = tf.sparse.to_dense(parsed["words"], default_value="")
    return image, parsed["label"], parsed["weight"], tf.size(words), parsed["absent"]


files = tf.data.Dataset.list_files(os.path.join(directory, "*.tfrecord"), shuffle=False)
records = files.interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=5, num_parallel_calls=tf.data.AUTOTUNE)
parsed = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
counted = parsed.reduce(np.int64(0), lambda total, element: total + tf.cast(element[3], tf.int64))
first = next(iter(parsed))
dataset = parsed.filter(lambda image, label, weight, words, absent: label < 3)
dataset = dataset.map(lambda image, label, weight, words, absent: (image, label, weight)).batch(20, drop_remainder=True)
dataset = dataset.cache().prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu", input_shape=(36,)), tf.keras.layers.Dense(3, activation="softmax")]
)
model.set_weights([random.normal(scale=0.2, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
model.compile(optimizer=tf.keras.optimizers.RMSprop(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=4, verbose=2)
result = {
    "loss": history.history["loss"][-1],
    "accuracy": history.history["accuracy"][-1],
    "words": int(counted),
    "absent": int(first[4]),
    "pixels": float(tf.reduce_sum(first[0])),
    "batches": sum(1 for _ in dataset),
}
print("RESULT " + json.dumps(result))
