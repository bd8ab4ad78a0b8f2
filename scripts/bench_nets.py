"""Cfgs of networks that AlexeyAB's and hank-ai's Darknet made known, for scripts/bench-cpu, written from
what they are made of: layers, filters, where they read. Keys of the loss are one choice of many."""

CLASSES = 80
OUT = 3 * (5 + CLASSES)
NET = ("[net]\nbatch=1\nsubdivisions=1\nwidth=416\nheight=416\nchannels=3\nmomentum=0.9\ndecay=0.0005\n"
       "learning_rate=0.001\nburn_in=1000\nmax_batches=500000\npolicy=steps\nsteps=400000,450000\nscales=.1,.1\n")
TINY_ANCHORS = "10,14, 23,27, 37,58, 81,82, 135,169, 344,319"
ANCHORS = "12,16, 19,36, 40,28, 36,75, 76,55, 72,146, 142,110, 192,243, 459,401"


class Net:
    """The text of a cfg. Every method that adds layers gives the number of the last one, which a route can read."""

    def __init__(self, activation, anchors, **head):
        self.text, self.count = NET, 0
        self.activation, self.anchors, self.head_keys = activation, anchors, head

    def add(self, name, **keys):
        self.text += f"\n[{name}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
        self.count += 1
        return self.count - 1

    def conv(self, filters, size=3, stride=1):
        return self.add("convolutional", batch_normalize=1, filters=filters, size=size, stride=stride, pad=1,
                        activation=self.activation)

    def route(self, *layers, **keys):
        return self.add("route", layers=",".join(map(str, layers)), **keys)

    def pool(self):
        return self.add("maxpool", size=2, stride=2)

    def pyramid(self, source):
        """What SPP makes of a layer: the largest values around each place, of three sizes, beside itself."""
        pools = []
        for size in (5, 9, 13):
            if pools:
                self.route(source)
            pools.append(self.add("maxpool", size=size, stride=1))
        return self.route(*reversed(pools), source)

    def up(self, filters, source):
        """Twice as large, beside what a convolution makes of `source`."""
        self.conv(filters, 1)
        large = self.add("upsample", stride=2)
        self.route(source)
        return self.route(self.conv(filters, 1), large)

    def head(self, mask, activation="linear"):
        self.add("convolutional", filters=OUT, size=1, stride=1, pad=1, activation=activation)
        return self.add("yolo", mask=mask, anchors=self.anchors, classes=CLASSES, num=self.anchors.count(", ") + 1,
                        iou_loss="ciou", **self.head_keys)


def yolov4_tiny():
    net = Net("leaky", TINY_ANCHORS, scale_x_y=1.05, iou_normalizer=.07)
    net.conv(32, stride=2)
    net.conv(64, stride=2)
    for filters in (64, 128, 256):
        whole = net.conv(filters)
        net.route(-1, groups=2, group_id=1)
        first = net.conv(filters // 2)
        net.route(net.conv(filters // 2), first)
        end = net.conv(filters, 1)
        net.route(whole, end)
        net.pool()
    net.conv(512)
    neck = net.conv(256, 1)
    net.conv(512)
    net.head("3,4,5")
    net.route(neck)
    net.conv(128, 1)
    large = net.add("upsample", stride=2)
    net.route(large, end)
    net.conv(256)
    net.head("1,2,3")
    return net.text


def yolov7_tiny():
    net = Net("leaky", ANCHORS, scale_x_y=2, new_coords=1, objectness_smooth=1, iou_normalizer=.05, max_delta=2)

    def block(filters, out):
        """Four convolutions that one more reads."""
        first = net.conv(filters, 1)
        net.route(-2)
        parts = [first, net.conv(filters, 1), net.conv(filters), net.conv(filters)]
        net.route(*parts)
        return net.conv(out, 1)

    net.conv(32, stride=2)
    net.conv(64, stride=2)
    ends = [block(32, 64)]
    for filters in (64, 128, 256):
        net.pool()
        ends.append(block(filters, 2 * filters))
    beside = net.conv(256, 1)
    net.route(-2)
    net.pyramid(net.conv(256, 1))
    net.route(beside, net.conv(256, 1))
    deep = net.conv(256, 1)
    net.up(128, ends[2])
    middle = block(64, 128)
    net.up(64, ends[1])
    heads = [block(32, 64)]
    for filters, below in ((64, middle), (128, deep)):
        net.route(net.conv(2 * filters, stride=2), below)
        heads.append(block(filters, 2 * filters))
    for end, filters, mask in zip(heads, (128, 256, 512), ("0,1,2", "3,4,5", "6,7,8")):
        net.route(end)
        net.conv(filters)
        net.head(mask, "logistic")
    return net.text


def yolov4():
    net = Net("mish", ANCHORS, scale_x_y=1.1, iou_normalizer=.07, iou_thresh=.213, max_delta=5)

    def stage(filters, inner, blocks):
        """Half of the image's size; residual blocks, and a way around them."""
        net.conv(filters, stride=2)
        around = net.conv(inner, 1)
        net.route(-2)
        net.conv(inner, 1)
        for _ in range(blocks):
            net.conv(filters // 2, 1)
            net.conv(inner)
            net.add("shortcut", **{"from": -3}, activation="linear")
        net.route(net.conv(inner, 1), around)
        return net.conv(filters, 1)

    def alternate(filters, count):
        for k in range(count):
            last = net.conv(2 * filters) if k % 2 else net.conv(filters, 1)
        return last

    net.conv(32)
    ends = [stage(64, 64, 1)] + [stage(filters, filters // 2, blocks)
                                 for filters, blocks in ((128, 2), (256, 8), (512, 8), (1024, 4))]
    net.activation = "leaky"
    net.pyramid(alternate(512, 3))
    deep = alternate(512, 3)
    net.up(256, ends[3])
    middle = alternate(256, 5)
    net.up(128, ends[2])
    neck = alternate(128, 5)
    net.conv(256)
    net.head("0,1,2")
    for filters, below, mask in ((256, middle, "3,4,5"), (512, deep, "6,7,8")):
        net.route(neck)
        net.route(net.conv(filters, stride=2), below)
        neck = alternate(filters, 5)
        net.conv(2 * filters)
        net.head(mask)
    return net.text


NETS = {"yolov4-tiny": yolov4_tiny, "yolov7-tiny": yolov7_tiny, "yolov4": yolov4}
