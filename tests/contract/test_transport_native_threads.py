"""Everything works in a native thread too, also beside greenlets that use the same things."""

from __future__ import annotations

from typing import Any

from bunqueue import Bunqueue, FlowProducer, QueueEvents
from tests.support.native import hub_after
from tests.support.transports import Transport, tcp_broker, transport

__all__ = ["tcp_broker", "transport"]

WAIT_S = 10.0
WAIT_MS = WAIT_S * 1000


def use_everything(transport: Transport) -> None:
    """Use one of each."""
    queue = transport.queue()
    worker = transport.worker(progressing)
    worker.wait_until_ready(WAIT_S)
    assert 7 == queue.wait_for_job(queue.add("x", 7).id, WAIT_MS)
    queue.add_bulk([{"name": "x", "data": number} for number in range(3)])
    with QueueEvents(transport.queue_name, **transport.options) as events:
        events.on("completed", lambda _event: None)
        events.wait_until_ready(WAIT_S)
        later = queue.add("x", 8, delay=30)
        assert 8 == queue.wait_for_job(later.id, WAIT_MS, queue_events=events)
    child = {"name": "child", "queueName": transport.queue_name}
    with FlowProducer(**transport.options) as flows:
        node = flows.add({"name": "parent", "queueName": transport.queue_name, "children": [child]})
    queue.wait_for_job(node.job.id, WAIT_MS)
    cancel_one(transport)
    app = Bunqueue(f"{transport.queue_name}-app", processor=progressing, **transport.options)
    assert {"n": 1} == app.queue.wait_for_job(app.add("x", {"n": 1}).id, WAIT_MS)
    app.close()
    worker.pause()
    worker.resume()
    assert worker.close(WAIT_S)
    assert 7 == len(list(queue.iter_jobs()))
    queue.close()


def progressing(job: Any) -> Any:
    job.update_progress(50)
    job.log("half of it")
    return job.data


def cancel_one(transport: Transport) -> None:
    """Call a job off while it runs, in a worker that acknowledges in batches."""
    name = f"{transport.queue_name}-long"
    worker = transport.worker(
        lambda job: job.signal.wait(WAIT_S), name, ack_batch={"max_size": 5}, autorun=False
    )
    worker.on("active", lambda job: worker.cancel_job(job.id, "enough"))
    worker.start()
    queue = transport.queue(name)
    assert queue.wait_for_job(queue.add("long").id, WAIT_MS) is True
    worker.close(WAIT_S)


def test_a_native_thread_needs_no_hub(transport: Transport) -> None:
    use_everything(transport)  # here first, so that what is shared belongs to the main thread
    transport.queue_name += "-native"

    assert None is hub_after(lambda: use_everything(transport))
