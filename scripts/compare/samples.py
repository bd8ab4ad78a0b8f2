"""Detections of the runs' final networks on the same validation images, drawn by Darknet itself."""

import base64
import io

from training import run_darknet

WIDTH = 480  # pixels, at most
LONGEST_PATH = 255  # that `detector test` takes


def choose(images, count):
    """Evenly from the list."""
    images = [image for image in images if len(str(image)) <= LONGEST_PATH]
    count = min(count, len(images))
    return [images[(2 * i + 1) * len(images) // (2 * count)] for i in range(count)]


def shrink(jpeg):
    """A smaller JPEG of no more than WIDTH pixels; as it is where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return jpeg
    with Image.open(io.BytesIO(jpeg)) as picture:
        picture = picture.convert("RGB")
        picture.thumbnail((WIDTH, WIDTH), Image.LANCZOS)
        smaller = io.BytesIO()
        picture.save(smaller, "JPEG", quality=82)
    return smaller.getvalue()


def detect(run, image, number, program, device):
    """The picture with its boxes, as a data URI."""
    name = f"sample-{number}"
    drawn = run.folder / f"{name}.jpg"
    weights = run.folder / "net_final.weights"
    if not drawn.exists() or drawn.stat().st_mtime < weights.stat().st_mtime:
        run_darknet(program, ["detector", "test", "set.data", "net.cfg", "net_final.weights",
                              str(image), "-out", name, *device], run.folder, f"{name}.log")
    return "data:image/jpeg;base64," + base64.b64encode(shrink(drawn.read_bytes())).decode()


def make(rows, seed, images, count, program, device):
    """[{"image": name, "shown": [(title, data URI)]}] of the measured runs of a seed; none where it is None."""
    shown = [row["run"] for row in rows if row["maps"] and row["run"].seed == seed]
    return [{"image": image.name, "seed": seed,
             "shown": [(run.variant.title, detect(run, image, number, program, device))
                       for run in shown]}
            for number, image in enumerate(choose(images, count if shown else 0), 1)]
