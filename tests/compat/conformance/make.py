"""Makes the golden values of the tables of cases: what TensorFlow itself gives.

The recipe, with a Python that has TensorFlow 2.21 (and the package tf_keras of the same version), from the top of the
repository:

    TF_USE_LEGACY_KERAS=1 python -m tests.compat.conformance.make [TABLE]...

The values of `tables/TABLE.txt` are written to `golden/TABLE.json`, one line for each case.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from tests.compat.conformance.cases import HERE, TABLES, compute, read


def main() -> None:
    """Makes those of all tables, or of those that are named."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    for table in sys.argv[1:] or TABLES:
        found = compute(tf, read(table), alone=True)
        lines = [f"{json.dumps(key)}: {json.dumps(_plain(value))}" for key, value in found.items()]
        (HERE / "golden" / f"{table}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        errors = {key: value for key, value in found.items() if "error" in value}
        print(f"{table}: {len(found)} cases, {len(errors)} of them errors")
        for key, value in errors.items():
            print(f"  {key}: {value['error']}: {value['text'].splitlines()[0][:150] if value['text'] else ''}")


def _plain(value: Any) -> Any:
    """As JSON has it; floating-point numbers with as many digits as float32 has."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key != "text"}
    if isinstance(value, np.ndarray | np.generic):
        return {"shape": list(value.shape), "flat": [_number(one) for one in np.ravel(value)]}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _number(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.complexfloating):
        return [float(f"{value.real:.8g}"), float(f"{value.imag:.8g}")]
    return float(f"{float(value):.8g}") if not isinstance(value, np.integer | np.bool_) else value.item()


if __name__ == "__main__":
    main()
