/* Heads of heads.h on both sides of a rig: the backend's copies of their arrays, and the sums that
 * a loss reports. */
#ifndef CONFORMANCE_HEAD_SIDES_H
#define CONFORMANCE_HEAD_SIDES_H

#include "kernels/reference/operations.h"
#include "heads.h"
#include "conformance.h"

struct sums {
    struct pair values;
};

UNUSED static struct sums make_sums(struct rig *r)
{
    return (struct sums){output_array(r, sizeof(struct ampk_loss_sums) / sizeof(float), false)};
}

/* Sums of up to so many numbers around 1. */
UNUSED static void check_sums(struct rig *r, const struct sums *s, double largest)
{
    check_output(r, "sums", &s->values,
                 (struct tolerance){.relative = 3e-5, .absolute = 3e-6 * largest});
}

/* A tensor with these values, on both sides. */
UNUSED static struct pair given_tensor(struct rig *r, struct ampk_tensor host)
{
    return make_pair(r, host, true);
}

UNUSED static struct pair given_array(struct rig *r, float *data, size_t n)
{
    struct ampk_tensor t = describe_array(n);
    t.data = data;
    return make_pair(r, t, true);
}

UNUSED static const void *on_backend(struct rig *r, const void *data, size_t bytes)
{
    return data ? input_bytes(r, data, bytes) : NULL;
}

/* What Darknet's activations and box formulas round. */
UNUSED static const struct tolerance activated = {.relative = 2e-6, .absolute = 1e-12};

UNUSED static struct ampk_yolo_head yolo_on_backend(struct rig *r, const struct ampk_yolo_head *o)
{
    struct ampk_yolo_head copy = *o;
    copy.anchor_sizes = on_backend(r, o->anchor_sizes, 2 * o->anchors * sizeof(float));
    copy.mask = on_backend(r, o->mask, o->boxes * sizeof(int));
    copy.map = on_backend(r, o->map, o->map_size * sizeof(int));
    return copy;
}

#endif
