"""Columnar records: the layout of their columns, and how a writer packs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.schemas.codec import CodecError, encode
from hushstream.schemas.rows import Reason

FLOAT32 = np.dtype("<f4")
FLOAT64 = np.dtype("<f8")
UINT8 = np.dtype("u1")
INT8 = np.dtype("i1")
INT32 = np.dtype("<i4")
INT64 = np.dtype("<i8")


def column(packed: bytes, dtype: np.dtype[Any], n: int, default: int) -> NDArray[Any]:
    """Decode a column of n numbers; an empty column means n times the default."""
    return np.frombuffer(packed, dtype=dtype) if packed else np.full(n, default, dtype=dtype)


def take_rows(packed: bytes, row_bytes: int, keep: Sequence[bool]) -> bytes:
    """Keep some rows of a packed table whose rows have the same number of bytes."""
    table = np.frombuffer(packed, dtype=np.uint8).reshape(len(keep), row_bytes)
    return table[np.asarray(keep, dtype=np.bool_)].tobytes()


def _packed(name: str, values: ArrayLike | None, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    if values is None:
        return b""
    array = np.asarray(values)
    if array.shape != shape:
        raise CodecError(Reason.COLUMNS_DISAGREE, f"{name}: expected shape {shape}, got {array.shape}")
    if array.size and not _fits(array, dtype):
        raise CodecError(Reason.NOT_ENCODABLE, f"{name}: expected {dtype}, got {array.dtype} or numbers beyond it")
    # A float64 beyond the range of float32 becomes infinite here, and every reader refuses infinite values.
    with np.errstate(over="ignore"):
        return array.astype(dtype, order="C").tobytes()


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return array.dtype.kind in "fiu"
    limits = np.iinfo(dtype)
    return array.dtype.kind in "biu" and limits.min <= int(array.min()) <= int(array.max()) <= limits.max


def encode_context_batch(
    event_ids: Sequence[str],
    users: Sequence[str],
    contexts: NDArray[Any],
    *,
    track: str = "private",
    eligible: Sequence[bytes] | None = None,
    baselines: ArrayLike | None = None,
    after_clicks: ArrayLike | None = None,
) -> bytes:
    """Write n contexts as one ContextBatch record.

    Args:
        event_ids: n ids.
        users: n users, all of one partition.
        contexts: floats of shape (n, d).
        track: model track of all of them.
        eligible: n masks of equal length, or None when every arm is allowed everywhere.
        baselines: n arms, -1 for none, or None.
        after_clicks: n offsets, -1 for none, or None.

    Raises:
        CodecError: shapes disagree, a column has another type, or the record is too large.
    """
    n = len(event_ids)
    if contexts.ndim != 2:
        raise CodecError(Reason.COLUMNS_DISAGREE, f"contexts: expected shape (n, d), got {contexts.shape}")
    masks = list(eligible or ())
    if len(users) != n or (masks and (len(masks) != n or len({len(mask) for mask in masks}) != 1)):
        raise CodecError(
            Reason.COLUMNS_DISAGREE,
            f"expected {n} users and none or {n} masks of one length, got {len(users)} and {len(masks)}",
        )
    dimension = contexts.shape[1]
    return encode(
        "ContextBatch",
        {
            "event_ids": list(event_ids),
            "users": list(users),
            "line": track,
            "dimension": dimension,
            "contexts": _packed("contexts", contexts, FLOAT32, (n, dimension)),
            "eligible": b"".join(masks),
            "baselines": _packed("baselines", baselines, INT32, (n,)),
            "after_clicks": _packed("after_clicks", after_clicks, INT64, (n,)),
        },
    )


def encode_feedback_batch(
    kinds: ArrayLike,
    event_ids: Sequence[str],
    users: Sequence[str],
    arms: ArrayLike,
    rewards: ArrayLike,
) -> bytes:
    """Write n rows of feedback as one FeedbackBatch record.

    Args:
        kinds: n kinds, each 0 (shown), 1 (reward) or 2 (harm).
        event_ids: n ids of decisions.
        users: their n users, all of one partition.
        arms: the n arms that were on screen.
        rewards: n numbers in [0, 1].

    Raises:
        CodecError: shapes disagree, a column has another type, or the record is too large.
    """
    n = len(event_ids)
    if len(users) != n:
        raise CodecError(Reason.COLUMNS_DISAGREE, f"expected {n} users, got {len(users)}")
    return encode(
        "FeedbackBatch",
        {
            "kinds": _packed("kinds", kinds, UINT8, (n,)),
            "event_ids": list(event_ids),
            "users": list(users),
            "arms": _packed("arms", arms, INT32, (n,)),
            "rewards": _packed("rewards", rewards, FLOAT64, (n,)),
        },
    )


def encode_record_batch(
    event_ids: Sequence[str],
    users: Sequence[str],
    nodes: ArrayLike,
    lengths: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    *,
    after_phase: int = -1,
) -> bytes:
    """Write n records, for each of which a label is requested, as one RecordBatch record.

    Args:
        event_ids: n ids.
        users: n users.
        nodes: n nodes, all of one domain.
        lengths: number of features of each of the n records; their sum is m.
        indices: m coordinates, record by record, in ascending order within each record.
        values: m whole numbers in units of 2^-12, in the same order.
        after_phase: number of the phase whose model they wait for; -1 for none.

    Raises:
        CodecError: shapes disagree, a column has another type, or the record is too large.
    """
    n, each = len(event_ids), np.asarray(lengths)
    features = int(each.sum()) if each.size else 0
    if len(users) != n or (each.size and int(each.min()) < 0):
        raise CodecError(Reason.COLUMNS_DISAGREE, f"expected {n} users and lengths from 0 on, got others")
    fields = {
        "event_ids": list(event_ids),
        "users": list(users),
        "nodes": _packed("nodes", nodes, INT32, (n,)),
        "lengths": _packed("lengths", each, INT32, (n,)),
        "indices": _packed("indices", indices, INT32, (features,)),
        "values": _packed("values", values, INT32, (features,)),
        "after_phase": after_phase,
    }
    return encode("RecordBatch", fields)


def encode_label_batch(event_ids: Sequence[str], users: Sequence[str], labels: ArrayLike) -> bytes:
    """Write the labels of n records as one LabelBatch record.

    Args:
        event_ids: n ids of records.
        users: their n users.
        labels: n labels, each 1 or -1.

    Raises:
        CodecError: shapes disagree, a column has another type, or the record is too large.
    """
    n = len(event_ids)
    if len(users) != n:
        raise CodecError(Reason.COLUMNS_DISAGREE, f"expected {n} users, got {len(users)}")
    fields = {"event_ids": list(event_ids), "users": list(users), "labels": _packed("labels", labels, INT8, (n,))}
    return encode("LabelBatch", fields)
