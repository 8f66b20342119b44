"""Which allocator the broker's interpreter uses.

Python's own hands memory back by the megabyte, and one small object that lives on keeps a whole
one: after a million jobs have gone, a broker of 40 MiB stayed at 70 to 220. The C library's gives
back every free page, and costs a tenth more CPU per job (loadtests/memory.py,
loadtests/compare.py). The choice is made when the interpreter starts, so the process replaces
itself once, before anything has been loaded. A ``PYTHONMALLOC`` that is set already is respected:
``PYTHONMALLOC=default`` trades the memory for the speed.
"""

import os
import sys


def choose() -> None:
    """Start this command again with the C library's allocator, where that is a good one."""
    if "PYTHONMALLOC" in os.environ or not _is_glibc():
        return
    os.environ["PYTHONMALLOC"] = "malloc"
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:  # it may not be run any more: replaced, or out of reach since a change of user
        del os.environ["PYTHONMALLOC"]


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False
