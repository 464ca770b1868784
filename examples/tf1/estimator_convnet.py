"""A convolutional network as an Estimator of its own model function: `train_and_evaluate` on parameter servers."""

import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("model_dir", "", "Directory of checkpoints and summaries; a temporary one if empty")
tf.app.flags.DEFINE_integer("steps", 200, "Global step to stop at")
FLAGS = tf.app.flags.FLAGS

SIZE, CLASSES = 12, 4


def digits(seed, count):
    """Images with one bright quarter, which is their class."""
    random = np.random.RandomState(seed)
    labels = random.randint(CLASSES, size=count).astype(np.int32)
    images = random.uniform(0.0, 0.6, size=(count, SIZE, SIZE, 1)).astype(np.float32)
    half = SIZE // 2
    for image, label in zip(images, labels):
        row, column = divmod(label, 2)
        image[row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.3
    return images, labels


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    net = tf.layers.conv2d(features["image"], params["filters"], 3, activation=tf.nn.relu, name="conv")
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.batch_normalization(tf.layers.flatten(net), training=training)
    net = tf.layers.dropout(tf.layers.dense(net, 32, tf.nn.relu), 0.2, training=training)
    logits = tf.layers.dense(net, CLASSES)
    predicted = tf.argmax(logits, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"class": predicted, "p": tf.nn.softmax(logits)})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, predicted)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    rate = tf.train.exponential_decay(0.01, tf.train.get_global_step(), 100, 0.8)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdamOptimizer(rate).minimize(loss, tf.train.get_global_step())
    tf.summary.scalar("learning_rate", rate)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_inputs():
    images, labels = digits(1, 512)
    data = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    return data.shuffle(512, seed=1).repeat().batch(32).prefetch(1)


def eval_inputs():
    images, labels = digits(2, 128)
    return tf.data.Dataset.from_tensor_slices(({"image": images}, labels)).batch(64)


def main(_):
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir or None, tf_random_seed=1, save_checkpoints_steps=100)
    classifier = tf.estimator.Estimator(model_fn, config=config, params={"filters": 8})
    train_spec = tf.estimator.TrainSpec(train_inputs, max_steps=FLAGS.steps)
    tf.estimator.train_and_evaluate(classifier, train_spec, tf.estimator.EvalSpec(eval_inputs, start_delay_secs=0))
    if config.is_chief:
        found = classifier.evaluate(eval_inputs)
        print("global step %d, accuracy %.2f" % (found["global_step"], found["accuracy"]))


if __name__ == "__main__":
    tf.app.run()
