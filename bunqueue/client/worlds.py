"""Worlds: whose sockets, locks and tasks a piece of client code runs on.

The client is written once and must wait in the way of whoever calls it. There are two ways to
wait. A plain process has threads, and a wait blocks one of them. A process patched by gevent has
greenlets on a hub, and a wait switches to the next greenlet; but such a process may still have
native threads (a thread pool, the lease keeper), and a greenlet's lock or socket used from there
breaks, because each belongs to the hub of its own thread. So code that waits takes a ``World``:

* ``standard()`` uses the standard names, which are native in a plain process and cooperative in a
  patched one. This is the world of application code.
* ``native()`` uses the original primitives. In a plain process it is the standard world.
  So it is where gevent has patched only sockets or only threads, or has patched after the client
  was used: nothing is mixed, everything works, and waits block; that is told once.
* ``cooperative()`` uses gevent's, for the lease keeper's own hub. In a patched process it is the
  standard world again, since gevent always serves the hub of the calling thread.

``current()`` picks between the first two by looking at the calling thread.

Within one world a plain lock is enough to wake somebody. Between worlds (an answer of the embedded
broker's native thread for a greenlet, a lost lease told by the keeper) it is not: that takes a
``Gate``, which any native thread may open.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol, cast
from weakref import WeakSet

now = time.monotonic

PARTS: Final = ("socket", "threading")  # what gevent must have patched for waits to be cooperative

log = logging.getLogger("bunqueue")

Connect = Callable[[str, int, float | None], socket.socket]


class Lock(Protocol):
    """What ``threading.Lock()`` returns, in any world."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class Gate(Protocol):
    """Lets one waiter through per opening; openings while nobody waits count as one."""

    def open(self) -> None:
        """Let the waiter through. Callable from any native thread."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for an opening and use it up; False when the time is over first."""


class Task(Protocol):
    """A running thread or greenlet."""

    def join(self, timeout: float | None = None) -> None: ...


class World:
    """One way to wait: sockets, locks, gates and tasks that belong together.

    Attributes:
        name: ``"standard"``, ``"native"`` or ``"cooperative"``.
        gate: Makes a gate that any native thread may open.
        local_gate: Makes a cheaper one, opened from within this world and thread only.
        poller: Makes an object that polls descriptors without waiting.
        is_native: A wait here blocks a whole native thread.
        kills: What may be thrown into a waiting caller at a switch without any byte being lost.
    """

    def __init__(
        self,
        name: str,
        *,
        lock: Callable[[], Lock],
        gate: Callable[[], Gate],
        local_gate: Callable[[], Gate],
        connect: Connect,
        spawn: Callable[[Callable[[], object], str], Task],
        sleep: Callable[[float], None],
        poller: Callable[[], Any],
        is_native: bool,
        kills: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.name = name
        self.lock = lock
        self.gate = gate
        self.local_gate = local_gate
        self.connect = connect
        self.spawn = spawn
        self.sleep = sleep
        self.poller = poller
        self.is_native = is_native
        self.kills = kills


class LockGate:
    """A gate made of one lock, for waiters and openers of one world."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Lock) -> None:
        lock.acquire()
        self._lock = lock

    def open(self) -> None:
        """Let the waiter through."""
        if not self._lock.locked():
            return  # is open already; to ask is cheaper than to be refused
        try:
            self._lock.release()
        except RuntimeError:
            return  # somebody else was faster

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for an opening; False when the time is over first."""
        if timeout_s is None:
            return self._lock.acquire()
        if not 0 <= timeout_s <= threading.TIMEOUT_MAX:
            timeout_s = max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
        return self._lock.acquire(True, timeout_s)


class HubGate:
    """A gate for a greenlet, opened from any native thread through its hub's async watcher."""

    __slots__ = ("_event", "_home", "_is_open", "_watcher")

    def __init__(self) -> None:
        import gevent
        from gevent.event import Event

        self._event: Any = Event()
        self._is_open = False
        self._home = _thread_ident()
        self._watcher: Any = gevent.get_hub().loop.async_()
        self._watcher.start(self._event.set)

    def open(self) -> None:
        """Let the waiter through."""
        if self._is_open:
            return  # the waiter has been told, and will look when it comes back
        self._is_open = True
        if _thread_ident() == self._home:
            self._event.set()
        else:
            self._watcher.send_ignoring_arg(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for an opening; False when the time is over first."""
        if not self._is_open:
            self._event.wait(timeout_s)
        opened = self._is_open
        self._is_open = False
        self._event.clear()
        return opened

    def __del__(self) -> None:
        # The last to know it may be another thread, which told its waiter too late. A watcher is
        # taken off its loop in the loop's own thread only, or the loop may be reading it.
        if _thread_ident() == self._home:
            _shut(self._watcher)
        else:
            try:
                self._watcher.loop.run_callback_threadsafe(_shut, self._watcher)
            except ValueError:
                return  # the loop is destroyed, and all its watchers with it


def _shut(watcher: Any) -> None:
    watcher.stop()
    watcher.close()


class Latch:
    """A flag that is set once, and that any thread or greenlet of any world may wait for."""

    __slots__ = ("_gates", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gates: list[Gate] = []

    def is_set(self) -> bool:
        """Tell whether the flag is up."""
        return self._is_set

    def set(self) -> None:
        """Put the flag up and wake all waiters."""
        self._is_set = True
        for gate in self._gates.copy():
            gate.open()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is up; False when the time is over first."""
        if self._is_set:
            return True
        gate = current().gate()
        # Register, then look again: a setter that missed the gate has set the flag before.
        self._gates.append(gate)
        try:
            if not self._is_set:
                gate.wait(timeout_s)
        finally:
            self._gates.remove(gate)
        return self._is_set


def is_patched() -> bool:
    """Tell whether gevent has replaced both sockets and threads."""
    return _patched_parts() == PARTS


def _patched_parts() -> tuple[str, ...]:
    # Another thread may be in the middle of importing gevent, for the lease keeper: not patched.
    asked = getattr(sys.modules.get("gevent.monkey"), "is_module_patched", None)
    return () if asked is None else tuple(part for part in PARTS if asked(part))


def standard() -> World:
    """Return the world of the standard names."""
    global _standard
    if _standard is None:
        _standard = _cooperative_world("standard") if is_patched() else _native_world("standard")
    return _standard


def native() -> World:
    """Return the world of the original primitives."""
    global _native
    if standard().is_native:
        return standard()
    if _native is None:
        _native = _native_world("native")
    return _native


def native_lock() -> Lock:
    """Return a lock of the original kind, for what all worlds share and nobody waits in.

    It leaves open which world is the standard one: the process may still be patched.
    """
    lock: Lock = _original("_thread", "allocate_lock")()
    return lock


def why_native() -> str | None:
    """Return why waits block though gevent has patched something; None if that is as it should."""
    parts = _patched_parts()
    if not parts or not standard().is_native:
        return None
    if parts == PARTS:
        return "gevent patched this process after bunqueue was used: patch before anything else"
    missing = " and ".join(part for part in PARTS if part not in parts)
    return f"gevent has not patched {missing} in this process: use monkey.patch_all()"


def tell_why_native() -> None:
    """Warn, once, that waits block the hub; called where a wait becomes likely."""
    global _has_told
    why = None if _has_told else why_native()
    if why is not None:
        _has_told = True
        log.warning("calls block the whole hub, since %s", why)


def decide_anew() -> None:
    """In a forked child: whoever forked may patch it now."""
    global _standard, _native, _cooperative, _has_told
    _standard = _native = _cooperative = None
    _has_told = False


def cooperative() -> World:
    """Return gevent's world, for a native thread with a hub of its own."""
    global _cooperative
    if not standard().is_native:
        return standard()
    if _cooperative is None:
        _cooperative = _cooperative_world("cooperative")
    return _cooperative


def current() -> World:
    """Return the world of the calling thread."""
    world = _standard or standard()
    return world if world.is_native or is_main_thread() else native()


def keep_hub(hub: Any) -> None:
    """Leave a hub to its native thread to the very end; see ``_leave``."""
    _kept_hubs.add(hub)


def is_main_thread() -> bool:
    """Tell whether the caller runs in the process's main native thread, as any of its greenlets."""
    if standard().is_native:
        return threading.current_thread() is threading.main_thread()
    return _thread_ident() == _main_ident()


_get_ident: Callable[[], int] | None = None
_has_told = False
_kept_hubs: "WeakSet[Any]" = WeakSet()
_standard: World | None = None
_native: World | None = None
_cooperative: World | None = None


def _original(module: str, name: str) -> Any:
    """Return ``module.name`` as Python made it."""
    get_original = getattr(sys.modules.get("gevent.monkey"), "get_original", None)
    if get_original is None:
        return getattr(import_module(module), name)
    return get_original(module, name)


def _thread_ident() -> int:
    """Return the native thread's identity, also where ``threading`` tells greenlets apart."""
    global _get_ident
    if _get_ident is None:
        _get_ident = _original("_thread", "get_ident")
    return int(_get_ident())


@cache
def _main_ident() -> int:
    """Return the main thread's identity as gevent knows it; a fork leaves it as it is."""
    from gevent.hub import MAIN_THREAD_IDENT

    return int(MAIN_THREAD_IDENT)


def _leave_after(run: Callable[[], object]) -> None:
    try:
        run()
    finally:
        _leave()


def _leave() -> None:
    """Destroy the hub that others' code may have made in this native thread, which is to end.

    A handler that uses gevent in a thread gets a hub for it, in a patched process even by logging.
    The hub would outlive the thread, and with it the descriptors of its loop.
    """
    module = sys.modules.get("gevent._hub_local")
    hub = None if module is None else module.get_hub_if_exists()
    if hub is not None and hub not in _kept_hubs:
        hub.destroy(destroy_loop=True)


def _cooperative_world(name: str) -> World:
    import gevent
    import gevent.socket
    import gevent.thread

    def spawn(run: Callable[[], object], name: str) -> Task:
        greenlet = gevent.spawn(run)
        greenlet.name = name
        return cast(Task, greenlet)

    return World(
        name,
        lock=gevent.thread.allocate_lock,
        gate=HubGate,
        local_gate=lambda: LockGate(gevent.thread.allocate_lock()),
        connect=lambda host, port, timeout_s: gevent.socket.create_connection(
            (host, port), timeout_s
        ),
        spawn=spawn,
        sleep=gevent.sleep,
        poller=_original("select", "poll"),
        is_native=False,
        kills=(gevent.GreenletExit, gevent.Timeout),
    )


class _NativeTask:
    """A native thread of a patched process, started past gevent's thread class."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._ended = Latch()
        _original("_thread", "start_new_thread")(self._main, ())

    def _main(self) -> None:
        try:
            _leave_after(self._run)
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


def _native_world(name: str) -> World:
    lock = _original("_thread", "allocate_lock")
    return World(
        name,
        lock=lock,
        gate=lambda: LockGate(lock()),
        local_gate=lambda: LockGate(lock()),
        connect=_connect_natively,
        spawn=_spawn_natively,
        sleep=_original("time", "sleep"),
        poller=_original("select", "poll"),
        is_native=True,
    )


def _spawn_natively(run: Callable[[], object], name: str) -> Task:
    if "threading" in _patched_parts():
        return _NativeTask(run)
    thread = threading.Thread(target=_leave_after, args=(run,), name=name, daemon=True)
    thread.start()
    return thread


def _connect_natively(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """Do what ``socket.create_connection`` does, past any names of gevent's."""
    tell_why_native()
    failure: OSError | None = None
    addresses = _original("socket", "getaddrinfo")(host, port, 0, socket.SOCK_STREAM)
    for family, kind, protocol, _name, address in addresses:
        sock: socket.socket = _original("socket", "socket")(family, kind, protocol)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except OSError as error:
            failure = error
            sock.close()
        else:
            return sock
    raise failure or OSError(f"no address for {host}")
