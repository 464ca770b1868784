"""Keras's `fit` on the workers of TF_CONFIG. The chief saves the model; the others save theirs to a temporary place."""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

PER_WORKER = 32

tf_config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": ["localhost"]}, "task": {"index": 0}}'))
num_workers = len(tf_config["cluster"]["worker"])
directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

strategy = tf.distribute.MultiWorkerMirroredStrategy()


def dataset(batch_size):
    random = np.random.RandomState(1)
    features = random.normal(size=(512, 16)).astype(np.float32)
    labels = np.argmax(features @ random.normal(size=(16, 4)), axis=1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(batch_size).with_options(options)


def is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def write_path(path, task_type, task_id):
    """The chief's own path, and a temporary one beside it for every other worker."""
    if is_chief(task_type, task_id):
        return path
    folder = os.path.join(os.path.dirname(path), "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(folder)
    return os.path.join(folder, os.path.basename(path))


with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(16,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
random = np.random.RandomState(3)
model.set_weights([random.normal(scale=0.2, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])

history = model.fit(dataset(PER_WORKER * num_workers), epochs=3, steps_per_epoch=8, verbose=2)

task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
path = os.path.join(directory, "keras-model")
written = write_path(path, task_type, task_id)
model.save(written)
if not is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(written))

loaded = tf.keras.models.load_model(path) if is_chief(task_type, task_id) else model
outputs = loaded.predict(np.eye(16, dtype=np.float32), verbose=0) if is_chief(task_type, task_id) else np.zeros(1)
result = {
    "workers": num_workers,
    "loss": history.history["loss"][-1],
    "accuracy": history.history["accuracy"][-1],
    "outputs": float(np.abs(outputs).sum()),
}
print("RESULT " + json.dumps(result))
