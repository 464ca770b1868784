"""Keras 3 models on a cluster: `model.fit` runs on any of trainband's strategies.

::

    with strategy.scope():
        model = keras.Sequential([...])
        model.compile(optimizer="adam", loss=...)
    history = model.fit(x, y, batch_size=100, epochs=10, validation_data=(xt, yt), callbacks=[...])

Keras must compute with JAX (KERAS_BACKEND=jax).
"""

from trainband.keras.distributed import Distributed as Distributed
from trainband.keras.distributed import distribute as distribute
from trainband.keras.predictor import export as export
from trainband.keras.predictor import predictor_of as predictor_of
from trainband.keras.scope import models_belong_to as models_belong_to
from trainband.keras.tensorboard import TensorBoard as TensorBoard
