"""Training with random=1, through all of Darknet's sizes, holds no more memory at its end than after
it has had them all.

usage: random_sizes.py DARKNET [--rounds N]

N iterations (default 500) of `detector train`: sizes from 320 to 608 are drawn every ten, the last
200 are at 608, as Darknet does it. Resident memory is sampled while these last ones run. It goes up
and down with the batches that are being loaded, so that their first and second half are compared by
their largest and their mean values.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET = sys.argv[1]
ROUNDS = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 500
AT_608 = 200  # Darknet's
MORE = 1.05  # allowed: a twentieth


def resident(pid):
    pages = Path("/proc/%d/statm" % pid).read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def sample(run, log):
    """(iterations done, resident bytes, open files, threads), again and again until it ends."""
    samples, proc = [], Path("/proc/%d" % run.pid)
    while run.poll() is None:
        try:
            done = log.read_text().count("\n") if log.exists() else 0
            samples.append((done, resident(run.pid), len(list((proc / "fd").iterdir())),
                            len(list((proc / "task").iterdir()))))
        except (OSError, IndexError):  # it has just ended
            pass
        time.sleep(0.05)
    return samples


with tempfile.TemporaryDirectory() as folder:
    keys = "mixed_precision=1\nseed=1\namp_log=log.json"
    data = toyset.make(Path(folder) / "set", size=64, batch=2, max_batches=ROUNDS, net_keys=keys,
                       random_size=1)
    cfg = data / "toy.cfg"  # a rate at which nothing is learned that could diverge
    cfg.write_text(cfg.read_text().replace("learning_rate=0.001", "learning_rate=0.0000001"))
    with open(data / "said", "w") as said:
        run = subprocess.Popen([DARKNET, "detector", "train", "toy.data", "toy.cfg"], cwd=data,
                               stdout=said, stderr=subprocess.STDOUT)
        samples = sample(run, data / "log.json")
    text = (data / "said").read_text()
    assert run.returncode == 0, text[-3000:]
    lines = text.splitlines()
    sizes = {after for before, after in zip(lines, lines[1:]) if before == "Resizing"}
    print("sizes: %s" % sorted(sizes, key=int))
    half = ROUNDS - AT_608 // 2
    first = [s for s in samples if ROUNDS - AT_608 + 10 <= s[0] < half]
    second = [s for s in samples if s[0] >= half and s[2] > 2]  # not while it ends
    for k, what, ways in ((1, "resident bytes", (max, statistics.mean)),
                          (2, "open files", (min,)),  # more while it loads and saves
                          (3, "threads", (min,))):
        for of in ways:
            a, b = of([s[k] for s in first]), of([s[k] for s in second])
            print("%s, %s: %.4g in the first half, %.4g in the second" % (what, of.__name__, a, b))
            assert b <= a * MORE, "%s grow: %g to %g" % (what, a, b)
