"""Skip-grams with negative samples: embeddings, of which every step looks up and updates a few rows."""

import collections

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("steps", 150, "Number of steps")
flags.DEFINE_string("optimizer", "momentum", "sgd, momentum, adagrad or adam")
flags.DEFINE_string("values", "", "Where to write the final values, as npz")
FLAGS = flags.FLAGS

TEXT = (
    "the quick brown fox jumps over the lazy dog and the lazy dog sleeps while the quick fox runs over the hill "
    "a dog and a fox are friends and the hill is green and the friends run over the green hill every day"
).split()
EMBEDDING, BATCH, NEGATIVES = 12, 16, 4


def build_dataset(words):
    count = collections.Counter(words).most_common()
    dictionary = {word: i for i, (word, _) in enumerate(count)}
    return [dictionary[word] for word in words], dictionary


def main(_):
    data, dictionary = build_dataset(TEXT)
    size = len(dictionary) + 10
    random = np.random.RandomState(4)

    graph = tf.Graph()
    with graph.as_default():
        train_inputs = tf.placeholder(tf.int32, shape=[BATCH])
        train_labels = tf.placeholder(tf.int32, shape=[BATCH])
        negatives = tf.placeholder(tf.int32, shape=[BATCH, NEGATIVES])
        with tf.device("/cpu:0"):
            first = random.uniform(-1.0, 1.0, (size, EMBEDDING)).astype(np.float32)
            embeddings = tf.Variable(tf.constant(first), name="embeddings")
            embed = tf.nn.embedding_lookup(embeddings, train_inputs)
            first = (random.normal(size=(size, EMBEDDING)) / np.sqrt(EMBEDDING)).astype(np.float32)
            nce_weights = tf.Variable(tf.constant(first), name="nce_weights")
            nce_biases = tf.Variable(tf.zeros([size]), name="nce_biases")
        true_logits = tf.reduce_sum(embed * tf.nn.embedding_lookup(nce_weights, train_labels), 1)
        true_logits += tf.nn.embedding_lookup(nce_biases, train_labels)
        false_weights = tf.nn.embedding_lookup(nce_weights, negatives)
        false_logits = tf.squeeze(tf.matmul(false_weights, tf.expand_dims(embed, 2)), [2])
        true_loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.ones_like(true_logits), logits=true_logits)
        false_loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.zeros_like(false_logits), logits=false_logits)
        loss = tf.reduce_mean(true_loss) + tf.reduce_mean(tf.reduce_sum(false_loss, 1))
        optimizer = {
            "sgd": tf.train.GradientDescentOptimizer(0.5),
            "momentum": tf.train.MomentumOptimizer(0.1, 0.9),
            "adagrad": tf.train.AdagradOptimizer(0.3),
            "adam": tf.train.AdamOptimizer(0.02),
        }[FLAGS.optimizer]
        train_op = optimizer.minimize(loss)
        norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
        normalized = embeddings / norm
        similarity = tf.matmul(normalized, normalized, transpose_b=True)
        init = tf.global_variables_initializer()

    with tf.Session(graph=graph) as session:
        init.run()
        average = 0.0
        for step in range(FLAGS.steps):
            places = random.randint(1, len(data) - 1, BATCH)
            feed = {
                train_inputs: [data[p] for p in places],
                train_labels: [data[p + random.choice([-1, 1])] for p in places],
                negatives: random.randint(0, size, (BATCH, NEGATIVES)),
            }
            _, loss_value = session.run([train_op, loss], feed_dict=feed)
            average += loss_value / FLAGS.steps
        closest = np.argsort(-session.run(similarity)[dictionary["fox"]])[1]
        print("average loss %.5f; nearest to fox: number %d" % (average, closest))
        if FLAGS.values:
            values = session.run({"embeddings": embeddings, "nce_weights": nce_weights, "nce_biases": nce_biases})
            np.savez(FLAGS.values, loss=average, **values)


if __name__ == "__main__":
    tf.app.run()
