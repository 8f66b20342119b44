"""Exit statuses of ``bunqueue worker``."""

DRAINED = 0
FAILED = 1  # a worker cannot go on: an import, a token; or its process died while it stopped
USAGE = 2
FORCED = 3  # jobs were interrupted
RECYCLED = 75  # between a worker process and its supervisor: it has run its jobs, start another
ENDED_BY_INT = 130
