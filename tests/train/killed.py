"""Training that is killed at random moments, again and again: every file is good, training goes on
from it, what the killed program left is removed, and the run that was killed so often ends as the one
that never was, byte for byte.

usage: killed.py FIXED_TRAINING DARKNET SAVED_FILES [--rounds N] [--seed S]
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

BYTES = 9700  # of the toy net's weights file
KEYS = "mixed_precision=1\nseed=7\nloss_scale_init=2\nloss_scale_window=30"
ENV = dict(os.environ, OMP_NUM_THREADS="2")
RESUMED = re.compile(r"resumed from \S+: iteration (\d+),")


def run(command, folder, status=0):
    done = subprocess.run([str(word) for word in command], cwd=folder, env=ENV, text=True,
                          capture_output=True, timeout=1200)
    assert done.returncode == status, "status %d\n%s" % (done.returncode, done.stderr[-3000:])
    return done.stdout, done.stderr


def start(command, folder):
    return subprocess.Popen([str(word) for word in command], cwd=folder, env=ENV, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def read_until(process, words, times=1):
    """Its stderr up to that many lines with these words."""
    said = ""
    while times:
        line = process.stderr.readline()
        assert line, said
        said += line
        times -= words in line
    return said


def kill_in(process, seconds):
    time.sleep(seconds)
    process.kill()
    said = process.stderr.read()
    assert process.wait() == -signal.SIGKILL, "ended by itself\n" + said


class Killed:
    """A folder of saved files and what happened to it."""

    def __init__(self, args, rng, folder):
        self.args, self.rng, self.folder = args, rng, folder
        self.kills = self.in_a_save = self.older = self.seen = 0

    def files(self):
        lines, _ = run([self.args.saved_files, self.saves, BYTES], self.folder)
        return [line.split() for line in lines.splitlines()]

    def check_after_kill(self):
        files = self.files()
        names = {file[1] for file in files}
        seen = {file[1]: int(file[2]) for file in files if file[0] == "pair"}
        self.kills += 1
        self.in_a_save += any(file[0] == "part" or ".prev" in file[1] for file in files)
        self.older += self.backup in names and self.backup not in seen
        latest = seen.get(self.backup, seen.get(self.backup + ".prev", 0))
        assert latest >= self.seen, "went back from %d to %d images" % (self.seen, latest)
        self.seen = latest
        return latest

    def check_resumed(self, said):
        found = RESUMED.findall(said)
        assert found == [str(self.seen // 4)], "iteration %d\n%s" % (self.seen // 4, said)

    def check_clean(self):
        files = self.files()
        bad = [file for file in files if file[0] == "part" or ".prev" in file[1]]
        assert not bad, "still there: %s" % bad
        self.seen = {file[1]: int(file[2]) for file in files if file[0] == "pair"}[self.backup]


class Driver(Killed):
    """Training on made-up images that saves every one to three steps."""

    saves, backup = "saves", "a.backup"

    def __init__(self, args, rng, root):
        super().__init__(args, rng, toyset.make(root / "driver", net_keys=KEYS + "\nema_alpha=0.9"))
        (self.folder / "saves").mkdir()
        self.train(1)

    def train(self, steps, begin=None, to="saves/a.backup", **settings):
        command = [self.args.fixed_training, "toy.cfg", steps, to] + ([begin] if begin else [])
        return run(command, self.folder, **settings)[1]

    def round(self):
        command = [self.args.fixed_training, "toy.cfg", 1000000, "saves/a.backup", "saves/a.backup",
                   self.rng.randint(1, 3)]
        process = start(command, self.folder)
        read_until(process, "resumed from")
        kill_in(process, self.rng.uniform(0, .2))
        self.check_after_kill()
        self.check_resumed(self.train(1, "saves/a.backup"))
        self.check_clean()

    def finish(self):
        self.train(self.seen // 4, to="unbroken.backup")
        for end in (".backup", ".backup.amp", "_ema.weights"):
            whole = (self.folder / ("unbroken" + end)).read_bytes()
            assert whole == (self.folder / ("saves/a" + end)).read_bytes(), end


class Detector(Killed):
    """`darknet detector train`, which saves every 100 iterations."""

    saves, backup = "backup", "toy.backup"

    def __init__(self, args, rng, root):
        super().__init__(args, rng, toyset.make(root / "detector", net_keys=KEYS, images=4,
                                                max_batches=1000000))

    def start(self):
        command = [self.args.darknet, "detector", "train", "toy.data", "toy.cfg"]
        backup = self.folder / "backup" / "toy.backup"
        return start(command + ([backup] if backup.exists() else []), self.folder)

    def round(self):
        process = self.start()
        if self.rng.random() < .5:  # around a save, which is rare here
            read_until(process, "Saving weights", self.rng.randint(1, 3))
            kill_in(process, self.rng.uniform(0, .02))
        else:
            read_until(process, "mixed precision: 100.0 %")
            kill_in(process, self.rng.uniform(0, 1.5))
        if not self.check_after_kill():
            return
        process = self.start()
        said = read_until(process, "resumed from")
        process.terminate()
        said += process.stderr.read()
        assert process.wait() == 128 + signal.SIGTERM, said
        self.check_resumed(said)
        self.check_clean()

    def finish(self):
        while self.kills and not self.seen:  # on a busy machine all kills may come before the first save
            self.round()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fixed_training")
    parser.add_argument("darknet")
    parser.add_argument("saved_files")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print("--rounds %d --seed %d" % (args.rounds, args.seed), flush=True)
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        kinds = [Driver(args, rng, Path(name)), Detector(args, rng, Path(name))]
        for i in range(args.rounds):
            kinds[i % 4 == 3].round()
        for kind in kinds:
            kind.finish()
            print("%s: %d of %d kills survived, %d of them inside a save, %d times the pair before; "
                  "%d iterations" % (type(kind).__name__, kind.kills, kind.kills, kind.in_a_save,
                                     kind.older, kind.seen // 4))


main()
