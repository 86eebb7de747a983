"""What a deployment learns from and what results from it, in words for a person who must judge it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """What a system takes in and gives, as its statement says it.

    Attributes:
        data: what it takes in of persons.
        what: what the result is, and for whom it follows from whose data.
        product: the same as registries of differentially private deployments name it.
        release: to whom it is released, and how often.
    """

    data: str
    what: str
    product: str
    release: str


RECOMMENDATIONS = Result(
    data="contexts, clicks and decisions of users",
    what="a model that recommends; it is personalised, so what one user is shown follows from their own data too",
    product="continually updated recommendation model",
    release="interactive to the operator's learners, repeated; published topics",
)
"""Of every system that decides for its users."""
