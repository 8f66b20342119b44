"""Scenarios: tokens and TLS."""

from __future__ import annotations

from scenario import World, raises, scenario, until

from bunqueue import AuthError, CommandError, ConnectionClosedError, Queue


@scenario("auth")
def a_good_token_opens_everything(world: World) -> None:
    for token in ("first", "second"):
        queue = world.queue(token=token)
        job = queue.add("x", {"n": 1})
        assert {"n": 1} == queue.get_job(job.id).data


@scenario("auth")
def a_bad_token_is_refused(world: World) -> None:
    queue = world.queue(token="third")
    raises(AuthError, "Invalid token", lambda: queue.add("x"))


@scenario("auth")
def no_token_is_refused(world: World) -> None:
    queue = world.queue(token=None)
    raises(CommandError, "Not authenticated", lambda: queue.add("x"))
    assert queue.ping() is False


@scenario("auth")
def a_worker_with_a_token_works(world: World) -> None:
    queue = world.queue(token="first")
    job = queue.add("x")
    world.worker(queue, lambda _job: "let in", token="second")

    assert "let in" == queue.wait_for_job(job.id, 10_000)


@scenario("auth")
def a_producer_of_flows_shows_its_token(world: World) -> None:
    steps = [{"name": name, "queueName": "chained"} for name in "ab"]
    assert 2 == len(world.flows(token="second").add_chain(steps))
    raises(CommandError, "Not authenticated", lambda: world.flows(token=None).add_chain(steps))


@scenario()
def a_stray_token_is_reported(world: World) -> None:
    queue = world.queue(token="nobody asked")
    raises(AuthError, "Invalid token", lambda: queue.add("x"))


@scenario("tls")
def works_over_tls(world: World) -> None:
    queue = world.queue()
    job = queue.add("secret", {"body": "x" * 200_000})
    world.worker(queue, lambda job: len(job.data["body"]))

    assert 200_000 == queue.wait_for_job(job.id, 10_000)


@scenario("tls")
def refuses_a_certificate_of_unknown_origin(world: World) -> None:
    queue = world.queue(tls=True)
    raises(ConnectionClosedError, "TLS handshake failed", lambda: queue.add("x"))


@scenario("tls")
def trusts_blindly_if_told_so(world: World) -> None:
    queue = world.queue(tls={"verify": False}, command_timeout=1)
    until(queue.ping)  # the first try may fail, see `tls_context` in run.py


@scenario("tls")
def plain_text_gets_no_answer_from_a_tls_port(world: World) -> None:
    address = {**world.address, "tls": None}
    with Queue("plain", **address, command_timeout=5) as queue:
        raises(ConnectionClosedError, "", lambda: queue.add("x"))
    assert world.queue().ping() is True
