"""Sums without noise promise nothing. They are released only if the data is already public."""

from __future__ import annotations

from hushstream.privacy.amounts import DELTA_ONE, Cost
from hushstream.privacy.promises.contents import Content
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime


def exact_guarantee(
    relation: str,
    unit: str,
    units_in_life: int,
    zone: str,
    contents: tuple[Content, ...],
    deployment: Deployment = "hosted",
) -> Guarantee:
    """The guarantee of exact sums, in the same form as all others; see `Guarantee`.

    Raises:
        BadGuarantee: none of the ``contents`` leaves without noise.
    """
    nothing = Cost(0, DELTA_ONE)
    return Guarantee(
        mechanism="exact: no noise at all, for replays of public datasets",
        relation=relation,
        unit=unit,
        cost=nothing,
        replace_one=nothing,
        lifetime=Lifetime(units_in_life, 1, nothing, nothing),
        sensitivity=0,
        norm="nothing is hidden",
        zone=zone,
        deployment=deployment,
        residue_units=0,
        not_protected=("anything",),
        private_as_stated=False,
        contents=contents,
    )
