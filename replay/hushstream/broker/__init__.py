"""A small in-memory broker that speaks the Kafka protocol: for demos and tests on one machine."""

from hushstream.broker.command import main
from hushstream.broker.errors import BrokerStartError, ErrorCode, RequestRefused
from hushstream.broker.server import EmbeddedBroker
from hushstream.broker.settings import BrokerSettings

__all__ = ["BrokerSettings", "BrokerStartError", "EmbeddedBroker", "ErrorCode", "RequestRefused", "main"]
