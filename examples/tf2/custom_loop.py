"""A training loop of one's own under MirroredStrategy: distributed datasets, `strategy.run`, and sums over replicas."""

import json

import numpy as np
import tensorflow as tf

EPOCHS, GLOBAL_BATCH = 4, 64

patterns = np.random.RandomState(0).normal(size=(5, 20))


def examples(count, seed):
    random = np.random.RandomState(seed)
    labels = random.randint(5, size=count)
    return (patterns[labels] + random.normal(size=(count, 20))).astype(np.float32), labels


strategy = tf.distribute.MirroredStrategy()
train = tf.data.Dataset.from_tensor_slices(examples(320, 1)).batch(GLOBAL_BATCH)
test = tf.data.Dataset.from_tensor_slices(examples(150, 2)).batch(GLOBAL_BATCH)
train_dist = strategy.experimental_distribute_dataset(train)
test_dist = strategy.experimental_distribute_dataset(test)

with strategy.scope():
    regularizer = tf.keras.regularizers.L2(1e-4)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(24, activation="relu", kernel_regularizer=regularizer, input_shape=(20,)),
            tf.keras.layers.Dense(5, kernel_regularizer=regularizer),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(0.2, momentum=0.9)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )
    test_loss = tf.keras.metrics.Mean(name="test_loss")
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")

random = np.random.RandomState(3)
model.set_weights([random.normal(scale=0.2, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])


def train_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = tf.nn.compute_average_loss(loss_object(labels, logits), global_batch_size=GLOBAL_BATCH)
        loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, logits)
    return loss


def test_step(inputs):
    features, labels = inputs
    logits = model(features, training=False)
    test_loss.update_state(loss_object(labels, logits))
    test_accuracy.update_state(labels, logits)


@tf.function
def distributed_train_step(inputs):
    per_replica = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


@tf.function
def distributed_test_step(inputs):
    return strategy.run(test_step, args=(inputs,))


for epoch in range(EPOCHS):
    total, batches = 0.0, 0
    for batch in train_dist:
        total += distributed_train_step(batch)
        batches += 1
    for batch in test_dist:
        distributed_test_step(batch)
    result = {
        "loss": float(total) / batches,
        "accuracy": float(train_accuracy.result()),
        "test_loss": float(test_loss.result()),
        "test_accuracy": float(test_accuracy.result()),
    }
    print("Epoch {}: {}".format(epoch + 1, result))
    test_loss.reset_states()
    train_accuracy.reset_states()
    test_accuracy.reset_states()

print("RESULT " + json.dumps(result))
