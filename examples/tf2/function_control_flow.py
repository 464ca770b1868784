"""Functions that branch and loop by the values of tensors, and a module of layers without Keras."""

import json

import numpy as np
import tensorflow as tf


class Dense(tf.Module):
    def __init__(self, kernel, name=None):
        super().__init__(name=name)
        self.w = tf.Variable(kernel, name="w")
        self.b = tf.Variable(tf.zeros([kernel.shape[1]]), name="b")

    @tf.Module.with_name_scope
    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


class Network(tf.Module):
    def __init__(self, random, name=None):
        super().__init__(name=name)
        sizes = [(6, 12), (12, 12), (12, 2)]
        self.layers = [Dense(random.normal(scale=0.4, size=size).astype(np.float32)) for size in sizes]
        self.calls = tf.Variable(0, trainable=False, name="calls")

    @tf.function
    def __call__(self, x, training=False):
        if training:
            self.calls.assign_add(1)
        for layer in self.layers[:-1]:
            x = tf.nn.tanh(layer(x))
        return self.layers[-1](x)


@tf.function
def collatz(n):
    steps = tf.constant(0)
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def running(values):
    """Sums from the left, starting again whenever one is negative; the largest of all is kept."""
    largest, total = tf.constant(0.0), tf.constant(0.0)
    for value in values:
        if value < 0:
            total = tf.constant(0.0)
            continue
        total += value
        largest = tf.maximum(largest, total)
    return largest


@tf.function
def squares(n):
    array = tf.TensorArray(tf.float32, size=n)
    for i in tf.range(n):
        array = array.write(i, tf.cast(i, tf.float32) ** 2)
    return array.stack()


random = np.random.RandomState(1)
network = Network(random)
x = tf.constant(random.normal(size=(64, 6)), tf.float32)
y = tf.stack([tf.sin(x[:, 0]), tf.reduce_prod(x[:, :2], axis=1)], axis=1)
rate = tf.Variable(0.2, trainable=False)


@tf.function
def train(steps):
    loss = tf.constant(0.0)
    for step in tf.range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.squared_difference(network(x, training=True), y))
        variables = network.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(rate * gradient)
        if step == 30:
            rate.assign(0.05)
        if loss < 0.2:
            break
    return loss


with tf.GradientTape() as outer:
    point = tf.constant(0.7)
    outer.watch(point)
    with tf.GradientTape() as inner:
        inner.watch(point)
        value = tf.sin(point) * point
    slope = inner.gradient(value, point)
result = {
    "collatz": [int(collatz(tf.constant(n))) for n in (6, 7, 27)],
    "running": float(running(tf.constant([1.0, 2.0, -1.0, 4.0, 0.5, -2.0, 3.0]))),
    "squares": float(tf.reduce_sum(squares(tf.constant(5)))),
    "second_derivative": float(outer.gradient(slope, point)),
    "loss": float(train(tf.constant(60))),
    "calls": int(network.calls),
    "variables": [len(network.trainable_variables), len(network.variables)],
    "submodules": len(network.submodules),
}
print("RESULT " + json.dumps(result))
