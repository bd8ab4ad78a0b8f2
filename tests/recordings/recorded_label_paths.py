"""Where AlexeyAB's Darknet looks for labels, as its own function says.

    label_paths.py ROOT REPLAY_LABEL_PATHS
"""
import json
import subprocess
import sys

import recorded


def main(root, program):
    paths = json.loads((recorded.find(root, "o4_loader/label_paths.json")).read_text())
    done = subprocess.run([program], input="\n".join(paths) + "\n", text=True,
                          stdout=subprocess.PIPE, check=True)
    ours = dict(zip(paths, done.stdout.splitlines(), strict=True))
    wrong = {p: (ours[p], paths[p]) for p in paths if ours[p] != paths[p]}
    for path, (our, record) in wrong.items():
        print(f"{path!r}: {our!r}, recorded {record!r}")
    print(f"{len(paths)} paths")
    if wrong or not paths:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
