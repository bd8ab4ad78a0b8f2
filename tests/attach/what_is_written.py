"""Where `detector train` (new, then resumed), `detector map`, `amp lr-find` and `amp plan` write, and what
they start: only in the folders they were given, through temporary names that nobody can guess, flushed
before they get their own, no program and no shell, whatever the names of images are.

usage: what_is_written.py DARKNET WATCH_LIBRARY
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

# A part that 100 tries or more would not hit: 64 random bits, or mkstemp's six letters.
TEMPORARY = re.compile(r"(\.part-[0-9a-f]{16}|\.amp-probe-\w{6})$")


def run(program, library, folder, *arguments, status=0):
    """[(what, flags, path, path)] of one command in that folder; its output."""
    log = folder.parent / "log"
    log.unlink(missing_ok=True)
    home, temporary = folder.parent / "home", folder.parent / "tmp"
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, env={
        **os.environ, "LD_PRELOAD": library, "WATCH_LOG": str(log), "HOME": str(home),
        "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(home / "cache")})
    assert done.returncode == status, (arguments, done.stderr)
    assert not list(home.iterdir()) and not list(temporary.iterdir()), "something in $HOME or $TMPDIR"
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple((line + "   ").split(" ")[:4]) for line in lines], done.stdout + done.stderr


def check_written(entries, allowed):
    """allowed: what a written path may be, as a regular expression."""
    made, flushed = set(), set()
    for what, flags, *paths in entries:
        if what == "fsync":
            flushed.add(Path(paths[0]).name)
            continue
        if what == "rename":  # else a crash may leave the name of an empty file
            assert Path(paths[0]).name in flushed, "%s is renamed, but not flushed" % paths[0]
        assert what in ("open", "rename", "link", "unlink"), "%s %s" % (what, paths)
        for path in filter(None, paths):
            assert ".." not in path and re.fullmatch(allowed, path), "%s %s" % (what, path)
            if TEMPORARY.search(path) and path not in made:
                assert flags == "new", "%s is made without O_EXCL" % path
                made.add(path)
    return made


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check_training(program, library, folder):
    train = ("detector", "train", "toy.data", "toy.cfg")
    backup = r"(\./)?backup/[\w.-]+|run\.jsonl|/proc/self/fd/\d+"  # the last: a copy in memory
    before = files(folder)
    first, _ = run(program, library, folder, *train)
    made = check_written(first, backup)
    assert {entry[0] for entry in first} >= {"open", "rename"}, first  # it watches
    assert any(entry[0] == "rename" and "toy.backup.amp" in entry[3] for entry in first), first
    assert all(name.startswith("backup/") or name == "run.jsonl" for name in files(folder) - before)
    assert not [name for name in files(folder) if TEMPORARY.search(name)], "a temporary file is left"

    cfg = folder / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("max_batches=100", "max_batches=102"))
    again, text = run(program, library, folder, *train, "backup/toy.backup")
    assert "resum" in text.lower() or "goes on" in text.lower(), text
    assert made and not made & check_written(again, backup), "a temporary name came again"


def check_map_and_plan(program, library, folder):
    weights = "backup/toy_final.weights"
    (folder / "out").mkdir()
    entries, _ = run(program, library, folder, "detector", "map", "toy.data", "toy.cfg", weights,
                     "--json", "out/map.json")
    check_written(entries, r"out/map\.json[\w.-]*|out/[\w.-]+")
    assert (folder / "out/map.json").exists()
    entries, _ = run(program, library, folder, "amp", "lr-find", "toy.data", "toy.cfg", "--iterations", "20",
                     "--chart", "out/rates.svg")
    assert any(entry[0] == "rename" for entry in entries), entries
    check_written(entries, r"out/[\w.-]+|backup/\.amp-probe-\w+|/dev/null")
    entries, _ = run(program, library, folder, "amp", "plan", "toy.cfg")
    assert not entries, entries


def check_hostile_names(program, library, folder):
    """Darknet gives the name of an image that it cannot decode to a shell."""
    name = "$(touch pwned);`touch pwned`;'touch${IFS}pwned'&touch pwned.png"
    (folder / name).write_text("P6 no image")
    (folder / (name[:-4] + ".txt")).write_text("")
    for command, status in (("train", 1), ("map", None)):
        (folder / "train.txt").write_text(name + "\n")
        weights = [] if command == "train" else ["backup/toy_final.weights"]
        done = subprocess.run([program, "detector", command, "toy.data", "toy.cfg", *weights], cwd=folder,
                              capture_output=True, text=True,
                              env={**os.environ, "LD_PRELOAD": library, "WATCH_LOG": str(folder / "shell.log")})
        assert status in (None, done.returncode), done.stderr
        assert name in done.stdout + done.stderr, done.stderr
        log = (folder / "shell.log").read_text()
        assert not re.search("^(system|popen|execve)", log, re.MULTILINE), log
        assert not [path for path in files(folder) if path.endswith("pwned")]


def main():
    program, library = map(os.path.abspath, sys.argv[1:])
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        for name in ("work", "home", "tmp"):
            (root / name).mkdir()
        os.chdir(root / "work")
        toyset.make(".", max_batches=100, net_keys="mixed_precision=1\namp_log=run.jsonl\nseed=3")
        check_training(program, library, root / "work")
        check_map_and_plan(program, library, root / "work")
        check_hostile_names(program, library, root / "work")


main()
