"""A line that comes often is written once in a while, with the number of those left out."""

from __future__ import annotations

import logging

from hushstream.agents.observe.rate_limited_log import RateLimitedLog, limit_warnings


def test_each_form_has_its_own_interval_and_what_was_left_out_is_counted(caplog) -> None:
    now = [0.0]
    limited_log = RateLimitedLog(logging.getLogger("quiet-test"), 10.0, lambda: now[0])
    with caplog.at_level("WARNING", "quiet-test"):
        for moment in (0, 1, 9):
            now[0] = moment
            limited_log.warning("broker %s does not answer", "b")
        limited_log.warning("another form")
        now[0] = 10
        limited_log.warning("broker %s does not answer", "c")
        now[0] = 20
        limited_log.warning("broker %s does not answer", "d")
    assert [record.getMessage() for record in caplog.records] == [
        "broker b does not answer",
        "another form",
        "broker c does not answer (2 more since the last such line)",
        "broker d does not answer",
    ]


def test_a_library_that_tries_again_without_end_says_so_once_in_a_while(caplog) -> None:
    module = logging.getLogger("noisy_library.conn")
    limit_warnings("noisy_library")
    with caplog.at_level("INFO", "noisy_library"):
        for attempt in range(1000):
            module.error("unable to connect to %s", f"broker {attempt}")
            module.info("attempt %d", attempt)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("unable")] == ["unable to connect to broker 0"]
    assert len(lines) == 1001
