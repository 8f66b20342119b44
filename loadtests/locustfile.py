"""Load on a broker with Locust; README.md says which question each scenario answers.

locust -f loadtests/locustfile.py Producer --host bunqueue://localhost:6789
"""

from locust import events

from loadtests.load import options, runs
from loadtests.scenarios.burst import Burst
from loadtests.scenarios.cron import Cron
from loadtests.scenarios.flow import Flow
from loadtests.scenarios.mixed import Mixed
from loadtests.scenarios.producer import Producer
from loadtests.scenarios.reconnect_storm import ReconnectStorm
from loadtests.scenarios.slow_handler import SlowHandler
from loadtests.scenarios.worker import Worker

__all__ = [
    "Burst",
    "Cron",
    "Flow",
    "Mixed",
    "Producer",
    "ReconnectStorm",
    "SlowHandler",
    "Worker",
]

HOOKS = (
    (events.init_command_line_parser, options.add_arguments),
    (events.init, runs.expect_broker),
    (events.test_start, runs.begin),
    (events.test_stop, runs.end),
)
for event, listener in HOOKS:
    event.add_listener(listener)  # type: ignore[no-untyped-call]  # Locust's events are untyped
