"""What an operator can set for the retired personaliser's protocol."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hushstream.schemas.rows import MAX_ID_BYTES, id_fault

MOST_ACTIONS = 65_536


def _short(text: str) -> str:
    if id_fault(text) is not None:
        raise ValueError(f"expected 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return text


ActionId: TypeAlias = Annotated[str, AfterValidator(_short)]


def _once(actions: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(actions)) < len(actions):
        raise ValueError("expected each id once")
    return actions


class PersonalizerSettings(BaseModel):
    """How requests of the retired personaliser are read.

    Attributes:
        actions: the id of each item, from item 0; an action that is not among them is refused.
        user_feature: the feature of a request that is its user, as `User.id` or `id`; without it each event is a user
            of its own, who learns alone from that one event.
        lowest_reward: the reward that counts as 0; 1 counts as 1, and what lies between lies between.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    actions: Annotated[tuple[ActionId, ...], AfterValidator(_once)] = Field(min_length=1, max_length=MOST_ACTIONS)
    user_feature: str | None = Field(default=None, min_length=1)
    lowest_reward: float = Field(default=-1.0, ge=-1, le=0)
