#!/usr/bin/env python3
"""Writes the cases of this folder: predictions, truths, and the numbers that must come out.

The expected numbers come from two programs that share no code with plugin/app:
  COCO rule  pycocotools (COCOeval), maxDets 100, area all, no crowds
  VOC rule   the reference below, in exact rational arithmetic where it counts: VOCevaldet.m's
             matching, VOCap.m's area, the eleven points of VOC 2007

Run:  python3 -m venv V && V/bin/pip install pycocotools==2.0.11 && V/bin/python generate.py
The cases are the same on every run (fixed seeds).
"""

import contextlib
import io
import math
import os
import random
from fractions import Fraction

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

VOC_IOUS = [0.3, 0.5, 0.75, 0.9]


class Case:
    def __init__(self, name, about, images, classes):
        self.name, self.about, self.images, self.classes = name, about, images, classes
        self.truths = []  # (image, class, (left, top, width, height))
        self.predictions = []  # (image, class, score, box)

    def truth(self, image, class_id, *box):
        self.truths.append((image, class_id, box))

    def predict(self, image, class_id, score, *box):
        self.predictions.append((image, class_id, score, box))


# ---- expected numbers ------------------------------------------------------------------------


def coco_dataset(case, rows, scored):
    annotations = []
    for i, row in enumerate(rows):
        box = row[-1]
        a = {"id": i + 1, "image_id": row[0], "category_id": row[1], "bbox": list(box),
             "area": box[2] * box[3], "iscrowd": 0}
        if scored:
            a["score"] = row[2]
        annotations.append(a)
    coco = COCO()
    coco.dataset = {"images": [{"id": i} for i in range(case.images)],
                    "categories": [{"id": k} for k in range(case.classes)],
                    "annotations": annotations}
    coco.createIndex()
    return coco


def coco_expected(case):
    """[class][IoU index] -> AP, NaN where pycocotools has none; and its mAP, AP50, AP75."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_dataset(case, case.truths, False)
        found = coco_dataset(case, case.predictions, True)
        e = COCOeval(truth, found, "bbox")
        e.params.imgIds = list(range(case.images))
        e.params.catIds = list(range(case.classes))
        e.evaluate()
        e.accumulate()
        e.summarize()
    precision = e.eval["precision"][:, :, :, 0, 2]  # all areas, 100 detections: [T, R, K]
    table = [[float(np.mean(precision[t, :, k])) if precision[t, 0, k] > -1 else math.nan
              for t in range(10)] for k in range(case.classes)]
    means = [float(v) if v > -1 else math.nan for v in e.stats[:3]]
    return table, means


def overlap(a, b):
    """IoU as pycocotools' C code computes it, in doubles."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (a[2] * a[3] + b[2] * b[3] - width * height)


def voc_expected(case, class_id, iou):
    """(area, eleven points) by the VOC rule."""
    truths = [(image, box) for image, k, box in case.truths if k == class_id]
    if not truths:
        return math.nan, math.nan
    ranked = sorted((p for p in case.predictions if p[1] == class_id), key=lambda p: -p[2])
    taken, hits, curve = set(), 0, []
    for n, (image, _, _, box) in enumerate(ranked, 1):
        best, best_at = 0.0, None
        for j, (truth_image, truth_box) in enumerate(truths):
            if truth_image == image and overlap(box, truth_box) > best:
                best, best_at = overlap(box, truth_box), j
        if best_at is not None and best >= iou and best_at not in taken:
            taken.add(best_at)
            hits += 1
        curve.append((Fraction(hits, len(truths)), Fraction(hits, n)))
    area, recall_before = Fraction(0), Fraction(0)
    for i, (recall, _) in enumerate(curve):
        area += (recall - recall_before) * max(p for _, p in curve[i:])
        recall_before = recall
    eleven = sum(max([p for r, p in curve if r >= Fraction(t, 10)], default=Fraction(0))
                 for t in range(11)) / 11
    return float(area), float(eleven)


# ---- writing ---------------------------------------------------------------------------------


def number(x):
    return "nan" if math.isnan(x) else repr(float(x))


def write(case):
    table, means = coco_expected(case)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), case.name + ".txt"), "w",
              encoding="ascii") as f:
        f.write(f"# {case.about}\n")
        f.write(f"size {case.images} {case.classes}\n")
        for image, k, box in case.truths:
            f.write(f"truth {image} {k} {' '.join(map(number, box))}\n")
        for image, k, score, box in case.predictions:
            f.write(f"prediction {image} {k} {number(score)} {' '.join(map(number, box))}\n")
        for k in range(case.classes):
            for t in range(10):
                f.write(f"coco {k} {t} {number(table[k][t])}\n")
            for iou in VOC_IOUS:
                area, eleven = voc_expected(case, k, iou)
                f.write(f"voc {k} {number(iou)} {number(area)} {number(eleven)}\n")
        f.write(f"coco_means {' '.join(map(number, means))}\n")
    print(f"{case.name}: mAP {means[0]:.4f}, AP50 {means[1]:.4f}, AP75 {means[2]:.4f}")


# ---- cases -----------------------------------------------------------------------------------


def ties():
    c = Case("ties", "Equal scores: input order decides who takes the truth and who comes first.",
             3, 2)
    c.truth(0, 0, 10, 10, 20, 20)
    c.truth(1, 0, 30, 30, 40, 20)
    c.truth(2, 1, 0, 0, 8, 8)
    c.predict(0, 0, 0.5, 100, 100, 5, 5)
    c.predict(0, 0, 0.5, 11, 10, 20, 20)
    c.predict(0, 0, 0.5, 10, 10, 20, 20)
    c.predict(1, 0, 0.5, 30, 30, 40, 20)
    c.predict(1, 0, 0.5, 31, 31, 40, 20)
    c.predict(2, 1, 0.25, 0, 0, 8, 8)
    c.predict(2, 1, 0.25, 1, 1, 8, 8)
    c.predict(2, 1, 0.75, 50, 0, 8, 8)
    return c


def no_truths():
    c = Case("no_truths", "Class 0 has detections and no truths, class 1 has neither, class 2 both; "
             "image 1 has only false alarms.", 2, 3)
    c.predict(0, 0, 0.9, 0, 0, 10, 10)
    c.truth(0, 2, 0, 0, 10, 10)
    c.predict(0, 2, 0.3, 0, 1, 10, 10)
    c.predict(1, 2, 0.8, 0, 0, 10, 10)
    return c


def no_detections():
    c = Case("no_detections", "Class 0 has truths and no detections: 0, not undefined.", 2, 2)
    c.truth(0, 0, 0, 0, 10, 10)
    c.truth(1, 1, 5, 5, 10, 10)
    c.predict(1, 1, 0.2, 5, 5, 10, 10)
    return c


def nothing():
    return Case("nothing", "No truths and no detections at all.", 1, 2)


def duplicates():
    c = Case("duplicates", "Identical boxes: a truth is taken once; two equal truths can both be.",
             2, 1)
    c.truth(0, 0, 10, 10, 30, 30)
    c.truth(0, 0, 10, 10, 30, 30)
    c.truth(1, 0, 10, 10, 30, 30)
    for score in (0.9, 0.8, 0.7):
        c.predict(0, 0, score, 10, 10, 30, 30)
        c.predict(1, 0, score, 10, 10, 30, 30)
    return c


def tiny():
    c = Case("tiny", "Boxes of one pixel, of a fraction of one, and without any area.", 2, 2)
    c.truth(0, 0, 5, 5, 1, 1)
    c.truth(0, 0, 6, 5, 1, 1)
    c.truth(1, 0, 0.25, 0.25, 0.5, 0.5)
    c.predict(0, 0, 0.9, 5, 5, 1, 1)
    c.predict(0, 0, 0.8, 6, 5.25, 1, 1)
    c.predict(0, 0, 0.7, 5, 5, 0, 1)
    c.predict(1, 0, 0.6, 0.25, 0.25, 0.5, 0.375)
    c.predict(1, 1, 0.6, 3, 3, 0, 0)
    c.truth(1, 1, 3, 3, 1, 1)
    c.predict(1, 1, 0.5, 3, 3, 1, 1)
    return c


def equal_iou():
    c = Case("equal_iou", "IoU exactly at a threshold (1/2, 3/4) is enough; just below is not.", 1, 3)
    c.truth(0, 0, 0, 0, 16, 16)
    c.predict(0, 0, 0.9, 0, 0, 16, 8)
    c.truth(0, 1, 0, 0, 16, 16)
    c.predict(0, 1, 0.9, 0, 0, 16, 12)
    c.truth(0, 2, 0, 0, 1024, 1024)
    c.predict(0, 2, 0.9, 0, 0, 1024, 511)
    return c


def second_choice():
    c = Case("second_choice", "The truth that overlaps most is taken already, another would do: a "
             "hit for COCO, a false alarm for VOC; and a truth that overlaps two detections equally.",
             2, 1)
    c.truth(0, 0, 0, 0, 100, 100)
    c.truth(0, 0, 20, 0, 100, 100)
    c.predict(0, 0, 0.9, 1, 0, 100, 100)
    c.predict(0, 0, 0.8, 4, 0, 100, 100)
    c.truth(1, 0, 0, 0, 10, 10)
    c.truth(1, 0, 4, 0, 10, 10)
    c.predict(1, 0, 0.7, 2, 0, 10, 10)
    c.predict(1, 0, 0.6, 0, 0, 10, 10)
    c.predict(1, 0, 0.5, 4, 0, 10, 10)
    return c


def rounding():
    c = Case("rounding", "100 truths: recalls such as 0.35 lie on COCO's thresholds, where rounding "
             "decides; 10 truths: recall 0.3 is one of VOC's eleven points.", 100, 2)
    r = random.Random(11)
    hit = sorted(r.sample(range(100), 64))
    for i in range(100):
        c.truth(i, 0, 10, 10, 50, 50)
        box = (10, 10, 50, 50) if i in hit else (200, 10, 50, 50)
        c.predict(i, 0, 1 - i / 128, *box)
    for i in range(10):
        c.truth(i, 1, 10, 10, 50, 50)
        box = (10, 10, 50, 50) if i % 3 != 1 else (200, 10, 50, 50)
        c.predict(i, 1, 1 - i / 128, *box)
    return c


for build in (ties, no_truths, no_detections, nothing, duplicates, tiny, equal_iou, second_choice,
              rounding):
    write(build())
