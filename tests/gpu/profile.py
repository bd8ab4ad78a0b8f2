"""`darknet amp profile` on the device: every layer of both ways has its time there.

usage: profile.py DARKNET [CFG]
"""

import json
import subprocess
import sys
from pathlib import Path

SMALL = Path(__file__).resolve().parents[2] / "cfg/small160.cfg"


def profile(*args):
    told = subprocess.run([sys.argv[1], "amp", "profile", sys.argv[2] if sys.argv[2:] else SMALL,
                           "--json", *args], capture_output=True, text=True)
    if told.returncode:
        sys.exit(f"exit status {told.returncode}\n{told.stderr[-1500:]}")
    return json.loads(told.stdout)


def main():
    result = profile()
    wrong = [] if result["backend"] == "cuda" and result["device"] else ["it did not run on the device"]
    for way in ("fp32", "mixed"):
        parts = [part[way] for part in result["layers"] + [result["other"]]]
        for name in ("forward_seconds", "backward_seconds"):
            if not all(part[name] > 0 for part in parts[:-1]):
                wrong.append(f"{way} {name}: a layer took no time")
        if abs(sum(part["share"] for part in parts) - 1) > 1e-6:
            wrong.append(f"{way}: the shares are not 1 together")
    step = result["step_seconds"]
    print(f"{result['device']}: step {1e3 * step['fp32']:.3f} ms, {1e3 * step['mixed']:.3f} ms: " +
          ("; ".join(wrong) or "as it must be"))
    sys.exit(bool(wrong))


main()
