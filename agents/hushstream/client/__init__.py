"""What an application imports: decide, shown, reward; and of PDOL predict, label."""

from hushstream.client.client import Client, Decision, DecisionTimeout, EventLog
from hushstream.client.kafka import connect
from hushstream.client.records import Prediction, PredictionTimeout, RecordClient, connect_records
from hushstream.client.sync import SyncClient

__all__ = [
    "Client",
    "Decision",
    "DecisionTimeout",
    "EventLog",
    "Prediction",
    "PredictionTimeout",
    "RecordClient",
    "SyncClient",
    "connect",
    "connect_records",
]
