"""A cfg's text, and the variants of it that a comparison trains."""

import re
from difflib import SequenceMatcher

from bench_lib import BenchError

OURS = re.compile(r"amp_|loss_scale|mixed_precision$|seed$")  # how the plugin's keys begin
# Keys of [net] that the comparison sets, or that make runs of different lengths.
OWN = ("seed", "max_batches", "batch", "subdivisions", "amp_log", "amp_log_layers")
HEAT_MAP_COLUMNS = 50
TITLES = {"fp32": "FP32", "mixed": "mixed precision", "stock": "stock Darknet",
          "control": "FP32, learning rate 0.01 % higher"}
FP32 = (0, "amp_dtype", "fp32")


def split_entry(line):
    """(key, value) of a line as Darknet reads it, None where it holds no entry."""
    line = "".join(line.split())
    if not line or line[0] in "#;[" or "=" not in line:
        return None
    return tuple(line.split("=", 1))


def whole_number(key, text):
    if not re.fullmatch(r"\+?[0-9]{1,10}", text) or not int(text):
        raise BenchError(f"the cfg's {key} under [net]: {text!r} is not a whole number of at least 1")
    return int(text)


class Cfg:
    """Sections of lines, the header first; 0 is [net], layer N of the network is N + 1."""

    def __init__(self, text):
        self.before, self.sections = [], []
        for line in text.splitlines():
            if line.strip().startswith("["):
                self.sections.append([])
            (self.sections[-1] if self.sections else self.before).append(line)
        if not self.sections:
            raise BenchError("the cfg has no section")

    def text(self):
        return "\n".join(sum(self.sections, self.before)) + "\n"

    def get(self, key, default=None):
        """Value of a key of [net], as text."""
        for entry in map(split_entry, self.sections[0]):
            if entry and entry[0] == key:
                return entry[1]
        return default

    def number(self, key, default=None):
        value = self.get(key, default)
        if value is None:
            raise BenchError(f"the cfg has no {key} under [net]")
        return whole_number(key, value)

    def rate(self):
        text = self.get("learning_rate", "0.001")  # Darknet's default
        try:
            return float(text)
        except ValueError:
            raise BenchError(f"the cfg's learning_rate under [net]: {text!r} is not a number") from None

    def remove(self, wanted, section):
        self.sections[section] = [line for line in self.sections[section]
                                  if not (entry := split_entry(line)) or not wanted(entry[0])]

    def set(self, key, value, section=0):
        if section >= len(self.sections):
            raise BenchError(f"{key}: the cfg has {len(self.sections) - 1} layers, none is "
                             f"layer {section - 1}")
        names = [(split_entry(line) or (None,))[0] for line in self.sections[section]]
        place = names.index(key) if key in names else 1
        self.remove(lambda name: name == key, section)
        self.sections[section].insert(place, f"{key}={value}")

    def scale_schedule(self, iterations):
        """Another number of iterations; steps change in proportion, burn_in does not."""
        share = iterations / self.number("max_batches")
        if self.get("policy") in ("step", "sig") and self.get("step"):
            self.set("step", max(1, round(self.number("step") * share)))
        if self.get("steps"):
            values = [max(1, round(whole_number("steps", value) * share))
                      for value in self.get("steps").split(",")]
            self.set("steps", ",".join(map(str, values)))
        self.set("max_batches", iterations)


def with_lines_of(given, text, said):
    """What was said of a variant's text, with the numbers of the lines that it has from the given text."""
    old, new = given.splitlines(), text.splitlines()
    same = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()

    def renumber(match):
        line = int(match[2]) - 1
        numbers = [line - there + here for here, there, n in same if there <= line < there + n]
        return f"{match[1]}{numbers[0] + 1}" if numbers else match[0]

    return re.sub(r"(\bline |net\.cfg:)(\d+)", renumber, said)


class Variant:
    """One way to train: what it changes in the cfg. keys: [(section, key, value)]."""

    def __init__(self, name, keys=()):
        self.name, self.keys = name, list(keys)
        self.title = TITLES.get(name, name)
        self.stock = name == "stock"

    def described(self):
        """What its keys are, in one line."""
        if self.stock:
            return "no key of the plugin but seed"
        keys = [f"layer {section - 1}: {key}={value}" if section else f"{key}={value}"
                for section, key, value in self.keys]
        return ", ".join(["mixed_precision=1", *keys])

    def apply(self, text, seed, iterations=None):
        """The cfg of one run of it."""
        cfg = Cfg(text)
        for section in range(len(cfg.sections)) if self.stock else ():
            cfg.remove(OURS.match, section)
        if not self.stock:
            cfg.set("mixed_precision", 1)
            cfg.set("amp_log", "iterations.jsonl")
        if FP32 in self.keys:
            cfg.remove(lambda key: key.startswith("loss_scale") or key == "amp_level", 0)
        if self.name == "control":
            cfg.set("learning_rate", f"{1.0001 * cfg.rate():.9g}")
        for section, key, value in self.keys:
            cfg.set(key, value, section)
        cfg.set("seed", seed)
        if iterations:
            cfg.scale_schedule(iterations)
        if not self.stock:
            cfg.set("amp_log_layers", max(1, cfg.number("max_batches") // HEAT_MAP_COLUMNS))
        return cfg.text()


def parse_variant(text):
    """NAME:KEY=VALUE[,KEY=VALUE..], where KEY is of [net] or layerN.KEY of layer N."""
    name, colon, keys = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9_]+", name) or name in TITLES:
        raise BenchError(f"--variant {text}: must be NAME:KEY=VALUE,.. with a name of letters and "
                         f"digits other than {', '.join(TITLES)}")
    found = []
    for entry in re.split(r",(?=[A-Za-z_][\w.]*=)", keys):
        match = re.fullmatch(r"(?:layer(\d+)\.)?([A-Za-z_]\w*)=(\S+)", entry)
        if not match:
            raise BenchError(f"--variant {text}: {entry!r} is not KEY=VALUE or layerN.KEY=VALUE")
        if not match[1] and match[2] in OWN:
            raise BenchError(f"--variant {text}: {match[2]} must be the same in all runs")
        found.append((int(match[1]) + 1 if match[1] else 0, match[2], match[3]))
    return Variant(name, found)


def standard_variants(custom, stock, control):
    """FP32 first: all others are compared with it."""
    variants = [Variant("fp32", [FP32]), Variant("mixed"), *map(parse_variant, custom),
                *([Variant("control", [FP32])] if control else []), *([Variant("stock")] if stock else [])]
    names = [variant.name for variant in variants]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BenchError(f"--variant {twice.pop()} is given twice")
    return variants
