"""Small networks, trained for three steps as AlexeyAB's functions trained them: what the first pass computes in every
layer, each loss, and the weights after one and after three steps. In FP32, through Darknet with the plugin attached.

usage: recorded_nets.py ROOT PROGRAM

Tolerances are the recordings': arrays of the first pass 1e-4 of the layer's largest value; weights 2e-4 of the array's
largest step since the start, or 3e-7 if that is more. Losses, sums of thousands of numbers after steps that may be off
by as much: 2e-4. Running statistics move by a hundredth of the batch's here, as on GPUs, and by a tenth on the recorded
CPU: where a step is one pass, both say what the batch's were.
"""

import json
import re
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

from recorded import Cases, find, read_floats

ROOT, PROGRAM = sys.argv[1:]
HEADER = 20  # bytes of a weights file
LABELS = 10  # max= of the cfgs
KEYS = "[net]\nmixed_precision=1\namp_dialect=fork\namp_dtype=fp32\n"
ROLLING = ("rolling_mean", "rolling_variance")
OURS, RECORDED = .01, .1  # how far running statistics follow a batch
REFUSED = re.compile(r"not yet supported|not yet trained")


def write_passes(path, record, run, pictures, inputs):
    passes = array("f")
    for step in run["steps"]:
        for part in step["parts"]:
            for p in part["pictures"]:
                passes.extend(pictures[p * inputs:(p + 1) * inputs])
            for p in part["pictures"]:
                labels = [number for truth in record["truths"][p] for number in truth]
                passes.extend(labels + [0.] * (5 * LABELS - len(labels)))
    if sys.byteorder == "big":
        passes.byteswap()
    path.write_bytes(passes.tobytes())


def furthest(ours, recorded):
    return max((abs(a - b) if a == a else float("inf") for a, b in zip(ours, recorded)), default=0.)


def largest(numbers):
    return max((abs(number) for number in numbers), default=0.)


# ---- what a run gave ----


def compare_arrays(said, folder, recorded, table):
    """Of the first pass."""
    ours = read_floats(folder / "step_1.bin")
    found = {(int(w[1]), w[2]): ours[int(w[3]):int(w[3]) + int(w[4])] for w in said if w[0] == "array"}
    compared = 0
    for row in table:
        key = row["layer"], row["what"]
        if row["what"] == "delta_sum" or key not in found:
            continue
        expected = recorded[row["offset"]:row["offset"] + row["count"]]
        assert len(expected) == len(found[key]) == row["count"], key
        off, allowed = furthest(found[key], expected), 1e-4 * largest(expected)
        if not off <= allowed:
            return f"{row['what']} of layer {row['layer']} is {off:.3g} off, allowed {allowed:.3g}"
        compared += 1
    missing = [row for row in table if row["what"] != "delta_sum" and (row["layer"], row["what"]) not in found]
    print("   ", compared, "arrays of the first pass; not stored here:",
          ", ".join(f"{row['what']} of {row['layer']}" for row in missing) or "none")
    return None


def compare_losses(said, run):
    """Costs of each pass and head, and the rate of each step."""
    heads, costs, rates = {}, [], []
    for words in said:
        if words[0] == "head":
            heads[words[1]] = float(words[2])
        elif words[0] == "pass":
            costs.append((float(words[1]), heads))
            rates.append(float(words[2]))
            heads = {}
    parts = [part for step in run["steps"] for part in step["parts"]]
    assert len(costs) == len(parts), (len(costs), len(parts))
    for (cost, ours), part in zip(costs, parts):
        for name, a, b in [("the loss", cost, part["cost"]), *((h, ours[h], c) for h, c in part["heads"].items())]:
            if not abs(a - b) <= 2e-4 * abs(b):
                return f"{name} is {a:.9g}, recorded {b:.9g}"
    steps = rates[run["subdivisions"] - 1::run["subdivisions"]]
    if any(abs(a - s["rate"]) > 1e-6 * s["rate"] for a, s in zip(steps, run["steps"])):
        return f"learning rates are {steps}"
    return None


def as_batch(follows, start, after):
    """What a step of one pass says of the batch: after = start + follows * (batch - start)."""
    return [(a - (1 - follows) * s) / follows for a, s in zip(after, start)]


def compare_weights(ours, recorded, start, table, follows):
    """follows: the running statistics say what the batch's were."""
    for row in table:
        first = (row["offset"] - HEADER) // 4
        a, b, s = (x[first:first + row["count"]] for x in (ours, recorded, start))
        where = f"{row['name']} of layer {row['layer']}"
        if row["name"] in ROLLING:
            if not follows:
                continue
            a, b = as_batch(OURS, s, a), as_batch(RECORDED, s, b)
            # Of a running value in FP32 the batch's is a hundred times as far off.
            allowed = 1e-4 * largest(b) + 200 * 2**-24 * largest(s)
        else:
            allowed = max(2e-4 * furthest(b, s), 3e-7)
        off = furthest(a, b)
        if not off <= allowed:
            return f"{where} is {off:.3g} off, allowed {allowed:.3g}"
    return None


def read_weights(path):
    return array("f", Path(path).read_bytes()[HEADER:])


# ---- runs ----


def train(run, cfg, start, record, pictures, inputs, folder):
    """The words of the lines that the program prints, or None where the cfg is not trained yet."""
    (folder / "net.cfg").write_text(cfg.read_text().replace("[net]\n", KEYS, 1))
    write_passes(folder / "passes", record, run, pictures, inputs)
    done = subprocess.run([PROGRAM, folder / "net.cfg", start, folder / "passes", str(5 * LABELS),
                           str(len(run["steps"])), folder], capture_output=True, text=True)
    if done.returncode and REFUSED.search(done.stderr):
        print(f"SKIPPED: {REFUSED.search(done.stderr)[0]}: {done.stderr.strip().splitlines()[-1]}")
        return None
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if re.match("(array|head|pass) ", line)]


def check_run(cases, record, run, files, pictures, inputs):
    net = run["net"]
    name = f"net {net}, {run['run']}"
    cfg, start = files / f"net_{net}_{run['run']}.cfg", files / f"net_{net}_init.weights"
    if run["run"] == "burn" and not cfg.is_file():
        cfg = files / f"net_{net}_s1.cfg"
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        said = train(run, cfg, start, record, pictures, inputs, folder)
        if said is None:
            return
        if run["run"] == "s1":
            cases.add(f"{name}, first pass",
                      compare_arrays(said, folder, read_floats(files / f"net_{net}_step1.bin"), record[f"step1_{net}"]))
        cases.add(f"{name}, losses", compare_losses(said, run))
        for steps, file in run["weights"].items():
            if not file or not (files / file).is_file():
                continue
            follows = steps == "1" and run["subdivisions"] == 1
            cases.add(f"{name}, weights after {steps}",
                      compare_weights(read_weights(folder / f"{steps}w"), read_weights(files / file),
                                      read_weights(start), record[f"table_{net}"], follows))


def main():
    path, cases = find(ROOT, "o3_nets/o3.json"), Cases()
    record, pictures = json.loads(path.read_text()), read_floats(path.with_name("pictures.bin"))
    inputs = len(pictures) // len(record["truths"])
    for run in record["runs"]:
        if run["variant"] == "gpu_rules":
            check_run(cases, record, run, path.parent, pictures, inputs)
    cases.end()


main()
