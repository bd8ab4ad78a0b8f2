"""scripts/compare without training: statistics against known answers, cfgs, logs, cost, numerics, words.

usage: compare_statistics.py ROOT
"""

import json
import math
import random
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "scripts/compare"))
import cfgs
import cost
import logs
import numerics
import paired
import report
from bench_lib import BenchError


def near(actual, expected, tolerance=1e-9):
    assert abs(actual - expected) <= tolerance * max(1, abs(expected)), (actual, expected)


def fails(call, *words):
    try:
        call()
    except BenchError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no error with {words}")


# ---- statistics ----


def test_quantile():
    assert paired.quantile([3, 1, 2], 0.5) == 2 and paired.quantile([5], 0.1) == 5
    near(paired.quantile([0, 10], 0.1), 1)


def test_interval_of_seeds_alone():
    """Nothing depends on the images: what is left is Student's interval."""
    rng = random.Random(3)
    values = [rng.gauss(0.01, 0.02) for _ in range(12)]
    found = paired.compare(values, [values] * 20000, 72)
    mean, error = sum(values) / 12, paired.spread(values) / math.sqrt(12)
    near(found["mean"], mean)
    half = 2.2009851601 * error  # t with 11 degrees of freedom
    near(found["high"] - mean, half, 0.02 * half)
    near(mean - found["low"], half, 0.02 * half)


def test_interval_of_images_alone():
    rng = random.Random(4)
    drawn = [[0.002 + noise] * 3 for noise in (rng.gauss(0, 0.01) for _ in range(20000))]
    found = paired.compare([0.002] * 3, drawn, 1000)
    near(found["image_se"], 0.01, 0.03)
    near(found["high"] - found["low"], 2 * 1.9623 * 0.01, 0.001)


def test_no_spread():
    found = paired.compare([0.5, 0.5], [[0.5, 0.5]] * 100, 8)
    assert found["low"] == found["high"] == 0.5, found


def test_interval_ends_where_differences_do():
    found = paired.compare([0.3, -0.2], [[0.3, -0.2]] * 100, 8)
    assert (found["low"], found["high"]) == (-1, 1), found


def covers(rng, seeds, images, by_seed, by_image, by_both):
    """One simulated comparison whose true difference is 0: is it in the interval? An image adds to
    the difference of all seeds, and to each on its own."""
    common = [rng.gauss(0, by_image) for _ in range(images)]
    rows = []
    for _ in range(seeds):
        own = rng.gauss(0, by_seed)
        rows.append([own + image + rng.gauss(0, by_both) for image in common])
    drawn = []
    for _ in range(100):
        chosen = rng.choices(range(images), k=images)
        drawn.append([sum(row[i] for i in chosen) / images for row in rows])
    found = paired.compare([sum(row) / images for row in rows], drawn, images)
    return found["low"] <= 0 <= found["high"]


def test_coverage():
    """95 % of intervals hold the truth, also with the few seeds that people train."""
    for case in ((2, 25, 1, 1, 0), (3, 25, 1, 0.1, 1), (5, 25, 1, 0.1, 0), (5, 25, 1, 5, 5),
                 (5, 25, 0.1, 5, 1), (5, 25, 0.1, 0.1, 5)):
        rng = random.Random(1)
        share = sum(covers(rng, *case) for _ in range(300)) / 300
        assert 0.91 <= share <= 0.995, (case, share)


def test_seeds_needed():
    # n = 10: (t9(.975) + t9(.9)) sd / sqrt(10) = (2.2622 + 1.3830) sd / 3.1623 = 1.1527 sd
    assert paired.seeds_needed(0.01 / 1.1528, 0, 0.01) == 10
    assert paired.seeds_needed(0.01 / 1.1526, 0, 0.01) == 11
    assert paired.seeds_needed(0.001, 0.02, 0.01) is None


def test_verdicts():
    def judge(low, high, mean=0.0, n=5, fp32=0.7, sd=0.01, image_se=0.0, control=None):
        return paired.judge("bf16", "mAP50", fp32, {"low": low, "high": high, "mean": mean,
                            "seeds": n, "sd": sd, "image_se": image_se}, 0.01, control)

    assert judge(-0.009, 0.01)["verdict"] == "equal"
    assert "equals FP32's within ±0.01: difference +0.000" in judge(-0.009, 0.01)["sentence"]
    assert judge(-0.008, -0.001)["verdict"] == "equal"
    worse = judge(-0.03, -0.001, -0.02)
    assert worse["verdict"] == "worse" and "worse than FP32's by 0.020" in worse["sentence"], worse
    assert judge(0.001, 0.03, 0.02)["verdict"] == "better"
    none = judge(-0.02, 0.015)
    assert none["verdict"] == "none" and none["seeds_needed"] == 13, none
    assert "about 13 seeds" in none["sentence"] and "chance" not in none["sentence"]
    narrow = judge(-0.004, 0.0101, 0.003)["sentence"]
    assert "wider" not in narrow and "not within the margin of ±0.01" in narrow, narrow
    many = judge(-0.5, 0.5, sd=0.4)
    assert many["seeds_needed"] is None and "more than 1000 seeds" in many["sentence"], many
    assert "images" not in many["sentence"]
    assert "more validation images" in judge(-0.02, 0.02, image_se=0.004)["sentence"]
    two = judge(-0.02, 0.015, n=2)["sentence"]
    assert "about 13 seeds" in two and "2 seeds hardly tell how much" in two, two
    assert judge(0, 0, n=1)["verdict"] == "none"
    for n in (2, 3, 4):  # however clear it looks
        few = judge(-0.103, -0.019, -0.061, n=n)
        assert few["verdict"] == judge(-0.001, 0.001, n=n)["verdict"] == "none", few
        assert few["seeds_needed"] == 13 and "it takes 5 at least" in few["sentence"], few
        assert judge(-0.001, 0.001, n=n, sd=0.0001)["seeds_needed"] == 5
    # The control's runs: t4(.975) = 2.7764, so with sd 0.01 the mean of five is within 0.012417.
    control = {"sd": 0.01, "seeds": 5}
    assert judge(-0.03, -0.001, -0.0125, control=control)["verdict"] == "worse"
    inside = judge(-0.03, -0.001, -0.0124, control=control)
    assert inside["verdict"] == "none" and inside["seeds_needed"] == 6, inside
    assert "is up to 0.012 from 0 by chance. It would take about 6 seeds to tell." in inside["sentence"], inside
    assert judge(0.001, 0.03, 0.0001, control=control)["seeds_needed"] is None
    assert judge(-0.008, -0.001, -0.005, control=control)["verdict"] == "equal"
    early = judge(-0.03, -0.001, -0.0124, control={"sd": None, "seeds": 1})
    assert early["verdict"] == "none" and "only 1 of the control's runs are finished" in early["sentence"], early
    assert "hardly" not in judge(0, 0)["sentence"]
    assert judge(0, 0, fp32=0.05)["verdict"] == "none"  # nothing learned, nothing to compare


# ---- cfgs ----

CFG = """# a comment
[net]
batch = 4
max_batches=1000
policy=steps
steps=600, 900
loss_scale_window=30
mixed_precision=1
[convolutional]
mixed_precision=0
filters=8
[yolo]
classes=1
"""


def keys(text, section=0):
    return dict(filter(None, map(cfgs.split_entry, cfgs.Cfg(text).sections[section])))


def test_cfgs():
    fp32, mixed, custom, control, stock = cfgs.standard_variants(
        ["x:loss_scale=128,steps=1,2,layer1.mixed_precision=0"], True, True)
    net = keys(fp32.apply(CFG, 3))
    assert net["amp_dtype"] == "fp32" and net["seed"] == "3" and "loss_scale_window" not in net, net
    assert keys(control.apply(CFG, 3)) == {**net, "learning_rate": "0.0010001"}  # Darknet's default is 0.001
    rated = CFG.replace("policy", "learning_rate=.004\npolicy")
    assert keys(control.apply(rated, 3)) == {**keys(fp32.apply(rated, 3)), "learning_rate": "0.0040004"}
    fails(lambda: control.apply(rated.replace(".004", "x"), 1), "learning_rate", "'x' is not a number")
    assert len(cfgs.standard_variants([], False, False)) == 2
    net = keys(mixed.apply(CFG, 3, 500))
    assert net["loss_scale_window"] == "30" and net["mixed_precision"] == "1", net
    assert net["steps"] == "300,450" and net["max_batches"] == "500" and net["batch"] == "4", net
    stepped = CFG.replace("policy=steps", "policy=step\nstep=100")
    assert keys(mixed.apply(stepped, 1, 500))["step"] == "50" and "step" not in net
    short = keys(mixed.apply(stepped.replace("600", "100"), 1, 1))  # nothing becomes 0
    assert (short["step"], short["steps"], short["amp_log_layers"]) == ("1", "1,1", "1"), short
    text = custom.apply(CFG, 1)
    assert keys(text)["steps"] == "1,2" and keys(text)["loss_scale"] == "128"
    assert keys(text, 2) == {"classes": "1", "mixed_precision": "0"}, keys(text, 2)
    text = stock.apply(CFG, 2)
    assert set(keys(text)) == {"batch", "max_batches", "policy", "steps", "seed"}, text
    assert "mixed_precision" not in text and text.startswith("# a comment\n[net]\nseed=2\n"), text
    for bad in ("x", "fp32:a=1", "x:", "x:a", "x y:a=1", "x:layerq.a=1"):
        fails(lambda bad=bad: cfgs.parse_variant(bad), f"--variant {bad}")
    for own in ("seed", "max_batches", "batch", "subdivisions", "amp_log", "amp_log_layers"):
        fails(lambda own=own: cfgs.parse_variant(f"x:loss_scale=2,{own}=2"), own, "the same in all runs")
    for broken in ("max_batches=4x", "max_batches=0", "max_batches = 4 # x", "max_batches=1e3"):
        wrong = CFG.replace("max_batches=1000", broken)
        fails(lambda wrong=wrong: mixed.apply(wrong, 1), "max_batches", "not a whole number")
    fails(lambda: mixed.apply(CFG.replace("900", "9h"), 1, 100), "steps", "'9h' is not a whole number")
    fails(lambda: cfgs.standard_variants(["x:a=1", "x:b=1"], False, False), "--variant x", "twice")
    fails(lambda: cfgs.parse_variant("x:layer2.a=1").apply(CFG, 1), "2 layers, none is layer 2")


# ---- logs ----


def line(n, loss=1.0, **more):
    return json.dumps({"iteration": n, "loss": loss, "loss_scale": 2.0 ** n, "redone": n, "skipped": 0,
                       "seconds": 0.1, **more}) + "\n"


def printed(n, loss=1.0, wait=0.5):
    return (f"Loaded: {wait:.6f} seconds\nRegion 1 Avg IOU: 0.3\n"
            f"{n}: {loss:f}, 1.5 avg, 0.001000 rate, 0.250000 seconds, {4 * n} images\n")


def test_logs(folder):
    path = folder / "log"
    layers = [{"layer": 0, "type": "convolutional", "format": "fp16", "out_max": 2.0, "delta_max": 1,
               "delta_zero": 0.25}]
    evaluation = json.dumps({"iteration": 2, "evaluation": {"map50": 0.5}}) + "\n"
    # Killed after 3, on again after 1: 2 and 3 are there twice, the later ones count.
    path.write_text(line(1) + line(2, 9.0) + evaluation.replace("0.5", "0.9") + line(3, 9.0)
                    + line(2, layers=layers) + evaluation + line(3, None, grad_norm=4.0))
    log = logs.AmpLog(path)
    assert log.problems == [] and list(log.iterations) == [1, 2, 3], log.problems
    assert log.evaluations == {2: {"map50": 0.5}} and log.series("loss") == [(1, 1.0), (2, 1.0)]
    assert log.series("grad_norm") == [(3, 4.0)]
    heat = numerics.heat_map(log)
    assert heat["iterations"] == [2] and heat["delta_zero"] == [[0.25]], heat
    assert heat["underflow"] == [[None]] and numerics.extremes(heat)["underflow"] is None, heat
    assert numerics.heat_map(log, log)["underflow"] == [[0]]
    assert numerics.extremes(heat)["output"] == {"value": 2.0, "layer": 0, "type": "convolutional",
                                                 "iteration": 2}
    for stored, underflow, headroom in (("fp32", None, None), ("bf16", 0, None), ("fp16", 0, 2.0)):
        layers[0]["format"] = log.iterations[2]["layers"][0]["format"] = stored
        heat = numerics.heat_map(log, log)
        assert heat["underflow"] == [[underflow]] and heat["headroom"] == [[headroom]], heat
        assert heat["delta_headroom"] == [[headroom and 1]], heat
    found = numerics.summarise(log)
    assert found["redone"] == 3 and found["not_finite"] == 1 and found["scale_max"] == 8, found

    output = folder / "out"
    output.write_text(printed(1) + printed(2, 9.0) + printed(2) + "3: nan, nan avg, 0.1 rate, "
                      "0.250000 seconds, 12 images\n4: 0.5, 1.")
    rows = logs.read_output(output)
    assert rows[2] == {"loss": 1.0, "seconds": 0.75} and rows[3]["loss"] is None, rows
    assert log.belongs_to(rows) is None
    output.write_text(printed(1) + printed(2, 1.25))
    assert "loss of iteration 2 is 1.0, the run's is 1.25" in log.belongs_to(logs.read_output(output))

    # Killed after 3, begun anew and killed again after 2: 3 is not of this run.
    path.write_text(line(1) + line(2) + line(3) + evaluation.replace("2", "3") + line(1) + line(2))
    log = logs.AmpLog(path)
    assert list(log.iterations) == [1, 2] and log.evaluations == {} and log.problems == [], log.problems
    output.write_text(printed(1) + printed(2) + printed(3) + printed(2))
    assert list(logs.read_output(output)) == [1, 2]

    path.write_text(line(1) + line(2)[:20])
    assert logs.AmpLog(path).problems == ["ends inside a line"]
    path.write_text(line(1) + "{}\nnoise\n" + line(4))
    assert logs.AmpLog(path).problems == [
        "2 lines are not objects of a log, the first is line 2", "2 of 4 iterations are missing"]
    path.write_text(line(1) + line(2).replace("2,", "1e999,", 1) + line(2, "x") + "[" * 100000 + "\n"
                    + line(2, grad_norm=[]) + line(2, layers=[3]) + line(2))
    log = logs.AmpLog(path)
    assert log.series("loss") == [(1, 1.0), (2, 1.0)], log.series("loss")
    assert log.problems == ["5 lines are not objects of a log, the first is line 2"], log.problems
    assert logs.AmpLog(folder / "none").missing and logs.read_output(folder / "none") == {}
    # Stock Darknet's evaluations are in the output only; killed after 40, on again after 20.
    told = "mAP at iteration %d: mAP@0.5 %s, mAP@0.75 -, mAP@[.5:.95] 25.00 %%; best so far - at iteration 2\n"
    path.write_text(told % (20, "57.04 %") + told % (30, "1.00 %") + told % (40, "2.00 %") + told % (30, "-"))
    assert logs.read_evaluations(path) == {20: {"map50": 0.5704, "map75": None, "map": 0.25},
                                           30: {"map50": None, "map75": None, "map": 0.25}}
    assert logs.read_evaluations(folder / "none") == {}

    path.write_text("")
    empty = logs.AmpLog(path)
    assert numerics.summarise(empty) is None and numerics.heat_map(empty) is None


def test_long_logs(folder):
    """Time is linear: scanning all keys at every line would take hours."""
    many, path = 200000, folder / "long"
    path.write_text("".join(map(printed, range(1, many + 1))))
    assert len(logs.read_output(path)) == many
    path.write_text("".join(map(line, [1] * many)).replace('"iteration": 1,', '"iteration": %d,')
                    % tuple(range(1, many + 1)))
    log = logs.AmpLog(path)
    assert len(log.iterations) == many and log.problems == [], log.problems


def test_curves():
    thin = numerics.thin([(n, n) for n in range(1, 1001)])
    assert len(thin) <= numerics.CURVE_POINTS and thin[0] == [5, 3] and thin[-1] == [1000, 998]
    assert numerics.thin([]) == [] and numerics.steps([]) == []
    assert numerics.steps([(1, 4), (2, 4), (3, 2), (4, 2), (5, 2)]) == [[1, 4], [3, 2], [5, 2]]


def test_cost():
    output = {n: {"loss": 1, "seconds": 9.0 if n <= 5 else 0.5} for n in range(1, 21)}
    log = logs.AmpLog(Path("/nowhere"))
    log.evaluations = {10: {"map50": 0.4}, 15: {"map50": 0.6}, 20: {"map50": 0.5}}
    run = {"output": output, "log": log, "state": {"peak_memory_mb": 100}}
    assert cost.goal_of(run, "map50") == 0.5 and cost.goal_of(None, "map50") is None
    nothing = logs.AmpLog(Path("/nowhere"))
    nothing.evaluations = {20: {"map50": 0.001}}
    assert cost.goal_of({"log": nothing}, "map50") is None, "reached at once"
    busy = {**output, **{n: {"loss": 1, "seconds": 1.1} for n in (7, 12, 17)}}
    assert cost.is_unsteady(busy) and not cost.is_unsteady(output)
    found = cost.of_run(run, 4, 0.5, "map50")
    assert found["images_per_second"] == 8 and found["seconds_per_iteration"] == 0.5, found
    assert found["seconds_90_percent"] == 0.5, "the first iterations are not timed: %s" % found
    near(found["seconds_to_fp32"], 5 * 9 + 10 * 0.5)
    assert cost.of_run(run, 4, 0.7, "map50")["seconds_to_fp32"] is None
    assert cost.of_run({**run, "output": {}}, 4, None, "map50")["images_per_second"] is None
    faster = {**found, "seconds_per_iteration": 0.25}
    ratios = cost.summarise({1: faster, 2: faster}, {1: found})
    assert ratios["seconds_per_iteration"] == {"median": 0.25, "ratio": 0.5}, ratios
    assert ratios["device_memory_mb"] == {"median": None, "ratio": None}
    assert cost.summarise({}, {1: found}) == {}
    both = [cost.of_run({**run, "output": {1: {"loss": 1, "seconds": s}}}, 4, None, "map50") for s in (0.1, 0.4)]
    ratios = cost.summarise(dict(enumerate(both)), {0: found, 1: found})
    near(ratios["seconds_per_iteration"]["ratio"] * ratios["images_per_second"]["ratio"], 1)
    near(ratios["seconds_per_iteration"]["ratio"], 0.2 / 0.5)


# ---- the command line, before anything is installed or built ----


def refusal(*words):
    told = subprocess.run([ROOT / "scripts/compare.sh", *words], capture_output=True, text=True)
    assert told.returncode == 1 and not told.stdout, told
    return told.stderr.splitlines()[-1]


def test_words():
    for words in (["--bogus"], ["a.data", "a.cfg", "--gpu", "-1", "--bogus=3"], ["a.data", "a.cfg", "-x"]):
        assert refusal(*words) == "compare: unknown argument %s" % words[-1]
    assert refusal() == refusal("a.data") == "compare: DATA and CFG are needed"
    known = re.findall(r'add_argument\("(--[^"]*)', (ROOT / "scripts/compare/__main__.py").read_text())
    known.remove("--darknet")  # the script's own
    assert len(known) > 10, known
    for word in known:
        assert refusal(word) == "compare: DATA and CFG are needed", word


def test_dtypes(folder):
    """Runs that did not compute in the same type are told of."""
    rows = []
    for seed, dtype in enumerate(("fp16", "bf16", "fp16"), 1):
        run = types.SimpleNamespace(name="mixed-%d" % seed, folder=folder / str(seed), cfg="[net]\nmax_batches=10\n",
                                    variant=types.SimpleNamespace(name="mixed", stock=False))
        run.folder.mkdir()
        (run.folder / "train.log").write_text("mixed precision plan: %s (amp_dtype=auto: why)\n" % dtype)
        rows.append({"run": run, "problems": [], "state": {}, "output": {}})
    planned = [row["run"] for row in rows]
    told = report.find_notes(rows, folder, planned)
    assert told == ["The runs of mixed precision computed in different types: bf16, fp16."], told
    assert report.find_notes(rows[::2], folder, planned) == []


test_quantile()
test_interval_of_seeds_alone()
test_interval_of_images_alone()
test_no_spread()
test_interval_ends_where_differences_do()
test_coverage()
test_seeds_needed()
test_verdicts()
test_cfgs()
with tempfile.TemporaryDirectory() as scratch:
    test_logs(Path(scratch))
    test_long_logs(Path(scratch))
    test_dtypes(Path(scratch))
test_curves()
test_cost()
test_words()
