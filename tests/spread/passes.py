"""What single passes of a step give, and what several processes make of them.

usage: passes.py DARKNET STOCK PLUGIN CHECKOUT PASSES

As processes.py; PASSES is a library that changes what passes see (passes.c).
"""

import json
import math
import shutil
import struct
import sys

import processes
from processes import FAST, ORDERED, PLUGIN, STOCK, distance, end, make, pair, start, weights_of

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


# ---- a loss that is lost ----

STEP = 3  # in which
# Of the toy net's parameters up to its two heads' biases; each head has two boxes of x, y, w, h, objectness and 2 classes.
HEADS = 8 * (4 + 27) + 4 * (4 + 8) + 8 * (4 + 36) + 16 * (4 + 72), 14 + 14 * 16
LARGE = 1e20  # finite, as what follows from it in backward; its square is no FP32 number
SLOW = ("learning_rate=0.001", "learning_rate=1e-25"), ("burn_in=10", "burn_in=0")


def large_boxes(folder):
    """Weights whose boxes are so wide and high that the loss of an image with a label is inf. Without labels nobody asks."""
    make(folder, FAST, iterations=1)
    processes.train(folder, 0)
    floats = list(weights_of(folder))
    for head in HEADS[0], sum(HEADS):
        for box in 0, 7:
            for side in 2, 3:
                floats[head + box + side] = LARGE
    path = folder / "backup" / "toy_final.weights"
    path.write_bytes(path.read_bytes()[:20] + struct.pack("<%df" % len(floats), *floats))
    return path


def lost_run(folder, n, keys, weights, k):
    """What the log has of each step, what Darknet printed, and what is left."""
    make(folder, keys + "amp_dtype=fp32\namp_on_divergence=continue\namp_log=log\n", iterations=5, changes=SLOW)
    out, said = train_with(folder, n, "lose:%d:%d" % (k, STEP), weights, "-clear")
    steps = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    printed = [line.split(", ")[:2] for line in out.splitlines() if line[:1].isdigit() and " avg" in line]
    assert len(steps) == len(printed) == 5, out
    return [step["loss"] for step in steps], [step["skipped"] for step in steps], printed, pair(folder)


def check_lost_loss(root):
    """The loss of one pass is inf, in each process in its turn: the step counts, its loss is unknown in the log and 0 of
    that pass in what Darknet prints, as in one process."""
    weights = large_boxes(root / "weights")
    for k in range(PASSES):
        one = lost_run(root / str(k) / "one", 0, ORDERED, weights, k)
        assert [loss is None for loss in one[0]] == [step == STEP for step in range(1, 6)] and not any(one[1]), one[:3]
        ordered = lost_run(root / str(k) / "ordered", 4, ORDERED, weights, k)
        assert ordered == one, (k, ordered[:3], one[:3])
        fast = lost_run(root / str(k) / "fast", 4, FAST, weights, k)
        assert fast[1] == one[1] and [loss is None for loss in fast[0]] == [loss is None for loss in one[0]], (k, fast[:3])
        for (told, _), (expected, _) in zip(fast[2], one[2]):
            assert abs(float(told.split()[1]) / float(expected.split()[1]) - 1) < 1e-4, (k, fast[2], one[2])
        ours, theirs = momentum_of(*fast[3]), momentum_of(*one[3])
        assert max(theirs) < distance(theirs, [0] * len(theirs)) < math.inf and distance(ours, theirs) < 1e-5 * math.hypot(*theirs)


def main():
    processes.skip_without_mpi()
    processes.run_checks(globals(), [check_sums, check_lost_loss])


if __name__ == "__main__":
    main()
