"""One loop with a tape, under whichever strategy is named."""

import json
import sys

import numpy as np
import tensorflow as tf

name = sys.argv[1] if len(sys.argv) > 1 else "MirroredStrategy"
if name == "OneDeviceStrategy":
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
elif name == "CentralStorageStrategy":
    strategy = tf.distribute.experimental.CentralStorageStrategy()
elif name == "experimental.MultiWorkerMirroredStrategy":
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
elif name == "ParameterServerStrategy":
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
else:
    strategy = getattr(tf.distribute, name)()

random = np.random.RandomState(1)
images = random.uniform(size=(300, 784)).astype(np.float32)
labels = np.argmax(images @ random.normal(size=(784, 10)), axis=1)
dataset = tf.data.Dataset.from_tensor_slices({"images": images, "labels": labels}).batch(50)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(128, activation="relu", input_shape=(784,)),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = tf.keras.optimizers.Adam()
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model.set_weights([random.normal(scale=0.05, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
first = None
for epoch in range(10):
    for batch in dataset:
        with tf.GradientTape() as tape:
            logits = model(batch["images"])
            loss = loss_fn(batch["labels"], logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    first = float(loss) if first is None else first

accuracy = np.mean(np.argmax(model(images).numpy(), axis=1) == labels)
print("RESULT " + json.dumps({"first": first, "loss": float(loss), "accuracy": float(accuracy)}))
