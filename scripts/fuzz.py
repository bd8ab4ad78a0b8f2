#!/usr/bin/env python3
"""Runs a fuzz target of tests/fuzz for so many CPU minutes and keeps account.

usage: fuzz.py run TARGET [--minutes M]    goes on where it stopped, until M CPU minutes (default 30)
                                           without a finding are reached
       fuzz.py keep TARGET                 moves the findings into the target's corpus, once they are mended
       fuzz.py record FILE                 writes a table of the accounts to FILE
       fuzz.py list                        the targets

The account of each target is in $AMP_FUZZ_STATE (default build/fuzz-state): TARGET/account.json, and
beside it the corpus, findings and log. A CPU minute is user and system time of the fuzzer process.
A finding starts the count anew, so that the minutes are those in which nothing was found.
scripts/torture.sh --fuzz builds the programs first.

The corpus of a target in the repository is one text file, tests/fuzz/corpus/TARGET.txt, with an input on
each line: its name (the SHA-1 of one that a fuzzer found), a blank, and its bytes, where \\\\, \\n, \\t and
\\xNN stand for a backslash, a line feed, a tab and any byte that is not printable. The tests replay it
(tests/fuzz/replay.c); for the fuzzer it is unpacked into the seeds folder beside the account.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_lib
from bench_lib import ROOT, BenchError

FUZZ = ROOT / "tests/fuzz"
CORPUS = FUZZ / "corpus"
PROGRAMS = ROOT / "build/fuzz/tests"
SLICE = 60  # seconds of one call of the fuzzer
OPTIONS = ["-timeout=20", "-rss_limit_mb=2500", "-malloc_limit_mb=600", "-print_final_stats=1"]
# Longer inputs are slower and find no more; files in a corpus may be longer.
LONGEST = {"cfg": 1500, "train_inputs": 2500, "eval_set": 2500}
# More to begin with than the corpus in the repository.
SEEDS = {"cfg": [ROOT / "darknet/upstream/cfg"]}
DICTIONARIES = {"train_inputs": "cfg", "eval_set": "cfg"}


def targets():
    """In the order of risk, as in CMakeLists.txt."""
    return re.findall(r"^amp_fuzz\((\w+)", (FUZZ / "CMakeLists.txt").read_text(), re.MULTILINE)


def read_inputs(pack):
    """{name: bytes} of a corpus file."""
    lines = pack.read_text(encoding="ascii").splitlines()
    return {name: text.encode().decode("unicode_escape").encode("latin-1")
            for name, text in (line.split(" ", 1) for line in lines)}


def write_inputs(pack, inputs):
    escapes = {ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}
    text = {name: "".join(escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)
            for name, data in inputs.items()}
    bench_lib.write(pack, "".join(f"{name} {text[name]}\n" for name in sorted(text)))


def unpack(target, folder):
    """The repository's corpus of the target as files in an otherwise empty folder."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in read_inputs(CORPUS / f"{target}.txt").items():
        (folder / name).write_bytes(data)


def keep(target):
    pack = CORPUS / f"{target}.txt"
    inputs = read_inputs(pack)
    findings = sorted((state_folder() / target / "findings").glob("*"))
    found = {hashlib.sha1(data).hexdigest(): data for data in (path.read_bytes() for path in findings)
             if data not in inputs.values()}
    write_inputs(pack, {**inputs, **found})
    for path in findings:
        path.unlink()
    print(f"{target}: {len(found)} of {len(findings)} findings are new in {pack.relative_to(ROOT)}")


def state_folder():
    return Path(os.environ.get("AMP_FUZZ_STATE") or ROOT / "build/fuzz-state").resolve()


def compiler():
    return bench_lib.run(["clang", "--version"]).splitlines()[0]


def read_account(folder):
    path = folder / "account.json"
    account = {"cpu_seconds": 0.0, "executions": 0, "edges": 0, "findings": 0,
               "cpu_seconds_in_all": 0.0, "executions_in_all": 0}
    if path.exists():
        read = bench_lib.read_json(path)
        if not all(isinstance(read.get(key), (int, float)) for key in account):
            raise BenchError(f"{path}: not an account; remove it to begin anew")
        account = read
    return account


def command(target, folder, seconds):
    unpack(target, folder / "seeds")
    seeds = [path for path in [folder / "seeds", *SEEDS.get(target, [])] if path.is_dir()]
    program = PROGRAMS / f"fuzz_{target}"
    if not program.exists():
        raise BenchError(f"{program} is not built; scripts/torture.sh --fuzz {target} builds it")
    options = [*OPTIONS, f"-max_total_time={seconds}", f"-max_len={LONGEST.get(target, 4096)}",
               f"-artifact_prefix={folder}/findings/"]
    words = FUZZ / f"{DICTIONARIES.get(target, target)}.dict"
    if words.exists():
        options.append(f"-dict={words}")
    return [str(part) for part in [program, *options, folder / "corpus", *seeds]]


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def run_slice(target, folder, seconds, account):
    """One call of the fuzzer. Returns whether it found something."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        done = subprocess.run(command(target, folder, seconds), stderr=subprocess.STDOUT, text=True,
                              stdout=subprocess.PIPE, errors="replace", cwd=scratch,
                              env={**os.environ, "TMPDIR": scratch})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "log").open("a") as log:
        log.write(done.stdout[-4000:] if done.returncode == 0 else done.stdout[-100000:])
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    executions = number(r"stat::number_of_executed_units:\s*(\d+)", done.stdout)
    for key, value in (("cpu_seconds", spent), ("executions", executions)):
        account[key] += value
        account[key + "_in_all"] += value
    account["edges"] = max(number(r"cov: (\d+)", done.stdout), account["edges"])
    found = done.returncode != 0
    if found:
        account.update(cpu_seconds=0.0, executions=0, commit="", findings=account["findings"] + 1)
        print(done.stdout[-3000:])
    return found


def add_commit(account):
    """All commits that were fuzzed since the last finding."""
    now = bench_lib.machine()["commit"]
    before = [one for one in account.get("commit", "").split(", ") if one]
    return ", ".join(before if now in before else [*before, now])


def run(target, minutes):
    """Returns the exit status."""
    if target not in targets():
        raise BenchError(f"there is no target {target}; there are: {', '.join(targets())}")
    folder = state_folder() / target
    for part in ("corpus", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    account = read_account(folder)
    found = False
    while not found and account["cpu_seconds"] < 60 * minutes:
        seconds = min(SLICE, max(1, round(60 * minutes - account["cpu_seconds"])))
        found = run_slice(target, folder, seconds, account)
        account.update(commit=add_commit(account), compiler=compiler())
        bench_lib.write(folder / "account.json", json.dumps(account, indent=1) + "\n")
    print(f"{target}: {account['cpu_seconds'] / 60:.1f} CPU minutes, {account['executions']} "
          f"executions, {account['edges']} edges, {account['findings']} findings so far"
          + (f"; a new one, see {folder}/findings" if found else ""))
    return 1 if found else 0


def record(path):
    rows = [{"target": name, **read_account(state_folder() / name)} for name in targets()
            if (state_folder() / name / "account.json").exists()]
    machine = bench_lib.machine()
    date = datetime.date.today().isoformat()
    lines = ["# Fuzzing", "",
             f"On {machine['cpu']}, {machine['system']}, {date}; written by `scripts/fuzz.py record` from the "
             "accounts that `scripts/torture.sh --fuzz` keeps. CPU minutes and executions are those since the "
             "last finding; each finding was mended and its input is in `tests/fuzz/corpus`.", "",
             *bench_lib.table(
                 ["target", "CPU minutes", "executions", "edges", "findings", "commit", "compiler"],
                 [[row["target"], f"{row['cpu_seconds'] / 60:.1f}", str(row["executions"]),
                   str(row["edges"]), str(row["findings"]), row["commit"], row["compiler"]]
                  for row in rows])]
    bench_lib.write(path, bench_lib.page(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("target")
    runs.add_argument("--minutes", type=float, default=30)
    commands.add_parser("keep").add_argument("target", choices=targets())
    commands.add_parser("record").add_argument("file", type=Path)
    commands.add_parser("list")
    arguments = parser.parse_args()
    if arguments.command == "run":
        sys.exit(run(arguments.target, arguments.minutes))
    elif arguments.command == "keep":
        keep(arguments.target)
    elif arguments.command == "record":
        record(arguments.file)
    else:
        print("\n".join(targets()))


if __name__ == "__main__":
    bench_lib.exits("fuzz.py", main)
