"""The word -half of `detector test`, `valid`, `map` and `demo` gives what mixed_precision=1 in the cfg gives, to the byte.

usage: half_word.py ROOT DARKNET VIDEO
VIDEO: 1 for a program with OpenCV
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import toyset

HAS_VIDEO = sys.argv[3] == "1"
WEIGHTS = "backup/toy_final.weights"


def run(folder, *words, status=0):
    done = subprocess.run([DARKNET, "detector", *words], cwd=folder, capture_output=True, text=True, errors="replace",
                          timeout=600)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done


def results_of(folder, cfg, *words):
    """Lines of `valid`, numbers of `map`, what `test` and `demo` print but for their times."""
    done = {"valid": run(folder, "valid", "toy.data", cfg, WEIGHTS, *words)}
    found = {"valid": sorted((path.name, path.read_text()) for path in (folder / "results").iterdir())}
    done["map"] = run(folder, "map", "toy.data", cfg, WEIGHTS, "--json", "map.json", *words)
    found["map"] = json.loads((folder / "map.json").read_text())
    del found["map"]["settings"]["cfg"]
    # OpenCV takes pictures with numbers for a video.
    for command in ("test", "demo") if HAS_VIDEO else ("test",):
        told = done[command] = run(folder, command, "toy.data", cfg, WEIGHTS, "image000.png", "-thresh", ".01", *words)
        found[command] = re.sub(r"in [\d.]+ seconds|FPS:.*", "", told.stdout)
    return found, done


def check_precisions(folder, text):
    """A cfg without the key, and one whose key says FP32, against the key with amp_dtype=auto."""
    for name, keys in ("plain", ""), ("key", "mixed_precision=1"), ("fp32", "mixed_precision=1\namp_dtype=fp32"), \
                      ("level", "mixed_precision=1\namp_level=O0"):
        (folder / f"{name}.cfg").write_text(text.replace("[net]", f"[net]\n{keys}"))
    wanted, _ = results_of(folder, "key.cfg")
    plain, done = results_of(folder, "plain.cfg")
    assert all(plain[command] != wanted[command] for command in ("valid", "map")), "the set tells nothing"
    assert all("mixed precision plan" not in told.stderr for told in done.values()), done
    for cfg, word, note in ("plain.cfg", "-half", ""), ("plain.cfg", "--half", ""), \
                           ("fp32.cfg", "-half", "fp32.cfg:4: amp_dtype=fp32 does not count beside -half"), \
                           ("level.cfg", "--half", "level.cfg:4: amp_level=O0 does not count beside -half"):
        found, done = results_of(folder, cfg, word)
        assert found == wanted, (cfg, word, found, wanted)
        for command, told in done.items():
            assert told.stderr.count("mixed precision plan: ") == 1 and "amp_dtype=auto: " in told.stderr, told.stderr
            toyset.check_notes(told.stderr, *([note] if note else []))


def check_named_type(folder, text):
    """A type of 16 bits that the cfg names stays, as do layers that it holds in FP32."""
    (folder / "fp16.cfg").write_text(text.replace("[net]", "[net]\namp_dtype=fp16", 1)
                                     .replace("filters=16\n", "filters=16\nmixed_precision=0\n", 1))
    told = run(folder, "valid", "toy.data", "fp16.cfg", WEIGHTS, "-half").stderr
    assert "mixed precision plan: fp16\n" in told and "mixed_precision=0" in told, told


def check_fork(folder, text):
    """A cfg of AlexeyAB's rules is run by them, as with the key."""
    fork = text.replace("activation=leaky", "activation=mish", 1)
    (folder / "fork.cfg").write_text(fork)
    (folder / "fork_key.cfg").write_text(fork.replace("[net]", "[net]\nmixed_precision=1", 1))
    wanted, _ = results_of(folder, "fork_key.cfg")
    found, done = results_of(folder, "fork.cfg", "-half")
    assert found == wanted, (found, wanted)
    assert all("activation=mish" in told.stderr for told in done.values()), done
    assert "As AlexeyAB's Darknet counts" in done["map"].stdout, done["map"].stdout


def check_windows(folder, text):
    """Line ends of Windows are no fault where mixed precision is asked for, nor where a plan is."""
    (folder / "windows.cfg").write_text(text.replace("\n", "\r\n"), newline="")
    wanted, _ = results_of(folder, "plain.cfg", "-half")
    found, _ = results_of(folder, "windows.cfg", "-half")
    assert found == wanted, (found, wanted)
    for command in "plan", "profile":
        done = subprocess.run([DARKNET, "amp", command, "windows.cfg"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done
    for command in "test", "valid", "map":
        told = run(folder, command, "toy.data", "windows.cfg", WEIGHTS, status=1).stderr
        assert "windows.cfg:" in told and "carriage return" in told and "or set mixed_precision=1" in told, told


def check_refusals(folder, text):
    """The user's file and lines are named; commands without the word refuse it."""
    (folder / "bad.cfg").write_text(text.replace("[net]", "[net]\namp_dtyp=fp16", 1))
    for command in ("test", "valid", "map", "demo"):
        told = run(folder, command, "toy.data", "bad.cfg", WEIGHTS, "-half", status=1).stderr
        assert "bad.cfg:3: " in told and "amp_dtype" in told, told
    assert "unknown option -half" in run(folder, "valid2", "toy.data", "toy.cfg", WEIGHTS, "-half", status=1).stderr
    assert 'unknown word "-half"' in run(folder, "train", "toy.data", "key.cfg", "-half", status=1).stderr
    assert "[-half]" in run(folder, "test", "--help").stdout


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", images=12, max_batches=60, net_keys="seed=1")
        (folder / "results").mkdir()
        with open(folder / "toy.data", "a") as file:
            file.write("results=results\n")
        text = (folder / "toy.cfg").read_text()
        run(folder, "train", "toy.data", "toy.cfg")
        check_precisions(folder, text)
        check_named_type(folder, text)
        check_fork(folder, text)
        check_windows(folder, text)
        check_refusals(folder, text)


main()
