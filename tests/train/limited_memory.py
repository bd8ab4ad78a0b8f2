"""Memory that ends under a limit of address space (`ulimit -v`): what is predicted to be too much is said at the start,
and an array that there is no memory for ends the program with status 1, its size, its layer and what to lower.

usage: limited_memory.py DARKNET
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET = sys.argv[1]
MIB = 1 << 20
ROOM = 3 * 1024  # MiB in which the libraries start and the toy net trains
TRAIN = ("detector", "train", "toy.data")


def run(folder, mib, *words):
    """Status and output of the program with mib MiB of address space."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

    done = subprocess.run([DARKNET, *words], cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="2"),
                          preexec_fn=limit, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace")
    return done.returncode, done.stderr


def least_to_train(folder):
    """MiB, to within 32."""
    low, high = 16, ROOM
    while high - low > 32:
        middle = (low + high) // 2
        low, high = (low, middle) if run(folder, middle, *TRAIN, "toy.cfg")[0] == 0 else (middle, high)
    return high


def names_the_layer(folder, cfg, mib):
    """The one that Darknet makes: of a cfg whose second layer alone has two arrays of 247 MiB."""
    large = "[convolutional]\nfilters=100000\nsize=9\n"
    text = cfg.replace("\n[convolutional]\n", "\n" + large, 2).replace(large, "[convolutional]\n", 1)
    (folder / "wide.cfg").write_text(text)
    line = text[:text.index(large)].count("\n") + 1
    for keys in ("mixed_precision=1\n", ""):
        (folder / "wide.cfg").write_text(text.replace("mixed_precision=1\n", keys))
        status, said = run(folder, mib, *TRAIN, "wide.cfg")
        line -= not keys
        said = [part for part in said.splitlines() if "no memory for" in part]
        assert status == 1 and " of Darknet's own arrays at layer 1, [convolutional] (wide.cfg:%d): " % line in said[0], said
    # Without a key of ours only the number is known.
    (folder / "wide.cfg").write_text(text.replace("mixed_precision=1\nseed=1\n", ""))
    assert " of Darknet's own arrays at layer 1: " in run(folder, mib, *TRAIN, "wide.cfg")[1]


def check_large(folder, cfg):
    """Named before anything is made; then the array, wherever memory ends. Never a signal."""
    (folder / "large.cfg").write_text(cfg.replace("batch=4", "batch=4000").replace("=32", "=320"))
    status, said = run(folder, ROOM, *TRAIN, "large.cfg")
    lines = [line for line in said.splitlines() if line.startswith("darknet-amp: ")]
    limit = [line for line in lines if "this training is predicted to take " in line]
    assert status == 1 and len(limit) == 1, said[-3000:]
    assert ", and the limit of address space is 3.00: raise it (ulimit -v), lower batch" in limit[0], limit
    assert "no memory for " in lines[-1] and "MiB" in lines[-1] and "lower batch" in lines[-1], said[-3000:]
    (folder / "plain.cfg").write_text((folder / "large.cfg").read_text().replace("mixed_precision=1\n", ""))
    assert "is predicted to take" not in run(folder, ROOM, *TRAIN, "plain.cfg")[1]


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", images=4, max_batches=1,
                             net_keys="mixed_precision=1\nseed=1")
        cfg = (folder / "toy.cfg").read_text()
        status, said = run(folder, ROOM, *TRAIN, "toy.cfg")
        assert status == 0 and "address space" not in said, said[-3000:]
        # Of the second layer's arrays of 247 MiB some have no room.
        names_the_layer(folder, cfg, least_to_train(folder) + 200)
        check_large(folder, cfg)


main()
