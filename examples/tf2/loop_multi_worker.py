"""A custom training loop on the workers of TF_CONFIG, with checkpoints that every worker takes part in."""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

PER_WORKER, EPOCHS, STEPS = 16, 3, 6

directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
global_batch = PER_WORKER * strategy.num_replicas_in_sync


def dataset():
    random = np.random.RandomState(1)
    features = random.normal(size=(240, 12)).astype(np.float32)
    targets = np.sin(features @ random.normal(size=(12, 1))).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(global_batch)


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(32, activation="tanh", input_shape=(12,)), tf.keras.layers.Dense(1)]
    )
    optimizer = tf.keras.optimizers.Adam(0.02)
    train_error = tf.keras.metrics.MeanAbsoluteError(name="train_error")
    epoch = tf.Variable(0, dtype=tf.int64, name="epoch")
    step_in_epoch = tf.Variable(0, dtype=tf.int64, name="step_in_epoch")

random = np.random.RandomState(3)
model.set_weights([random.normal(scale=0.2, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])

distributed = strategy.experimental_distribute_dataset(dataset())


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        features, targets = inputs
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            per_example = tf.reduce_sum(tf.square(predictions - targets), axis=1)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_error.update_state(targets, predictions)
        return loss

    per_replica = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


chief = resolver.task_type in (None, "chief") or (resolver.task_type == "worker" and resolver.task_id == 0)
where = os.path.join(directory, "ckpt") if chief else os.path.join(directory, "tmp_%d" % resolver.task_id)
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
manager = tf.train.CheckpointManager(checkpoint, directory=where, max_to_keep=1)
latest = tf.train.latest_checkpoint(where)
if latest:
    checkpoint.restore(latest)

losses = []
while epoch.numpy() < EPOCHS:
    iterator = iter(distributed)
    total = 0.0
    while step_in_epoch.numpy() < STEPS:
        total += train_step(iterator)
        step_in_epoch.assign_add(1)
    losses.append(float(total) / STEPS)
    print("Epoch: %d, error: %f, loss: %f" % (epoch.numpy(), train_error.result(), losses[-1]))
    error = float(train_error.result())
    train_error.reset_states()
    manager.save()
    epoch.assign_add(1)
    step_in_epoch.assign(0)

norm = sum(float(np.square(w).sum()) for w in model.get_weights())
model.set_weights([0 * w for w in model.get_weights()])
checkpoint.restore(tf.train.latest_checkpoint(where))
restored = sum(float(np.square(w).sum()) for w in model.get_weights())
result = {"replicas": strategy.num_replicas_in_sync, "first": losses[0], "loss": losses[-1], "error": error}
print("RESULT " + json.dumps({**result, "norm": norm, "restored": restored, "epoch": int(epoch.numpy())}))
