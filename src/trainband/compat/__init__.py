"""Front ends for scripts of other libraries; `tf1` is TensorFlow 1's. `python -m trainband.compat SCRIPT` runs one."""

from __future__ import annotations
