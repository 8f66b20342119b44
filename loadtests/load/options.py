"""The scenarios' own command line arguments, and the broker that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from bunqueue.client.endpoint import HOST_DEFAULT, PORT_DEFAULT, parse_url

# By default a user whose time is over ends its task first; Locust's own default would cut it
# somewhere in the middle, and nobody could say what became of its last job.
STOP_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: ``--queue-prefix`` is also ``BUNQUEUE_LOAD_QUEUE_PREFIX``.

    Attributes:
        env: Its environment variable, where that has a name of its own.
    """

    name: str
    default: Any
    help: str
    env: str = ""
    is_secret: bool = False


ARGUMENTS = (
    Argument("broker-url", "", "bunqueue://[:token@]host[:port]; --host wins.", "BUNQUEUE_URL"),
    Argument("broker-host", HOST_DEFAULT, "Without a URL: the broker's host.", "BUNQUEUE_HOST"),
    Argument("broker-port", PORT_DEFAULT, "Without a URL: its TCP port.", "BUNQUEUE_PORT"),
    Argument("broker-token", "", "Its token, if the URL has none.", "BUNQUEUE_TOKEN", True),
    Argument("queue-prefix", "load:", "What all queue names begin with."),
    Argument("queues", 4, "Over how many queues the users are spread."),
    Argument("payload-bytes", 64, "Size of a job's data."),
    Argument("batch-size", 50, "Jobs added in one command, where a scenario adds batches."),
    Argument("concurrency", 16, "Jobs that a worker runs at once."),
    Argument("pause-ms", 0.0, "Pause of a user between two tasks."),
    Argument("slow-ms", 3000.0, "How long a slow handler takes."),
)


def add_arguments(parser: LocustArgumentParser, **_: Any) -> None:
    """Add the arguments, all of which the web page shows too."""
    group = parser.add_argument_group("bunqueue: the broker is named by --host or by these")
    for argument in ARGUMENTS:
        action = group.add_argument(
            f"--{argument.name}",
            type=type(argument.default),
            default=argument.default,
            help=f"{argument.help} [default: {argument.default or 'none'}]",
            env_var=argument.env or f"BUNQUEUE_LOAD_{argument.name.upper().replace('-', '_')}",
        )
        # What LocustArgumentParser.add_argument does for arguments outside of groups.
        action.include_in_web_ui = True
        action.is_secret = argument.is_secret
        action.is_required = action.is_multiple = False
    parser.set_defaults(stop_timeout=STOP_TIMEOUT_S)


def options_of(environment: Environment) -> Any:
    """Return what the command line, the environment or the web page said."""
    options = environment.parsed_options
    assert options is not None, "Locust parses its command line before anything else"
    return options


def address_of(environment: Environment) -> dict[str, Any]:
    """Return the broker's address as keyword arguments of a ``Connection``.

    Raises:
        ValueError: The URL cannot be read.
    """
    options = options_of(environment)
    url = environment.host or options.broker_url
    if not url:
        found = {"host": options.broker_host, "port": options.broker_port}
    else:
        found = parse_url(url if "://" in url else f"bunqueue://{url}")
        found.pop("prefix_key", None)  # --queue-prefix says that
    if options.broker_token:
        found.setdefault("token", options.broker_token)
    return found
