"""Arrow tables that another program gives as a variable."""

from __future__ import annotations

import pyarrow as pa
import pytest

from trainband.errors import Refused
from trainband.wire.columns import read_tensor


def of_lists_with_a_null() -> pa.Table:
    return pa.table({"a": pa.array([[1.0, None]], pa.list_(pa.float32(), 2))})


@pytest.mark.parametrize(
    "table",
    [
        of_lists_with_a_null(),
        pa.table({"a": pa.array([[1.0], [2.0, 3.0]], pa.list_(pa.float32()))}),
        pa.table({"a": pa.array([b"x"])}),
    ],
    ids=["nulls", "lists", "bytes"],
)
def test_a_table_that_is_no_variable_is_refused(table: pa.Table) -> None:
    with pytest.raises(Refused, match="a variable"):
        read_tensor(table, "float32", (2,))
