"""What a script records: operations of the table, variables, control flow, gradients and side effects."""

from __future__ import annotations
