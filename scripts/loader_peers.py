"""How fast other programs' code loads the images of a list on one core, for scripts/bench-loader.

    loader_peers.py torchvision|ultralytics LIST SIZE EPOCHS CLASSES
    loader_peers.py torchvision|ultralytics --version

Prints a JSON line {"seconds": [of an image, in each epoch]}: this process's time on a core. Both load to SIZE x SIZE
with colours and sides drawn at random, labels included, by a DataLoader in this process:

    torchvision  decode_jpeg, then transforms v2: Resize, ColorJitter, RandomHorizontalFlip
    ultralytics  its YOLODataset with its own augmentation, mosaic off: letterbox, moved and scaled, HSV, flip
"""

import json
import sys
import time
from pathlib import Path

BATCH = 8  # images that the DataLoader joins
BUFFERED = 8  # images that Ultralytics keeps, of a batch size of 1: not for the next epoch, which would not decode


def read_list(listed):
    return Path(listed).read_text().splitlines()


def labels_of(path):
    """[[class, x, y, w, h], ...] of the label file that scripts/bench-loader has put there."""
    text = Path(path.replace("/images/", "/labels/")).with_suffix(".txt").read_text()
    return [[float(number) for number in line.split()] for line in text.splitlines()]


def torchvision_loader(listed, size, classes):
    import torch
    from torchvision import tv_tensors
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2
    paths = read_list(listed)
    change = v2.Compose([v2.Resize((size, size)), v2.ColorJitter(brightness=.5, saturation=.5, hue=.1),
                         v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, index):
            image = tv_tensors.Image(decode_jpeg(read_file(paths[index]), mode=ImageReadMode.RGB))
            height, width = image.shape[-2:]
            boxes = torch.tensor(labels_of(paths[index])).reshape(-1, 5)
            places = tv_tensors.BoundingBoxes(boxes[:, 1:] * torch.tensor([width, height, width, height]),
                                              format="CXCYWH", canvas_size=(height, width))
            image, places = change(image, places)
            return image, places, boxes[:, 0]

    def collate(rows):
        images, places, kinds = zip(*rows)
        return torch.stack(images), places, kinds

    return torch.utils.data.DataLoader(Images(), batch_size=BATCH, collate_fn=collate)


def ultralytics_loader(listed, size, classes):
    import torch
    from ultralytics.cfg import get_cfg
    from ultralytics.data.build import build_yolo_dataset
    hyp = get_cfg(overrides={"imgsz": size, "mosaic": 0.0, "mixup": 0.0, "cutmix": 0.0, "copy_paste": 0.0})
    count = len(read_list(listed))
    names = {number: str(number) for number in range(classes)}
    images = build_yolo_dataset(hyp, listed, batch=1, data={"names": names, "nc": classes, "channels": 3})
    if len(images) != count:
        sys.exit(f"ultralytics takes {len(images)} of {count} images")
    if len(images) <= BUFFERED:
        sys.exit(f"ultralytics keeps {BUFFERED} images in memory: it needs more than {len(images)}")
    return torch.utils.data.DataLoader(images, batch_size=BATCH, collate_fn=images.collate_fn)


LOADERS = {"torchvision": torchvision_loader, "ultralytics": ultralytics_loader}


def report_versions(name):
    import torch
    peer = __import__(name)
    print(json.dumps({name: peer.__version__, "torch": torch.__version__}))


def main():
    name, *rest = sys.argv[1:]
    if rest == ["--version"]:
        return report_versions(name)
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    listed, size, epochs, classes = rest[0], *map(int, rest[1:])
    loader, count = LOADERS[name](listed, size, classes), len(read_list(listed))
    seconds = []
    for _ in range(epochs + 1):
        start = time.process_time()
        for _ in loader:
            pass
        seconds.append((time.process_time() - start) / count)
    print(json.dumps({"seconds": seconds[1:]}))  # the first epoch warms up


if __name__ == "__main__":
    main()
