"""`tf.data`: recipes for elements, which pass between their stages as blocks of NumPy's arrays."""
