"""The bodies of the retired protocol, as its public clients send and read them; unknown keys are ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from hushstream.gateway.problems import Problem
from hushstream.schemas.rows import CONTROLS

MOST_SLOTS = 64
MOST_ACTIONS = 65_536


MOST_ID_CHARACTERS = 256
"""The longest id of an event or action that the retired service took."""


def is_id(text: str) -> bool:
    """Whether a text can be an id of the protocol."""
    return 0 < len(text) <= MOST_ID_CHARACTERS and CONTROLS.search(text) is None


def _valid(text: str) -> str:
    if not is_id(text):
        raise ValueError(f"expected 1 to {MOST_ID_CHARACTERS} characters in one line")
    return text


Id: TypeAlias = Annotated[str, AfterValidator(_valid)]

Features = Annotated[list[dict[str, Any]], Field(max_length=1024)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False, alias_generator=to_camel)


class Action(_Body):
    """Something that may be shown: an item, by its id.

    Decisions use the features of the catalogue. The features here are read only when the action becomes an item.
    """

    id: Id
    features: Features | None = None


class Ranked(_Body):
    """The keys of both forms of rank."""

    actions: list[Action] = Field(min_length=1, max_length=MOST_ACTIONS)
    context_features: Features | None = None
    event_id: Id | None = None
    defer_activation: bool | None = None

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.ids)) < len(self.actions):
            raise ValueError("actions: expected each id once")
        return self

    @property
    def ids(self) -> list[str]:
        """The ids of the actions, in their order."""
        return [action.id for action in self.actions]


class RankAsked(Ranked):
    """Which of some actions to show."""

    excluded_actions: list[str] | None = Field(default=None, max_length=MOST_ACTIONS)

    @property
    def eligible(self) -> list[str]:
        """The actions that may be shown, in their order; the first is the baseline."""
        excluded = frozenset(self.excluded_actions or ())
        return [action for action in self.ids if action not in excluded]

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.eligible:
            raise ValueError("excludedActions: expected to leave an action, got all of them")
        return self


class Slot(_Body):
    """A place on the page."""

    id: Id
    baseline_action: str
    features: Features | None = None
    excluded_actions: list[str] | None = Field(default=None, max_length=MOST_ACTIONS)


class MultiSlotAsked(Ranked):
    """Which of some actions to show in each of some slots."""

    slots: list[Slot] = Field(min_length=1, max_length=MOST_SLOTS)

    @model_validator(mode="after")
    def _baselines(self) -> Self:
        if len({slot.id for slot in self.slots}) < len(self.slots):
            raise ValueError("slots: expected each id once")
        if len({slot.baseline_action for slot in self.slots}) < len(self.slots):
            raise ValueError("slots: expected a baselineAction of its own in each")
        for slot in self.slots:
            if slot.baseline_action not in self.eligible(slot):
                raise ValueError("baselineAction: expected one of the actions that is not excluded from its slot")
        return self

    def eligible(self, slot: Slot) -> list[str]:
        """The actions that may be shown in a slot, in their order."""
        excluded = frozenset(slot.excluded_actions or ())
        return [action for action in self.ids if action not in excluded]


Value = Annotated[float, Field(ge=-1, le=1)]


class RewardTold(_Body):
    """The reward of an event."""

    value: Value


class SlotReward(_Body):
    """The reward of one slot."""

    slot_id: str
    value: Value


class MultiSlotRewardTold(_Body):
    """The rewards of some slots of an event."""

    reward: list[SlotReward] = Field(min_length=1, max_length=MOST_SLOTS)


_CODES = {401: "Unauthorized", 404: "ResourceNotFound", 429: "TooManyRequests"}
_AS_BAD_REQUEST = frozenset({400, 409, 422})


def refusal(problem: Problem) -> tuple[int, bytes]:
    """A problem in the protocol's form: the status, and an error that contains our code as the inner code."""
    found = problem.document()
    status = 400 if found["status"] in _AS_BAD_REQUEST else int(found["status"])
    code = _CODES.get(status, "BadRequest" if status < 500 else "InternalServerError")
    error: dict[str, Any] = {
        "code": code,
        "message": f"{found['title']}. {found['detail']}",
        "innerError": {"code": problem.kind.code},
    }
    if problem.errors:
        error["details"] = [
            {"code": code, "message": one["detail"], "target": one["pointer"]} for one in problem.errors
        ]
    return status, json.dumps({"error": error}).encode()
