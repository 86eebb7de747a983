"""What an application imports: decide, shown, reward."""

from hushstream.client.client import Client, Decision, DecisionTimeout, EventLog
from hushstream.client.kafka import connect
from hushstream.client.sync import SyncClient

__all__ = ["Client", "Decision", "DecisionTimeout", "EventLog", "SyncClient", "connect"]
