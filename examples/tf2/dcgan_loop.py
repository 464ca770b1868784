"""A convolutional GAN in a loop of its own: two tapes, two optimizers, one compiled step, and checkpoints."""

import json
import os
import tempfile
import time

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

NOISE, BATCH, EPOCHS = 10, 32, 2


def make_generator_model():
    model = tf.keras.Sequential()
    model.add(layers.Dense(3 * 3 * 16, use_bias=False, input_shape=(NOISE,)))
    model.add(layers.BatchNormalization())
    model.add(layers.LeakyReLU())
    model.add(layers.Reshape((3, 3, 16)))
    assert model.output_shape == (None, 3, 3, 16)
    model.add(layers.Conv2DTranspose(8, (5, 5), strides=(2, 2), padding="same", use_bias=False))
    model.add(layers.BatchNormalization())
    model.add(layers.LeakyReLU())
    model.add(layers.Conv2DTranspose(1, (5, 5), strides=(2, 2), padding="same", use_bias=False, activation="tanh"))
    assert model.output_shape == (None, 12, 12, 1)
    return model


def make_discriminator_model():
    model = tf.keras.Sequential()
    model.add(layers.Conv2D(8, (5, 5), strides=(2, 2), padding="same", input_shape=[12, 12, 1]))
    model.add(layers.LeakyReLU())
    model.add(layers.Dropout(0.0))
    model.add(layers.Flatten())
    model.add(layers.Dense(1))
    return model


cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def generator_loss(fake_output):
    return cross_entropy(tf.ones_like(fake_output), fake_output)


generator, discriminator = make_generator_model(), make_discriminator_model()
random = np.random.RandomState(1)
for network in (generator, discriminator):
    network.set_weights([random.normal(scale=0.1, size=w.shape) if w.ndim > 1 else w for w in network.get_weights()])
generator_optimizer = tf.keras.optimizers.Adam(1e-3)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-3)
directory = tempfile.mkdtemp()
checkpoint = tf.train.Checkpoint(
    generator_optimizer=generator_optimizer,
    discriminator_optimizer=discriminator_optimizer,
    generator=generator,
    discriminator=discriminator,
)


@tf.function
def train_step(images, noise):
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gradients_of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    gradients_of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients_of_generator, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(gradients_of_discriminator, discriminator.trainable_variables))
    return gen_loss, disc_loss


rows = np.arange(12).reshape(1, 12, 1, 1)
images = np.sign(np.sin(rows * random.uniform(0.5, 1.5, size=(128, 1, 1, 1)) + np.zeros((1, 1, 12, 1))))
noises = random.normal(size=(128, NOISE))
dataset = tf.data.Dataset.from_tensor_slices((images.astype("float32"), noises.astype("float32"))).batch(BATCH)
for epoch in range(EPOCHS):
    start = time.time()
    for image_batch, noise_batch in dataset:
        gen_loss, disc_loss = train_step(image_batch, noise_batch)
    checkpoint.save(file_prefix=os.path.join(directory, "ckpt"))
    print("Time for epoch {} is {:.1f} sec".format(epoch + 1, time.time() - start))

predictions = generator(noises[:16].astype("float32"), training=False)
moved = generator.layers[1].get_weights()[3]
generator.set_weights([0 * w for w in generator.get_weights()])
checkpoint.restore(tf.train.latest_checkpoint(directory))
again = generator(noises[:16].astype("float32"), training=False)
result = {
    "gen_loss": float(gen_loss),
    "disc_loss": float(disc_loss),
    "variance": float(moved.mean()),
    "image": float(tf.reduce_mean(tf.abs(predictions))),
    "restored": float(tf.reduce_max(tf.abs(predictions - again))),
}
print("RESULT " + json.dumps(result))
