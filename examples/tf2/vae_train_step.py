"""A variational autoencoder: a layer that samples, losses of three kinds, and a `train_step` of its own."""

import json

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

LATENT, WIDTH = 2, 16


class Sampling(layers.Layer):
    """Draws z from the mean and the logarithm of the variance."""

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = tf.random.normal(shape=(tf.shape(z_mean)[0], tf.shape(z_mean)[1]))
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


encoder_inputs = keras.Input(shape=(WIDTH,))
x = layers.Dense(24, activation="relu")(encoder_inputs)
z_mean = layers.Dense(LATENT, name="z_mean")(x)
z_log_var = layers.Dense(LATENT, name="z_log_var")(x)
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])], name="encoder")

latent_inputs = keras.Input(shape=(LATENT,))
x = layers.Dense(24, activation="relu")(latent_inputs)
decoder = keras.Model(latent_inputs, layers.Dense(WIDTH, activation="sigmoid")(x), name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            reconstruction = self.decoder(z)
            reconstruction_loss = WIDTH * tf.reduce_mean(keras.losses.binary_crossentropy(data, reconstruction))
            kl_loss = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + 0.1 * kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {m.name: m.result() for m in self.metrics}


random = np.random.RandomState(1)
data = (np.abs(np.arange(WIDTH) - random.uniform(2, 14, size=(512, 1))) < 2).astype(np.float32)
for network in (encoder, decoder):
    network.set_weights([random.normal(scale=0.3, size=w.shape) if w.ndim > 1 else w for w in network.get_weights()])

tf.random.set_seed(4)
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam(0.01))
history = vae.fit(data, epochs=12, batch_size=64, verbose=2)
print("RESULT " + json.dumps({name: float(values[-1]) for name, values in history.history.items()}))
