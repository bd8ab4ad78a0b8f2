"""What a training leaves: Darknet's output and the plugin's amp_log. A run that was killed and went
on repeats iterations; the later ones count."""

import json
import math
import re

from bench_lib import DARKNET_ITERATION, LOADED


def read_output(path):
    """{iteration: {"loss", "seconds"}} of Darknet's output; the seconds include the wait for images.
    An empty dictionary where there is no file."""
    iterations, wait = {}, 0.0
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        if loaded := LOADED.match(line):
            wait = float(loaded[1])
        elif found := DARKNET_ITERATION.match(line):
            number = int(found["iteration"])
            forget_from(number, iterations)
            iterations[number] = {"loss": finite(found["loss"]),
                                  "seconds": wait + float(found["seconds"])}
    return iterations


MAP_LINE = re.compile(r"mAP at iteration (\d+): mAP@0\.5 (-|[\d.]+)(?: %)?, mAP@0\.75 (-|[\d.]+)(?: %)?, "
                      r"mAP@\[\.5:\.95\] (-|[\d.]+)")


TOP_LINE = re.compile(r"accuracy at iteration (\d+): top 1 ([\d.]+) %, top 5 ([\d.]+) %")
EVALUATION_LINES = ((MAP_LINE, ("map50", "map75", "map")), (TOP_LINE, ("top1", "top5")))


def read_evaluations(path):
    """{iteration: {"map50", "map75", "map"}} of the lines that `detector train -map` prints, or of `classifier train
    -topk` {"top1", "top5"}, for runs without a log: stock Darknet's."""
    found = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        for pattern, names in EVALUATION_LINES:
            if match := pattern.match(line):
                number = int(match[1])
                forget_from(number, found)
                shares = (None if text == "-" else float(text) / 100 for text in match.groups()[1:])
                found[number] = dict(zip(names, shares))
    return found


def forget_from(number, known):
    """Drops the iterations of a process that was killed after it had come further. Keys rise, so that
    the last one tells whether there are any."""
    while known and next(reversed(known)) >= number:
        known.popitem()


def finite(text):
    value = float(text)
    return value if math.isfinite(value) else None


def is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def check_number(value):
    if value is not None and not is_number(value):
        raise ValueError(f"{value!r} is no finite number")


class AmpLog:
    """iterations: {number: object}; evaluations: {number: object}; problems: what is wrong with it,
    one line each. Keys that an older plugin did not write are simply not there."""

    def __init__(self, path):
        self.iterations, self.evaluations, self.problems = {}, {}, []
        self.missing = not path.exists()
        if self.missing:
            return
        broken = []
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                self.take(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                broken.append(number)
        if broken == [len(lines)]:
            self.problems.append("ends inside a line")
        elif broken:
            self.problems.append(f"{len(broken)} lines are not objects of a log, the first is line "
                                 f"{broken[0]}")
        self.find_gaps()

    def take(self, entry):
        number = int(entry["iteration"])
        if "summary" in entry:
            return
        for key in ("loss", "loss_scale", "grad_norm", "redone", "skipped"):
            check_number(entry.get(key))
        for layer in entry.get("layers") or ():
            for key in ("layer", "out_max", "delta_max", "delta_zero"):
                check_number(layer.get(key))
        if "evaluation" in entry:
            for key in ("map50", "map75", "map", "top1", "top5"):
                check_number(entry["evaluation"].get(key))
            forget_from(number, self.evaluations)
            self.evaluations[number] = entry["evaluation"]
            return
        for known in (self.iterations, self.evaluations):
            forget_from(number, known)
        self.iterations[number] = entry

    def find_gaps(self):
        last = max(self.iterations, default=0)
        if last > len(self.iterations):
            self.problems.append(f"{last - len(self.iterations)} of {last} iterations are missing")

    def belongs_to(self, output):
        """Is it the log of the run with this output? Losses are printed with six decimals. Says why
        not."""
        for number, entry in self.iterations.items():
            if number not in output:
                continue
            logged, printed = entry.get("loss"), output[number]["loss"]
            if logged is None or printed is None:
                same = logged is printed
            else:
                same = abs(logged - printed) <= 1e-6 + 1e-6 * abs(printed)
            if not same:
                return f"its loss of iteration {number} is {logged}, the run's is {printed}"
        return None

    def series(self, key):
        """[(iteration, value)] where there is one."""
        return [(number, entry[key]) for number, entry in sorted(self.iterations.items())
                if entry.get(key) is not None]

    def layers(self):
        """[(iteration, [layer objects])] where they were written."""
        return [(number, entry["layers"]) for number, entry in sorted(self.iterations.items())
                if entry.get("layers")]
