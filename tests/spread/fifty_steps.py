"""After fifty steps in 16 bits several processes are no farther from one than one is from itself at learning rates that
differ in the fourth digit.

usage: fifty_steps.py DARKNET STOCK PLUGIN CHECKOUT

As processes.py. Training amplifies every difference, rounding too, so a single distance says little. Of one seed, let
k of the RATES give weights that are farther from one process's than those of N processes are. If N processes differ
by no more than these do, k is 0 to 4 with at least the chance of a draw, and its sum over the SEEDS is below LEAST
once in 8,700 runs of this test for each dtype and N (45 of 5^8 draws). Without the gradients of one process weights
are some ten times as far off, and k is 0. One process's gradients times 1.01 are not seen here, as all distances are
by then what training makes of any difference; passes.py has single steps for that.
AMP_TEST_SEED draws seeds and images; without it the clock does.
"""

import os
import random
import time

import processes
from processes import AMP, change, distance, make, start, end, weights_of

SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
RATES = "0.001001", "0.000999", "0.0010011", "0.0009989"
SEEDS, LEAST = 8, 3
NUMBERS = 2, 3


def trained(folder, n, keys, images, rate="0.001"):
    make(folder, keys, iterations=50, seed=images)
    change(folder, "learning_rate=0.001", "learning_rate=" + rate)
    change(folder, "burn_in=10", "burn_in=0")
    end(start(folder, n))
    return weights_of(folder)


def farther(folder, dtype):
    """For each N, how many rates go farther."""
    keys = AMP + "amp_dtype=%s\nseed=%d\n" % (dtype, DRAW.randrange(10**6))
    images = DRAW.randrange(10**6)
    one = trained(folder / "one", 0, keys, images)
    rates = [distance(trained(folder / rate, 0, keys, images, rate), one) for rate in RATES]
    several = [distance(trained(folder / str(n), n, keys, images), one) for n in NUMBERS]
    print("  %s: %s; at other rates: %s" % (dtype, *(" ".join("%.3g" % far for far in fars) for fars in (several, rates))))
    return [sum(rate > far for rate in rates) for far in several]


def check_fifty(root):
    for dtype in "fp16", "bf16":
        found = [farther(root / dtype / str(k), dtype) for k in range(SEEDS)]
        for n, k in zip(NUMBERS, map(sum, zip(*found))):
            print("%s, %d processes: %d of %d are farther" % (dtype, n, k, SEEDS * len(RATES)), flush=True)
            assert k >= LEAST, "%s, %d processes: farther from one process than one at another rate" % (dtype, n)


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    processes.run_checks(globals(), [check_fifty])


if __name__ == "__main__":
    main()
