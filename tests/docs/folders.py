"""What includes what in plugin/ is what the table in docs/architecture.md allows. Headers of the same folder are
included by their names alone, those of others from the project's root.

usage: folders.py ROOT
"""

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(sys.argv[1])
PLUGIN = ROOT / "plugin"
PAGE = ROOT / "docs/architecture.md"


def allowed():
    """Of each folder, what stands between backticks in the row's last column."""
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\|(.*)\|$", PAGE.read_text(), re.M)
    return {folder: re.findall(r"`([\w/.*]+)`", uses) for folder, uses in rows if (PLUGIN / folder).is_dir()}


def sources(folder):
    return [path for path in folder.glob("*.*") if path.suffix in (".c", ".h", ".cc")]


def reached(source):
    """Of our own headers outside the source's folder, the paths as the table has them."""
    for header in re.findall(r'^#include "(.+)"', source.read_text(), re.M):
        if header.startswith("plugin/"):
            assert (ROOT / header).is_file(), f"{source}: no {header}"
            assert (ROOT / header).parent != source.parent, f"{source}: {header} is of the same folder"
            yield header.removeprefix("plugin/")
        elif header.startswith("kernels/"):
            yield header
        elif (PLUGIN / "include" / header).is_file():
            yield f"include/{header}"
        elif (source.parent / header).is_file():
            continue
        else:  # a program's: Darknet's, or the libraries'
            assert "/" not in header, f"{source}: {header} is not from the root"


def main():
    table = allowed()
    folders = {str(path.relative_to(PLUGIN)) for path in PLUGIN.rglob("*") if path.is_dir() and sources(path)}
    folders -= {"include"}
    assert set(table) == folders, f"docs/architecture.md has {sorted(table)}, plugin/ has {sorted(folders)}"
    used = set()
    for folder in sorted(folders):
        for source in sources(PLUGIN / folder):
            for header in reached(source):
                into = header.rpartition("/")[0] + "/"
                fits = [use for use in table[folder] if header == use or fnmatchcase(into, use)]
                assert fits, f"{source} includes {header}; docs/architecture.md allows {folder}/ {table[folder]}"
                used |= {(folder, use) for use in fits}
    unused = [(folder, use) for folder, uses in table.items() for use in uses if (folder, use) not in used]
    assert not unused, f"docs/architecture.md allows what nobody uses: {unused}"
    print(f"{len(used)} ways between {len(folders)} folders")


if __name__ == "__main__":
    main()
