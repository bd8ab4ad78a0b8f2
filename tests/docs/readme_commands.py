"""Every command of README.md does what it is there for: those of the program are run on a small set; scripts are
there and explain themselves; presets are in CMakePresets.json.

usage: readme_commands.py ROOT DARKNET
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "spread")]
import slurm
import toyset

# What the names in capitals stand for: the set's own files, and what Ctrl-C saved.
WORDS = {"HOSTS": "hosts", "DATA": "toy.data", "CFG": "toy.cfg", "BACKUP/NAME.backup": "backup/toy.backup"}
STOPPED = re.compile(r"stopped by SIGINT after iteration (\d+)\. To go on .*: toy\.cfg \S*backup/toy\.backup\n")


def commands():
    """Of the shell blocks, without remarks; those joined by && one by one."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [command.split() for line in lines if line for command in line.split(" && ")]


def arguments_of(words):
    arguments = [WORDS.get(word, word) for word in words]
    unknown = [word for word in arguments if re.search("[A-Z]{2}", word)]
    assert not unknown, f"what do these stand for: {unknown}?"
    return [DARKNET, *arguments]


def run_program(folder, words):
    done = subprocess.run(arguments_of(words), cwd=folder, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, (words, done.returncode, said[-4000:])
    return said


def set_iterations(folder, iterations):
    cfg = folder / "toy.cfg"
    cfg.write_text(re.sub(r"max_batches=\d+", f"max_batches={iterations}", cfg.read_text()))


def stop(folder, words):
    """Ctrl-C while it trains. Returns the last iteration."""
    set_iterations(folder, 1000000)
    process = subprocess.Popen(arguments_of(words), cwd=folder, text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    for line in process.stderr:
        if "search done" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(timeout=120) == 128 + signal.SIGINT, said
    found = STOPPED.search(said)
    assert found, said
    return int(found[1])


def check_program(folder, found):
    data, plan, train, resume = found
    said = run_program(folder, data)
    assert "a detector of 2 classes" in said, said
    said = run_program(folder, plan)
    assert "convolutional" in said, said
    said = run_program(folder, train)
    assert "mAP at iteration" in said and (folder / "chart.svg").is_file(), said[-4000:]
    (folder / "chart.svg").unlink()
    iteration = stop(folder, train[:4])
    set_iterations(folder, iteration + 3)
    said = run_program(folder, resume)
    assert f"resumed from backup/toy.backup.amp: iteration {iteration}," in said, said[-4000:]


def run_several(folder, words, env):
    program = words.index("build/bin/darknet")
    before = [WORDS.get(word, word) for word in words[:program]]
    done = subprocess.run([*before, *arguments_of(words[program + 1:])], cwd=folder, env=env, capture_output=True,
                          text=True)
    assert done.returncode == 0 and "2 processes train this network" in done.stderr, (words, done.stderr[-4000:])


def check_several(folder, words):
    """Two processes of one host, whoever starts them."""
    set_iterations(folder, 5)
    if words[0] == "srun":
        if not slurm.skip_if_missing("srun"):
            with slurm.cluster(folder / "slurm") as env:
                run_several(folder, words, env)
        return
    if not shutil.which("mpirun"):
        print("SKIPPED mpirun: not installed")
        return
    (folder / "hosts").write_text("localhost slots=2\n")
    run_several(folder, words, dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                    OMPI_MCA_rmaps_base_oversubscribe="1"))


def check_script(words):
    script = ROOT / words[0]
    assert script.is_file(), words
    head = script.read_text()[:6000]
    for option in (word for word in words[1:] if word.startswith("-")):
        assert option in head, f"{words[0]} does not explain {option}"


def check_preset(words):
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    kind = "buildPresets" if "--build" in words else "configurePresets"
    name = words[words.index("--preset") + 1]
    assert name in [preset["name"] for preset in presets[kind]], words


def main():
    program, several = [], []
    for words in commands():
        if words[0] in ("mpirun", "srun") or "-gpus" in words:
            several.append(words)
        elif words[0] == "build/bin/darknet":
            program.append(words[1:])
        elif words[0] == "cmake":
            check_preset(words)
        else:
            check_script(words)
    with tempfile.TemporaryDirectory() as scratch:
        folder = toyset.make(Path(scratch) / "set", net_keys="mixed_precision=1\nseed=1", max_batches=12)
        check_program(folder, program)
        for words in several:
            check_several(folder, words)


main()
