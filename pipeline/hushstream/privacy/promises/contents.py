"""What a topic holds of persons, and in which form: the part of a guarantee that says where content can be read.

A price says what is learned from what was released under a mechanism. It says nothing of content that goes around the
mechanism, so a guarantee names every topic that holds content of a person, and whether its zone is one that is trusted
with it. Content in clear outside the trusted zones leaves un-noised, whatever epsilon stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Form(StrEnum):
    """How content of a person stands on a topic."""

    CLEAR = "in clear"
    """As it is: whoever reads the topic reads it."""
    PUBLIC = "in clear, held to be public"
    """As it is; the relation counts it among what is public, so the guarantee is not about it."""
    SEALED = "sealed"
    """As it is, under a key that one trusted zone has."""
    SAMPLED = "sampled"
    """Counts without noise, of those that a secret coin kept, in crowds of a least size: priced by that coin."""
    NOISED = "noised"
    """Out of a mechanism that adds noise, or made of nothing but that."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one topic holds of persons in one form.

    Attributes:
        topic: its logical name.
        what: the content, in words.
        form: how it stands there.
        zone: of those who may read it.
        trusted: whether the guarantee trusts that zone with content.
    """

    topic: str
    what: str
    form: Form
    zone: str
    trusted: bool

    @property
    def leaves_unnoised(self) -> bool:
        """Whether the content is given, as it is, to a zone that nobody is asked to trust."""
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
    """The topics on which content leaves un-noised, each once, in their order."""
    return tuple(dict.fromkeys(content.topic for content in contents if content.leaves_unnoised))
