"""Losses of one replica of several, which are summed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import trainband.compat.tf2 as tf
from trainband.compat.tf2.distribute import context


def test_losses_are_divided_by_the_number_of_replicas() -> None:
    before, strategy = context.entered(), SimpleNamespace(num_replicas_in_sync=2)
    context.enter_all([(strategy, context.ReplicaContext(strategy, 0))])
    try:
        assert float(tf.nn.scale_regularization_loss(tf.constant([2.0, 4.0]))) == 3.0
        assert float(tf.nn.compute_average_loss(tf.constant([2.0, 4.0]))) == 1.5
        assert float(tf.nn.compute_average_loss(tf.constant([2.0, 4.0]), global_batch_size=3)) == 2.0
    finally:
        context.enter_all(before)
    assert float(tf.nn.scale_regularization_loss(tf.constant([2.0, 4.0]))) == 6.0


def test_outside_of_a_replica_the_size_of_the_batch_must_be_given() -> None:
    strategy = SimpleNamespace(num_replicas_in_sync=2)
    with context.cross_replica(strategy):
        for name in ("compute_average_loss", "scale_regularization_loss"):
            with pytest.raises(RuntimeError, match=f"calling `{name}` in cross replica context"):
                getattr(tf.nn, name)(tf.constant([2.0, 4.0]))
        assert float(tf.nn.compute_average_loss(tf.constant([2.0, 4.0]), global_batch_size=3)) == 2.0
