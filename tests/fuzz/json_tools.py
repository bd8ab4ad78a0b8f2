"""The JSON that our tools read: the files of gpu_report.py, answers of programs, accounts of fuzz.py.
No input may end in a traceback: one line that names the file, or a report without it.

usage: json_tools.py [-max_total_time=S] [-runs=N] [-seed=N] [libFuzzer's other options] CORPUS...

A small mutation fuzzer with libFuzzer's arguments and statistics. Inputs that reach a new pair of
consecutive lines (sys.settrace) are kept in the first folder. It needs nothing but Python, unlike
atheris, and the code under test is small. -runs=0 replays: a CORPUS is a folder or a file of fuzz.py's.
"""

import contextlib
import hashlib
import io
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import bench_lib
import fuzz
import gpu_report

WORK_FILES = ["bench-tiny.json", "device.json", "card", "losses-fp16.json", "stages-first", "account.json", "answer"]
WORDS = [b"null", b"true", b"[]", b"{}", b"{", b"}", b"[", b"]", b",", b":", b"\t", b"\n", b"1e999", b"-1", b"NaN",
         b'""', b'"runs"', b'"device"', b'"name"', b'"deviceName"', b"\xff", b"\0",
         b'"cpu_seconds"', b'"executions"', b'"edges"', b'"findings"', b'"\\ud800"']

# ---- what is tested ----

bench_lib.machine = lambda _: {"cpu": "x", "cores": 1, "system": "x", "kernel": "x", "commit": "x"}


def run_one(data, folder):
    """The first byte chooses the file."""
    name = WORK_FILES[data[0] % len(WORK_FILES)] if data else "stages-first"
    for path in folder.iterdir():
        path.unlink()
    (folder / "stages-first").write_text("unit\tpassed\t3\t\n")
    (folder / name).write_bytes(data[1:])
    errors = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            if name == "account.json":
                fuzz.read_account(folder)
            elif name == "answer":
                bench_lib.last_json((folder / name).read_bytes().decode(errors="replace"))
            else:
                gpu_report.main(folder, folder / "plans", folder, folder)
    except bench_lib.BenchError as error:
        assert str(error) and (name in str(error) or name == "answer"), error


# ---- the fuzzer ----


class Coverage:
    def __init__(self):
        self.seen, self.now, self.last = set(), set(), None

    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(str(SCRIPTS)):
            return None
        here = (frame.f_code.co_filename, frame.f_lineno)
        self.now.add((self.last, here))
        self.last = here
        return self.trace

    def run(self, data, folder):
        """Whether something new was reached."""
        self.now, self.last = set(), None
        sys.settrace(self.trace)
        try:
            run_one(data, folder)
        finally:
            sys.settrace(None)
        new = not self.now <= self.seen
        self.seen |= self.now
        return new


def mutate(rng, data, corpus):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(5)
        if what == 0:
            data[at:at] = rng.choice(WORDS)
        elif what == 1:
            del data[at:at + rng.randint(1, 8)]
        elif what == 2 and data:
            data[at - 1] = rng.randrange(256)
        elif what == 3:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            data[at:at + rng.randint(0, 16)] = other[start:start + rng.randint(1, 40)]
        else:
            data[at:at] = data[rng.randrange(len(data) + 1):][:rng.randint(1, 60)]
    return bytes(data[:4000])


def read_options(words):
    options, folders = {}, []
    for word in words:
        if word.startswith("-"):
            key, _, value = word[1:].partition("=")
            options[key] = value
        else:
            folders.append(Path(word))
    return options, folders


def main():
    options, folders = read_options(sys.argv[1:])
    rng = random.Random(int(options.get("seed", time.time_ns())))
    end = time.monotonic() + float(options.get("max_total_time", 1e9))
    runs = int(options.get("runs", -1))
    corpus = [data for folder in folders for data in
              (fuzz.read_inputs(folder).values() if folder.is_file() else map(Path.read_bytes, sorted(folder.iterdir())))]
    coverage, done, tried = Coverage(), 0, corpus or [b"{}"]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        pending = list(tried)
        while pending or (done - len(tried) < runs or runs < 0) and time.monotonic() < end:
            data = pending.pop() if pending else mutate(rng, rng.choice(corpus), corpus)
            done += 1
            try:
                new = coverage.run(data, scratch)
            except BaseException:
                traceback.print_exc()
                if "artifact_prefix" in options:
                    Path(options["artifact_prefix"] + "crash-" + hashlib.sha1(data).hexdigest()).write_bytes(data)
                sys.exit(77)
            if new and runs != 0 and done > len(tried):
                corpus.append(data)
                (folders[0] / hashlib.sha1(data).hexdigest()).write_bytes(data)
    print(f"#{done} DONE cov: {len(coverage.seen)}\nstat::number_of_executed_units: {done}", file=sys.stderr)
    sys.exit(0 if corpus else 1)


main()
