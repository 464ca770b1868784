"""`tf.keras.losses.Reduction`: how the losses of a batch become one."""

from __future__ import annotations


class Reduction:
    """The words that Keras 3 has for what Keras 2's constants mean."""

    AUTO = "sum_over_batch_size"
    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Every one."""
        return (cls.AUTO, cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE)

    @classmethod
    def validate(cls, key: str) -> None:
        """Demands that it is one.

        Raises:
          ValueError: it is not.
        """
        if key not in cls.all():
            raise ValueError(f"Invalid Reduction Key: {key}. Expected keys are {cls.all()}")
