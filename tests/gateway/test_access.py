"""The account of a gateway on a secured broker: what applications may do, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.engine.declare.conversation import conversation_of
from hushstream.ops.access.acl_rules import Principals, rules_of
from hushstream.schemas.errors import HushstreamError


@pytest.mark.parametrize("name", ["colin", "pdap", "pdol", "bgt"])
def test_a_gateway_may_do_what_applications_do_and_nobody_is_one_unnamed(
    gateways: Any, tmp_path: Any, name: str
) -> None:
    system = prepare(tmp_path / "d", parse_config(gateways.CONFIGURATIONS[name]), gateways.INPUTS.get(name))
    party = gateways.PARTY.get(name, "")
    own = f".{party}" if party else ""
    rules = rules_of(system, "d.", Principals.of([f"gateway{own}=User:web"]))
    of = {
        who: {(rule.kind, rule.name, rule.operation) for rule in rules if rule.principal == f"User:{who}"}
        for who in ("web", f"client{own}")
    }
    talked = conversation_of(system, party)
    written = {("topic", f"d.{topic}", "Write") for topic in (talked.requests, *talked.feedback)}
    assert of["web"] == {*written, ("topic", f"d.{talked.answers}", "Read")}
    assert of["web"] <= of[f"client{own}"]
    unnamed = rules_of(system, "d.", Principals.of())
    assert not [rule for rule in unnamed if "gateway" in rule.principal]


def test_of_a_party_that_there_is_not_there_is_no_gateway(gateways: Any, tmp_path: Any) -> None:
    system = prepare(tmp_path / "d", parse_config(gateways.CONFIGURATIONS["pdap"]))
    for name in ("gateway", "gateway.west"):
        with pytest.raises(HushstreamError, match="expected one of its parties"):
            rules_of(system, "d.", Principals.of([f"{name}=User:web"]))
