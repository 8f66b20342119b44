"""The packed data of a parent while its list of children grows.

A parent's data names its children (``__childrenIds``). To read and pack the whole of it for each
child that is linked costs time in proportion to all the children before: that was most of the
1.8 ms of a linked push at 5,000 children. So the list stands at the end of the packed map, and a
child is appended there; what remains is one copy of the bytes, and the push takes 0.1 ms.
"""

from collections.abc import Collection

from bunqueue.protocol.codec import pack, unpack
from bunqueue.protocol.large import CHILDREN_KEY


class Listing:
    """Data whose list of children can be added to.

    Attributes:
        data: The packed data as of the last addition.
    """

    __slots__ = ("data", "_head", "_ids", "_known")

    def __init__(self, data: bytes, children: Collection[str]) -> None:
        """Read packed data; what is no map is lost, and so is a list of others.

        Args:
            data: Of the parent.
            children: The ids of those it has.
        """
        value = unpack(data)
        fields = dict(value) if isinstance(value, dict) else {}
        fields.pop(CHILDREN_KEY, None)
        self._known = set(children)
        self._ids = bytearray(b"".join(map(pack, children)))
        self._head = len(children), pack({**fields, CHILDREN_KEY: []})[:-1]
        self.data = self._packed()

    def add(self, child_id: str) -> bytes:
        """Return the data with one more child, or as it is if it names that child already."""
        if child_id not in self._known:
            self._known.add(child_id)
            count, before = self._head
            self._head = count + 1, before
            self._ids += pack(child_id)
            self.data = self._packed()
        return self.data

    def _packed(self) -> bytes:
        count, before = self._head
        return before + _array_header(count) + self._ids


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)
