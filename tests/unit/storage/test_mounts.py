"""Network file systems are known by their mount."""

import pytest

from bunqueue.storage.mounts import network_type

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /mnt/share nfs4 rw 0 0
/dev/sdb1 /mnt/share/local ext4 rw 0 0
//host/my\\040files /mnt/my\\040files cifs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return str(path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/data.db", None),
        ("/mnt/share/data.db", "nfs4"),
        ("/mnt/shared/data.db", None),
        ("/mnt/share/local/data.db", None),
        ("/mnt/my files/data.db", "cifs"),
    ],
)
def test_the_innermost_mount_counts(mounts, path, kind):
    assert kind == network_type(path, mounts)


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path):
    assert network_type("/data.db", str(tmp_path / "none")) is None
