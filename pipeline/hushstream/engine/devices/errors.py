"""What a device refuses, and what whoever talks with one does."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class DeviceError(HushstreamError):
    """Something that a device cannot go by; says what was expected and what came, never a payload."""


class BadAgreement(DeviceError):
    """An agreement that does not hold together."""


class WeakerAgreement(DeviceError):
    """An agreement that promises its users less than the one that they have."""


class BadModel(DeviceError):
    """A model that a device must not take: forged, damaged, of another deployment, or weaker than agreed."""


class OlderModel(BadModel):
    """A model older than one that the device has seen, or one that has expired."""


class BadSeal(DeviceError):
    """Bytes that cannot be opened, or a key that cannot be sealed to; the message never repeats them."""


class BadBody(DeviceError):
    """Bytes that are no slot as it travels; the message never repeats them."""
