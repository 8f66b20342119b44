"""The server from start to stop.

Starting: settings are checked already; the file is opened and read, then both ports are bound, and
only then is anyone told. Whatever fails before that is one line and exit status 1.

Stopping (engine.md 8): a first SIGTERM or SIGINT stops accepting and handing out; ACK, FAIL,
heartbeats and pushes are served until no job is active or the time is up; what is still active goes
back uncharged; everything is written, answers leave, connections end with FIN. A second signal ends
the process at once. If nothing can be written any more, the same happens without the waiting, and
the exit status is 1.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.util import format_run_info

from bunqueue import __version__, logs
from bunqueue.broker import Broker, EngineSettings, Tokens, open_storage
from bunqueue.commands.targets import AllowedTargets
from bunqueue.config import Settings
from bunqueue.errors import BunqueueError, ConfigError
from bunqueue.server import memory, risks, tls
from bunqueue.server.app import App
from bunqueue.server.host import ServerHost
from bunqueue.server.http import HttpServer
from bunqueue.server.loop import HubAlarm, HubLoop, NoGate, hub_lock
from bunqueue.server.tcp import TcpServer
from bunqueue.server.webhooks import Deliveries

log = logging.getLogger(__name__)

ACTIVE_LOOK_S: Final = 0.02  # time between two looks at the active jobs while stopping
SAME_SIGNAL_S: Final = 0.2  # timeout(1), shells and wrappers pass on what we have got ourselves
GOODBYE_S_MAX: Final = 6.0  # for connections to send what they owe: a link's limit and a little

# performance.md 5.6: with a million jobs the default thresholds cost 27 % and pauses of 357 ms. A
# pause takes 0.3 us per object that is younger, so it is short if it comes often, which costs no
# more: each object is looked at twice before it counts as old. Those that are old are looked at by
# ``memory.tidy`` only, when that is quickly done.
GC_THRESHOLDS: Final = (2_500, 2, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Started:
    """What is told when the server is up; for the banner.

    Attributes:
        tcp: host and port of the job protocol.
        http: host and port of HTTP, or the path of its Unix socket.
        data_path: The file that keeps the jobs, None for memory only.
        has_tls: Both ports speak TLS.
        has_auth: A token is needed.
        version: The package's version.
        pid: The process.
    """

    tcp: tuple[str, int]
    http: tuple[str, int] | str
    data_path: str | None
    has_tls: bool
    has_auth: bool
    version: str
    pid: int


class Server:
    """Broker and ports of one process; what HTTP routes may use.

    Attributes:
        broker, tcp, http, deliveries: Its parts.
        is_draining: A stop has begun.
    """

    def __init__(self, settings: Settings) -> None:
        """Open the file and recover what it holds.

        Raises:
            BunqueueError: It cannot be used, or a setting cannot work.
        """
        context = self._tls = tls.context_from(settings)
        self.is_draining = False
        self._settings = settings
        self._stop = Event()
        self._status = 0
        storage = open_storage(settings.file_path, HubLoop())
        storage.on_fatal = self._give_up
        self.broker = Broker(
            storage,
            EngineSettings(
                max_completed_jobs=settings.max_completed_jobs,
                completed_retention_ms=settings.completed_retention_ms,
                worker_timeout_ms=settings.worker_timeout_ms,
                orphaned_dependency=settings.orphaned_dependency,
                keeps_names_in_data=settings.keeps_names_in_data,
            ),
            alarm=HubAlarm(),
            gate=NoGate(),
            locks=hub_lock,
            tokens=Tokens(settings.auth_tokens),
        )
        self.broker.engine.on_tidy = self._tidy
        targets = AllowedTargets(settings.webhook_targets)
        self.broker.host = ServerHost(
            self.broker,
            self.connections,
            settings,
            targets,
            self.sizes,
        )
        self.deliveries = Deliveries(
            self.broker,
            targets,
            tries_max=settings.webhook_tries_max,
            retry_delay_ms=settings.webhook_retry_delay_ms,
        )
        self.tcp = TcpServer(self.broker, settings, context)
        self.http = HttpServer(App(self, settings.cors_origins), settings, context)

    def _tidy(self, has_shrunk: bool) -> None:
        engine = self.broker.engine
        totals = engine.totals
        moves = totals.pushed + totals.pulled + totals.completed + totals.failed
        looked_at = len(engine.index) + len(engine.graph.consumers)
        memory.tidy(has_shrunk, looked_at, moves, engine.works.unfinished)

    def connections(self) -> dict[str, int]:
        """Count the open connections by kind."""
        return {"tcp": len(self.tcp.links), "ws": 0, "sse": 0}

    def sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return name -> entries of what server and storage hold, and name -> bytes."""
        entries = {"http_connections": self.http.connections()}
        buffers: dict[str, int] = {}
        for part in (self.broker.storage, self.tcp, self.deliveries):
            more_entries, more_buffers = part.sizes()
            entries |= more_entries
            buffers |= more_buffers
        return entries, buffers

    def start(self) -> Started:
        """Bind both ports and begin the timed work.

        Raises:
            BunqueueError: An address cannot be used.
        """
        settings = self._settings
        _bind(self.tcp, "TCP_PORT", settings.host, settings.tcp_port)
        _bind(self.http, "HTTP_PORT", settings.host, settings.http_port)
        gevent.spawn(self.broker.ticker.run)
        return Started(
            tcp=self.tcp.address[:2],
            http=self.http.socket_path or self.http.address[:2],
            data_path=settings.file_path,
            has_tls=settings.has_tls,
            has_auth=bool(settings.auth_tokens),
            version=__version__,
            pid=os.getpid(),
        )

    def stop(self) -> None:
        """Let ``run`` stop in good order."""
        self._stop.set()

    def reload(self) -> None:
        """Read certificate and key again, for connections made from now on."""
        cert_file, key_file = self._settings.tls_cert_file, self._settings.tls_key_file
        if self._tls is None or cert_file is None or key_file is None:
            log.info("nothing to reload: TLS is off")
            return
        try:
            tls.context_from(self._settings)  # a pair that fails would leave the one in use broken
            tls.load_certificate(self._tls, cert_file, key_file)
        except ConfigError as error:
            log.error("the old certificate stays: %s", error)
        else:
            log.info("certificate reloaded file=%s", cert_file)

    def run(self) -> int:
        """Serve until told to stop; return the exit status. Waits."""
        self._stop.wait()
        self.is_draining = True
        log.info("stopping active=%d", self.broker.engine.active_count())
        self.tcp.close()
        self.broker.engine.drain_begin()
        if self._status == 0:
            self._await_active()
        self.deliveries.close()  # before the storage, which keeps their counts
        try:
            self.broker.close()
        except BunqueueError as error:
            log.error("not everything could be written: %s", error)
            self._status = 1
        self._say_goodbye()
        self.http.stop(timeout=0)
        log.info("stopped")
        return self._status

    def _give_up(self, why: str) -> None:
        """Stop because nothing can be written any more."""
        log.critical("stopping: nothing can be written any more: %s", why)
        self._status = 1
        self._stop.set()

    def _await_active(self) -> None:
        """Waits until no job is active and no long command under way.

        Not beyond the time that a stop may take, nor once the storage is lost.
        """
        engine = self.broker.engine
        with gevent.Timeout(self._settings.shutdown_timeout_ms / 1000, False):
            while (engine.active_count() or engine.works.unfinished) and self._status == 0:
                gevent.sleep(ACTIVE_LOOK_S)

    def _say_goodbye(self) -> None:
        """Waits, but not long, until every connection has sent what it owes and has ended."""
        self.tcp.finish()
        with gevent.Timeout(GOODBYE_S_MAX, False):
            while self.tcp.links:
                gevent.sleep(ACTIVE_LOOK_S)


def serve(settings: Settings, on_started: Callable[[Started], None] | None = None) -> int:
    """Run a server until a signal stops it; return the exit status. Waits.

    Args:
        settings: All of them, checked.
        on_started: Called once both ports listen.
    """
    logs.configure(settings.log_level, settings.log_format)
    try:
        _use_libev()
        server = Server(settings)
        _handle_signals(server)  # before anyone can connect and send one
        started = server.start()
    except BunqueueError as error:
        print(f"Failed to start server: {error}", file=sys.stderr)
        return 1
    _warn(settings)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    memory.map_long_pieces()
    if on_started is not None:
        on_started(started)
    log.info(
        "started tcp=%s http=%s pid=%d", _shown(started.tcp), _shown(started.http), started.pid
    )
    return server.run()


def _bind(server: Any, setting: str, host: str, port: int) -> None:
    try:
        server.start()
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"cannot listen on {host}:{port} ({setting}): {text}") from None


def _use_libev() -> None:
    """Refuse the libuv loop: a request costs 2 to 2.5 times as much there (performance.md 5.1)."""
    wanted = os.environ.get("GEVENT_LOOP", "")
    if "libuv" in wanted:
        log.warning("GEVENT_LOOP=%s is not used: libev serves at less than half the cost", wanted)
        gevent.config.loop = "libev-cext"
    if "libuv" in type(gevent.get_hub().loop).__module__:
        raise ConfigError("the event loop is libuv; run with GEVENT_LOOP=libev-cext")


def _warn(settings: Settings) -> None:
    if settings.file_path is None:
        log.warning("no data path: jobs live in memory only and end with this process")
    for _, text, cure in risks.risks(settings):
        log.warning("%s; %s", text, cure)


def _handle_signals(server: Server) -> None:
    """Stop on the first SIGTERM or SIGINT, end at once on the second; reload, show stacks."""
    # A handler itself must not wait; watchers bring the news to the hub.
    loop = gevent.get_hub().loop
    watcher, reload = loop.async_(), loop.async_()
    watcher.start(server.stop)
    reload.start(server.reload)
    received_s: list[float] = []

    def on_stop(number: int, _frame: object) -> None:
        now_s = time.monotonic()
        if not received_s:
            received_s.append(now_s)
            watcher.send()
        elif now_s - received_s[0] > SAME_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_stop)
    signal.signal(signal.SIGHUP, lambda _number, _frame: reload.send())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _show_stacks)


def _show_stacks(_number: int, _frame: object) -> None:
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    print("\n".join(format_run_info()), file=sys.stderr, flush=True)


def _shown(address: tuple[str, int] | str) -> str:
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"
