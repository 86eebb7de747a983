"""What an application imports: decide, shown, reward; and of PDOL predict, label."""

from hushstream.client.client import BaselineMissing, Client, DecisionTimeout
from hushstream.client.decisions import Decision
from hushstream.client.items import Item
from hushstream.client.kafka import connect
from hushstream.client.logs import EventLog
from hushstream.client.records import Prediction, RecordClient, RefusedRecord, connect_records
from hushstream.client.waiting import PredictionTimeout
from hushstream.engine.declare.requests import (
    BadContext,
    BadReward,
    NoGuardrail,
    RequestRefused,
    UnknownArm,
    UnknownEvent,
    UnknownTrack,
    UnknownUser,
)

__all__ = [
    "BadContext",
    "BadReward",
    "BaselineMissing",
    "Client",
    "Decision",
    "DecisionTimeout",
    "EventLog",
    "Item",
    "NoGuardrail",
    "Prediction",
    "PredictionTimeout",
    "RecordClient",
    "RefusedRecord",
    "RequestRefused",
    "UnknownArm",
    "UnknownEvent",
    "UnknownTrack",
    "UnknownUser",
    "connect",
    "connect_records",
]
