"""A bidirectional LSTM that classifies sequences of words of different lengths, padded into batches."""

import json

import numpy as np
import tensorflow as tf

WORDS, CLASSES = 30, 2


def sentences():
    """The second half of the words speaks for class 1; a sentence's class is what most of its words speak for."""
    random = np.random.RandomState(1)
    for _ in range(160):
        words = random.randint(1, WORDS, size=random.randint(3, 9))
        yield words, int((words >= WORDS // 2).mean() > 0.5)


dataset = tf.data.Dataset.from_generator(
    sentences,
    output_signature=(tf.TensorSpec(shape=(None,), dtype=tf.int64), tf.TensorSpec(shape=(), dtype=tf.int64)),
)
train = dataset.take(128).padded_batch(16, padded_shapes=([8], [])).prefetch(tf.data.AUTOTUNE)
test = dataset.skip(128).padded_batch(16, padded_shapes=([8], []))
print(train.element_spec)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(WORDS, 8, mask_zero=True),
            tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(8, return_sequences=True)),
            tf.keras.layers.GRU(8),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(0.02, clipnorm=1.0),
        metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
model.build(input_shape=(None, None))
random = np.random.RandomState(3)
model.set_weights([random.normal(scale=0.3, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
history = model.fit(train, epochs=3, validation_data=test, verbose=2)
result = {name: float(values[-1]) for name, values in history.history.items()}
padded = tf.keras.preprocessing.sequence.pad_sequences([[3, 4], [20, 21, 22]], maxlen=8, padding="post")
result["outputs"] = [float(one) for one in tf.sigmoid(model(padded))[:, 0]]
print("RESULT " + json.dumps(result))
