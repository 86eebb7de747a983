"""The calls of devices, and their OpenAPI 3.1 document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hushstream.gateway.openapi import EVERY_LOOK, answered, get_paths, of_paths, problem_schema, problems_of

_OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """A call that devices make.

    Attributes:
        name: its name, in the path below ``/v1`` and in metrics.
        method: the HTTP method.
        summary: one line about the call.
        about: further text about the call.
        problems: codes of the problems that it may answer with.
    """

    is_feedback: ClassVar[bool] = False
    name: str
    method: str
    summary: str
    about: str
    problems: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path of the call."""
        return f"/v1/{self.name}"


_EVERY = ("malformed-http", "identifying-header", "too-many-requests", "stopping", "internal")

SLOTS = DeviceCall(
    "slots",
    "POST",
    "Hand in one report",
    "Every report of a deployment has one size; its content is sealed for the shuffler (HPKE). The answer comes when "
    "the log holds it, and is the same for a report that is there already.",
    (
        *_EVERY,
        "bad-slot",
        "not-attested",
        "slow-request",
        "other-configuration",
        "body-too-large",
        "unsupported-media-type",
        "stale-period",
        "too-busy",
        "log-unavailable",
    ),
)
MODEL = DeviceCall(
    "model",
    "GET",
    "The newest model, signed by the aggregator",
    "The entity tag follows from the body; a device computes it itself.",
    (*_EVERY, "no-model"),
)
AGREEMENT = DeviceCall(
    "agreement",
    "GET",
    "The agreement of this deployment's devices",
    "Applications ship it with their code; this copy is for people to compare.",
    _EVERY,
)

NAME, TITLE = "devices", "Devices: reports of users' own devices, and models for them"
"""The name and the title of the document."""


def document() -> dict[str, Any]:
    """The OpenAPI document of devices' calls; it is the same for every deployment that has devices."""
    attested = _header("Hushstream-Attestation", "What the deployment's own check requires, if it has one; base64url.")
    known = _header("If-None-Match", "The entity tag of the model that the device has, as it computed it.")
    octets = {"content": {_OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
    paths = {
        SLOTS.path: {
            "post": {
                **_said(SLOTS),
                "parameters": [attested],
                "requestBody": {"required": True, **octets},
                "responses": {"204": {"description": "The log holds it"}, **problems_of(SLOTS.problems)},
            }
        },
        MODEL.path: {
            "get": {
                **_said(MODEL),
                "parameters": [known],
                "responses": {
                    "200": {"description": "The model", **octets},
                    "304": {"description": "The device has it"},
                    **problems_of(MODEL.problems),
                },
            }
        },
        AGREEMENT.path: {
            "get": {
                **_said(AGREEMENT),
                "responses": {"200": answered("The agreement", {"type": "object"}), **problems_of(AGREEMENT.problems)},
            }
        },
    }
    return of_paths(TITLE, {**paths, **get_paths(EVERY_LOOK)}, {"schemas": {"Problem": problem_schema()}}, [{}])


def _header(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}


def _said(call: DeviceCall) -> dict[str, Any]:
    return {"operationId": call.name, "summary": call.summary, "description": call.about}
