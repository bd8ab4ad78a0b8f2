"""The boxes of recorded heads: the same ones, in the same order, where AlexeyAB's Darknet had them, for stretched and
letterboxed pictures.

usage: recorded_yolo_boxes.py ROOT PROGRAM
"""

import json
import re
import sys

from recorded import Cases, digits, feed, find, read_floats

ROOT, PROGRAM = sys.argv[1:]
# The recorded boxes were computed in float, a dozen operations each; the longest sides are about 2.
TOLERANCE = 2e-6


def numbers(cfg, key):
    return [float(n) for n in re.search(rf"^{key}=(.*)$", cfg, re.M)[1].split(",")]


def describe(common, case, output):
    """The head, line by line."""
    cfg = case["cfg"]
    anchors, mask = numbers(cfg, "anchors"), numbers(cfg, "mask")
    new_coords = int("new_coords=1" in cfg.split())
    return [f"head {common['grid_w']} {common['grid_h']} {len(mask)} {common['classes']} "
            f"{common['net_w']} {common['net_h']} {new_coords} {len(anchors)}",
            digits(mask), digits(anchors), digits(output)]


def compare(common, case, dets, floats):
    size = common["floats_per_array"] // common["pictures"]
    start = case["output"] + dets["picture"] * size
    lines = describe(common, case, floats[start:start + size])
    lines.append(f"picture {dets['image_w']} {dets['image_h']} {dets['letter']} {dets['thresh']:.9g}")
    count, *rows = feed(PROGRAM, lines)
    if int(count) != len(rows) or len(rows) != len(dets["boxes"]):
        return f"{count} boxes counted, {len(rows)} read, {len(dets['boxes'])} recorded"
    for i, (row, expected) in enumerate(zip(rows, dets["boxes"])):
        found = [float(n) for n in row.split()]
        if len(found) != len(expected):
            return f"box {i} has {len(found)} numbers instead of {len(expected)}"
        for n, e in zip(found, expected):
            if not abs(n - e) <= TOLERANCE * max(1, abs(e)) or (n == 0) != (e == 0):
                return f"box {i}: {found} instead of {expected}"
    return None


def main():
    path, cases = find(ROOT, "o2_head/cases.json"), Cases()
    common, floats = json.loads(path.read_text()), read_floats(path.with_name("head.bin"))
    for case in common["cases"]:
        for dets in case["dets"]:
            how = "letterboxed" if dets["letter"] else "stretched"
            name = f"{case['name']}, picture {dets['picture']} of {dets['image_w']} x {dets['image_h']} {how}"
            cases.add(name, compare(common, case, dets, floats))
    cases.end()


main()
