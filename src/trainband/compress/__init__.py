"""Compress: weights in fewer bytes, and the cost in accuracy."""

from trainband.compress.compressed import Compressed as Compressed
from trainband.compress.compressed import load as load
from trainband.compress.compressing import compress as compress
from trainband.compress.pruning import Pruning as Pruning
from trainband.compress.quantization_aware import QuantizationAware as QuantizationAware
from trainband.compress.report import Report as Report
from trainband.compress.selection import Selection as Selection
