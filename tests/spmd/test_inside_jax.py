"""The installed version of JAX has the private names that trainband uses."""

from __future__ import annotations

import jax
import pytest
from tests.private import accepts, found

from trainband.spmd import jax_internals as inside


@pytest.mark.smoke
@pytest.mark.parametrize("name", inside.NAMES)
def test_jax_has_it(name: str) -> None:
    there = found(name, f"JAX {jax.__version__}")
    for keyword in inside.NAMES[name]:
        assert accepts(there, keyword), f"JAX {jax.__version__}: {name} takes no {keyword} any more"
