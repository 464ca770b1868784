"""Parts of neural networks: layers, recurrent cells, and what runs them over time."""

from __future__ import annotations
