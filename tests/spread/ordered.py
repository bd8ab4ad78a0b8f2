"""Several processes with amp_reduce=ordered train, byte for byte, what one process trains: weights and sidecar.

usage: ordered.py DARKNET STOCK PLUGIN CHECKOUT [--all]

As processes.py. --all: every dtype with every optimizer and net, on 1 to 4 processes, and random=1, which trains at large
sizes. The toy net has a residual layer.
"""

import signal
import sys

import processes
from processes import AMP, DROPOUT, FAST, ORDERED, change, make, pair, start, train

DTYPES = {"fp16": "amp_dtype=fp16\nloss_scale_init=2\nloss_scale_window=5\n", "bf16": "amp_dtype=bf16\n",
          "fp32": "amp_dtype=fp32\n"}
OPTIMIZERS = {"sgd": "", "adam": "adam=1\n"}
NETS = {"plain": (), "dropout": (DROPOUT,)}
SKIPPING = "amp_on_overflow=skip\nloss_scale_init=16777216\n"


def check_like_one(root, keys, changes, numbers, **made):
    """Returns one process's files."""
    one = make(root / "one", ORDERED + keys, changes=changes, **made)
    said = train(one, 0)
    assert "processes train" not in said, said
    for n in numbers:
        several = make(root / str(n), ORDERED + keys, changes=changes, **made)
        said = train(several, n)
        assert said.count("%d processes train this network, started by Open MPI's mpirun" % n) == (n > 1), said
        assert pair(several) == pair(one), (root.name, n)
    return pair(one)


def check_some(root):
    """Four passes on 2 to 4 processes, so that shares differ with 3."""
    files = check_like_one(root / "fp16", DTYPES["fp16"], (), (2, 3, 4))
    check_like_one(root / "bf16", DTYPES["bf16"] + OPTIMIZERS["adam"], (), (2, 3, 4))
    check_like_one(root / "fp32", DTYPES["fp32"], NETS["dropout"], (2, 3, 4))
    check_like_one(root / "skipping", SKIPPING, (), (3,))
    other = make(root / "other", AMP + "seed=8\n")
    train(other, 0)
    assert pair(other) != files, "training has no effect"


def check_each(root):
    """Also five passes, so that shares differ with 2 to 4 processes."""
    seen = set()
    for dtype in DTYPES:
        for optimizer in OPTIMIZERS:
            for net, changes in NETS.items():
                name = "%s_%s_%s" % (dtype, optimizer, net)
                files = check_like_one(root / name, DTYPES[dtype] + OPTIMIZERS[optimizer], changes, (1, 2, 3, 4))
                seen.add(files[0])
        check_like_one(root / (dtype + "_five"), DTYPES[dtype], (), (2, 3, 4), batch=10, subdivisions=5)
    assert len(seen) == len(DTYPES) * len(OPTIMIZERS) * len(NETS), "some of these train the same"
    check_like_one(root / "skipping", SKIPPING, (), (1, 2, 3, 4))


# ---- other numbers of passes and processes ----


def check_more_processes_than_passes(root):
    one = make(root / "one", ORDERED, subdivisions=4)
    train(one, 0)
    several = make(root / "several", ORDERED, subdivisions=2)
    said = train(several, 4)
    assert said.count("4 processes train with subdivisions=4 in place of 2, so that each has a pass of 2 images") == 1
    assert pair(one) == pair(several)
    said = train(make(root / "impossible", ORDERED, subdivisions=2), 3, status=1)
    assert "batch=8: 3 processes cannot share batch=8 with subdivisions=2; possible: 1, 2, 4, 8." in said, said


def check_one_pass_each(root):
    for dtype in DTYPES:
        for n in 2, 3, 4:
            one, several = (make(root / dtype / str(n) / str(passes), ORDERED + DTYPES[dtype], batch=12, subdivisions=passes)
                            for passes in (n, 1))
            train(one, 0)
            assert "%d processes train with subdivisions=%d in place of 1" % (n, n) in train(several, n)
            assert pair(one) == pair(several), (dtype, n)


def check_parts(root, keys):
    """On one process, then on four, then on three."""
    one = make(root / "one", ORDERED + keys, iterations=21)
    train(one, 0)
    weights = ()
    for iterations, n in ((7, 0), (14, 4), (21, 3)):
        part = make(root / str(iterations), ORDERED + keys, iterations=iterations)
        said = train(part, n, *weights)
        assert said.count("resumed from ") == len(weights), said
        weights = (part / "backup" / "toy_final.weights",)
    assert pair(part) == pair(one), root.name


def check_resumed(root):
    """The default order resumes as exactly."""
    check_parts(root / "ordered", OPTIMIZERS["adam"])
    whole, half, rest = (make(root / ("fast%d" % k), FAST, iterations=k) for k in (20, 10, 21))
    change(rest, "max_batches=21", "max_batches=20")
    train(whole, 3)
    train(half, 3)
    train(rest, 3, half / "backup" / "toy_final.weights")
    assert pair(whole) == pair(rest)


def check_resumed_each(root):
    for dtype in DTYPES:
        for optimizer in OPTIMIZERS:
            check_parts(root / ("%s_%s" % (dtype, optimizer)), DTYPES[dtype] + OPTIMIZERS[optimizer])


def check_sizes(root):
    """random=1: the first 100 of 1000 iterations have ten sizes."""
    runs = {}
    for n in (0, 2, 3, 4):
        folder = make(root / str(n), ORDERED + "amp_sidecar=all\n", batch=4, iterations=1000, random_size=1)
        change(folder, "learning_rate=0.001", "learning_rate=0.00001")
        process = start(folder, n)
        sizes = []
        for line in process.stdout:
            sizes += [int(line)] if line.strip().isdigit() else []
            if (folder / "backup" / "toy_100.weights.amp").exists() and len(sizes) > 10:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate()
        runs[n] = sizes[:10], pair(folder, "toy_100.weights")
        assert len(set(runs[0][0])) > 2 and runs[n] == runs[0], n


def main():
    processes.skip_without_mpi()
    each = [check_each, check_one_pass_each, check_resumed_each, check_sizes]
    some = [check_some, check_more_processes_than_passes, check_resumed]
    processes.run_checks(globals(), each if "--all" in sys.argv else some)


if __name__ == "__main__":
    main()
