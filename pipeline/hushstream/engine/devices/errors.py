"""Errors of devices, and of those who exchange data with devices."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class DeviceError(HushstreamError):
    """A device cannot use what it got. The message says what was expected and what came, never a payload."""


class BadAgreement(DeviceError):
    """An agreement that contradicts itself or the deployment."""


class WeakerAgreement(DeviceError):
    """An agreement that promises its users less than the one that they have."""


class BadModel(DeviceError):
    """A model that a device must not accept: forged, damaged, of another deployment, or less private than agreed."""


class OlderModel(BadModel):
    """A model older than one that the device has seen, or one that has expired."""


class BadSeal(DeviceError):
    """Bytes that cannot be opened, or a key that cannot be sealed to; the message never repeats them."""


class BadBody(DeviceError):
    """Bytes that are no body of a slot; the message never repeats them."""
