"""A generative adversarial network as a Model with a `train_step` of its own, trained by `fit`."""

import json

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

LATENT, SIDE = 8, 8

discriminator = keras.Sequential(
    [
        keras.Input(shape=(SIDE, SIDE, 1)),
        layers.Conv2D(8, (3, 3), strides=(2, 2), padding="same"),
        layers.LeakyReLU(alpha=0.2),
        layers.Conv2D(16, (3, 3), strides=(2, 2), padding="same"),
        layers.LeakyReLU(alpha=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        keras.Input(shape=(LATENT,)),
        layers.Dense(4 * 4 * 8),
        layers.LeakyReLU(alpha=0.2),
        layers.Reshape((4, 4, 8)),
        layers.Conv2DTranspose(8, (4, 4), strides=(2, 2), padding="same"),
        layers.LeakyReLU(alpha=0.2),
        layers.Conv2D(1, (3, 3), padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data):
        real_images, noise = data
        batch_size = tf.shape(real_images)[0]
        generated = self.generator(noise)
        combined = tf.concat([generated, real_images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))

        misleading_labels = tf.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(misleading_labels, self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


random = np.random.RandomState(1)
squares = np.zeros((128, SIDE, SIDE, 1), np.float32)
for image, (row, column) in zip(squares, random.randint(5, size=(128, 2))):
    image[row : row + 3, column : column + 3] = 1.0
for network in (discriminator, generator):
    network.set_weights([random.normal(scale=0.1, size=w.shape) if w.ndim > 1 else w for w in network.get_weights()])
noise = random.normal(size=(128, LATENT)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((squares, noise)).batch(32)

gan = GAN(discriminator=discriminator, generator=generator)
gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.003),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = gan.fit(dataset, epochs=3, verbose=2)
result = {name: float(values[-1]) for name, values in history.history.items()}
result["mean"] = float(tf.reduce_mean(generator(noise)))
print("RESULT " + json.dumps(result))
