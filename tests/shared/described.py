"""Contexts of numbers as the declared features of a log that a test makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hushstream.features.schema import declare


def described(contexts: Any) -> dict[str, Any]:
    """The columns of a `LoggedDataset` that describe its visits: one embedding, whose cells are the numbers (n, d)."""
    contexts = np.asarray(contexts, dtype=np.float32)
    visits = np.empty(len(contexts), dtype=np.object_)
    visits[:] = [{"context": row} for row in contexts.tolist()]
    schema = declare({"context": {"kind": "embedding", "dimension": contexts.shape[1]}})
    return {"schema": schema, "visits": visits, "contexts": contexts}
