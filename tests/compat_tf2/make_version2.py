"""Make `data/version2.json` from `version2.txt`, with TensorFlow 2.21: `python make_version2.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def arrays(tf: Any) -> dict[str, Any]:
    """What the expressions use."""
    return {
        "tf": tf,
        "A": tf.constant([[1.0, -2.0, 0.5], [0.25, 3.0, -1.5]]),
        "B": tf.constant([1.0, 2.0, 4.0, 8.0]),
        "I": tf.constant([1, 0, 3, 1]),
        "M": tf.constant([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.5, 1.0, 4.0]]),
        "P": tf.reshape(tf.range(16.0) / 16.0, [1, 4, 4, 1]),
        "S": tf.SparseTensor([[0, 0], [0, 2], [1, 1]], [1.0, 2.0, 3.0], [2, 3]),
    }


def expressions() -> list[str]:
    """The lines of the file that are no comments."""
    lines = (HERE / "version2.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def described(value: Any) -> Any:
    """A value as JSON: [dtype, value] of a tensor, and what is in a list."""
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    if hasattr(value, "numpy"):
        return {"dtype": value.dtype.name, "value": value.numpy().tolist()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def evaluated(expression: str, names: dict[str, Any]) -> Any:
    """What an expression gives, or the kind of its error."""
    try:
        return described(eval(expression, names))
    except Exception as exc:
        kinds = [one.__name__ for one in type(exc).__mro__]
        return {"error": next(one for one in kinds if one in ("InvalidArgumentError", "OutOfRangeError", *_PLAIN))}


_PLAIN = ("ValueError", "TypeError", "RuntimeError", "AttributeError", "NotImplementedError", "OpError", "Exception")


def main() -> None:
    """Write the file."""
    import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

    names = arrays(tf)
    found = {one: evaluated(one, names) for one in expressions()}
    text = "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "\n}\n"
    (HERE / "data" / "version2.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
