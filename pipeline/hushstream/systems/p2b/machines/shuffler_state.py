"""The packed form of the shuffler's state; it holds slots in clear, so it is as sensitive as they are."""

from __future__ import annotations

from hushstream.engine.epochs import EPOCH
from hushstream.engine.one_input_state import PLACE
from hushstream.engine.packed import Form
from hushstream.engine.spending import SPENDING
from hushstream.engine.state_parts import record

FORM = Form.of(
    "a shuffler's state",
    6,
    record(
        "ShufflerState",
        **PLACE,
        key_id="bytes",
        epoch=EPOCH,
        windows="bytes",
        running_sums="bytes",
        spending=SPENDING,
    ),
)
