"""docs/commands.md names every field of the JSON that our commands write, and no other.

usage: json_fields.py ROOT DARKNET
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

# Of each section the command, and the statuses with which it has a result.
COMMANDS = {
    "amp plan": (["amp", "plan", "toy.cfg", "backup/toy_final.weights", "--memory", "1", "--json"], (0,)),
    "amp bench-inference": (["amp", "bench-inference", "toy.cfg", "--batch", "2", "--json"], (0,)),
    "amp predict": (["amp", "predict", "toy.cfg", "backup/toy_final.weights", "--input", "image", "--output", "out"], (0,)),
    "amp data": (["amp", "data", "toy.data", "toy.cfg", "--anchors", "4", "--json", "data.json"], (0,)),
    "amp check": (["amp", "check", "toy.data", "toy.cfg", "--json"], (0, 2)),
    "amp profile": (["amp", "profile", "toy.cfg", "toy.data", "--json"], (0,)),
    "amp lr-find": (["amp", "lr-find", "toy.data", "toy.cfg", "--json"], (0,)),
    "detector map": (["detector", "map", "toy.data", "toy.cfg", "backup/toy_final.weights", "--json", "map.json",
                      "--bootstrap", "2"], (0,)),
}
# A cfg by AlexeyAB's rules has more to say.
OTHER_CFG = {"amp plan": ["amp", "plan", "fork.cfg", "--json"],
             "detector map": ["detector", "map", "toy.data", "fork.cfg", "backup/toy_final.weights", "--json",
                              "fork.json"]}


def run(folder, arguments, statuses):
    done = subprocess.run([DARKNET, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode in statuses, (arguments, done.returncode, done.stderr[-4000:])
    return done.stdout


def keys_of(value):
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def described(section):
    """Of the section's table of fields: the names in its first column, and all names."""
    text = (ROOT / "docs/commands.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \|$", text.partition("| JSON field |")[2], re.M)
    first = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    return first, {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = toyset.make(Path(scratch) / "set", net_keys="mixed_precision=1\nseed=1\namp_log=log\n"
                             "amp_log_noise=1")
        run(folder, ["detector", "train", "toy.data", "toy.cfg"], (0,))
        (folder / "image").write_bytes(bytes(4 * 3 * 32 * 32))
        cfg = (folder / "toy.cfg").read_text()
        (folder / "fork.cfg").write_text(cfg.replace("[net]\n", "[net]\namp_dialect=fork\n"))
        wrong = []
        for section, (arguments, statuses) in COMMANDS.items():
            said = run(folder, arguments, statuses)
            written = arguments[-1] if arguments[-1].endswith(".json") else "map.json"
            found = keys_of(json.loads((folder / written).read_text() if written in arguments else said))
            if section in OTHER_CFG:
                said = run(folder, OTHER_CFG[section], (0,))
                found |= keys_of(json.loads((folder / "fork.json").read_text() if "map" in section else said))
            first, named = described(section)
            wrong += [f"{section}: {name} is not in the table" for name in sorted(found - named)]
            wrong += [f"{section}: {name} is not in the JSON" for name in sorted(first - found)]
        assert not wrong, "docs/commands.md\n" + "\n".join(wrong)


main()
