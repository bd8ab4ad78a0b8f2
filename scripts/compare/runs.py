"""The trainings of a comparison, one folder each, and what is left to do of them.

OUT/lists/              the data set's lists with absolute paths, its names
OUT/runs/VARIANT-SEED/  net.cfg, set.data; train.log (Darknet's output), iterations.jsonl (amp_log),
                        net.backup (by AlexeyAB's rules net_last.weights) and its sidecar until it is
                        finished, net_final.weights,
                        map.json (detector map, or a classifier's shares);
                        run.json: what the folder was made for, the iterations at which training
                        was started, and once it is finished what only that process knew
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import logs
from bench_lib import BenchError, write
from cfgs import Cfg, Variant, with_lines_of
from training import DeviceMemory, clock, fail_with_log, gpu_of, run_darknet, write_lists

RESUMED = "mixed precision: resumed from "  # how the plugin says that it took up a sidecar


def digest(text):
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def write_cfg(folder, text):
    (folder / "net.cfg").write_text(text, encoding="utf-8", errors="surrogateescape")


def read_json(path):
    """The object in a file; None where there is no file."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise BenchError(f"{path} holds no JSON object: delete it, or the folder it is in")


def is_state(found):
    """Has it the structure of a run.json?"""
    return (isinstance(found.get("made_for"), dict) and isinstance(found.get("starts"), list)
            and isinstance(found.get("finished"), bool))


def is_share(value):
    return value is None or logs.is_number(value)


def is_measured(found, metrics):
    """Has it the structure of a detector map with a bootstrap, or of a classifier's shares?"""
    settings, drawn = found.get("settings"), found["bootstrap"]
    return (isinstance(settings, dict) and isinstance(drawn, dict) and "images" in settings
            and all(key in found and is_share(found[key]) and isinstance(drawn.get(key), list)
                    and all(map(is_share, drawn[key])) for key in metrics))


class Run:
    """One training of a variant with a seed."""

    def __init__(self, out, variant, seed, inputs):
        """inputs: {"cfg": text, "task", "iterations", "set": lists, "weights": path or None}"""
        self.task = inputs["task"]
        self.variant, self.seed, self.given = variant, seed, inputs["cfg"]
        self.name = f"{variant.name}-{seed}"
        self.folder = out / "runs" / self.name
        self.cfg = variant.apply(inputs["cfg"], seed, inputs["iterations"])
        self.iterations, self.batch = (Cfg(self.cfg).number(key) for key in ("max_batches", "batch"))
        self.weights = inputs["weights"]
        self.classes, self.images = len(inputs["set"]["names"]), len(inputs["set"]["valid"])
        self.made_for = {
            "cfg": digest(self.cfg),
            "images": digest(repr(inputs["set"])),
            "weights": digest(self.weights.read_bytes()) if self.weights else None,
        }

    # ---- what is there ----

    def state(self):
        """The object in run.json, None where the run was not begun. A folder of another run is an
        error, unless that run never started."""
        state = read_json(self.folder / "run.json")
        if state is None and self.folder.exists():
            raise BenchError(f"{self.folder} holds no run.json: delete it, and the run is repeated")
        if state is None:
            return None
        if not is_state(state):
            raise BenchError(f"{self.folder / 'run.json'} is not what this program writes: delete that "
                             "folder, and the run is repeated")
        if state["made_for"] != self.made_for and not state["starts"]:
            return None
        for key, what in (("cfg", "cfg"), ("images", "data set"), ("weights", "initial weights")):
            if state["made_for"].get(key) != self.made_for[key]:
                raise BenchError(f"{self.folder} is a run with another {what}: choose another --out, "
                                 "or delete that folder")
        if state["finished"] and not (self.folder / "net_final.weights").exists():
            raise BenchError(f"{self.folder} is finished, but its net_final.weights is missing: "
                             "delete that folder, and the run is repeated")
        return state

    def output(self):
        return logs.read_output(self.folder / "train.log")

    def backup(self):
        """The file that goes on; None where there is none."""
        paths = (self.folder / name for name in ("net.backup", "net_last.weights"))
        return next((path for path in paths if path.exists()), None)

    def done(self):
        """Iterations that need not be trained again."""
        state = self.state()
        if state is None:
            return 0
        if state["finished"]:
            return self.iterations
        backup = self.backup()
        if not backup:
            return 0
        with open(backup, "rb") as file:  # three ints, then the images seen
            seen = int.from_bytes(file.read(20)[12:], "little")
        return seen // self.batch

    def measured(self):
        """What its task has measured, None where that was not done yet."""
        found = read_json(self.folder / "map.json")
        if not found or "bootstrap" not in found:
            return None
        if not is_measured(found, self.task.metrics):
            raise BenchError(f"{self.folder / 'map.json'} is not what detector map writes: delete it, "
                             "and the mAP is measured again")
        return found

    # ---- what is done ----

    def prepare(self):
        if self.state() is not None:
            return
        if self.folder.exists():  # made for another run, which never started
            shutil.rmtree(self.folder)
        partial = self.folder.with_name(self.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        write_cfg(partial, self.cfg)
        (partial / "set.data").write_text(self.task.data_file(self.classes, "../../lists"))
        write(partial / "run.json",
              json.dumps({"made_for": self.made_for, "starts": [], "finished": False}, indent=2))
        partial.rename(self.folder)

    def train(self, program, host, options, take):
        """To the end, from the last backup where there is one. host: the machine, which is kept."""
        begin = self.done()
        state = self.state()
        state["starts"] = [*state["starts"], begin] if begin else [0]
        write(self.folder / "run.json", json.dumps(state, indent=2))
        if begin == self.iterations:  # stopped between its last backup and its end
            shutil.copy(self.backup(), self.folder / "net_final.weights")
            memory = None
        else:
            memory = self.run_training(program, begin, options, take)
        self.task.keep_result(self.folder)
        # Darknet leaves with status 0 when it cannot open a file.
        reached = max(self.output(), default=0)
        if reached < self.iterations or not (self.folder / "net_final.weights").exists():
            fail_with_log(self.folder / "train.log", f"{self.name}: training stopped after "
                          f"{reached} of {self.iterations} iterations")
        resumes = {start for start in state["starts"] if 0 < start < self.iterations}
        resumed = (self.folder / "train.log").read_text(errors="replace").count(RESUMED)
        state.update(finished=True, host=host, peak_memory_mb=memory,
                     device_memory_mb=take.device.peak,
                     exact=resumed >= len(resumes))
        write(self.folder / "run.json", json.dumps(state, indent=2))
        # They may be large, and many.
        for pattern in ("net_[0-9]*.weights*", "net.backup*", "net_last.*", "net_best.*", "net_final.weights.amp", "net.weights.amp"):
            for path in self.folder.glob(pattern):
                path.unlink()

    def run_training(self, program, begin, options, take):
        """Its peak memory in MiB."""
        arguments = [self.task.command, "train", "set.data", "net.cfg"]
        if begin:
            arguments.append(self.backup().name)
        elif self.weights:
            arguments += [self.weights, "-clear"]
        arguments += [*options.training, *options.device]
        return round(run_darknet(program, arguments, self.folder, "train.log", take,
                                 append=begin > 0), 1)

    def measure(self, program, options):
        self.task.measure(self, program, options.device)


class Options:
    """What goes to Darknet. gpu: its number, -1 for none, None for Darknet's choice;
    evaluate_every: 0 for no measurement during training."""

    def __init__(self, gpu, evaluate_every, task):
        self.device = [] if gpu is None else ["-nogpu"] if gpu < 0 else ["-i", str(gpu)]
        self.training = task.watching(evaluate_every) if evaluate_every else []


# ---- progress ----


class Progress:
    """One line every ten seconds: how far all runs are, and the one that trains."""

    EVERY = 10

    def __init__(self, runs):
        self.left = {run.name: run.iterations - run.done() for run in runs}
        self.variants = {run.name: run.variant.name for run in runs}
        self.total = sum(run.iterations for run in runs)
        self.runs = len(runs)
        self.seconds = {}  # of an iteration, by variant

    def share(self):
        return 1 - sum(self.left.values()) / self.total

    def seconds_left(self):
        """None before the first iteration."""
        if not self.seconds:
            return None
        usual = sum(self.seconds.values()) / len(self.seconds)
        return sum(left * self.seconds.get(self.variants[name], usual)
                   for name, left in self.left.items())

    def begin(self, run):
        return Watch(self, run)


class Watch:
    """Reads the lines of the training that runs."""

    def __init__(self, progress, run):
        self.progress, self.run = progress, run
        self.begin = self.shown = time.monotonic()
        self.first = run.done()
        self.device = DeviceMemory()

    def __call__(self, line, process):
        found = logs.DARKNET_ITERATION.match(line)
        if not found:
            return
        self.device.look(process)
        done, now = int(found["iteration"]), time.monotonic()
        self.progress.left[self.run.name] = self.run.iterations - done
        passed = (now - self.begin) / max(1, done - self.first)
        self.progress.seconds[self.run.variant.name] = passed
        if now - self.shown < self.progress.EVERY and done < self.run.iterations:
            return
        self.shown = now
        images = int(found["images"]) / done
        print(f"  {100 * self.progress.share():.0f} % of {self.progress.runs} runs, "
              f"{clock(self.progress.seconds_left())} left | {self.run.variant.title}, seed "
              f"{self.run.seed}: {done}/{self.run.iterations}, {images / passed:.1f} images/s, "
              f"loss {float(found['loss']):.4g}", flush=True)


# ---- all of them ----


def plan_runs(out, variants, seeds, stock_seeds, inputs):
    """Seed by seed, so that whole pairs are there early."""
    return [Run(out, variant, seed, inputs) for seed in range(1, seeds + 1) for variant in variants
            if not variant.stock or seed <= stock_seeds]


def ask_plan(program, cfg, *words):
    """`amp plan` of a cfg's text."""
    with tempfile.TemporaryDirectory() as folder:
        write_cfg(Path(folder), cfg)
        return subprocess.run([program, "amp", "plan", "net.cfg", *words], cwd=folder, text=True,
                              errors="replace", capture_output=True)


def fork_reason(program, given):
    """What makes it a cfg of AlexeyAB's rules, with mixed_precision=1; None where it is not one, or has a
    fault, which check_cfgs tells."""
    cfg = Variant("mixed").apply(given, 1)
    asked = ask_plan(program, cfg, "--json")
    reason = None if asked.returncode else json.loads(asked.stdout).get("rules_reason")
    return reason and with_lines_of(given, cfg, reason)


def check_cfgs(program, runs):
    """The plugin's own message on a variant's cfg, before anything is made for it."""
    for run in runs:
        if run.seed == 1:
            asked = ask_plan(program, run.cfg)
            if asked.returncode:
                said = asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"]
                raise BenchError(f"{run.variant.title}: {with_lines_of(run.given, run.cfg, said[-1])}")


def lock(out):
    """One comparison at a time in a folder; the lock ends with this process."""
    file = open(out / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BenchError(f"{out}: another comparison is at work there") from None
    return file


def train_all(out, runs, found, program, host, options):
    for run in runs:
        run.state()  # complains before anything is written
    check_cfgs(program, runs)
    write_lists(found, out / "lists")
    for run in runs:
        run.prepare()
    if not all(run.state()["finished"] for run in runs):
        host["versions"]["computed on"] = gpu_of(program, options.device) or "the CPU"
        print(f"Computing on {host['versions']['computed on']}", flush=True)
    progress = Progress(runs)
    for number, run in enumerate(runs, 1):
        if not run.state()["finished"]:
            begin = run.done()
            print(f"== Run {number} of {len(runs)}: {run.variant.title}, seed {run.seed}"
                  + (f", from iteration {begin}" if begin else ""), flush=True)
            run.train(program, host, options, progress.begin(run))
        if not run.measured():
            run.measure(program, options)
