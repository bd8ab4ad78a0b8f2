"""Inference in 16 bits against inference in FP32: `detector map` and `detector valid` on the demo's set, and on BCCD
where that lies in a folder shared/ above the project. One network each, trained for a moment.

usage: inference_precision.py ROOT DARKNET
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "scripts"))
from bench_lib import make_cfg
from training import find_set, read_lines, read_set

SCORE = .25  # every box of FP32 above this
LEAST_IOU = .95
MAP_TOLERANCE = {"fp16": {"demo": .001, "bccd": .001}, "bf16": {"demo": .001, "bccd": .002}}  # BCCD has 72 images
# Share of the boxes that may lack an equal: FP16 moved scores by up to 0.004, BF16 by up to 0.026; of overlapping boxes
# another one may then be the one that suppresses the rest.
MAY_MISS = {"fp16": .003, "bf16": .01}
ITERATIONS = 250


def darknet(folder, *words):
    done = subprocess.run([DARKNET, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def cfg_of(name, dtype):
    text = (ROOT / f"cfg/{name}.cfg").read_text()
    return make_cfg(text, 16, f"seed=1\nmixed_precision=1\namp_dtype={dtype}\n", max_batches=ITERATIONS)


def prepare(folder, name, data):
    """cfgs, lists and a data file; the weights of a short training."""
    found = find_set(data)
    for kind, paths in read_set(found, data).items():
        (folder / f"{kind}.txt").write_text("".join(f"{path}\n" for path in paths))
    names = read_lines(found[2])
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    (folder / "results").mkdir()
    (folder / "set.data").write_text(f"classes={len(names)}\ntrain=train.txt\nvalid=valid.txt\nnames=names.txt\n"
                                     "results=results\nbackup=.\n")
    for dtype in ("fp32", "bf16", "fp16"):
        (folder / f"{dtype}.cfg").write_text(cfg_of(name, dtype))
    darknet(folder, "detector", "train", "set.data", "bf16.cfg")
    return names


def mean_precision(folder, dtype):
    darknet(folder, "detector", "map", "set.data", f"{dtype}.cfg", "bf16_final.weights", "--json", f"{dtype}.json")
    return json.loads((folder / f"{dtype}.json").read_text())["map50"]


def boxes(folder, dtype, names):
    """{(image, class): [(score, box)]} of `detector valid`."""
    darknet(folder, "detector", "valid", "set.data", f"{dtype}.cfg", "bf16_final.weights")
    found = {}
    for name in names:
        for line in (folder / f"results/comp4_det_test_{name}.txt").read_text().splitlines():
            image, *numbers = line.split()
            score, *box = map(float, numbers)
            found.setdefault((image, name), []).append((score, box))
    return found


def iou(a, b):
    overlap = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1)]
    if min(overlap) <= 0:
        return 0
    common = overlap[0] * overlap[1]
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return common / (sum(area) - common)


def compare_boxes(exact, rounded):
    """Boxes of FP32 above SCORE, and those without an equal among all of the other's."""
    wanted = [(key, box) for key, found in exact.items() for score, box in found if score > SCORE]
    missing = [key for key, box in wanted
               if max((iou(box, other) for _, other in rounded.get(key, [])), default=0) < LEAST_IOU]
    return len(wanted), len(missing)


def compare(name, data):
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        names = prepare(folder, name, data)
        exact, exact_map = boxes(folder, "fp32", names), mean_precision(folder, "fp32")
        for dtype, may_miss in MAY_MISS.items():
            count, missing = compare_boxes(exact, boxes(folder, dtype, names))
            off = mean_precision(folder, dtype) - exact_map
            print(f"{name}, {dtype}: mAP {exact_map:.4f} {off:+.5f}; {missing} of {count} boxes are not the same")
            assert count > 100 and missing <= may_miss * count and abs(off) <= MAP_TOLERANCE[dtype][name]


def make_demo_set(folder):
    """Its pictures come from a package, and a library draws them."""
    made = subprocess.run([ROOT / "scripts/make-demo-data.py", "--out", folder, "--train", "400", "--valid", "150"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        print("SKIPPED the demo's set, which cannot be made:", " ".join(made.stdout[-300:].split()))
    return made.returncode == 0


def main():
    with tempfile.TemporaryDirectory() as made:
        if make_demo_set(Path(made) / "data"):
            compare("demo", Path(made) / "data")
    bccd = [top / "shared/datasets/bccd" for top in ROOT.parents]
    bccd = next((path for path in bccd if path.is_dir()), None)
    if bccd:
        compare("bccd", bccd)
    else:
        print("SKIPPED BCCD: no folder shared/datasets/bccd above the project")


main()
