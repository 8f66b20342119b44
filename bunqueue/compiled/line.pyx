# cython: language_level=3, binding=False, boundscheck=False, wraparound=False
"""Reads and writes of a socket that does not block, as ``socket.recv`` and ``socket.send``.

Python's own take all the room that is asked for from the allocator and give most of it back, and
release the interpreter lock for what does not wait: for a request and its answer that is 4,000
instructions more, of some 100,000 in all for a durable push.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno

cdef extern from "sys/socket.h" nogil:
    ssize_t c_recv "recv"(int fd, void* data, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void* data, size_t size, int flags)

cdef enum:
    ROOM = 65536  # as much as a connection reads before it turns out to be a busy one

cdef char[ROOM] _room  # filled and copied from under the interpreter lock


cdef class PlainSocket:
    """The two calls on a connected socket; whoever closes the socket must not use them any more."""

    cdef int fd
    cdef object receive_long

    def __init__(self, socket):
        self.fd = socket.fileno()
        self.receive_long = socket.recv

    def recv(self, Py_ssize_t size):
        """Return what has come, at most so many bytes; none at the end.

        Raises:
            BlockingIOError: Nothing has.
            OSError: The connection is lost.
        """
        cdef ssize_t received = -1
        if size > ROOM:
            return self.receive_long(size)
        while received < 0:
            received = c_recv(self.fd, _room, <size_t> size, 0)
            if received < 0 and errno != EINTR:
                PyErr_SetFromErrno(OSError)
        return PyBytes_FromStringAndSize(_room, received)

    def send(self, data):
        """Return how many bytes were taken.

        Raises:
            BlockingIOError: None can be now.
            OSError: The connection is lost.
        """
        cdef Py_buffer view
        cdef ssize_t sent = -1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while sent < 0:
                sent = c_send(self.fd, view.buf, <size_t> view.len, 0)
                if sent < 0 and errno != EINTR:
                    PyErr_SetFromErrno(OSError)
        finally:
            PyBuffer_Release(&view)
        return sent
