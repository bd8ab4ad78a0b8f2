"""Training on a disk that is full, or read-only: it goes on or ends with an error, and what was saved
before stays good. The disk is a small tmpfs, in name spaces of the test's own. Skipped where that
is not allowed; a limit on file sizes, which resume.py sets, comes near to it.

usage: full_disk.py FIXED_TRAINING DARKNET SAVED_FILES
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

TRAINING, DARKNET, SAVED_FILES = sys.argv[1:4]
SKIPPED = 77
BYTES = 9700  # of the toy net's weights file; its sidecar has 9912
KEYS = "mixed_precision=1\nseed=7"


def run(command, folder, status=0):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True,
                          text=True, env=dict(os.environ, OMP_NUM_THREADS="2"))
    assert done.returncode == status, "status %d\n%s\n%s" % (
        done.returncode, done.stdout[-1000:], done.stderr[-3000:])
    return done.stdout + done.stderr


def mount(folder, options):
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]).returncode


def set_up(root, name, folder, kib, **settings):
    """A training set whose folder of saved files is a disk of that size."""
    top = toyset.make(root / name, net_keys=KEYS, **settings)
    (top / folder).mkdir(exist_ok=True)
    assert not mount(top / folder, "size=%dk" % kib)
    return top


def train(top, steps, weights, begin=None):
    return run([TRAINING, "toy.cfg", steps, weights] + ([begin] if begin else []), top)


def pairs(folder):
    return [line.split()[1:] for line in run([SAVED_FILES, folder, BYTES], folder).splitlines()
            if line.startswith("pair")]


def names(folder):
    return sorted(os.listdir(folder))


def check_full(root):
    """Each size runs out of room at another place of the second save."""
    failed = 0
    for kib in range(24, 60, 4):
        top = set_up(root, "full%d" % kib, "saves", kib)
        train(top, 2, "saves/a.backup")
        before = pairs(top / "saves")
        said = train(top, 1, "saves/a.backup", "saves/a.backup")
        assert names(top / "saves") == ["a.backup", "a.backup.amp"], names(top / "saves")
        told = "weights are not saved: " in said
        assert (pairs(top / "saves") == before) == told, said
        assert before == [["a.backup", "8"]], before
        assert not told or "No space left" in said or "is the disk full?" in said, said
        failed += told
        assert not mount(top / "saves", "remount,size=100k")
        said = train(top, 1, "saves/a.backup", "saves/a.backup")
        assert "weights are not saved" not in said, said
        assert pairs(top / "saves") == [["a.backup", "12" if told else "16"]]
    assert 3 <= failed <= 8, failed


def check_read_only(root):
    top = set_up(root, "read_only", "saves", 100)
    train(top, 2, "saves/a.backup")
    assert not mount(top / "saves", "remount,ro")
    said = train(top, 1, "saves/a.backup", "saves/a.backup")
    assert "weights are not saved: saves/a.backup: " in said and "Read-only" in said, said
    assert pairs(top / "saves") == [["a.backup", "8"]]


def check_detector(root):
    """No room for what is asked for at the start; then for that, not for the numbered files too."""
    command = [DARKNET, "detector", "train", "toy.data", "toy.cfg"]
    said = run(command, set_up(root, "refused", "backup", 32), status=1)
    assert "38800 bytes of weights and sidecar, twice" in said and "No space left" in said, said
    top = set_up(root, "detector", "backup", 64, max_batches=400)
    said = run(command, top, status=1)
    assert "toy_final.weights" in said.splitlines()[-1] and "weights are not saved" in said, said
    assert "toy.backup" in [name for name, _ in pairs(top / "backup")]


def inside(root):
    """In name spaces of its own: the disks go when it ends."""
    if mount(root, "size=100m"):
        print("SKIPPED: no small disk can be mounted here")
        sys.exit(SKIPPED)
    check_full(root)
    check_read_only(root)
    check_detector(root)


def main():
    if len(sys.argv) > 4:
        inside(Path(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as name:
        words = ["unshare", "-rm", sys.executable, "-B", __file__] + sys.argv[1:4] + [name]
        done = subprocess.run(words)
    sys.exit(done.returncode)


main()
