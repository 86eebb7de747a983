"""What a deployment learns from, and what its result is, in words for the person who must approve it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """What a system takes in and gives, as its statement says it.

    Attributes:
        data: the data about persons that it takes in.
        what: the result, who gets it, and from whose data it is computed.
        product: the result as registries of differentially private deployments describe it.
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
"""The result of every system that decides for its users."""
