"""`host.shm`, `host.disk`, `host.mounts`: what a job writes to takes it, and nothing hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.checks.host.test_file_systems import judge_disk, judge_mounts, permanent_mounts
from preflight.checks.host.test_limits import judge_shm
from preflight.core.thresholds import SHIPPED
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, group
from tests.unit.facts.machines import file_system, machine, nfs, shm

if TYPE_CHECKING:
    from preflight.facts import Facts
    from preflight.facts.machine import FileSystem


def on(*found: FileSystem) -> Facts:
    """A node with these file systems."""
    return facts(machine=machine(file_systems=found))


@pytest.mark.proves("host.shm", passes="half of the memory, nearly empty")
def test_half_of_the_memory_is_plenty() -> None:
    """As every machine has it that is not a container."""
    assert (
        judge_shm(facts(), limit=SHIPPED).sentence == "512.0 GiB of 512.0 GiB of /dev/shm are free"
    )


@pytest.mark.proves("host.shm", finds="a container's default of 64 MiB")
def test_a_containers_default() -> None:
    """The advice is the container's, not to remove files."""
    verdict = judge_shm(on(shm(size_mib=64, free_mib=64)), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == "64 MiB of 64 MiB of /dev/shm are free; 1.0 GiB are needed"
    assert "--shm-size" in verdict.advice


@pytest.mark.proves("host.shm", finds="a /dev/shm filled with leftovers")
@pytest.mark.parametrize(
    "left", [{"free_mib": 0}, {"refused": ("/dev/shm: No space left on device",)}]
)
def test_a_full_one(left: dict[str, object]) -> None:
    """By its size, or because it took no file: no inode was left."""
    verdict = judge_shm(on(shm(**left)), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert "ls -l /dev/shm" in verdict.advice


@pytest.mark.proves("host.shm", finds="a /dev/shm that is mounted read-only")
def test_a_read_only_one() -> None:
    """There is nothing to remove: it must be mounted to be written, and a full disk is no cause."""
    refused = ("/dev/shm: Read-only file system",)
    verdict = judge_shm(on(shm(read_only=True, refused=refused)), limit=SHIPPED)
    assert (verdict.outcome, verdict.cause) == (Outcome.FAIL, "")
    assert verdict.advice.startswith("mount -o remount,rw /dev/shm")


def test_a_scarce_one_and_a_folder_of_the_disk_are_warnings() -> None:
    """Under 1 GiB; or no tmpfs at all, where messages go to disk."""
    assert judge_shm(on(shm(free_mib=512)), limit=SHIPPED).outcome is Outcome.WARN
    disk = judge_shm(on(file_system(paths=("/", "/dev/shm"))), limit=SHIPPED)
    assert disk.sentence == "/dev/shm is no memory but a folder on ext4 at /"


@pytest.mark.proves("host.shm", unknown="it hung or was not checked")
def test_an_unseen_one_is_unknown() -> None:
    """No section, no entry, and an entry without a size."""
    hung = shm(state="hung", size_mib=None, free_mib=None)
    for unread in (facts(machine=None), on(file_system()), on(hung)):
        assert judge_shm(unread, limit=SHIPPED).outcome is Outcome.UNKNOWN


@pytest.mark.proves("host.disk", passes="disks with room, an image that is read-only on purpose")
def test_disks_with_room() -> None:
    """A small tmpfs with half of it free, and a read-only root that no job writes to."""
    assert judge_disk(facts(), limit=SHIPPED).outcome is Outcome.OK
    small = file_system(mount="/tmp", kind="tmpfs", paths=("/tmp",), size_mib=2048, free_mib=1024)
    image = file_system(paths=("/",), read_only=True, size_mib=900, free_mib=0)
    verdict = judge_disk(on(image, small), limit=SHIPPED)
    assert (verdict.outcome, verdict.sentence) == ("ok", "free: 0 MiB on /, 1.0 GiB on /tmp")


@pytest.mark.proves(
    "host.disk", finds="a full /tmp, a quota used up, a disk the kernel made read-only"
)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"refused": ("/tmp: No space left on device",), "free_mib": 0},
            "nothing can be written to /tmp: No space left on device: 0 MiB of 1757.8 GiB are free",
        ),
        ({"refused": ("/home/alice: Disk quota exceeded",)}, "/home/alice: Disk quota exceeded"),
        ({"refused": ("/tmp: No space left on device",), "inodes_free": 0}, "no inode is free"),
        ({"refused": ("/tmp: Read-only file system",), "read_only": True}, "Read-only"),
        ({"remounted": True, "read_only": True}, "/ (ext4) was made read-only after it had been"),
        ({"free_mib": 12}, "/ (ext4) is full: 12 MiB of"),
        (
            {"refused": ("/tmp: No space left on device",), "size_mib": 0, "free_mib": 0},
            "nothing can be written to /tmp: No space left on device: 0 MiB of 0 MiB are free",
        ),
        ({"state": "hung", "free_mib": None, "seconds": 5.0}, "gave no answer within 5 s"),
        ({"state": "error", "free_mib": None, "error": "Input/output error"}, "Input/output"),
    ],
)
def test_a_disk_that_takes_nothing(changes: dict[str, object], words: str) -> None:
    """Each with the folder and the kernel's own word for it."""
    verdict = judge_disk(on(file_system(**changes)), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence
    assert verdict.advice


@pytest.mark.proves("host.disk", finds="a disk that is nearly full, or nearly out of inodes")
def test_a_disk_that_is_nearly_full() -> None:
    """By percent on a small one, by GiB on a large one, and by inodes."""
    large = judge_disk(on(file_system(free_mib=15_000)), limit=SHIPPED)
    assert large.outcome is Outcome.WARN
    assert large.sentence == "14.6 GiB of 1757.8 GiB are free on /, at least 20.0 GiB should be"
    small = judge_disk(on(file_system(size_mib=20_000, free_mib=900)), limit=SHIPPED)
    assert "at least 1000 MiB should be" in small.sentence
    inodes = judge_disk(on(file_system(inodes_free=100_000)), limit=SHIPPED)
    assert inodes.sentence == "0.1 % of the inodes of / are free, at least 5 % should be"
    assert judge_disk(on(file_system(free_mib=25_000)), limit=SHIPPED).outcome is Outcome.OK


@pytest.mark.proves("host.disk", unknown="the mounts could not be read, or a disk may not be read")
def test_an_unseen_disk_is_unknown() -> None:
    """Neither is a disk with room."""
    hidden = file_system(state="hidden", free_mib=None, size_mib=None, error="Permission denied")
    for unread in (facts(machine=None), facts(machine=machine(file_systems=None)), on(hidden)):
        assert judge_disk(unread, limit=SHIPPED).outcome is Outcome.UNKNOWN


def test_dev_shm_and_a_hanging_server_are_reported_once() -> None:
    """A full /dev/shm is `host.shm`'s, a home on a server that hangs is `host.mounts`'."""
    full = shm(refused=("/dev/shm: No space left on device",), free_mib=0)
    home = nfs("/home", paths=("/home/alice",), state="hung", size_mib=None, free_mib=None)
    assert judge_disk(on(file_system(), full, home), limit=SHIPPED).outcome is Outcome.OK
    assert judge_mounts(on(file_system(), full, home), limit=SHIPPED).outcome is Outcome.FAIL


@pytest.mark.proves("host.mounts", passes="shared file systems that answer, the same on all nodes")
def test_shared_file_systems_that_answer() -> None:
    """A node without any has nothing to judge."""
    node = on(file_system(), nfs())
    usual = group(node, node, node).majority(permanent_mounts)
    assert judge_mounts(node, usual, limit=SHIPPED).sentence == "1 shared file system answered"
    assert judge_mounts(facts(), limit=SHIPPED).outcome is Outcome.NOT_RUN


@pytest.mark.proves("host.mounts", finds="a server that hangs, a stale handle")
@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("hung", "", "/data (nfs4, nas1:/export/data) gave no answer within 5 s"),
        ("error", "Stale file handle", "/data (nfs4, nas1:/export/data) answers with: Stale file"),
    ],
)
def test_a_server_that_does_not_answer(state: str, error: str, words: str) -> None:
    """Named with its kind and its server."""
    verdict = judge_mounts(on(nfs(state=state, error=error, seconds=5.0)), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith(words)


@pytest.mark.proves("host.mounts", unknown="its reader had no CPU, so nothing is known of it")
def test_a_server_whose_reader_had_no_cpu() -> None:
    """It neither answered nor let its reader wait: it is not called slow, and not sound."""
    starved = nfs(state="hidden", seconds=3.2, size_mib=None, free_mib=None)
    verdict = judge_mounts(on(starved), limit=SHIPPED)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence.startswith("/data (nfs4, nas1:/export/data) could not be read: ")
    assert verdict.advice


@pytest.mark.proves("host.mounts", finds="a mount that only the other nodes have, or may write to")
def test_a_mount_that_only_this_node_lacks() -> None:
    """Missing or read-only is a fault by the vote; automounted ones come with their use."""
    node, bare = on(file_system(), nfs()), on(file_system())
    usual = group(node, node, node, bare).majority(permanent_mounts)
    missing = judge_mounts(bare, usual, limit=SHIPPED)
    assert missing.outcome is Outcome.FAIL
    assert missing.sentence == "/data is not mounted here; 3 of 4 nodes of its group have it"
    locked = judge_mounts(on(file_system(), nfs(read_only=True)), usual, limit=SHIPPED)
    assert "/data is read-only here; 3 of 4" in locked.sentence
    home = on(file_system(), nfs("/home/alice", automounted=True))
    lazy = group(home, home, home, bare).majority(permanent_mounts)
    assert judge_mounts(bare, lazy, limit=SHIPPED).outcome is Outcome.NOT_RUN


def test_a_slow_server_is_a_warning() -> None:
    """Milliseconds are usual; over a second makes a job's start slow."""
    verdict = judge_mounts(on(nfs(seconds=2.5)), limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert "took 2.5 s to report its size" in verdict.sentence


@pytest.mark.proves("host.mounts", unknown="the mounts could not be read")
def test_unread_mounts_are_unknown() -> None:
    """No list of mounts is not a list without any."""
    for unread in (facts(machine=None), facts(machine=machine(file_systems=None))):
        assert judge_mounts(unread, limit=SHIPPED).outcome is Outcome.UNKNOWN
