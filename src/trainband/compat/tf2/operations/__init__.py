"""Operations that only TensorFlow 2 has, or that are called otherwise there."""
