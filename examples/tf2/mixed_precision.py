"""Mixed precision: a policy of float16, a LossScaleOptimizer in a custom loop, and `fit` with the same."""

import json

import numpy as np
import tensorflow as tf

random = np.random.RandomState(1)
X = random.normal(size=(256, 16)).astype(np.float32)
Y = np.argmax(X @ random.normal(size=(16, 4)), axis=1)
kernels = [random.normal(scale=0.3, size=size).astype(np.float32) for size in [(16, 32), (32,), (32, 4), (4,)]]
dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(64)

tf.keras.mixed_precision.set_global_policy("mixed_float16")
policy = tf.keras.mixed_precision.global_policy()
print("Compute dtype: %s, variable dtype: %s" % (policy.compute_dtype, policy.variable_dtype))


def make_model():
    inputs = tf.keras.Input(shape=(16,), name="digits")
    hidden = tf.keras.layers.Dense(32, activation="relu", name="hidden")(inputs)
    outputs = tf.keras.layers.Dense(4, name="logits")(hidden)
    outputs = tf.keras.layers.Activation("softmax", dtype="float32", name="predictions")(outputs)
    model = tf.keras.Model(inputs=inputs, outputs=outputs)
    model.set_weights(kernels)
    return model


model = make_model()
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.RMSprop(0.01))
loss_object = tf.keras.losses.SparseCategoricalCrossentropy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        predictions = model(x)
        loss = loss_object(y, predictions)
        scaled_loss = optimizer.get_scaled_loss(loss)
    scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
    gradients = optimizer.get_unscaled_gradients(scaled_gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(4):
    mean = tf.keras.metrics.Mean()
    for x, y in dataset:
        mean(train_step(x, y))
    print("Epoch {}: loss={}".format(epoch, mean.result()))

fitted = make_model()
fitted.compile(
    loss="sparse_categorical_crossentropy", optimizer=tf.keras.optimizers.RMSprop(0.01), metrics=["accuracy"]
)
history = fitted.fit(dataset, epochs=4, verbose=2)
result = {
    "loop": float(mean.result()),
    "fit": history.history["loss"][-1],
    "accuracy": history.history["accuracy"][-1],
    "kernel_is_float32": model.layers[1].kernel.dtype == tf.float32,
    "hidden_is_float16": model.layers[1](X[:1]).dtype == tf.float16,
}
print("RESULT " + json.dumps(result))
