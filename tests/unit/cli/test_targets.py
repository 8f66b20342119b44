import pytest

from bunqueue.cli.targets import flat, is_handler, override, resolve, workers_of
from bunqueue.cli.usage import UsageError
from bunqueue.client.simple.app import Bunqueue
from bunqueue.client.worker import Worker
from bunqueue.client.worker_group import WorkerGroup
from bunqueue.errors import BunqueueError


def handler(job):
    return job


def worker():
    return Worker("emails", handler, autorun=False)


def both():
    return [worker(), WorkerGroup([worker()])]


class Box:
    """Handlers may stand inside a class."""

    handler = staticmethod(handler)


HERE = __name__


def test_a_handler_makes_a_worker_per_queue():
    made = workers_of(f"{HERE}:handler", ["a", "b"], {"concurrency": 7}, {"autorun": False}, {})

    assert [("a", 7), ("b", 7)] == [(one.queue, one.concurrency) for one in made]


def test_a_factory_is_called_and_its_groups_are_unpacked():
    assert 2 == len(workers_of(f"{HERE}:both", [], {}, {}, {}))


def test_the_attribute_may_be_dotted():
    assert resolve(f"{HERE}:Box.handler") is handler


def test_a_handler_takes_something_and_a_factory_nothing():
    assert (True, False, False) == (is_handler(handler), is_handler(both), is_handler(worker()))


def test_a_handler_without_a_queue_is_refused():
    with pytest.raises(UsageError, match="name its queues with -q"):
        workers_of(f"{HERE}:handler", [], {}, {}, {})


@pytest.mark.parametrize("target", ["handler", ":handler", "module:", "list"])
def test_a_target_of_another_form_is_refused(target):
    with pytest.raises(UsageError, match="neither an action nor of the form module:attr"):
        resolve(target)


def test_a_missing_module_or_attribute_is_named():
    with pytest.raises(BunqueueError, match="cannot import nowhere"):
        resolve("nowhere:handler")
    with pytest.raises(BunqueueError, match="has no nothing"):
        resolve(f"{HERE}:nothing")


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="is a int, not a worker or a handler"):
        list(flat("module:number", 7))


def test_options_win_over_a_worker_that_has_not_started():
    one = worker()

    override("module:worker", one, {"concurrency": 9, "batch_size": 5_000})

    assert (9, 1_000) == (one.concurrency, one.batch_size)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("name", "ann", "ann"),
        ("executor", "thread", "thread"),
        ("poll_timeout_ms", 70, 70),
        ("lock_ttl_ms", 9_000, 9_000),
        ("heartbeat_interval_s", 2.5, 2.5),
    ],
)
def test_every_option_of_the_command_line_can_be_changed(option, value, expected):
    one = worker()

    override("module:worker", one, {option: value})

    assert expected == getattr(one, option)


def test_the_address_of_the_command_line_wins_over_that_of_the_module():
    one = Worker("emails", handler, autorun=False, url="bunqueue://:old@there:7000")

    override("module:worker", one, {"host": "localhost", "token": "new"})

    connection = one.pull_connection
    assert ("localhost", 7000, "new") == (connection.host, connection.port, connection.token)


def test_a_bunqueue_goes_to_the_address_of_the_command_line_as_a_whole():
    app = Bunqueue("emails", processor=handler, autorun=False, url="bunqueue://:old@there:7000")

    override("module:app", app, {"host": "localhost", "token": "new", "prefix_key": "a:"})

    here = ("localhost", 7000, "new")
    for connection in (app.queue.connection, app.worker.pull_connection):
        assert here == (connection.host, connection.port, connection.token)
    assert ("a:emails", "a:emails") == (app.queue.queue_key, app.worker.queue_key)


def test_a_bunqueue_whose_address_stays_keeps_its_connection():
    app = Bunqueue("emails", processor=handler, autorun=False)
    before = app.queue.connection

    override("module:app", app, {"concurrency": 9})

    assert 9 == app.worker.concurrency
    assert before is app.queue.connection


def test_a_started_worker_keeps_its_options(monkeypatch):
    one = worker()
    monkeypatch.setattr(one, "is_started", True)

    with pytest.raises(UsageError, match="has started already"):
        override("module:worker", one, {"concurrency": 9})
    override("module:worker", one, {})


def test_a_value_that_a_worker_refuses_is_bad_usage():
    with pytest.raises(UsageError, match="concurrency must be >= 1"):
        workers_of(f"{HERE}:handler", ["a"], {"concurrency": 0}, {"autorun": False}, {})
