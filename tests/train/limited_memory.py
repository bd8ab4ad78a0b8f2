"""Memory that ends under a limit (`ulimit -v`), anywhere between a program that does not even start and one that
has all it needs: it works, or ends with status 1 and a message that names memory. Never a signal.

usage: limited_memory.py DARKNET
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET = sys.argv[1]
MIB = 1 << 20
NOT_STARTED = 127  # the dynamic loader's
TRAIN = ("detector", "train", "toy.data")


def run(folder, mib, *words):
    """Status and output of the program with mib MiB of address space."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

    done = subprocess.run([DARKNET, *words], cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="2"),
                          preexec_fn=limit, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace")
    return done.returncode, done.stderr


def ends_well(folder, mib, *words):
    """Whether it works; if not, that it says why."""
    status, said = run(folder, mib, *words)
    last = said.strip().splitlines()[-1:] or [""]
    print("%d MiB, %s: status %d: %s" % (mib, " ".join(words), status, last[0][-150:]))
    assert status in (0, 1), said[-3000:]
    for used, most in re.findall(r"with (\d+) of (\d+) MiB of memory in use", said):
        assert 100 < int(used) <= int(most) == mib, said[-3000:]  # the libraries alone take more
    told = [line for line in said.splitlines() if "darknet-amp" in line and "memory" in line]
    assert status == 0 or told, said[-3000:]
    return status == 0


def least(works, low, high, step):
    """The least limit at which works(limit), to within step MiB."""
    assert works(high)
    while high - low > step:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
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


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", images=4, max_batches=1,
                             net_keys="mixed_precision=1\nseed=1")
        cfg = (folder / "toy.cfg").read_text()
        (folder / "large.cfg").write_text(cfg.replace("batch=4", "batch=4000").replace("=32", "=320"))
        (folder / "many.cfg").write_text(cfg.replace("batch=4", "batch=4000"))
        starts = least(lambda mib: run(folder, mib, "amp", "--help")[0] != NOT_STARTED, 16, 2048, 4)
        trains = least(lambda mib: ends_well(folder, mib, *TRAIN, "toy.cfg"), starts, starts + 512, 32)
        names_the_layer(folder, cfg, trains + 200)
        for more in range(0, 64, 9):  # libraries start, Darknet parses, the first batch is loaded
            ends_well(folder, starts + more, *TRAIN, "toy.cfg")
        ends_well(folder, (starts + trains) // 2, "amp", "check", "toy.data", "toy.cfg")
        assert not ends_well(folder, trains + 1024, *TRAIN, "large.cfg")
        assert not ends_well(folder, trains + 64, *TRAIN, "many.cfg")


main()
