"""Rules of the requests that applications send to deciding roles, as a system declares them.

Learners decode by these rules, and clients check them before they send. So both refuse the same requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import CatalogueRules
from hushstream.features.checks import FeatureError
from hushstream.features.schema import EncodedRow, FeatureSchema
from hushstream.schemas.errors import HushstreamError

_NUMBER_BYTES = 4


class RequestRefused(HushstreamError):
    """A request or feedback is invalid: a learner sends it to the dead letters."""


class BadContext(RequestRefused):
    """A context of a wrong length, or outside a bound."""


class UnknownArm(RequestRefused):
    """An arm, a baseline or an eligible arm that the deployment does not have."""


class UnknownEvent(RequestRefused):
    """The event belongs to another user, or to another request."""


class UnknownUser(RequestRefused):
    """A user outside the public graph."""


class UnknownTrack(RequestRefused):
    """A track that the deployment does not have."""


class BadReward(RequestRefused):
    """A reward or harm that is not between 0 and 1, or is none of the deployment's levels."""


class NoGuardrail(RequestRefused):
    """A harm, where the deployment's measurement counts none."""


def any_reward(reward: float) -> bool:
    """Rule of a system that accepts every reward from 0 to 1."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRules:
    """Rules for contexts and feedback, from configuration and preparation.

    Attributes:
        arms: how many there are.
        width: how many numbers a context has; bytes of a row where features are declared.
        good: returns which rows of contexts (n, width) are valid.
        good_row: the same for a single row, which is ten times as fast as an array of one row; None if there is only
            `good`.
        refusal: reason of the dead letters of invalid contexts.
        expected: description of a valid context, in words.
        tracks: tracks that a context may name.
        users: users who may send requests; None for anybody.
        good_reward: whether a reward from 0 to 1 is valid.
        expected_reward: description of a valid reward, in words.
        features: the declared features whose values a context gives by name; None if contexts are numbers.
        catalogue: rules of the catalogue, if items have names and all parties share one catalogue; None if items are
            numbers.
        catalogues: rules of each party's catalogue, by the party's name, if each party has items of its own.
        events_are_users: whether each event counts as a user of its own.
        item_numbers: how many numbers of a context belong to each item, if a context holds features of every item; else
            None. Where items have names too, an application gives them by id.
        shadow: whether the application's own choice is shown, whatever is answered.
        harm: name of the harm that the measurement's guardrail counts; None if it counts none.
    """

    arms: int
    width: int
    good: Callable[[NDArray[Any]], NDArray[np.bool_]]
    refusal: str
    expected: str
    tracks: Collection[str]
    good_row: Callable[[Sequence[float]], bool] | None = None
    users: Container[str] | None = None
    good_reward: Callable[[float], bool] = any_reward
    expected_reward: str = "a number in [0, 1]"
    features: FeatureSchema | None = None
    catalogue: CatalogueRules | None = None
    catalogues: Mapping[str, CatalogueRules] = field(default_factory=dict)
    events_are_users: bool = False
    item_numbers: int | None = None
    shadow: bool = False
    harm: str | None = None

    def row_of(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of `encoded`."""
        return self.encoded(values).row

    def encoded(self, values: Mapping[str, Any]) -> EncodedRow:
        """The row of a context's values, by the names of features, and which of them are not in their vocabularies.

        Raises:
            BadContext: contexts are numbers here; or a name is not declared, or a value of another type.
        """
        if self.features is None:
            raise BadContext(f"context: expected {self.width} numbers ({self.expected}), got names with values")
        try:
            return self.features.encode(values)
        except FeatureError as error:
            raise BadContext(f"context: {error}; it was not sent") from None

    def check_context(
        self,
        user: str,
        track: str,
        context: bytes | None,
        eligible: Sequence[int] | None,
        baseline: int | None,
    ) -> None:
        """Refuse a request that every learner would refuse. Errors repeat nothing of the request but its size.

        Args:
            user: the user of the request.
            track: the track that it names.
            context: the bytes of float32 (d,), finite; None for a context from `row_of`.
            eligible: arms, None for all.
            baseline: an arm, or None.

        Raises:
            UnknownUser, UnknownTrack, UnknownArm, BadContext: the first fault found.
        """
        self._check_user(user)
        if track not in self.tracks:
            raise UnknownTrack(f"track: expected one of {', '.join(sorted(self.tracks))}, got another")
        for arm in eligible or ():
            self._check_arm(arm)
        if baseline is not None:
            self._check_arm(baseline)
        if context is not None:
            self._check_numbers(context)

    def _check_numbers(self, context: bytes) -> None:
        numbers = len(context) // _NUMBER_BYTES
        if self.features is not None:
            known = ", ".join(self.features.layout.names or ())
            raise BadContext(f"context: expected values by name ({known}), got {numbers} numbers")
        if numbers != self.width:
            raise BadContext(f"context: expected {self.width} numbers ({self.expected}), got {numbers}")
        if self.good_row is not None:
            good = self.good_row(struct.unpack(f"<{numbers}f", context))
        else:
            good = bool(self.good(np.frombuffer(context, "<f4")[None, :])[0])
        if not good:
            raise BadContext(f"context: expected {self.expected}, got other numbers; it was not sent")

    def check_feedback(self, user: str, arm: int, reward: float) -> None:
        """Refuse feedback that every learner would refuse.

        Raises:
            UnknownUser, UnknownArm, BadReward: the first fault found.
        """
        self._check_user(user)
        self._check_arm(arm)
        if not self.good_reward(reward):
            raise BadReward(f"reward: expected {self.expected_reward}, got another")

    def check_harm(self, user: str) -> None:
        """Refuse a harm that every learner would refuse.

        Raises:
            UnknownUser, NoGuardrail: the first fault found.
        """
        self._check_user(user)
        if self.harm is None:
            raise NoGuardrail(
                "harm: expected a deployment that counts one (measurement.guardrail), got one that does not"
            )

    def _check_user(self, user: str) -> None:
        if self.users is not None and user not in self.users:
            raise UnknownUser("user: expected one of the deployment's graph, got another name; nothing was sent")

    def _check_arm(self, arm: int) -> None:
        if not 0 <= arm < self.arms:
            raise UnknownArm(f"arm: expected one of the {self.arms} arms, numbered from 0, got {arm}")
