"""Training by the rules of AlexeyAB's Darknet with the `darknet` program: a grouped route, its heads and its loader with
mosaics. Same seed, same bytes, whatever the number of loader threads or processes, and over a stop; what a saved file is
called; and everything together with what this project adds.

usage: fork_training.py DARKNET MODULE

MODULE: libdarknet_amp_mpi.so, for several processes. Names of checks behind it choose some.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET, MODULE = sys.argv[1], Path(sys.argv[2])
FORK = "mixed_precision=1\namp_dialect=fork\nseed=7\n"
MOSAIC = FORK + "mosaic=1\n"
ORDERED = "amp_reduce=ordered\n"
CHANGES = (("[maxpool]\nsize=2\nstride=2\n", "[maxpool]\nsize=2\nstride=2\n\n[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"),
           ("ignore_thresh=.7\n", "ignore_thresh=.7\niou_loss=ciou\niou_normalizer=.07\nscale_x_y=1.05\nresize=1.5\n"))
# Root may start processes only if it says so.
OPEN_MPI = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                OMPI_MCA_hwloc_base_binding_policy="none", OMP_NUM_THREADS="1")


def make(folder, keys, iterations, changes=(), **settings):
    toyset.make(folder, net_keys=keys, max_batches=iterations, **settings)
    cfg = folder / "toy.cfg"
    for old, new in (*CHANGES, *changes):
        assert old in cfg.read_text(), old
        cfg.write_text(cfg.read_text().replace(old, new))
    return folder


def train(folder, *words, processes=0):
    """What was printed."""
    command = ["mpirun", "-np", str(processes)] if processes else []
    command += [DARKNET, "detector", "train", "toy.data", "toy.cfg", *words]
    done = subprocess.run([str(word) for word in command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env=dict(os.environ, **OPEN_MPI))
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def pair(folder, name="toy_final.weights"):
    return [(folder / "backup" / (name + kind)).read_bytes() for kind in ("", ".amp")]


def stop(folder, iterations, *words):
    """Trains and asks it to stop while it trains iteration `iterations`. Returns how many were trained: on a busy
    machine some more."""
    command = [str(word) for word in ("stdbuf", "-oL", DARKNET, "detector", "train", "toy.data", "toy.cfg", *words)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=dict(os.environ, **OPEN_MPI))
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(f"{iterations - 1}: "):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM, said[-3000:]
    batch = int(re.search(r"^batch=(\d+)", (folder / "toy.cfg").read_text(), re.M)[1])
    return int.from_bytes((folder / "backup" / "toy_last.weights").read_bytes()[12:20], "little") // batch


def check_resumed(root, keys, whole, stopped, *start, of=1, **settings):
    """A run that is stopped and goes on from its NAME_last.weights, and one that is not. Returns what both printed. of:
    stops at a multiple of this."""
    one = make(root / "one", keys, whole, **settings)
    said = train(one, *start)
    for attempt in range(20):
        two = make(root / f"two{attempt}", keys, whole, **settings)
        if stop(two, stopped - attempt % of, *start) % of == 0:
            break
    else:
        raise AssertionError(f"never stopped at iteration {stopped}")
    assert not (two / "backup" / "toy_final.weights").exists(), "it was not stopped"
    resumed = train(two, two / "backup" / "toy_last.weights")
    assert resumed.count("resumed from ") == 1, resumed[-2000:]
    assert pair(one) == pair(two), root.name
    return said, resumed


def check_threads(root):
    files = []
    for threads in 1, 3:
        folder = make(root / str(threads), MOSAIC + "amp_loader_threads=%d\n" % threads, 6)
        train(folder)
        files.append(pair(folder)[0])
    other = make(root / "other", MOSAIC.replace("seed=7", "seed=8"), 6)
    train(other)
    assert files[0] == files[1], "the number of loader threads changes the result"
    assert files[0] != pair(other)[0], "the seed has no effect"


def check_stop(root):
    check_resumed(root, MOSAIC, 60, 4)


def check_sizes(root):
    """One is drawn every ten iterations, counted from where a run starts; the largest is the first of all, and that of
    the last hundred."""
    runs = check_resumed(root, FORK, 150, 20, of=10, size=96, batch=4, random_size=1)
    whole, resumed = (re.findall(r"^(\d+ x \d+)$", said, re.M) for said in runs)
    assert whole[0] == whole[-1] == resumed[-1] == "160 x 160" and len(set(whole)) > 1, whole


def check_names(root):
    folder = make(root / "names", FORK, 3)
    train(folder)
    names = sorted(path.name for path in (folder / "backup").iterdir())
    assert names == ["toy_final.weights", "toy_final.weights.amp"], names


def check_processes(root):
    if not shutil.which("mpirun") or not MODULE.exists():
        print(f"SKIPPED several processes by the fork's rules: no {MODULE.name if shutil.which('mpirun') else 'mpirun'}")
        return
    one, two = (make(root / name, MOSAIC + ORDERED, 8, batch=8, changes=(("subdivisions=2", "subdivisions=4"),))
                for name in ("one", "two"))
    train(one)
    said = train(two, processes=2)
    assert said.count("2 processes train this network") == 1, said
    assert pair(one) == pair(two)


def check_average(root):
    """The weights become their average 1000 iterations before the end, the same one in several processes."""
    in_parts = (("subdivisions=2", "subdivisions=4"),)
    begin = make(root / "begin", FORK + ORDERED, 3, batch=8, changes=in_parts)
    train(begin)
    start = begin / "backup" / "toy_final.weights"
    data = bytearray(start.read_bytes())
    data[12:20] = (1000 * 8).to_bytes(8, "little")  # images seen
    start.write_bytes(data)
    files = []
    for name, keys, processes in (("without", "", 0), ("one", "ema_alpha=0.9\n", 0), ("two", "ema_alpha=0.9\n", 2)):
        if processes and not (shutil.which("mpirun") and MODULE.exists()):
            continue
        folder = make(root / name, FORK + ORDERED + keys, 2006, batch=8, changes=in_parts)
        said = train(folder, start, processes=processes)
        told = "ema_alpha=0.9 (from iteration 1003 on; at 1006 the weights become the average)"
        assert said.count(told) == bool(keys), said
        files.append(pair(folder))
    assert files[0] != files[1], "the average is not taken"
    assert files[1] == files[-1], "two processes take another average"


def check_everything(root):
    """Of the first convolution nothing changes; the rest goes on exactly as it would have."""
    begin = make(root / "begin", MOSAIC, 3)
    train(begin)
    start = begin / "backup" / "toy_final.weights"
    keys = MOSAIC + "clip_grad_norm=5\n"
    frozen = ("filters=8\nsize=3\nstride=2\n", "filters=8\nsize=3\nstride=2\nfreeze=1\n")
    again = ("filters=16\n", "filters=16\ncheckpoint=1\n")
    said, _ = check_resumed(root, keys, 60, 5, start, "-clear", changes=(frozen, again))
    assert "backward computes 1 layer again" in said, said
    first, last = (toyset.read_weights(path)[:4 * 8 + 3 * 3 * 3 * 8]
                   for path in (start, root / "one" / "backup" / "toy_final.weights"))
    assert first == last, "the frozen layer has changed"


def main():
    with tempfile.TemporaryDirectory() as root:
        for check in (check_threads, check_stop, check_names, check_processes, check_sizes, check_average, check_everything):
            if len(sys.argv) > 3 and check.__name__ not in sys.argv[3:]:
                continue
            check(Path(root) / check.__name__)
            print(check.__name__, "ok", flush=True)


main()
