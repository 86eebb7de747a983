"""The content of topics about persons, and its form: the part of a guarantee that says where content can be read.

A price bounds what can be learned from the releases of a mechanism. It does not cover content that bypasses the
mechanism. So a guarantee names every topic with content of persons, and says whether its zone is trusted with it.
Content in clear outside the trusted zones is disclosed without noise, whatever the epsilon of the releases is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Form(StrEnum):
    """The form of content about persons on a topic."""

    CLEAR = "in clear"
    """In clear: every reader of the topic can read it."""
    PUBLIC = "in clear, held to be public"
    """In clear; the neighbour relation treats it as public, so the guarantee does not cover it."""
    SEALED = "sealed"
    """Encrypted under a key of one trusted zone."""
    SAMPLED = "sampled"
    """Counts without noise of a secret sample, in crowds of a least size; the price follows from the sampling."""
    NOISED = "noised"
    """The output of a mechanism that adds noise, or computed from such outputs alone."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content about persons on one topic, in one form.

    Attributes:
        topic: its logical name.
        what: the content, in words.
        form: its form.
        zone: the zone whose operator may read it.
        trusted: whether the guarantee trusts that zone with content.
    """

    topic: str
    what: str
    form: Form
    zone: str
    trusted: bool

    @property
    def leaves_unnoised(self) -> bool:
        """Whether the content is given in clear to a zone that is not trusted with it."""
        return self.form is Form.CLEAR and not self.trusted

    def as_json(self) -> dict[str, Any]:
        """Stable keys topic, what, form, zone, leaves_unnoised."""
        return {
            "topic": self.topic,
            "what": self.what,
            "form": self.form.value,
            "zone": self.zone,
            "leaves_unnoised": self.leaves_unnoised,
        }

    def __str__(self) -> str:
        """One line."""
        leaves = ": LEAVES UN-NOISED" if self.leaves_unnoised else ""
        return f"{self.topic} ({self.zone} zone), {self.form}{leaves}: {self.what}"


def unnoised_topics(contents: Iterable[Content]) -> tuple[str, ...]:
    """The topics with content that is disclosed without noise, each once, in their order."""
    return tuple(dict.fromkeys(content.topic for content in contents if content.leaves_unnoised))
