"""What is trained and measured: a detector, or a classifier. The rest of the comparison is the same for both."""

import json
import os
import re

from bench_lib import BenchError, write
from cfgs import Cfg
from training import data_file, run_darknet

DRAWINGS = 2000  # of the validation images, for the bootstrap


class Detector:
    """mAP, by `detector map`."""

    command = "detector"
    names = "names"  # the data file's key for the file of class names
    metrics = {"map50": "mAP50", "map75": "mAP75", "map": "mAP@[.5:.95]"}
    title = "mAP"

    def data_file(self, classes, lists):
        return data_file(classes, lists)

    def watching(self, every):
        """Words of the training that measure it."""
        return ["-map", "-map_every", str(every)]

    def keep_result(self, folder):
        """Nothing to do: the final weights have the name that is looked for."""

    def measure(self, run, program, device):
        """Writes map.json."""
        run_darknet(program, ["detector", "map", "set.data", "net.cfg", "net_final.weights", "--json", "map.json",
                              "--bootstrap", str(DRAWINGS), *device], run.folder, "map.log")


class Classifier:
    """Top 1 and top 5, by `classifier valid`."""

    command = "classifier"
    names = "labels"
    metrics = {"top1": "top 1", "top5": "top 5"}
    title = "top 1"
    LINE = re.compile(r"^(\d+): top 1: ([\d.]+), top \d+: ([\d.]+)$")

    def data_file(self, classes, lists):
        text = data_file(classes, lists).replace("names=", "labels=")
        return f"{text}top={min(5, classes)}\n"

    def watching(self, every):
        return ["-topk", "-topk_every", str(every)]

    def keep_result(self, folder):
        """Of a finished run: as a detector's is called."""
        if (folder / "net.weights").exists():
            os.replace(folder / "net.weights", folder / "net_final.weights")

    def measure(self, run, program, device):
        run_darknet(program, ["classifier", "valid", "set.data", "net.cfg", "net_final.weights", *device], run.folder,
                    "map.log")
        right = self.right(run.folder / "map.log")
        if len(right) != run.images:
            raise BenchError(f"{run.folder / 'map.log'}: classifier valid has told of {len(right)} of {run.images} images")
        write(run.folder / "map.json", json.dumps(shares(right, self.metrics)) + "\n")

    def right(self, log):
        """For every image whether it is among the first, and among the five: the command prints shares so far."""
        found, before = [], (0, 0)
        for match in map(self.LINE.match, log.read_text(errors="replace").splitlines()):
            if match:
                n = int(match[1]) + 1
                now = tuple(round(float(share) * n) for share in match.groups()[1:])
                found.append([a - b for a, b in zip(now, before)])
                before = now
        return found


def shares(right, names):
    """Means of the columns, and those of drawings of as many images, the same drawings for every network."""
    import numpy

    right = numpy.array(right, float)
    generator, n = numpy.random.default_rng(0), len(right)
    drawn = [generator.multinomial(n, [1 / n] * n) @ right / n for _ in range(DRAWINGS)]
    return {"settings": {"images": n}, **dict(zip(names, right.mean(0).tolist())),
            "bootstrap": {name: [float(row[i]) for row in drawn] for i, name in enumerate(names)}}


def task_of(cfg):
    """By the last section of the cfg's text."""
    heads = ("[yolo]", "[region]", "[detection]")
    return Detector() if Cfg(cfg).sections[-1][0].strip() in heads else Classifier()
