#!/usr/bin/env python3
"""The tables of accuracies in the README and in docs/results.md, from the comparisons in measurements/
(reports of compare.sh).

  scripts/update-readme-accuracy.py [--check]

Writes what stands between accuracy:begin and accuracy:end of both pages: mAP@0.5 alone in the README, all
columns in docs/results.md. --check only compares, status 1 where another table stands there.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_lib import ROOT, BenchError, exits, table, write

BEGIN, END = "<!-- accuracy:begin -->\n", "<!-- accuracy:end -->"
HEADER = ["", "`amp_dtype`", "FP32", "`mixed_precision=1`", "difference, 95 % interval", "speed", "memory",
          "stock Darknet, seed 1 (FP32's)"]
SHORT = 5  # columns in the README
DTYPES = ("fp16", "bf16")  # variants of these names are told too


def reports():
    """[(path, object)] of all comparisons, in the order of their names."""
    found = [(path, json.loads(path.read_text()))
             for path in sorted((ROOT / "measurements").glob("compare-*.json"))]
    if not found:
        raise BenchError("measurements/ holds no compare-*.json")
    return found


def with_spread(variant, metric):
    found = variant["accuracy"][metric]
    return f"{found['mean']:.3f} ± {found['sd']:.3f}"


def interval(found):
    numbers = (found["mean"], found["low"], found["high"])
    return "{} [{}, {}]".format(*(f"{x:+.3f}".replace("-", "−") for x in numbers))


def ratio(variant, key):
    return f"{variant['cost'][key]['ratio']:.2f}x"


def stock_cell(found, metric):
    """Stock's seed, and our FP32's of the same one."""
    runs = {run["name"]: run["maps"][metric] for run in found["runs"] if run["maps"]}
    return f"{runs['stock-1']:.3f} ({runs['fp32-1']:.3f})" if "stock-1" in runs else "–"


def dtype_of(variant, found):
    """Of mixed precision; before there was amp_dtype=auto, fp16 was the default."""
    return variant["name"] if variant["name"] in DTYPES else ", ".join(found.get("dtypes", ["fp16"]))


def rows(path, found, folder):
    """For each dtype one for mAP50 with the cost, and one for COCO's mAP. folder: of measurements/, as the page
    links it."""
    variants = {variant["name"]: variant for variant in found["variants"]}
    fp32, settings = variants["fp32"], found["settings"]
    what = (f"[{settings['cfg']}]({folder}/{path.with_suffix('.md').name}) on {settings['data']}, "
            f"{len(settings['seeds'])} seeds, {settings['iterations']} iterations")
    for mixed in (variants[name] for name in ("mixed", *DTYPES) if name in variants):
        for title, metric, cost in ((f"{what}: mAP@0.5", "map50", True), ("mAP@[.5:.95]", "map", False)):
            yield [title, dtype_of(mixed, found), with_spread(fp32, metric), with_spread(mixed, metric),
                   interval(mixed["difference"][metric]),
                   *((ratio(mixed, key) if cost else "" for key in ("images_per_second", "peak_memory_mb"))),
                   stock_cell(found, metric)]


def pages(found):
    """(page, its table) of both."""
    short = [row[:SHORT] for path, report in found for row in list(rows(path, report, "measurements"))[::2]]
    full = [row for path, report in found for row in rows(path, report, "../measurements")]
    yield ROOT / "README.md", table(HEADER[:SHORT], short)
    yield ROOT / "docs/results.md", table(HEADER, full)


def with_table(page, lines):
    """The page's text, and the same with this table."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{page} has no {BEGIN.strip()} and {END}")
    return text, before + begin + "\n".join(lines) + "\n" + end + after


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        raise BenchError(f"unknown argument {sys.argv[1]}; allowed: --check")
    texts = [(page, *with_table(page, lines)) for page, lines in pages(reports())]
    for page, text, fresh in texts:
        if sys.argv[1:] and fresh != text:
            raise BenchError(f"the table of accuracies in {page} is not that of measurements/: run "
                             "scripts/update-readme-accuracy.py")
        if fresh != text:
            write(page, fresh)


exits("update-readme-accuracy", main)
