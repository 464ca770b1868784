"""A model of `tf.keras` on parameter servers, trained by `tf.train` with a `MonitoredTrainingSession`.

Without --worker_hosts it runs by itself. With --estimator, the same model is an estimator, which finds its tasks in
TF_CONFIG.
"""

import numpy as np
import tensorflow as tf

layers = tf.keras.layers
flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "worker", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("steps", 30, "Number of global steps")
flags.DEFINE_bool("estimator", False, "Whether to train with tf.keras.estimator.model_to_estimator")
flags.DEFINE_string("model_dir", None, "Directory for the estimator's checkpoints")
flags.DEFINE_string("values", "", "Where the chief writes the final values, as npz")
FLAGS = flags.FLAGS

SIZE, CLASSES = 8, 3


def make_data():
    random = np.random.RandomState(0)
    labels = random.randint(0, CLASSES, 96)
    images = random.normal(size=(96, SIZE, SIZE, 1)) * 0.5
    for image, label in zip(images, labels):
        image[2 * label : 2 * label + 2, :, 0] += 1.0
    return images.astype(np.float32), labels.astype(np.int32)


def first_value(shape, dtype=None, partition_info=None):
    size = int(np.prod([int(one) for one in shape]))
    return tf.constant((np.sin(np.arange(size) * 1.7) * 0.3).reshape(shape).astype(np.float32))


def make_model():
    l2 = tf.keras.regularizers.l2(0.001)
    model = tf.keras.Sequential(name="net")
    model.add(
        layers.Conv2D(
            4,
            (3, 3),
            padding="same",
            kernel_initializer=first_value,
            kernel_regularizer=l2,
            input_shape=(SIZE, SIZE, 1),
        )
    )
    model.add(layers.BatchNormalization(momentum=0.9, fused=False))
    model.add(layers.Activation("relu"))
    model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(12, activation="relu", kernel_initializer=first_value, kernel_regularizer=l2))
    model.add(layers.Dropout(0.0))
    model.add(layers.Dense(CLASSES, activation="softmax", kernel_initializer=first_value))
    return model


def train_estimator():
    model = make_model()
    model.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    images, labels = make_data()

    def input_fn():
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        return data.repeat().batch(32)

    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir, save_checkpoints_steps=10)
    estimator = tf.keras.estimator.model_to_estimator(keras_model=model, config=config)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=FLAGS.steps),
        tf.estimator.EvalSpec(input_fn, steps=3, throttle_secs=0, start_delay_secs=0),
    )
    if config.is_chief:
        found = estimator.evaluate(input_fn, steps=3)
        print("step %d, accuracy %.3f, loss %.4f" % (found["global_step"], found["accuracy"], found["loss"]))


def train():
    target, device = "", None
    if FLAGS.worker_hosts:
        cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
        server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
        target = server.target
        if FLAGS.job_name == "ps":
            server.join()
        device = tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)

    images, labels = make_data()
    with tf.device(device):
        global_step = tf.train.get_or_create_global_step()
        model = make_model()
        x, y = tf.constant(images), tf.constant(labels)
        probabilities = model(x, training=True)
        each = tf.keras.losses.sparse_categorical_crossentropy(y, probabilities)
        loss = tf.reduce_mean(each) + tf.add_n(model.losses)
        accuracy = tf.reduce_mean(tf.keras.metrics.sparse_categorical_accuracy(y, probabilities))
        with tf.control_dependencies(model.get_updates_for(x)):
            train_op = tf.train.AdamOptimizer(0.01).minimize(
                loss, global_step=global_step, var_list=model.trainable_variables
            )

    is_chief = FLAGS.task_index == 0
    losses = []  # none, if other workers have made all the steps
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(master=target, is_chief=is_chief, hooks=hooks) as session:
        while not session.should_stop():
            _, value, right = session.run([train_op, loss, accuracy])
            losses.append(value)
    first, last = (losses[0], losses[-1]) if losses else (np.inf, np.inf)
    print("worker %d: loss %.4f at first, %.4f at last" % (FLAGS.task_index, first, last))
    if is_chief and FLAGS.values:
        np.savez(FLAGS.values, first=first, last=last, accuracy=right)


def main(_):
    if FLAGS.estimator:
        train_estimator()
    else:
        train()


if __name__ == "__main__":
    tf.app.run()
