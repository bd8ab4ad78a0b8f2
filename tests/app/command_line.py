"""Help, version and words that no command of ours knows.

usage: command_line.py DARKNET SPIN_COUNT
"""

import glob
import os
import re
import subprocess
import sys

COMMANDS = (["amp", "plan"], ["amp", "check"], ["amp", "profile"], ["amp", "keys"],
            ["detector", "map"], ["detector", "train"])


def run(*words):
    return subprocess.run([sys.argv[1], *words], capture_output=True, text=True)


def check_help():
    """On stdout, with status 0, wherever it stands; the list has every command."""
    listed = run("amp", "--help")
    assert listed.returncode == 0 and not listed.stderr, listed
    for command in COMMANDS:
        name = " ".join(["darknet", *command])
        assert listed.stdout.count(name + " ") == 1, (name, listed.stdout)
        cases = [[*command, "--help"], [*command, "a", "b", "-help"], ["-nogpu", *command, "--help"],
                 [*command[:1], "-i", "0", *command[1:], "--help"]]
        for words in cases:
            told = run(*words)
            assert told.returncode == 0 and not told.stderr, (words, told)
            assert told.stdout.startswith("Usage: " + name + " "), (words, told)
            assert max(map(len, told.stdout.split("\n"))) <= 100, told.stdout
    for words in ((), ("-nogpu",), ("--help",), ("-help",), ("-i", "0", "--help")):
        told = run(*words)
        assert told.returncode == 0 and told.stdout == listed.stdout and not told.stderr, (words, told)
    usage = run("amp")
    assert usage.returncode == 1 and usage.stderr == listed.stdout and not usage.stdout, usage


def check_version():
    told = run("amp", "--version")
    assert told.returncode == 0 and not told.stderr, told
    for line in (r"darknet-amp \d+\.\d+\.\d+$", r"Darknet \S", r"oneDNN \d+\.\d+", r"CPU: .+, \d+ thread", "GPU"):
        assert re.search("^" + line, told.stdout, re.M), (line, told.stdout)
    assert run("--version").stdout == told.stdout and run("--version").returncode == 0


def check_unknown():
    for words, said in ((("amp", "paln"), '"amp paln"; did you mean amp plan?'),
                        (("amp", "train"), 'unknown command "amp train"\n'),
                        (("detectr", "train", "a", "b"), '"detectr"; did you mean detector?\n'),
                        (("apm", "plan"), '"apm"; did you mean amp?\n'),
                        (("detector", "mpa", "a", "b"), "did you mean detector map?"),
                        (("detector", "trian", "a", "b", "c"), "did you mean detector train?"),
                        (("amp", "plan", "--jsno", "a.cfg"), '"--jsno"; did you mean --json?'),
                        (("amp", "plan", "-jsno", "a.cfg"), '"-jsno"; did you mean --json?'),
                        (("amp", "profile", "--all", "a.cfg"), 'unknown option "--all"\n'),
                        (("amp", "plan", "--js", "a.cfg"), 'unknown option "--js"'),
                        (("amp", "plan", "--json=1", "a.cfg"), "json"),
                        (("amp", "check", "-i", "x", "a", "b"), "-i x: must be a whole number from 0 to 1023"),
                        (("amp", "check", "a", "b", "c", "d"), 'unexpected word "d"'),
                        (("detector", "map", "a", "b", "c", "--json"), 'no value after "--json"')):
        refused = run(*words)
        assert refused.returncode == 1 and not refused.stdout, (words, refused)
        assert said in refused.stderr, (words, refused.stderr)


def check_moved():
    """A command that went says where to, whatever follows it."""
    for word, now in (("shrink", "scripts/shrink, with the same arguments"),
                      ("bench-loader", "darknet amp profile CFG DATA")):
        for words in (("amp", word), ("-nogpu", "amp", word, "a.data", "--side", "20", "b"), ("amp", word, "--help")):
            told = run(*words)
            assert told.returncode == 1 and not told.stdout, (words, told)
            assert told.stderr == f"error: darknet amp {word} is now {now}\n", (words, told)


def check_spellings():
    """One dash or two, the value behind a blank or "=", options before files or after them."""
    for words in (("-iou", "2"), ("--iou", "2"), ("--iou=2",), ("-iou=2",), ("a", "--iou", "2", "b")):
        assert "--iou 2: must be a number" in run("detector", "map", *words).stderr, words
    assert "cannot read -x" in run("amp", "plan", "--", "-x").stderr


def check_limits():
    """What is allowed is, up to both ends; the files that are missing are told after it."""
    names = ("none.data", "none.cfg", "none.weights")
    cases = ((("amp", "plan", "none.cfg", "--processes"), (1, 65536), (0, 65537)),
             (("amp", "plan", "none.cfg", "--memory"), (1e-9, 1e6), (0, 1000001)),
             (("amp", "lr-find", *names[:2], "--iterations"), (20, 100000), (19, 100001)),
             (("amp", "check", *names[:2], "-i"), (0, 1023), (-1, 1024)),
             (("detector", "map", *names, "--bootstrap"), (0, 1000000), (-1, 1000001)),
             (("detector", "map", *names, "--iou"), (1e-9, 1), (0, 1.001)),
             (("detector", "map", *names, "--thresh"), (0, .999), (-.001, 1)),
             (("detector", "map", *names, "--nms"), (0, 1), (-.001, 1.001)),
             (("detector", "train", *names[:2], "-map", "-map_every"), (1, 10**9), (0, 10**9 + 1)))
    for words, allowed, refused in cases:
        for value in allowed + refused:
            told = run(*words, str(value))
            assert told.returncode == 1, (words, value, told)
            of_value = "must be a" in told.stderr or "allowed: iterations" in told.stderr
            assert of_value == (value in refused), (words, value, told.stderr)


def openmp_starts(**variables):
    """What OpenMP said of its spins, once for each time that it was loaded."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    told = subprocess.run([sys.argv[1], "amp", "--version"], capture_output=True, text=True,
                          env={**kept, "OMP_DISPLAY_ENV": "verbose", **variables})
    assert told.returncode == 0, told
    return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", told.stderr)


def check_waits():
    """Threads wait for a moment only, unless the user said how they wait."""
    starts = openmp_starts()
    if not starts:
        return print("SKIPPED how threads wait: only GCC's OpenMP tells its spins")
    assert starts == [sys.argv[2]], starts
    assert openmp_starts(GOMP_SPINCOUNT="77") == ["77"]
    assert openmp_starts(OMP_WAIT_POLICY="active") not in ([], [sys.argv[2]])
    # Where the running program is the loader, it does not start itself again.
    loader = glob.glob("/lib*/ld-linux-*.so.*")
    if loader:
        env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        told = subprocess.run([loader[0], sys.argv[1], "amp", "--version"], capture_output=True, text=True, env=env)
        assert told.returncode == 0 and told.stdout == run("amp", "--version").stdout, told


def check_keys():
    """Ours and Darknet's, each in its table's words; a word that no key has."""
    done = subprocess.run([sys.argv[1], "amp", "keys"], capture_output=True, text=True)
    assert done.returncode == 0, done
    ours, _, darknets = done.stdout.partition("\nKeys of Darknet:\n")
    for line in ("mixed_precision   0 or 1; default: 0; in [net] or a layer's section",
                 "loss_scale_growth   2 or 4; default: 2; in [net]"):
        assert line in ours.splitlines(), ours
    for line in ("batch   integer; default: 1; in [net]", "random   0 or 1; default: 0; in [yolo]"):
        assert line in darknets.splitlines(), darknets
    assert max(len(line) for line in ours.splitlines() if line.startswith("    ")) <= 100, ours
    done = subprocess.run([sys.argv[1], "amp", "keys", "SCALE_G"], capture_output=True, text=True)
    assert done.stdout.startswith("Keys of darknet-amp:\n\nloss_scale_growth   ") and "Darknet:" not in done.stdout, done
    done = subprocess.run([sys.argv[1], "amp", "keys", "bacth"], capture_output=True, text=True)
    assert done.returncode == 1 and 'no key has "bacth" in its name; did you mean batch?' in done.stderr, done


def main():
    check_waits()
    check_help()
    check_version()
    check_keys()
    check_unknown()
    check_moved()
    check_spellings()
    check_limits()
    # Darknet's own commands: darknet_commands.py.
    assert run("nothing").stderr == 'error: unknown command "nothing": darknet --help lists commands\n'
    assert run("detector", "train").returncode == 1


main()
