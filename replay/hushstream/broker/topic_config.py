"""Checks topic settings: an unknown one, or a value that this broker cannot honour, is refused and not ignored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hushstream.broker.errors import ErrorCode, RequestRefused

_Check = Callable[[str], str | None]


def _integer(minimum: int) -> _Check:
    def check(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f"expected an integer, got {value!r}"
        return None if number >= minimum else f"expected at least {minimum}, got {number}"

    return check


def _share(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return f"expected a number, got {value!r}"
    return None if 0 <= number <= 1 else f"expected 0 to 1, got {value}"


def _only(*accepted: str, why: str = "") -> _Check:
    def check(value: str) -> str | None:
        if value in accepted:
            return None
        return f"expected {' or '.join(accepted)}, got {value!r}{why}"

    return check


@dataclass(frozen=True, slots=True)
class _Setting:
    default: str
    check: _Check


_HERE = "; the embedded broker does not do that, use Apache Kafka"

# Retention and compaction are applied where a disk keeps the data. In memory nothing is deleted before the process
# ends: a full partition refuses new records instead, and a compacted topic keeps the older records of a key; every
# reader of such a topic must handle them anyway. There are no segments, so their settings change nothing.
_SETTINGS: dict[str, _Setting] = {
    "cleanup.policy": _Setting("delete", _only("delete", "compact", why=_HERE)),
    "compression.type": _Setting("producer", _only("producer", why=_HERE)),
    "max.compaction.lag.ms": _Setting("9223372036854775807", _integer(1)),
    "max.message.bytes": _Setting("1048588", _integer(0)),
    "message.timestamp.type": _Setting("CreateTime", _only("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": _Setting("0.5", _share),
    "min.insync.replicas": _Setting("1", _only("1", why=": there is one broker")),
    "retention.bytes": _Setting("-1", _integer(-1)),
    "retention.ms": _Setting("604800000", _integer(-1)),
    "segment.bytes": _Setting("1073741824", _integer(14)),
    "segment.ms": _Setting("604800000", _integer(1)),
    "unclean.leader.election.enable": _Setting("false", _only("false", why=": there is one broker")),
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic: those given at its creation, otherwise the defaults."""

    given: Mapping[str, str]
    defaults: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        """Largest record batch accepted."""
        return int(self._value("max.message.bytes"))

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's time replaces the producer's."""
        return self._value("message.timestamp.type") == "LogAppendTime"

    @property
    def compacted(self) -> bool:
        """Whether only the last record of a key has to stay."""
        return self._value("cleanup.policy") == "compact"

    @property
    def retention(self) -> tuple[int, int]:
        """How many milliseconds and bytes of records have to stay; -1: all."""
        return int(self._value("retention.ms")), int(self._value("retention.bytes"))

    @property
    def compaction(self) -> tuple[float, int]:
        """The share of bytes, and the age in milliseconds, of what compaction has not seen, from which on it is due."""
        return float(self._value("min.cleanable.dirty.ratio")), int(self._value("max.compaction.lag.ms"))

    def described(self) -> list[tuple[str, str, bool]]:
        """(name, value, is_default) of every setting, by name."""
        return [(name, self._value(name), name not in self.given) for name in sorted(_SETTINGS)]

    def _value(self, name: str) -> str:
        return self.given.get(name, self.defaults[name])


def topic_config(given: Mapping[str, str | None], max_message_bytes: int) -> TopicConfig:
    """Check the settings of a topic that is to be created; null means the default.

    Raises:
        RequestRefused: INVALID_CONFIG for an unknown name or a value that is wrong or not supported here.
    """
    accepted: dict[str, str] = {}
    for name, value in given.items():
        setting = _SETTINGS.get(name)
        if setting is None:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"unknown topic setting {name!r}")
        if value is None:
            continue
        complaint = setting.check(value)
        if complaint is not None:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name}: {complaint}")
        accepted[name] = value
    defaults = {name: setting.default for name, setting in _SETTINGS.items()}
    defaults["max.message.bytes"] = str(max_message_bytes)
    return TopicConfig(accepted, defaults)
