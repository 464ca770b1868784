"""What is used of JAX that it does not promise to keep is there in the version that is installed."""

from __future__ import annotations

import jax
import pytest
from tests.private import found, takes

from trainband.spmd import inside


@pytest.mark.smoke
@pytest.mark.parametrize("name", inside.NAMES)
def test_jax_has_it(name: str) -> None:
    there = found(name, f"JAX {jax.__version__}")
    for keyword in inside.NAMES[name]:
        assert takes(there, keyword), f"JAX {jax.__version__}: {name} takes no {keyword} any more"
