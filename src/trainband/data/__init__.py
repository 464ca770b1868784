"""Training data: the digits in the package, MNIST's files, and batches of either."""

from __future__ import annotations

from trainband.data.batches import Batches as Batches
from trainband.data.dataset import Dataset as Dataset
from trainband.data.dataset import Split as Split
from trainband.data.shared import shared as shared
from trainband.data.shared_batches import SharedBatches as SharedBatches
from trainband.data.shared_batches import SharedReport as SharedReport
from trainband.data.sources import load as load

__all__ = ["Batches", "Dataset", "SharedBatches", "SharedReport", "Split", "load", "shared"]
