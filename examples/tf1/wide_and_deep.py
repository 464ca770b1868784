"""A wide and deep classifier of mixed columns, of `tf.estimator`, on parameter servers."""

import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("model_dir", "", "Directory of checkpoints and summaries; a temporary one if empty")
tf.app.flags.DEFINE_integer("steps", 200, "Global step to stop at")
FLAGS = tf.app.flags.FLAGS

JOBS = ["clerk", "nurse", "teacher", "welder"]
TOWNS = ["Aachen", "Bern", "Cadiz"]


def people(seed, count):
    random = np.random.RandomState(seed)
    age = random.uniform(18, 80, size=count).astype(np.float32)
    hours = random.uniform(10, 60, size=count).astype(np.float32)
    job = np.array(JOBS)[random.randint(len(JOBS), size=count)]
    town = np.array(TOWNS)[random.randint(len(TOWNS), size=count)]
    rich = (age > 40) & (job != "clerk") | (hours > 45) & (town == "Bern")
    return {"age": age, "hours": hours, "job": job, "town": town}, rich.astype(np.int32)


def inputs(seed, epochs):
    features, labels = people(seed, 600)
    return tf.estimator.inputs.numpy_input_fn(features, labels, 50, epochs, shuffle=epochs is None)


def columns():
    age = tf.feature_column.numeric_column("age", normalizer_fn=lambda years: (years - 49.0) / 18.0)
    hours = tf.feature_column.numeric_column("hours", normalizer_fn=lambda hours: (hours - 35.0) / 15.0)
    ages = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("age"), [30, 40, 50, 60])
    job = tf.feature_column.categorical_column_with_vocabulary_list("job", JOBS)
    town = tf.feature_column.categorical_column_with_hash_bucket("town", 20)
    wide = [ages, job, town, tf.feature_column.crossed_column([ages, "job"], 100)]
    deep = [age, hours, tf.feature_column.embedding_column(job, 4), tf.feature_column.indicator_column(town)]
    return wide, deep


def main(_):
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir or None, tf_random_seed=1, save_checkpoints_steps=100)
    wide, deep = columns()
    classifier = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide, dnn_feature_columns=deep, dnn_hidden_units=[32, 16], config=config
    )
    train_spec = tf.estimator.TrainSpec(inputs(1, None), max_steps=FLAGS.steps)
    tf.estimator.train_and_evaluate(
        classifier, train_spec, tf.estimator.EvalSpec(inputs(2, 1), steps=None, start_delay_secs=0)
    )
    if config.is_chief:
        found = classifier.evaluate(inputs(2, 1))
        print("global step %d, accuracy %.2f, auc %.2f" % (found["global_step"], found["accuracy"], found["auc"]))


if __name__ == "__main__":
    tf.app.run()
