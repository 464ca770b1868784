"""`tf.keras` of TensorFlow 1: layers, models and their training, recorded into the graph."""
