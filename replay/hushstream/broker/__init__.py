"""A small broker that speaks the Kafka protocol, for one machine: in memory, or with a folder that keeps its data."""

from hushstream.broker.command import main
from hushstream.broker.errors import BrokerStartError, ErrorCode, RequestRefused
from hushstream.broker.server import EmbeddedBroker
from hushstream.broker.store import BrokerSettings

__all__ = ["BrokerSettings", "BrokerStartError", "EmbeddedBroker", "ErrorCode", "RequestRefused", "main"]
