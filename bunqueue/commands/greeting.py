"""Saying hello: who we are, who you are, are you there."""

from bunqueue.commands.peer import Peer
from bunqueue.commands.registry import Request, command
from bunqueue.errors import Refused
from bunqueue.protocol.fields import Anything
from bunqueue.protocol.replies import OK, Reply

PROTOCOL_VERSION = 3
COMPATIBILITY_VERSION = "2.9.5"  # the reference server whose behaviour we match
CAPABILITIES = ("pipelining", "separate-job-name")
INT64 = "int64"  # ours: exact 64-bit integers both ways, told only to those who announce it


@command(
    "Hello",
    {
        "protocolVersion": Anything(doc="The client's; ignored."),
        "capabilities": Anything(doc="List of the client's; only `int64` means something."),
    },
)
def hello(peer: Peer, request: Request) -> Reply:
    """Tell protocol version and capabilities; no version is refused."""
    announced = request.get("capabilities")
    if isinstance(announced, list) and INT64 in announced:
        peer.int64 = True
    return {
        "ok": True,
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": [*CAPABILITIES, INT64] if peer.int64 else list(CAPABILITIES),
        "server": "bunqueue",
        "version": COMPATIBILITY_VERSION,
    }


@command("Auth", {"token": Anything(doc="A string; anything else is none of ours.")}, is_open=True)
def auth(peer: Peer, request: Request) -> Reply:
    """Show a token; a wrong one leaves everything as it was and may be followed by another."""
    if not peer.authenticate(request.get("token")):
        raise Refused("Invalid token")
    return OK


@command("Ping")
def ping(peer: Peer, _request: Request) -> Reply:
    """Answer with the broker's time."""
    return {"ok": True, "data": {"pong": True, "time": float(peer.now())}}
