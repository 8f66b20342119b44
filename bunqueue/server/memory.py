"""Giving memory back to the system.

Python frees what a million jobs took, but the C library keeps it for the next million. After a large
queue has gone, nobody needs it.
"""

import ctypes
import gc
import logging
from typing import Final

log = logging.getLogger(__name__)

_LIBC: Final = "libc.so.6"


def give_back() -> None:
    """Collect what is left in cycles and free lists, and hand free pages back."""
    gc.collect()
    try:
        _dbg()
    except BaseException:
        import traceback; traceback.print_exc(file=open('/tmp/arenas_err.txt','w'))
    try:
        trim = ctypes.CDLL(_LIBC).malloc_trim
    except (OSError, AttributeError):
        return  # another C library; it does without
    trim(0)
    log.debug("free memory handed back")


def _dbg():
    gc.unfreeze()
    import collections
    base = gc.get_objects()
    seen = {}
    stack = list(base)
    for o in stack: seen[id(o)] = o
    while stack:
        o = stack.pop()
        for r in gc.get_referents(o):
            if id(r) not in seen and r is not seen and r is not stack:
                seen[id(r)] = r; stack.append(r)
    ar = {}
    ex = {}
    for i, o in list(seen.items()):
        ar.setdefault(i >> 20, collections.Counter())[type(o).__name__] += 1
        l = ex.setdefault(i >> 20, [])
        if len(l) < 4: l.append(str(type(o))+ object.__repr__(o)[:60] + (o[:60] if isinstance(o,(str)) else ''))
    with open('/tmp/arenas.txt','w') as f:
        for a, c in sorted(ar.items(), key=lambda x: sum(x[1].values())):
            n = sum(c.values())
            print(hex(a), n, c.most_common(5), ex[a] if n<300 else '', file=f)
