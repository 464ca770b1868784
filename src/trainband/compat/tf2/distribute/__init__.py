"""`tf.distribute`: strategies that compute on several devices and processes in step."""
