"""QueueGroup: the queues of one namespace, made, listed and controlled together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bunqueue.client.connecting import address_of
from bunqueue.client.queue import Queue
from bunqueue.client.worker import Worker

Outcome = TypeVar("Outcome")


class QueueGroup:
    """Queues whose names begin with ``namespace:`` on the broker.

    Args:
        namespace: What they have in common.
        **connection_options: ``host``, ``port``, ``token``, ``tls``, ``connection``, ``url``,
            ``embedded``, ``data_path`` and whatever else a ``Connection`` takes; its queues and
            workers share one.

    Attributes:
        namespace: As given.
        prefix: ``namespace + ":"``.
        connection: What everything goes through.
    """

    def __init__(self, namespace: str, **connection_options: Any) -> None:
        if not isinstance(namespace, str) or not namespace:
            raise ValueError("namespace must be a non-empty string")
        self.namespace = namespace
        self.prefix = f"{namespace}:"
        connection = connection_options.pop("connection", None)
        url = connection_options.pop("url", None)
        address = address_of(
            "group",  # only its connection is used
            prefix_key=self.prefix,
            connection={**(connection or {}), **connection_options}
            if connection is None or isinstance(connection, dict)
            else connection,
            url=url,
            given={},
        )
        self.connection = address.connection
        self._owns_connection = address.owns_connection
        self._queues: dict[str, Queue] = {}
        self._workers: list[Worker] = []

    def get_queue(self, name: str, **options: Any) -> Queue:
        """Return the queue of that name within the namespace, always the same object.

        Args:
            name: Without the prefix.
            **options: Of ``Queue``, for the first call with this name.
        """
        queue = self._queues.get(name)
        if queue is None:
            made = Queue(name, connection=self.connection, prefix_key=self.prefix, **options)
            queue = self._queues.setdefault(name, made)
        return queue

    def get_worker(self, name: str, processor: Any, **options: Any) -> Worker:
        """Return a new worker of that queue; it closes with the group.

        Args:
            name: Without the prefix.
            processor: Runs the jobs.
            **options: Of ``Worker``.
        """
        starts = options.pop("autorun", True)
        worker = Worker(
            name,
            processor,
            connection=self.connection,
            prefix_key=self.prefix,
            autorun=False,
            **options,
        )
        self._workers.append(worker)  # before its first job, which may close the group
        if starts:
            worker.start()
        return worker

    def list_queues(self) -> list[str]:
        """Return the names within the namespace: the broker's, and those made here. Waits."""
        told = self.connection.call({"cmd": "ListQueues"}).get("queues") or []
        keys = [str(one["name"] if isinstance(one, dict) else one) for one in told]
        names = {key.removeprefix(self.prefix) for key in keys if key.startswith(self.prefix)}
        return sorted(names | self._queues.keys())

    def pause_all(self) -> None:
        """Pause every queue of the namespace. Waits."""
        self._for_all(Queue.pause)

    def resume_all(self) -> None:
        """Resume every queue of the namespace. Waits."""
        self._for_all(Queue.resume)

    def drain_all(self) -> int:
        """Remove what waits in every queue of the namespace; return how many. Waits."""
        return sum(self._for_all(Queue.drain))

    def obliterate_all(self) -> None:
        """Remove every queue of the namespace with everything in it. Waits."""
        self._for_all(Queue.obliterate)

    def _for_all(self, operation: Callable[[Queue], Outcome]) -> list[Outcome]:
        """Do something with every queue; only after the last is the first error raised."""
        outcomes: list[Outcome] = []
        errors: list[Exception] = []
        for name in self.list_queues():
            try:
                outcomes.append(operation(self.get_queue(name)))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return outcomes

    def close(self) -> None:
        """Close its workers and queues, and its own connection. Waits; idempotent.

        A handler or listener of one of its workers cannot wait for that: it goes on beside it.
        """
        for worker in self._workers:
            worker.close(0)
        own = next((worker for worker in self._workers if worker.is_own_code()), None)
        if own is None:
            self._close()
        else:
            own.run_beside(self._close)

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()
        for queue in self._queues.values():
            queue.close()
        if self._owns_connection:
            self.connection.close()

    def __enter__(self) -> QueueGroup:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QueueGroup {self.namespace!r} on {self.connection!r}>"
