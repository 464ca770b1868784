"""TensorFlow's operations as functions of NumPy's and JAX's arrays: one table for every front end.

`table.TABLE` is full once `catalogue` is imported.
"""

from __future__ import annotations
