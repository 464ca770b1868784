"""Operations that only TensorFlow's own modules have, under names that were never public."""

from __future__ import annotations

from trainband.compat.ops import indexing, random
from trainband.compat.tf1.operations.recorder import recorded

nth_element = recorded(indexing.nth_element)
parameterized_truncated_normal = recorded(random.parameterized_truncated_normal)
