"""The yolo head against recordings of AlexeyAB's Darknet: reads o2_head/cases.json, turns each
case's cfg into the numbers that a kernel gets, and hands them to test_recorded_heads, which runs
them. Says which cases there are; what a folder lacks is left out, and without the folder the test
is skipped.

    recorded_heads.py ROOT PROGRAM
"""
import json
import os
import re
import subprocess
import sys

from recorded import SKIPPED, find

MOST_TRUTHS = 1000  # AMPK_MOST_TRUTHS
FLT_MAX = 3.4028234663852886e38
BOX_LOSSES = {"mse": 0, "iou": 1, "giou": 2, "diou": 3, "ciou": 4}


def section(cfg, name):
    """The keys of the first section of this name."""
    keys = {}
    inside = False
    for line in cfg.splitlines():
        line = re.sub(r"[#;].*", "", line).strip()
        if line.startswith("["):
            if inside:
                break
            inside = line == f"[{name}]"
        elif inside and "=" in line:
            key, value = line.split("=", 1)
            keys[key.strip()] = value.strip()
    return keys


def numbers(text, kind=float):
    return [kind(word) for word in re.split(r"[\s,]+", text) if word]


def multipliers(keys, max_delta):
    """Of the classes, from their counts; none without counts."""
    counts = [max(n, 1) for n in numbers(keys.get("counters_per_class", ""))]
    return [min(max(counts) / n, max_delta) for n in counts]


def describe(recording, case, folder):
    """The case's numbers, in the order in which recorded_heads.c reads them."""
    net, keys = section(case["cfg"], "net"), section(case["cfg"], "yolo")

    def number(key, default):
        return float(keys.get(key, default))

    anchors = numbers(keys["anchors"])
    count = int(keys.get("num", 1))
    mask = numbers(keys["mask"], int) if "mask" in keys else list(range(count))
    classes, most = int(keys["classes"]), min(int(keys.get("max", 200)), MOST_TRUTHS)
    max_delta = number("max_delta", FLT_MAX)
    assert len(anchors) == 2 * count, case["name"]
    label_map = []
    if "map" in keys:
        path = os.path.join(folder, keys["map"])
        label_map = numbers(open(path).read(), int) if os.path.exists(path) else recording["map"]
    words = ["_".join(case["name"].split()), recording["pictures"], recording["grid_w"], recording["grid_h"],
             len(mask), count, classes, int(net["width"]), int(net["height"]),
             *anchors, *mask, len(label_map), *label_map,
             number("ignore_thresh", .5), number("truth_thresh", 1), number("scale_x_y", 1),
             int(number("new_coords", 0)), most,
             # A word that is none of these means IoU.
             BOX_LOSSES.get(keys.get("iou_loss", "mse"), 1),
             BOX_LOSSES.get(keys.get("iou_thresh_kind", "iou"), 1), number("iou_thresh", 1),
             number("iou_normalizer", .75), number("obj_normalizer", 1),
             number("cls_normalizer", 1), max_delta, number("label_smooth_eps", 0),
             int(number("focal_loss", 0)), int(number("objectness_smooth", 0))]
    m = multipliers(keys, max_delta)
    assert len(m) in (0, classes), case["name"]
    words += [len(m), *m]
    for truths in case["truths"]:
        words += [len(truths), *[v for truth in truths for v in truth]]
    printed = dict(re.findall(r"(class_loss|total_loss) = (\S+?)(?:,|$)", case["printed"]))
    words += [case["input"], case["output"], case["delta"], case["cost"], case["printed_count"],
              float(case["avg_iou"]), int(number("show_details", 1)),
              float(printed.get("class_loss", "nan")), float(printed.get("total_loss", "nan"))]
    return " ".join(repr(w) if isinstance(w, float) else str(w) for w in words)


def main():
    root, program = sys.argv[1:]
    path = find(root, "o2_head/cases.json")
    folder = path.parent
    recording = json.loads(path.read_text())
    cases = recording["cases"]
    if not cases:
        print(f"SKIPPED: {path} has no case")
        sys.exit(SKIPPED)
    print(f"{path}: {len(cases)} cases")
    text = "\n".join(describe(recording, case, folder) for case in cases) + "\n"
    subprocess.run([program, os.path.join(folder, "head.bin"), str(len(cases))],
                   input=text, text=True, check=True)


main()
