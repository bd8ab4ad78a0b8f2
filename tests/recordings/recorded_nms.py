"""Each kind of NMS suppresses exactly what AlexeyAB's Darknet suppressed in the recorded lists.

usage: recorded_nms.py ROOT PROGRAM
"""

import json
import sys

from recorded import Cases, digits, feed, find

ROOT, PROGRAM = sys.argv[1:]


def read_kind(name):
    """KIND THRESH [beta BETA] [(ignored)], as the recordings write it."""
    words = name.split()
    return words[0], float(words[1]), float(words[3]) if "beta" in words else .6


def suppressed(record, name):
    kind, thresh, beta = read_kind(name)
    boxes, before = record["boxes"], record["before"]
    lines = [f"nms {kind} {thresh:.9g} {beta:.9g} {len(boxes)} {record['classes']}"]
    for box, objectness, prob in zip(boxes, record["objectness"], before):
        lines.append(digits([*box, objectness, *prob]))
    rows = [line.split() for line in feed(PROGRAM, lines)]
    after = {int(row[0]): [float(p) for p in row[1:]] for row in rows}
    assert sorted(after) == list(range(len(boxes))), f"not each box once: {sorted(after)}"
    for i, prob in after.items():
        for p, q in zip(prob, before[i]):
            assert p == 0 or abs(p - q) <= 1e-7 * q, f"box {i}: {q} became {p}"
    return [[i for i in range(len(boxes)) if after[i][k] == 0 and before[i][k] != 0] for k in range(record["classes"])]


def compare(record, name):
    ours = suppressed(record, name)
    for k, (found, expected) in enumerate(zip(ours, record["after"][name])):
        if found != expected:
            return f"class {k}: {found} instead of {expected}"
    return None


def main():
    cases = Cases()
    for record in json.loads(find(ROOT, "o7_nms/nms.json").read_text())["lists"]:
        for name in record["after"]:
            cases.add(f"{record['what']}, {name}", compare(record, name))
    cases.end()


main()
