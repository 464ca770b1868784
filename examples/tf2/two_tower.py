"""A recommender of two towers: names become rows of embeddings, and the right film must win against the batch's."""

import json

import numpy as np
import tensorflow as tf

USERS = ["user_%d" % number for number in range(20)]
FILMS = ["film_%d" % number for number in range(12)]

random = np.random.RandomState(1)
users = random.randint(len(USERS), size=400)
films = (users + random.randint(3, size=400)) % len(FILMS)
ratings = tf.data.Dataset.from_tensor_slices(
    {"user": np.array(USERS)[users], "film": np.array(FILMS)[films], "stars": (films % 5).astype(np.float32)}
)


class Tower(tf.keras.Model):
    def __init__(self, names, width):
        super().__init__()
        self.lookup = tf.keras.layers.StringLookup(vocabulary=names, mask_token=None)
        self.embedding = tf.keras.layers.Embedding(len(names) + 1, width)
        self.dense = tf.keras.layers.Dense(width)

    def call(self, names):
        return self.dense(tf.nn.relu(self.embedding(self.lookup(names))))


class Recommender(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.users, self.films = Tower(USERS, 8), Tower(FILMS, 8)
        self.stars = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])

    def call(self, features):
        user, film = self.users(features["user"]), self.films(features["film"])
        return tf.matmul(user, film, transpose_b=True), self.stars(tf.concat([user, film], axis=1))


model = Recommender()
first = next(iter(ratings.batch(40)))
model(first)
model.set_weights([random.normal(scale=0.3, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
optimizer = tf.keras.optimizers.Adagrad(0.1)


@tf.function
def train_step(features):
    with tf.GradientTape() as tape:
        scores, stars = model(features)
        same = tf.cast(tf.equal(features["film"][:, None], features["film"][None, :]), tf.float32)
        wanted = same / tf.reduce_sum(same, axis=1, keepdims=True)
        retrieval = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=wanted, logits=scores))
        ranking = tf.reduce_mean(tf.square(features["stars"] - tf.squeeze(stars, axis=1)))
        loss = retrieval + 0.5 * ranking
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return retrieval, ranking


for epoch in range(5):
    for batch in ratings.batch(40):
        retrieval, ranking = train_step(batch)
    print("epoch %d: retrieval %.4f, ranking %.4f" % (epoch, retrieval.numpy(), ranking.numpy()))

scores = tf.matmul(model.users(tf.constant(USERS)), model.films(tf.constant(FILMS)), transpose_b=True)
best = tf.math.top_k(scores, k=3)
hits = np.mean([film in row for film, row in zip(films[:20], best.indices.numpy()[users[:20]])])
result = {"retrieval": float(retrieval), "ranking": float(ranking), "hits": float(hits)}
print("RESULT " + json.dumps({**result, "best": [float(value) for value in best.values[0]]}))
