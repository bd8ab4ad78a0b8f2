"""What single passes of a step give, and what several processes make of them.

usage: passes.py DARKNET STOCK PLUGIN CHECKOUT PASSES

As processes.py; PASSES is a library that changes what passes see (passes.c).
"""

import math
import shutil
import struct
import sys

import processes
from processes import FAST, PLUGIN, STOCK, end, make, pair, start

LIBRARY = sys.argv[5]
PASSES, IMAGES = 4, 2  # of a step; of a pass
ROLLING = 2 * (8 + 4 + 8 + 16)  # the toy net's statistics, which weights have and momentum has not
PLAIN = "batch_normalize=1\n", ""


def train_with(folder, n, how, *words):
    return end(start(folder, n, *words, program=STOCK, env=dict(PASSES=how, PRELOAD=LIBRARY + ":" + PLUGIN)))


# ---- gradient sums ----


def momentum_of(weights, sidecar, rolling=ROLLING):
    n = (len(weights) - 20) // 4 - rolling
    return struct.unpack("<%df" % n, sidecar[-8 - 4 * n:-8])  # arrays come last, then a checksum


def a_step(folder, n, how, weights, keys, changes, passes=PASSES):
    """Its gradient sums: a momentum of 0.5 leaves their halves in the sidecar, which is exact."""
    make(folder, keys, batch=passes * IMAGES, subdivisions=passes, iterations=1,
         changes=(("momentum=0.9", "momentum=0.5"), ("decay=0.0005", "decay=0"), ("burn_in=10", "burn_in=0"), *changes))
    train_with(folder, n, how, weights, "-clear")
    return [2 * x for x in momentum_of(*pair(folder), 0 if changes else ROLLING)]


def rounded(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def in_order(passes):
    sums = passes[0]
    for g in passes[1:]:
        sums = [rounded(a + b) for a, b in zip(sums, g)]
    return sums


def most_off(passes):
    """Of every sum, what any order of addition may change it by."""
    return [(PASSES - 1) * 2 ** -24 * sum(map(abs, g)) for g in zip(*passes)]


def check_near(sums, passes, one, name):
    off, most = [abs(a - math.fsum(g)) for a, g in zip(sums, zip(*passes))], most_off(passes)
    wrong = [i for i, (a, b) in enumerate(zip(off, most)) if a > b]
    print("  %s: %.2f of the bound at most, %d of %d sums are not one process's" % (
        name, max(a / b for a, b in zip(off, most) if b), sum(map(lambda a, b: a != b, sums, one)), len(one)))
    assert not wrong, "%s: sum %d is %g, off by %g; allowed: %g" % (name, wrong[0], sums[wrong[0]], off[wrong[0]], most[wrong[0]])
    assert sums != one, name + ": this is the order of one process"


def check_sums(root):
    """Sums of the default order are within (passes - 1) * 2^-24 * sum |g| of the exact ones, element by element. The
    gradient g of each pass comes from a step that has no other one. Batch-norm computes its statistics about the rolling
    mean, which the pass before has moved, and so rounds each pass in another way: with it the passes are the same where
    each process has one; without it always, and one process's sums are these added up in order, to the bit."""
    for name, changes, dtypes, numbers in (("plain", (PLAIN,), ("fp32", "fp16", "bf16"), (2, 3, 4)),
                                           ("normalized", (), ("fp16",), (4,))):
        before = make(root / name / "before", FAST, iterations=3, changes=changes)
        processes.train(before, 0)
        weights = root / name / "start.weights"
        shutil.copy(before / "backup" / "toy_final.weights", weights)
        for dtype in dtypes:
            folder, keys = root / name / dtype, FAST + "loss_scale=128\namp_dtype=%s\n" % dtype
            one = a_step(folder / "one", 0, "keep:%s" % (folder / "step"), weights, keys, changes)
            passes = [a_step(folder / ("pass%d" % k), 0, "take:%s:%d" % (folder / "step", k), weights, keys, changes, 1)
                      for k in range(PASSES)]
            assert any(one) and (one == in_order(passes)) == bool(changes), "%s: other gradients than the passes'" % folder
            for n in numbers:
                several = a_step(folder / str(n), n, "", weights, keys, changes)
                check_near(several, passes, one, "%s, %s, %d processes" % (name, dtype, n))
    less = a_step(root / "rounded", 4, "", weights, keys + "amp_wire=bf16\n", changes)
    exact = map(math.fsum, zip(*passes))
    assert any(abs(a - b) > c for a, b, c in zip(less, exact, most_off(passes))), "sums in 16 bits are within the bound"


def main():
    processes.skip_without_mpi()
    processes.run_checks(globals(), [check_sums])


if __name__ == "__main__":
    main()
