"""Where the recordings of AlexeyAB's Darknet are: its own functions' numbers on given inputs.

AMP_RECORDINGS, else recordings/ in the folder shared/ beside the project. They are no part of it;
a test that finds none says so and is skipped."""
import os
import pathlib
import sys

SKIPPED = 77
PROJECT = pathlib.Path(__file__).resolve().parents[2]


def folder(name):
    place = os.environ.get("AMP_RECORDINGS") or PROJECT.parent / "shared" / "recordings"
    path = pathlib.Path(place) / name
    if not path.is_dir():
        print(f"SKIPPED: no recordings in {path}")
        sys.exit(SKIPPED)
    return path
