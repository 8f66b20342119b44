"""Scenarios: jobs that wait for other jobs.

The client makes a tree bottom up: each child is pushed with the parent "pending", and linked by
`UpdateParent` once the parent has an id. 2.9.5 takes "pending" for an id and refuses.
"""

from __future__ import annotations

from typing import Any

from scenario import World, fail, raises, scenario, until

from bunqueue import CommandError, FlowNode, FlowProducer, Queue

NO_PENDING = "Parent job not found: pending"


def _tree(queue: Queue) -> dict[str, Any]:
    def node(name: str, *children: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": name,
            "queueName": queue.name,
            "data": {"node": name},
            "children": list(children),
        }

    return node("root", node("left", node("leaf")), node("right"))


def _add(flows: FlowProducer, tree: dict[str, Any]) -> FlowNode | None:
    """Add a tree; None if the server does not know what "pending" means."""
    try:
        return flows.add(tree)
    except CommandError as error:
        if str(error) != NO_PENDING:
            raise
        return None


def _step(queue: Queue, name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "queueName": queue.name, "data": {"step": name}, "opts": options}


@scenario()
def adds_a_tree_whose_leaves_run_first(world: World) -> None:
    """2.9.5 refuses it, and the client takes back what it had pushed; both are accepted."""
    queue, flows = world.queue(), world.flows()
    root = _add(flows, _tree(queue))
    if root is None:
        assert 0 == queue.count()
        return
    left, right = root.children
    (leaf,) = left.children
    assert ["waiting-children", "waiting-children", "waiting", "waiting"] == [
        queue.get_state(node.job.id) for node in (root, left, leaf, right)
    ]
    assert 2 == queue.get_waiting_children_count()
    order: list[str] = []

    def handler(job) -> str:  # type: ignore[no-untyped-def]
        order.append(job.data["node"])
        return f"{job.data['node']}: {sorted(job.get_children_values().values())}"

    world.worker(queue, handler)

    result = queue.wait_for_job(root.job.id, 10_000)
    assert "root: [\"left: ['leaf: []']\", 'right: []']" == result
    assert order.index("leaf") < order.index("left") < order.index("root")
    assert order.index("right") < order.index("root")


@scenario()
def a_tree_can_be_read_back(world: World) -> None:
    """2.9.5 refuses the tree; both are accepted."""
    queue, flows = world.queue(), world.flows()
    root = _add(flows, _tree(queue))
    if root is None:
        return

    read = flows.get_flow(root.job.id)

    assert "root" == read.job.data["node"]
    assert ["left", "right"] == [child.job.data["node"] for child in read.children]
    assert ["leaf"] == [child.job.data["node"] for child in read.children[0].children]
    assert root.job.id == read.children[0].job.parent_id
    assert root.job.id == read.children[0].job.data["__parentId"]
    assert queue.name == read.children[0].job.data["__parentQueue"]
    assert [child.job.id for child in read.children] == read.job.children_ids
    assert [] == flows.get_flow(root.job.id, depth=0).children
    assert flows.get_flow("no-such-job") is None


@scenario()
def adds_trees_in_bulk(world: World) -> None:
    """2.9.5 refuses them, and nothing is left behind; both are accepted."""
    queue, flows = world.queue(), world.flows()
    try:
        roots = flows.add_bulk([_tree(queue), _tree(queue)])
    except CommandError as error:
        if str(error) != NO_PENDING:
            raise
        assert 0 == queue.count()
        return

    assert 2 == len({root.job.id for root in roots})
    assert (4, 4) == (queue.get_waiting_children_count(), queue.count())


@scenario()
def a_tree_takes_the_defaults_of_its_queues(world: World) -> None:
    queue = world.queue()
    root = {"name": "root", "queueName": queue.name, "opts": {"priority": 7}}

    node = world.flows().add(root, {"queues_options": {queue.name: {"attempts": 9, "priority": 1}}})

    read = queue.get_job(node.job.id)
    assert (9, 7) == (read.max_attempts, read.priority)


@scenario()
def a_tree_that_cannot_be_added_leaves_nothing(world: World) -> None:
    queue = world.queue()
    tree = _tree(queue)
    tree["opts"] = {"priority": 10_000_000}

    raises(CommandError, "", lambda: world.flows().add(tree))

    assert 0 == queue.count()
    assert 0 == queue.get_waiting_children_count()


@scenario()
def a_chain_runs_step_by_step(world: World) -> None:
    queue = world.queue()
    ids = world.flows().add_chain([_step(queue, name) for name in ("first", "second", "third")])
    order: list[str] = []
    assert ["waiting", "waiting-children", "waiting-children"] == [
        queue.get_state(job_id) for job_id in ids
    ]
    assert [ids[0]] == queue.get_job(ids[1]).depends_on
    assert ids[0] == queue.get_job(ids[1]).data["__flowParentId"]

    world.worker(queue, lambda job: order.append(job.data["step"]), concurrency=3)
    queue.wait_for_job(ids[2], 10_000)

    assert ["first", "second", "third"] == order


@scenario()
def a_chain_stops_at_a_failure(world: World) -> None:
    queue = world.queue()
    steps = [_step(queue, "first", attempts=1), _step(queue, "second")]
    ids = world.flows().add_chain(steps)
    world.worker(queue, fail("broken"))

    until(lambda: queue.get_state(ids[0]) == "failed")

    assert "waiting-children" == queue.get_state(ids[1])


@scenario()
def a_chain_that_cannot_be_added_leaves_nothing(world: World) -> None:
    queue = world.queue()
    steps = [_step(queue, "first"), _step(queue, "second", priority=10_000_000)]

    raises(CommandError, "priority must be at most", lambda: world.flows().add_chain(steps))

    assert {0} == set(queue.get_job_counts().values())


@scenario()
def many_jobs_fan_in_to_one(world: World) -> None:
    queue, last = world.queue(), world.queue()
    steps = [_step(queue, f"part {number}") for number in range(5)]
    added = world.flows().add_bulk_then(steps, _step(last, "sum"))
    final_id = added["final_id"]
    assert "waiting-children" == last.get_state(final_id)
    assert added["parallel_ids"] == last.get_job(final_id).data["__flowParentIds"]

    world.worker(last, lambda job: sum(job.get_children_values().values()))
    world.worker(queue, lambda job: int(job.data["step"].split()[1]), concurrency=2)

    assert 10 == last.wait_for_job(final_id, 10_000)
    names = {f"{queue.name}:{job_id}" for job_id in added["parallel_ids"]}
    assert names == set(last.get_children_values(final_id))
    assert final_id == queue.get_job(added["parallel_ids"][0]).parent_id


def _one_that_fails(world: World, **policy: bool) -> tuple[Queue, str, str]:
    """Fan a job that succeeds and one that fails in to a last one: (queue, failed id, last id)."""
    queue = world.queue()
    steps = [
        _step(queue, "good", attempts=1),
        _step(queue, "bad", attempts=1, **policy),
    ]
    added = world.flows().add_bulk_then(steps, _step(queue, "last"))

    def handler(job) -> str:  # type: ignore[no-untyped-def]
        if job.data["step"] == "bad":
            raise RuntimeError("broken")
        return job.data["step"]

    world.worker(queue, handler)
    bad_id = added["parallel_ids"][1]
    until(lambda: queue.get_state(bad_id) == "failed")
    return queue, bad_id, added["final_id"]


@scenario()
def a_failed_child_holds_its_parent(world: World) -> None:
    """2.9.5 does not detach a child that has failed; both are accepted."""
    queue, bad_id, final_id = _one_that_fails(world)
    assert "waiting-children" == queue.get_state(final_id)

    removed = queue.connection.call({"cmd": "RemoveChildDependency", "id": bad_id})["removed"]

    if removed:
        assert "last" == queue.wait_for_job(final_id, 10_000)
    else:
        assert "waiting-children" == queue.get_state(final_id)


@scenario()
def a_queued_child_can_be_detached(world: World) -> None:
    queue = world.queue()
    steps = [_step(queue, "now"), _step(queue, "later", delay=60_000)]
    added = world.flows().add_bulk_then(steps, _step(queue, "last"))
    world.worker(queue, lambda job: job.data["step"])
    queue.wait_for_job(added["parallel_ids"][0], 10_000)
    assert "waiting-children" == queue.get_state(added["final_id"])

    queue.remove_child_dependency(added["parallel_ids"][1])

    assert "last" == queue.wait_for_job(added["final_id"], 10_000)
    assert "delayed" == queue.get_state(added["parallel_ids"][1])


@scenario()
def a_failed_child_can_fail_its_parent(world: World) -> None:
    queue, bad_id, final_id = _one_that_fails(world, fail_parent_on_failure=True)

    until(lambda: queue.get_state(final_id) == "failed")

    entries = queue.connection.call({"cmd": "Dlq", "queue": queue.name})["entries"]
    (entry,) = (entry for entry in entries if entry["job"]["id"] == final_id)
    assert ("unknown", f"Child job {bad_id} failed: broken") == (entry["reason"], entry["error"])


@scenario()
def a_failed_child_can_be_done_without(world: World) -> None:
    queue, _, final_id = _one_that_fails(world, remove_dependency_on_failure=True)

    assert "last" == queue.wait_for_job(final_id, 10_000)
    assert {} == queue.get_failed_children_values(final_id)


@scenario()
def a_failed_child_can_be_ignored(world: World) -> None:
    """2.9.5 lists no failures of children that were linked one by one; both are accepted."""
    queue, bad_id, final_id = _one_that_fails(world, ignore_dependency_on_failure=True)

    assert "last" == queue.wait_for_job(final_id, 10_000)
    ignored = queue.get_ignored_children_failures(final_id)
    assert ignored in ({f"{queue.name}:{bad_id}": "broken"}, {})


@scenario()
def a_parent_can_go_on_after_a_failure(world: World) -> None:
    """2.9.5 lists no failures of children that were linked one by one; both are accepted."""
    queue, bad_id, final_id = _one_that_fails(world, continue_parent_on_failure=True)

    assert "last" == queue.wait_for_job(final_id, 10_000)
    failed = queue.get_failed_children_values(final_id)
    assert failed in ({f"{queue.name}:{bad_id}": "broken"}, {})


@scenario()
def unprocessed_children_can_be_removed(world: World) -> None:
    """2.9.5 then leaves the parent waiting forever; both are accepted."""
    queue = world.queue()
    added = world.flows().add_bulk_then([_step(queue, "a"), _step(queue, "b")], _step(queue, "z"))

    queue.remove_unprocessed_children(added["final_id"])

    assert ["unknown", "unknown"] == [queue.get_state(i) for i in added["parallel_ids"]]
    assert queue.get_state(added["final_id"]) in ("waiting", "waiting-children")


@scenario()
def a_job_waits_for_the_jobs_it_depends_on(world: World) -> None:
    queue = world.queue()
    first, second = queue.add("a"), queue.add("b", delay=60_000)
    last = queue.add("c", depends_on=[first.id, second.id])
    world.worker(queue, lambda _job: "done")
    queue.wait_for_job(first.id, 10_000)

    assert "waiting-children" == last.get_state()
    second.promote()

    assert "done" == queue.wait_for_job(last.id, 10_000)
    raises(
        CommandError,
        "Dependency job not found: no-such-job",
        lambda: queue.add("d", depends_on=["no-such-job"]),
    )
