from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from hushstream.agents.security import Security
from hushstream.agents.settings import WorkerSettings

REQUIRED = {"bootstrap": "127.0.0.1:9092", "role": "learner", "group": "g", "datadir": Path("data")}


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="sesion"):
        WorkerSettings(**REQUIRED, sesion_timeout_seconds=3)


def test_a_password_is_never_printed() -> None:
    security = Security(protocol="SASL_SSL", username="learner", password="canary-secret")
    settings = WorkerSettings(**REQUIRED, security=security)
    assert "canary-secret" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.client_options()["sasl_plain_password"] == "canary-secret"


def test_sasl_without_credentials_is_refused_before_anything_connects() -> None:
    with pytest.raises(ValidationError, match="needs username and password"):
        Security(protocol="SASL_SSL")


def test_credentials_on_a_plain_connection_are_refused() -> None:
    with pytest.raises(ValidationError, match="takes no username"):
        Security(username="learner", password="x")


def test_a_heartbeat_that_cannot_keep_the_session_is_refused() -> None:
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        WorkerSettings(**REQUIRED, session_timeout_seconds=3, heartbeat_seconds=2)


def test_metrics_stay_on_loopback_and_off_unless_asked_for() -> None:
    settings = WorkerSettings(**REQUIRED)
    assert settings.metrics_host == "127.0.0.1"
    assert settings.metrics_port is None
    assert settings.zone_metrics_port is None


def test_a_dead_worker_is_missed_after_three_heartbeats() -> None:
    settings = WorkerSettings(**REQUIRED)
    assert settings.session_timeout_seconds == 3.0
    assert settings.heartbeat_seconds == 1.0


def test_topics_are_prefixed_and_bootstrap_servers_split() -> None:
    settings = WorkerSettings(**{**REQUIRED, "bootstrap": "127.0.0.1:1, localhost:2"}, topic_prefix="dep.")
    assert settings.physical("contexts") == "dep.contexts"
    assert settings.client_options()["bootstrap_servers"] == ["127.0.0.1:1", "localhost:2"]
