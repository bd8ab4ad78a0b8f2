"""From the detections of recorded runs of AlexeyAB's `detector map`, what it printed: AP, TP, FP, FN, precision, recall,
F1, mean IoU and mAP to the last digit. And from the recorded lists before NMS, the lists after.

usage: recorded_map.py ROOT MAP_PROGRAM BOXES_PROGRAM
"""

import json
import re
import sys

from recorded import Cases, digits, feed, find, read_floats

ROOT, MAP, BOXES = sys.argv[1:]
WIDTH = 8  # of a row: x y w h objectness, 3 classes
# Defaults of `detector map`; NMS as the recordings say.
NMS_THRESH = .45


def rows_of(dets, part):
    first = part["offset"] * WIDTH
    return [dets[i:i + WIDTH].tolist() for i in range(first, first + part["boxes"] * WIDTH, WIDTH)]


def corner(x, y, w, h):
    return f"{x - w / 2:.17g} {y - h / 2:.17g} {w:.17g} {h:.17g}"


def settings(run):
    """IoU, threshold and points of the run's arguments."""
    words = run["args"].split()
    given = dict(zip(words[::2], words[1::2]))
    assert set(given) <= {"-iou_thresh", "-thresh", "-points"}, run["args"]
    return float(given.get("-iou_thresh", .5)), float(given.get("-thresh", .25)), int(given.get("-points", 0))


def class_names(printed):
    return [m[1] for m in (re.match(r"class_id = \d+, name = (\S+),", line) for line in printed) if m]


def our_table(run, pictures, labels, dets):
    names = class_names(run["printed"])
    iou, thresh, points = settings(run)
    lines = [f"{len(run['pictures'])} {len(names)} {iou} {thresh} {points}", " ".join(names)]
    for i, picture in enumerate(pictures[p] for p in run["pictures"]):
        for k, *box in labels[picture["name"]]:
            lines.append(f"truth {i} {k} {corner(*box)}")
        for x, y, w, h, _, *prob in rows_of(dets, picture["lists"]["after"]):
            for k, p in enumerate(prob):
                if p > 0:
                    lines.append(f"prediction {i} {k} {p:.17g} {corner(x, y, w, h)}")
    return [line.strip() for line in feed(MAP, lines)]


def compare_run(run, pictures, labels, dets):
    ours = our_table(run, pictures, labels, dets)
    for line in run["printed"]:
        line = line.strip()
        if not line.startswith("calculation") and line not in ours:
            word = line.split("=")[0]
            return f"no line '{line}', but {[o for o in ours if o.startswith(word)]}"
    return None


def compare_lists(variant, picture, dets):
    before = rows_of(dets, picture["lists"]["before"])
    head = f"nms {variant['nms_kind']} {NMS_THRESH} {variant['beta']:.9g} {len(before)} {WIDTH - 5}"
    ours = []
    for line in feed(BOXES, [head, *(digits(row) for row in before)]):
        index, *prob = line.split()
        if any(float(p) for p in prob):
            ours.append(digits([*before[int(index)][:5], *(float(p) for p in prob)]))
    recorded = [digits(row) for row in rows_of(dets, picture["lists"]["after"])]
    if ours == recorded:
        return None
    return f"{len(ours)} boxes, {len(recorded)} recorded, {len(set(ours) ^ set(recorded))} of them differ"


def main():
    path, cases = find(ROOT, "o6_map/o6.json"), Cases()
    record, dets = json.loads(path.read_text()), read_floats(path.with_name("dets.bin"))
    variants = {variant["variant"]: variant for variant in record["variants"]}
    # Of each picture, where it is first named.
    labels = {p["name"]: p["labels"] for v in record["variants"] for p in v["pictures"] if "labels" in p}
    for variant in record["variants"]:
        for picture in variant["pictures"]:
            if "before" in picture["lists"]:
                cases.add(f"{variant['variant']}, NMS of {picture['name']}", compare_lists(variant, picture, dets))
    for run in record["runs"]:
        name = " ".join([run["variant"], run["args"], f"({len(run['pictures'])} pictures)"])
        cases.add(name, compare_run(run, variants[run["variant"]]["pictures"], labels, dets))
    cases.end()


main()
