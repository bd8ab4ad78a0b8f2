"""What goes wrong in one pass of a step, and so in one process alone: all make of it what one process makes.

usage: one_pass.py DARKNET STOCK PLUGIN CHECKOUT PASSES [--all]

As processes.py; PASSES is a library that changes what a pass sees (passes.c). --all: each pass in its turn on 2, 3 and 4
processes; without it AMP_TEST_SEED, else the clock, draws a pass for each fault.
"""

import json
import math
import os
import random
import re
import struct
import sys
import time

import processes
from passes import PASSES, momentum_of, train_with
from processes import FAST, ORDERED, distance, make, pair, weights_of

SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
STEP, STEPS = 3, 5  # the one that goes wrong; all
# Of the toy net's parameters up to its two heads' biases; each head has two boxes of x, y, w, h, objectness and 2 classes.
HEADS = 8 * (4 + 27) + 4 * (4 + 8) + 8 * (4 + 36) + 16 * (4 + 72), 14 + 14 * 16
AT_ONCE = ("burn_in=10", "burn_in=0")
SLOW = ("learning_rate=0.001", "learning_rate=1e-25")


class Fault:
    """how: PASSES makes it; box: by which weights widen and heighten the heads' boxes. words: said of it. The step is
    skipped, a pass of it redone, the loss scale lowered, or its loss lost."""

    def __init__(self, how, keys, words, box=0, changes=(), skips=False, redone=False, lowers=False, no_loss=False):
        self.how, self.keys, self.words, self.box, self.changes = how, keys, words, box, (AT_ONCE, *changes)
        self.skips, self.redone, self.lowers, self.no_loss = skips, redone, lowers, no_loss


# Images with labels ask for the boxes' size. exp(LARGE) makes the loss inf, and what follows from it in backward is
# finite; its square is no FP32 number. The gradients of WIDE times 2048 do not fit FP16, those of images without labels do.
LARGE, WIDE = 1e20, 20
HIGH, LOW = ("loss_scale_init=%d\nloss_scale_window=1000\n" % scale for scale in (2048, 128))
FAULTS = {
    "lost_loss": Fault("lose", "amp_dtype=fp32\namp_on_divergence=continue\n", "", box=LARGE, changes=(SLOW,), no_loss=True),
    "redone": Fault("lose", HIGH, "overflowed", box=WIDE, redone=True, lowers=True),
    "overflow": Fault("lose", HIGH + "amp_on_overflow=skip\n", "overflowed", box=WIDE, skips=True, lowers=True),
    "forward": Fault("large", LOW, "does not fit FP16", skips=True, no_loss=True),
    "image": Fault("inf", LOW, "is not finite", skips=True, no_loss=True),
}


def first_weights(root, box):
    make(root, FAST, iterations=1)
    processes.train(root, 0)
    floats = list(weights_of(root))
    for head in HEADS[0], sum(HEADS):
        for place in 0, 7:
            for side in 2, 3:
                floats[head + place + side] += box
    path = root / "backup" / "toy_final.weights"
    path.write_bytes(path.read_bytes()[:20] + struct.pack("<%df" % len(floats), *floats))
    return path


def run(folder, n, fault, keys, weights, k):
    """What the log has of each step, what was said of faults and by which rank, and the files."""
    make(folder, keys + fault.keys + "amp_log=log\n", iterations=STEPS, changes=fault.changes)
    out, said = train_with(folder, n, "%s:%d:%d" % (fault.how, k, STEP), weights, "-clear")
    steps = [json.loads(line) for line in (folder / "log").read_text().splitlines() if '"summary"' not in line]
    printed = [line.split(", ")[:2] for line in out.splitlines() if line[:1].isdigit() and " avg" in line]
    assert len(steps) == len(printed) == STEPS, out
    facts = [[step[key] for key in ("loss_scale", "redone", "skipped")] for step in steps]
    told = re.findall(r"^mixed precision: (?:rank (\d+): )?(.* of layer .*)$", said.replace(str(folder), ""), re.M)
    return facts, [step["loss"] for step in steps], printed, told, pair(folder), said


def check_one(fault, facts, losses, told, said):
    """That the fault is the one that is meant: else the rest would show nothing."""
    before, after = facts[0], facts[-1]
    assert facts == [before] * (STEP - 1) + [after] * (STEPS - STEP + 1) and before[1:] == [0, 0], (facts, said)
    assert (after[0] < before[0], after[1] > 0, after[2]) == (fault.lowers, fault.redone, fault.skips), (facts, said)
    assert [loss is None for loss in losses] == [fault.no_loss and step == STEP for step in range(1, STEPS + 1)], (losses, said)
    assert fault.words in "".join(text for _, text in told) and bool(told) == bool(fault.skips or fault.redone), said


def rank_of_pass(k, n):
    return max(rank for rank in range(n) if PASSES * rank // n <= k)


def check_told(fault, several, one, rank, exact):
    """Rank 0 says what happened in another one, but that this redid a pass. In the default order the largest value may end
    in another digit."""
    told, said, expected = several[3], several[5], one[3]
    if fault.redone and rank:
        assert not told and said.count("(overflow in another process)") == 1, said
        return
    assert [who for who, _ in told] == [str(rank or "")] * len(expected), (told, expected)
    digits = "$^" if exact else r"largest \S+,"
    texts = [[re.sub(digits, "", text.split(";")[0]) for _, text in lines] for lines in (told, expected)]
    assert texts[0] == texts[1], (told, expected)


def check_near(fault, one, several):
    """In the default order: by rounding, which in 16 bits grows to as much as 0.5 % of the momentum until the last step.
    After a fault in forward one process computes no more passes of the step, and Darknet is told their losses as 0; here
    the others are computing theirs."""
    assert several[0] == one[0], (several[0], one[0])
    for loss, expected in zip(several[1], one[1]):
        assert (loss is None) == (expected is None) and (loss is None or abs(loss / expected - 1) < 1e-3), (several[1], one[1])
    for (_, average), (_, expected) in zip(several[2], one[2]):
        assert fault.skips and fault.no_loss or abs(float(average.split()[0]) / float(expected.split()[0]) - 1) < 1e-3, (several[2], one[2])
    ours, theirs = momentum_of(*several[4]), momentum_of(*one[4])
    far, size = distance(ours, theirs), math.hypot(*theirs)
    assert 0 < size < math.inf and far < size * (1e-5 if "fp32" in fault.keys else 3e-2), "%g of the momentum" % (far / size)
    return far / size


def check_fault(root, name, passes, numbers):
    fault = FAULTS[name]
    weights = first_weights(root / "weights", fault.box)
    for k in passes:
        one = run(root / str(k) / "one", 0, fault, ORDERED, weights, k)
        check_one(fault, one[0], one[1], one[3], one[5])
        for n in numbers:
            ordered = run(root / str(k) / ("ordered%d" % n), n, fault, ORDERED, weights, k)
            assert ordered[:3] == one[:3] and ordered[4] == one[4], (name, k, n, ordered[5], one[5])
            fast = run(root / str(k) / ("fast%d" % n), n, fault, FAST, weights, k)
            print("  %s in pass %d, %d processes: %.2g of the momentum" % (name, k, n, check_near(fault, one, fast)), flush=True)
            for several in ordered, fast:
                check_told(fault, several, one, rank_of_pass(k, n), several is ordered)


def check_each(root, passes=None):
    for name in FAULTS:
        check_fault(root / name, name, passes or [DRAW.randrange(PASSES)], (2, 3, 4) if passes else (3,))


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    processes.run_checks(globals(), [check_each], *[range(PASSES)] * ("--all" in sys.argv))


if __name__ == "__main__":
    main()
