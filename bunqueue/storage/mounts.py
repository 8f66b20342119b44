"""Where a file lies: SQLite's locks and shared memory do not work across a network."""

import os
from typing import Final

# Names of file systems as the kernel lists them.
NETWORK_TYPES: Final = frozenset(
    ("afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4")
    + ("smb3", "smbfs")
)
MOUNTS: Final = "/proc/self/mounts"


def network_type(path: str, mounts: str = MOUNTS) -> str | None:
    """Return the type of the network file system that ``path`` lies on, or None.

    Where the kernel keeps no such list, nothing can be told and None is returned.
    """
    directory = os.path.join(os.path.dirname(os.path.realpath(path)), "")
    found = ("", "")
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                _, point, kind = line.split()[:3]
                point = os.path.join(point.replace("\\040", " "), "")
                # Of two at the same point the later covers the earlier.
                if directory.startswith(point) and len(point) >= len(found[0]):
                    found = (point, kind)
    except FileNotFoundError:
        return None
    return found[1] if found[1] in NETWORK_TYPES else None
