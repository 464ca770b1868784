"""`tf.saved_model.main_op`: what runs when a SavedModel has been loaded."""

from __future__ import annotations

from trainband.compat.tf1.graphs.graph import Operation
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.state import local_variables_initializer, tables_initializer


def main_op() -> Operation:
    """Make the operation that initialises what is not saved."""
    return group(local_variables_initializer(), tables_initializer())
