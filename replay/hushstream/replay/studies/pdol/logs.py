"""Encodes a stream of records as the values of a node's log, in two forms; labels follow their records."""

from __future__ import annotations

from collections.abc import Iterator

from hushstream.replay.studies.pdol.closed_loop import person_name, record_name
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_label_batch, encode_record_batch


def batches(stream: RecordStream, node: int, rows: int) -> Iterator[bytes]:
    """Yield columnar records of ``rows`` rows each, and after each record the record of its labels."""
    places = (stream.nodes == node).nonzero()[0]
    for low in range(0, len(places), rows):
        part = places[low : low + rows]
        taken, names = stream.rows.take(part), [record_name(place) for place in part]
        persons = [person_name(place) for place in part]
        columns = taken.lengths, taken.indices, taken.values
        yield encode_record_batch(names, persons, [node] * len(part), *columns)
        yield encode_label_batch(names, persons, taken.labels)


def events(stream: RecordStream, node: int, _: int) -> Iterator[bytes]:
    """Yield one event a record, and after each event its label."""
    for place in (stream.nodes == node).nonzero()[0].tolist():
        row, named = stream.rows.part(place, place + 1), {"event_id": record_name(place), "user": person_name(place)}
        features = {"indices": row.indices.astype("<i4").tobytes(), "values": row.values.astype("<i4").tobytes()}
        yield codec.encode("Record", {**named, "node": node, **features})
        yield codec.encode("Label", {**named, "label": int(row.labels[0])})
