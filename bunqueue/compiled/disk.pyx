# cython: language_level=3, binding=False, boundscheck=True, wraparound=False
"""Rows of jobs packed for the writer's thread, and the thread: twin of ``storage/rows.images``.

An ordinary job goes the short way here; the rows of any other are made by the Python functions that
``take_rows`` was given, and packed value by value.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLong
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, strdup

from bunqueue.compiled.records cimport Delivery, Job  # noqa: F401

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "disk_thread.h" nogil:
    enum: TAG_NULL, TAG_INT, TAG_FLOAT, TAG_TEXT, TAG_BYTES, KIND_NONE, KIND_FULL, KIND_OTHER
    enum: MESSAGE_BYTES
    ctypedef struct disk_segment:
        unsigned char *bytes
        size_t size, room
        uint32_t rows
        int statement
    ctypedef struct disk_batch:
        uint64_t number
        int is_durable, segments_count
        disk_segment *segments
        int64_t *ranges
        size_t ranges_count
    ctypedef struct disk_dropped:
        int tag
        int64_t number
        char *text
        size_t text_size
        char *why
    ctypedef struct disk_answer:
        disk_answer *next
        uint64_t number
        int kind
        char *text
        disk_dropped *dropped
        size_t dropped_count
    ctypedef struct disk_statement:
        char *head
        int width, is_many
    ctypedef struct disk:
        char *path
        char *directory
        char *pragmas
        int busy_ms, event_fd, idle_ms, pages_idle, pages_max, pages_step
        int statements_count, removes_count, checkpoint_at
        disk_statement *statements
    disk *disk_new()
    int disk_start(disk *self)
    void disk_release(disk *self)
    void disk_submit(disk *self, disk_batch *batch)
    void disk_close(disk *self)
    disk_answer *disk_take_answers(disk *self, int *has_ended, char *ending)
    void disk_free_answer(disk_answer *answer)
    void disk_free_segments(disk_segment *segments, int count)
    void disk_free_batch(disk_batch *batch)
    int disk_sqlite_version()
    int disk_is_threadsafe()
    int disk_forks
    void disk_count_forks()
    int disk_read_event(disk *self)

SQLITE_ENTRY = "bunqueue_take_sqlite"  # what SQLite calls when it loads this module

cdef enum:
    NEW = 1
    STATE = 2
    BODY = 4
    REMOVED = 8
    FIRST_BYTES = 1000  # of a few rows: what malloc keeps at hand for the thread

# Where the statements of jobs stand among all, see `take_rows`.
cdef enum:
    REMOVE_JOBS
    REMOVE_STATES
    PLAIN
    FULL
    PLAIN_STATE
    FULL_STATE

# What rows.py knows.
cdef object NO_EXTRA, DEFAULT_OPTIONS, packed_options, full_row, full_state_row, has_moved
cdef object GONE, QUEUED, ADMITTED, PARKED
cdef dict WHICH = {}
cdef tuple STATEMENTS = ()


def take_rows(rows, statements):
    """Learn how unusual rows are made.

    Args:
        rows: Namespace with what ``storage/rows.py`` knows of jobs.
        statements: ``(SQL, columns, whether VALUES is to follow)`` of every statement of a batch:
            the two that remove a range, the four of jobs, then those of small tables.
    """
    global NO_EXTRA, DEFAULT_OPTIONS, packed_options, full_row, full_state_row, has_moved
    global GONE, QUEUED, ADMITTED, PARKED, STATEMENTS
    NO_EXTRA, DEFAULT_OPTIONS = rows.NO_EXTRA, rows.DEFAULT_OPTIONS
    packed_options, full_row, full_state_row = (
        rows.packed_options, rows.full_row, rows.full_state_row
    )
    has_moved = rows.has_moved
    GONE, QUEUED, ADMITTED, PARKED = rows.GONE, rows.QUEUED, rows.ADMITTED, rows.PARKED
    STATEMENTS = tuple(statements)
    WHICH.clear()
    for at, (sql, _, _) in enumerate(STATEMENTS):
        WHICH[sql] = at


def sqlite_version():
    """Return the version number of the SQLite that loaded this module, 0 before that."""
    return disk_sqlite_version() if disk_is_threadsafe() else 0


cdef int by_value(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const int64_t *>left)[0], b = (<const int64_t *>right)[0]
    return (a > b) - (a < b)


# -- packing --------------------------------------------------------------------------------------

cdef inline unsigned char *room_for(disk_segment *segment, size_t more) except NULL:
    cdef size_t room
    cdef void *grown
    if segment.room - segment.size < more:
        room = max(segment.room * 2, segment.size + more, <size_t>FIRST_BYTES)
        grown = realloc(segment.bytes, room)
        if grown is NULL:
            raise MemoryError("no memory for the rows of a batch")
        segment.bytes = <unsigned char *>grown
        segment.room = room
    return segment.bytes + segment.size


cdef inline int add_null(disk_segment *segment) except -1:
    room_for(segment, 1)[0] = TAG_NULL
    segment.size += 1
    return 0


cdef inline int add_int(disk_segment *segment, int64_t number) except -1:
    cdef unsigned char *at = room_for(segment, 9)
    at[0] = TAG_INT
    memcpy(at + 1, &number, 8)
    segment.size += 9
    return 0


cdef inline int add_sized(disk_segment *segment, int tag, const char *start,
                          Py_ssize_t size) except -1:
    cdef uint32_t length
    cdef unsigned char *at
    if size > 0x7fffffff:
        raise OverflowError("a value is longer than a row can hold")
    length = <uint32_t>size
    at = room_for(segment, 5 + <size_t>size)
    at[0] = tag
    memcpy(at + 1, &length, 4)
    memcpy(at + 5, start, <size_t>size)
    segment.size += 5 + <size_t>size
    return 0


cdef inline int add_text(disk_segment *segment, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *start = PyUnicode_AsUTF8AndSize(text, &size)
    return add_sized(segment, TAG_TEXT, start, size)


cdef inline int add_bytes(disk_segment *segment, bytes value) except -1:
    if value is None:
        return add_null(segment)
    return add_sized(segment, TAG_BYTES, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))


cdef inline int add_moment(disk_segment *segment, object moment) except -1:
    """A moment that may be 0 for "not yet"."""
    cdef long long number = PyLong_AsLongLong(moment)
    return add_int(segment, number) if number else add_null(segment)


cdef int add_value(disk_segment *segment, object value) except -1:
    """Any value; what is of no kind that a row may have becomes null, as in ``process.py``."""
    cdef double real
    cdef unsigned char *at
    if value is None:
        return add_null(segment)
    if isinstance(value, int):
        return add_int(segment, PyLong_AsLongLong(value))
    if isinstance(value, str):
        return add_text(segment, value)
    if isinstance(value, bytes):
        return add_bytes(segment, value)
    if isinstance(value, float):
        real = value
        at = room_for(segment, 9)
        at[0] = TAG_FLOAT
        memcpy(at + 1, &real, 8)
        segment.size += 9
        return 0
    return add_null(segment)


# The options that were packed last: jobs come in runs of one kind.
cdef object _last_options = None
cdef bytes _last_packed = None


cdef bytes packed_of(object options):
    global _last_options, _last_packed
    if options is not _last_options:
        _last_packed = packed_options(options)
        _last_options = options
    return _last_packed


cdef int add_row(disk_segment *segment, object values) except -1:
    for value in values:
        add_value(segment, value)
    segment.rows += 1
    return 0


cdef class PackedImages:
    """What one batch writes, packed; the twin of ``rows.Images``.

    Attributes:
        highest_seq: Newest admission number among the rows of ``jobs``, or 0.
        refused: ``(key, why)`` of rows of small tables that no row of a file can be.
    """

    cdef disk_segment *segments  # one per statement, by its place; used up by `submit`
    cdef int count
    cdef int64_t *seqs
    cdef size_t seqs_count, seqs_room
    cdef readonly int64_t highest_seq
    cdef readonly uint64_t number
    cdef readonly bint is_durable
    cdef readonly size_t rows_count
    cdef readonly list refused

    def __cinit__(self):
        cdef int at
        self.refused = []
        self.count = len(STATEMENTS)
        self.segments = <disk_segment *>calloc(max(self.count, 1), sizeof(disk_segment))
        if self.segments is NULL:
            raise MemoryError("no memory for a batch")
        for at in range(self.count):
            self.segments[at].statement = at

    def __dealloc__(self):
        disk_free_segments(self.segments, self.count)
        free(self.seqs)

    @property
    def is_empty(self):
        """Whether no row of a job comes or goes."""
        cdef int at
        for at in range(self.count):
            if self.segments[at].rows:
                return False
        return not self.seqs_count

    @property
    def removed(self):
        """Admission numbers whose rows go."""
        cdef size_t at
        return [self.seqs[at] for at in range(self.seqs_count)]

    def batch(self, uint64_t number, bint is_durable, upserts, deletes):
        """Take in the rows of small tables; returns itself, the batch."""
        cdef int which
        cdef Py_ssize_t width, start
        for statements in (deletes, upserts):
            for sql, width, values in statements:
                which = WHICH[sql]
                for start in range(0, len(values), width):
                    self.add_small(&self.segments[which], values[start : start + width])
        self.number = number
        self.is_durable = is_durable
        return self

    cdef int add_small(self, disk_segment *segment, object values) except -1:
        cdef size_t size = segment.size
        try:
            add_row(segment, values)
        except (ValueError, OverflowError) as error:
            segment.size = size
            self.refused.append((values[0], f"{type(error).__name__}: {error}"))
        return 0

    cdef int remove(self, int64_t seq) except -1:
        cdef size_t room
        cdef void *grown
        if self.seqs_count == self.seqs_room:
            room = max(2 * self.seqs_room, <size_t>64)
            grown = realloc(self.seqs, room * sizeof(int64_t))
            if grown is NULL:
                raise MemoryError("no memory for the removals of a batch")
            self.seqs = <int64_t *>grown
            self.seqs_room = room
        self.seqs[self.seqs_count] = seq
        self.seqs_count += 1
        return 0

    cdef int add_job(self, Job job, object queue_name) except -1:
        cdef int dirty = job.dirty
        cdef str place = job.place
        cdef bint is_fresh
        cdef disk_segment *rows
        if dirty & REMOVED or place is GONE or place == GONE:
            if not dirty & NEW:
                self.remove(job.seq)
            return 0
        extra = job.extra
        if dirty & (NEW | BODY):
            if job.seq > self.highest_seq:
                self.highest_seq = job.seq
            opts = None if job.options is DEFAULT_OPTIONS else packed_of(job.options)
            if extra is NO_EXTRA:
                rows = &self.segments[PLAIN]
                add_int(rows, job.seq)
                add_text(rows, job.id)
                add_text(rows, queue_name)
                add_text(rows, job.name)
                add_int(rows, job.priority)
                add_int(rows, PyLong_AsLongLong(job.created_at))
                add_int(rows, PyLong_AsLongLong(job.run_at))
                add_bytes(rows, opts)
                add_bytes(rows, job.data)
                rows.rows += 1
                is_fresh = dirty == NEW and (place == QUEUED or place == ADMITTED)
                if is_fresh and not job.started_at and not job.attempts:
                    return 0
            else:
                add_row(&self.segments[FULL], full_row(job, extra, opts))
        if not dirty & STATE and not (dirty & NEW and has_moved(job)):
            return 0
        if extra is NO_EXTRA:
            if place == ADMITTED:
                place = QUEUED
            rows = &self.segments[PLAIN_STATE]
            add_int(rows, job.seq)
            add_text(rows, place)
            add_int(rows, PyLong_AsLongLong(job.run_at))
            add_moment(rows, job.started_at)
            add_moment(rows, job.finished_at)
            add_int(rows, job.attempts)
            add_int(rows, job.stall_count)
            if job.token is None:
                add_null(rows)
            else:
                add_text(rows, job.token)
            add_bytes(rows, job.result)
            rows.rows += 1
            return 0
        flow = extra.flow
        if place == ADMITTED:
            place = PARKED if flow is not None and flow.missing else QUEUED
        elif place == PARKED and flow is not None and flow.is_released:
            place = QUEUED
        add_row(&self.segments[FULL_STATE], full_state_row(job, extra, place))
        return 0

    cdef disk_batch *take(self) except NULL:
        """Hand all memory over as a batch of C."""
        cdef disk_batch *batch = <disk_batch *>calloc(1, sizeof(disk_batch))
        cdef size_t at, ranges = 0
        cdef int used = 0, which
        if batch is NULL:
            raise MemoryError("no memory for a batch")
        if self.seqs_count:
            qsort(self.seqs, self.seqs_count, sizeof(int64_t), by_value)
            batch.ranges = <int64_t *>malloc(2 * self.seqs_count * sizeof(int64_t))
            if batch.ranges is NULL:
                free(batch)
                raise MemoryError("no memory for a batch")
            for at in range(self.seqs_count):
                if ranges and self.seqs[at] <= batch.ranges[2 * ranges - 1] + 1:
                    batch.ranges[2 * ranges - 1] = self.seqs[at]
                else:
                    batch.ranges[2 * ranges] = batch.ranges[2 * ranges + 1] = self.seqs[at]
                    ranges += 1
            batch.ranges_count = ranges
        for which in range(self.count):
            if not self.segments[which].rows:
                free(self.segments[which].bytes)  # of a row that could not be packed
                continue
            self.rows_count += self.segments[which].rows
            self.segments[used] = self.segments[which]
            used += 1
        batch.segments = self.segments
        batch.segments_count = used
        batch.number = self.number
        batch.is_durable = self.is_durable
        self.segments = NULL
        self.count = 0
        return batch


def images(jobs):
    """Return the rows that ``jobs`` need now, as their dirty bits say; changes nothing in them."""
    cdef PackedImages made = PackedImages()
    cdef Job job
    cdef object queue = None, queue_name = None
    for job in jobs:
        if job.queue is not queue:
            queue = job.queue
            queue_name = queue.name
        made.add_job(job, queue_name)
    return made


# -- the thread -----------------------------------------------------------------------------------

cdef char *copy_of(object text) except NULL:
    cdef bytes encoded = os.fsencode(text)
    cdef char *copied = strdup(encoded)
    if copied is NULL:
        raise MemoryError("no memory for the writer")
    return copied


cdef str told(const char *text):
    return "" if text[0] == 0 else (<bytes>text).decode("utf-8", "replace")


cdef list dropped_of(disk_answer *answer):
    """Return ``(first column, why)`` of the rows that were left out."""
    cdef size_t at
    cdef list dropped = []
    for at in range(answer.dropped_count):
        key = None
        if answer.dropped[at].tag == TAG_INT:
            key = answer.dropped[at].number
        elif answer.dropped[at].tag == TAG_TEXT:
            key = answer.dropped[at].text[: answer.dropped[at].text_size].decode(
                "utf-8", "replace"
            )
        dropped.append((key, told(answer.dropped[at].why)))
    return dropped


cdef class DiskThread:
    """The writer's thread, seen from the loop's."""

    cdef disk *own
    cdef int forks

    def __cinit__(self, path, pragmas, int busy_ms, int event_fd, int idle_ms, int pages_idle,
                  int pages_max, int pages_step):
        """Start the thread.

        Args:
            path: The file.
            pragmas: SQL to run first.
            busy_ms: How long to wait for another's lock.
            event_fd: Eventfd that is written to with every answer and at the end.
            idle_ms: Quiet time after which the log is brought into the file.
            pages_idle, pages_max, pages_step: How long the log may become, see ``writer.py``.

        Raises:
            OSError: No thread can be started.
        """
        cdef int at, error
        if not disk_sqlite_version() or not STATEMENTS:
            raise RuntimeError("neither SQLite nor the statements are known")
        disk_count_forks()
        self.forks = disk_forks
        self.own = disk_new()
        if self.own is NULL:
            raise MemoryError("no memory for the writer")
        self.own.path = copy_of(path)
        self.own.directory = copy_of(os.path.dirname(path) or ".")
        self.own.pragmas = copy_of(pragmas)
        self.own.busy_ms = busy_ms
        self.own.event_fd = event_fd
        self.own.idle_ms = idle_ms
        self.own.pages_idle = pages_idle
        self.own.pages_max = self.own.checkpoint_at = pages_max
        self.own.pages_step = pages_step
        self.own.removes_count = PLAIN
        self.own.statements = <disk_statement *>calloc(len(STATEMENTS), sizeof(disk_statement))
        if self.own.statements is NULL:
            raise MemoryError("no memory for the writer")
        for at, (sql, width, is_many) in enumerate(STATEMENTS):
            self.own.statements[at].head = copy_of(sql)
            self.own.statements[at].width = width
            self.own.statements[at].is_many = is_many
            self.own.statements_count = at + 1
        error = disk_start(self.own)
        if error:
            raise OSError(error, os.strerror(error))

    def __dealloc__(self):
        if self.own is NULL:
            return
        if disk_forks != self.forks:
            return  # a forked child: the thread is its parent's, the mutex may be locked for ever
        disk_close(self.own)
        disk_release(self.own)

    cdef int check_process(self) except -1:
        if disk_forks != self.forks:
            raise RuntimeError("the writer's thread belongs to the process that was forked")
        return 0

    def submit(self, PackedImages batch):
        """Hand a batch over; it is used up.

        Raises:
            RuntimeError: In a forked child, which has no such thread.
        """
        self.check_process()
        if batch.segments is NULL:
            raise RuntimeError("the batch was submitted already")
        disk_submit(self.own, batch.take())

    def news(self):
        """Return what has come since the last call: outcomes, and how the thread has ended.

        Takes what the eventfd says, too, before it looks.

        Returns:
            ``([(number, 0 or 1 for full or 2, text, dropped)], ending)``; ``ending`` is None while
            the thread runs, else why it ended: empty if it was told to.
        """
        cdef disk_answer *answer
        cdef disk_answer *following
        cdef int has_ended
        cdef char ending[MESSAGE_BYTES]
        self.check_process()
        taken = []
        disk_read_event(self.own)
        answer = disk_take_answers(self.own, &has_ended, ending)
        while answer is not NULL:
            following = answer.next
            try:
                taken.append((answer.number, answer.kind, told(answer.text), dropped_of(answer)))
            finally:
                disk_free_answer(answer)
            answer = following
        return taken, told(ending) if has_ended else None

    def close(self):
        """Have the thread close the file and end, once it has written what it was given."""
        self.check_process()
        disk_close(self.own)
