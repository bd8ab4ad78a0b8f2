"""scripts/bench-scaling without processes or PyTorch: the fit against known parameters, formulas against values by hand,
what is read from amp_log, and that the committed pages are those of their records.

usage: bench_scaling.py ROOT
"""

import importlib.machinery
import importlib.util
import json
import os
import random
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
import bench_lib
import scaling_model as model

loader = importlib.machinery.SourceFileLoader("bench_scaling", str(ROOT / "scripts/bench-scaling"))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_scaling", loader))
loader.exec_module(bench)

SEED = int(os.environ.get("AMP_TEST_SEED", "1"))


def near(actual, expected, tolerance=1e-9):
    assert abs(actual - expected) <= tolerance * abs(expected), (actual, expected)


def made_up_runs(known, noise=lambda: 1.0):
    """Strong and weak scaling to 4 processes, and nets of other sizes."""
    for n, images, size in ((1, 16, 4e6), (2, 8, 4e6), (2, 16, 4e6), (4, 4, 4e6), (4, 16, 4e6), (2, 1, 1e5), (2, 1, 4e7)):
        whole = size == 4e6
        compute = model.compute_seconds(known, n, images)
        yield {"processes": n, "images": images, "bytes": size, "compute": compute * noise() if whole else None,
               "wait": compute * known["spread"] * model.slowest(n) * noise(),
               "reduce": model.exchange_seconds(known, n, size) * noise()}


def check_fit():
    """Parameters of many sizes come back: exactly, and within 1 % from times that are wrong by 0.05 %."""
    rng = random.Random(SEED)
    for _ in range(20):
        known = {"per_image": 10 ** rng.uniform(-4, -2), "per_byte": 10 ** rng.uniform(-10, -9),
                 "spread": rng.uniform(.01, .2)}
        known |= {"per_process": known["per_image"] * rng.uniform(2, 10),
                  "latency": known["per_byte"] * 10 ** rng.uniform(5, 7)}
        for noise, tolerance in ((lambda: 1.0, 1e-6), (lambda: rng.uniform(.9995, 1.0005), .01)):
            found = model.fit(list(made_up_runs(known, noise)))
            assert found.keys() == known.keys()
            for name, value in known.items():
                assert abs(found[name] / value - 1) <= tolerance, (f"AMP_TEST_SEED={SEED}", name, found, known)


def check_least_squares():
    """What does not show is 0, not negative; what cannot be told apart goes to one."""
    assert model.least_squares([(1, 1, 1), (2, 1, 3), (3, 1, 5)])[1] == 0
    a, b = model.least_squares([(1, 2, 3), (2, 4, 6)])
    near(a + 2 * b, 3)


def check_terms():
    near(model.volume(2, 100), 100)
    near(model.volume(8, 100), 175)
    assert model.slowest(1) == 0
    near(model.slowest(2), .5895, 1e-3)  # the quantile of 1.625 / 2.25
    near(model.slowest(1024), 3.2318, 1e-3)
    known = {"per_image": .002, "per_process": .01, "latency": .001, "per_byte": 1e-9, "spread": 0}
    near(model.step_seconds(known, 4, 5, 1e6), 4 * (5 * .002 + .01) + 2 * .001 + 1.5e-3)


def check_all_reduce():
    """One node; 8 nodes with 8 ports, slower than NVLink by a little, and with one; half the bandwidth."""
    near(model.all_reduce_seconds(8, 370e6, 1), 8.4e-6 + 14 * 4e-6 + 1.75e-3)
    lead = 8.4e-6 + 2 * (7 * 4e-6 + 3 * 14e-6)
    near(model.all_reduce_seconds(64, 368e6, 8), lead + 2 * 63 / 64 * 1e-3)
    near(model.all_reduce_seconds(64, 46e6, 1), lead + 2 * 63 / 64 * 1e-3)
    near(model.all_reduce_seconds(64, 46e6, 1, slower=2), lead + 4 * 63 / 64 * 1e-3)


def check_overlap():
    """Seconds by hand. The rolling statistics go first; a last bucket is 1/16 of the others at most."""
    bucket = model.BUCKET
    layers = [(10, .25), (bucket, .5), (bucket, .25)]
    assert model.exposed_seconds(layers, 4, lambda size: 1.0) == 1.0  # ready at 1 and 3, then the rest at 4
    # The statistics are there at 3, so the first bucket at 6, the second at 9, what is left at 12; backward ends at 4.
    assert model.exposed_seconds(layers, 4, lambda size: 3.0) == 8.0
    # A bucket ends where little is left, full or not; all that is left is the last one, also behind such a place.
    sizes = []
    model.exposed_seconds([(1, .2), (bucket / 20, .2), (bucket / 10, .2), (bucket / 2, .4)], 4, lambda size: sizes.append(size) or 0.0)
    assert sizes == [0, bucket / 2 + bucket / 10, bucket / 20 + 1], sizes
    sizes.clear()
    model.exposed_seconds([(bucket, .5), (bucket / 2, .5)], 4, lambda size: sizes.append(size) or 0.0)
    assert sizes == [0, bucket * 3 / 2], sizes
    latency = 8.4e-6 + 14 * 4e-6
    vote = latency + 7 * 512 / 46e9
    compute = .01 * (1 + .01 * model.slowest(8))
    near(model.efficiency(.01, 8, [(370e6, 1)], 8, False), .01 / (compute + 1.75e-3 + latency + vote))
    near(model.efficiency(.01, 8, [(370e6, 1)], 8, False, bits=16), .01 / (compute + 1.75e-3 / 2 + latency + vote))
    # With the same bytes in a last layer whose gradient is there at once, all but an empty bucket or the vote is hidden.
    near(model.efficiency(.01, 8, [(1, 1), (370e6, 0)], 8, True), .01 / (compute + vote))
    near(model.gather_seconds(1024, 512, 1), model.all_reduce_seconds(1024, 0, 1) + 1023 * 512 * 8 / 46e9)


def check_layers():
    """A convolution of 3 x 3 x 4 to 8 channels on 10 x 10, and a pool: bytes and shares by hand."""
    flop = 2 * 100 * 9 * 4 * 8
    plan = {"layers": [{"output": [10, 10, 8], "outputs": 800, "flop": flop}, {"output": [5, 5, 8], "outputs": 200, "flop": 0},
                       {"output": [10, 10, 8], "outputs": 800, "flop": 2 * flop}]}
    (first, pool, last) = model.layers_of(plan, (1e12, 1e9))
    assert first[0] == 4 * (288 + 16) and pool == (0, 0) and last[0] == 4 * (576 + 16)
    floors = [2 * flop / 1e12 + 6400 / 1e9, 4 * flop / 1e12 + 6400 / 1e9]
    near(first[1], floors[0] / sum(floors))
    near(first[1] + last[1], 1)


def check_log():
    """Means without the warm-up and without the iterations that may have a save, which is what they take more."""
    rows = [{"iteration": n, "seconds": 99 if n <= bench.WARMUP else 3 if n == bench.SAVED_AT + 1 else 1, "loading_seconds": .1,
             "wait_seconds": .2, "reduce_seconds": .3, "skipped": 0, "redone": 0} for n in range(1, bench.ITERATIONS + 1)]
    found = bench.parts_of(rows, bench.ITERATIONS)
    for part, value in (("seconds", 1), ("loading", .1), ("wait", .2), ("reduce", .3), ("compute", .4), ("save", 2)):
        near(found[part], value)
    for change in (rows[:-1], [*rows[:-1], {**rows[-1], "skipped": 1}]):
        try:
            bench.parts_of(change, bench.ITERATIONS)
        except bench_lib.BenchError:
            continue
        raise AssertionError("not refused")


def check_pages():
    """Of every committed record; the table in the documents is from one."""
    pages = []
    for path in sorted((ROOT / "measurements").glob("scaling-*.json")):
        pages.append(path.with_suffix(".md").read_text())
        assert bench.report(json.loads(path.read_text())) == pages[-1], f"{path.name}: its page is another"
    for line in (ROOT / "docs/several-processes.md").read_text().splitlines():
        if line.startswith("| yolov3"):
            assert any(line in page.splitlines() for page in pages), f"docs/several-processes.md: in no record: {line}"


def main():
    for check in (check_fit, check_least_squares, check_terms, check_all_reduce, check_overlap, check_layers, check_log,
                  check_pages):
        check()


main()
