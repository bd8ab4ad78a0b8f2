/* Reads lists of boxes and heads from standard input, and prints what plugin/boxes makes of them,
 * for the scripts of this folder. Numbers are floats with enough digits. Lines:
 *
 *   nms KIND THRESH BETA N CLASSES      then N times: X Y W H OBJECTNESS PROBABILITY...
 *       prints N lines, in the order that NMS leaves: INDEX PROBABILITY...
 *   head W H BOXES CLASSES NET_W NET_H NEW_COORDS ANCHORS      then the mask, the anchors (ANCHORS
 * numbers), the output picture W H LETTERBOX THRESH        of the head that was read last prints
 * how many boxes, then each: X Y W H OBJECTNESS PROBABILITY... */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boxes/boxes.h"

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static float next_float(void)
{
    float value;
    if (scanf("%f", &value) != 1) fail("a number is missing");
    return value;
}

static int next_int(void)
{
    int value;
    if (scanf("%d", &value) != 1) fail("a whole number is missing");
    return value;
}

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n + 1, size);
    if (!memory) fail("no memory");
    return memory;
}

static float *next_floats(int n)
{
    float *values = allocate((size_t)n, sizeof *values);
    for (int i = 0; i < n; i++)
        values[i] = next_float();
    return values;
}

static struct amp_centre_box next_box(void)
{
    struct amp_centre_box b;
    b.x = next_float();
    b.y = next_float();
    b.w = next_float();
    b.h = next_float();
    return b;
}

static void print_floats(const float *values, int n)
{
    for (int i = 0; i < n; i++)
        printf(" %.9g", (double)values[i]);
    putchar('\n');
}

static void suppress(void)
{
    char kind[32], err[200];
    struct amp_nms nms;
    if (scanf("%31s", kind) != 1 || amp_nms_kind_read(kind, &nms.kind)) fail("no such kind of NMS");
    nms.thresh = next_float();
    nms.beta = next_float();
    int n = next_int(), classes = next_int();
    struct amp_nms_row *rows = allocate((size_t)n, sizeof *rows);
    int *order = allocate((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) {
        rows[i].box = next_box();
        rows[i].objectness = next_float();
        rows[i].prob = next_floats(classes);
    }
    if (amp_nms_run(&nms, rows, n, classes, order, err, sizeof err)) fail(err);
    for (int i = 0; i < n; i++) {
        printf("%d", order[i]);
        print_floats(rows[order[i]].prob, classes);
    }
    for (int i = 0; i < n; i++)
        free(rows[i].prob);
    free(rows);
    free(order);
}

struct read_head {
    struct amp_yolo_output head;
    int *mask;
    float *anchors, *output;
};

static void free_head(struct read_head *r)
{
    free(r->mask);
    free(r->anchors);
    free(r->output);
}

static void read_head(struct read_head *r)
{
    free_head(r);
    struct amp_yolo_output *head = &r->head;
    head->w = next_int();
    head->h = next_int();
    head->boxes = next_int();
    head->classes = next_int();
    head->net_w = next_int();
    head->net_h = next_int();
    head->new_coords = next_int() != 0;
    int anchors = next_int();
    r->mask = allocate((size_t)head->boxes, sizeof *r->mask);
    for (int i = 0; i < head->boxes; i++)
        r->mask[i] = next_int();
    r->anchors = next_floats(anchors);
    r->output = next_floats(head->w * head->h * head->boxes * (5 + head->classes));
    head->mask = r->mask;
    head->anchors = r->anchors;
    head->output = r->output;
}

static void decode(const struct amp_yolo_output *head)
{
    struct amp_yolo_picture picture;
    picture.w = next_int();
    picture.h = next_int();
    picture.letterbox = next_int() != 0;
    float thresh = next_float();
    float *prob = allocate((size_t)head->classes, sizeof *prob);
    int n = 0, at = -1;
    while ((at = amp_yolo_next(head, at + 1, thresh)) >= 0)
        n++;
    printf("%d\n", n);
    while ((at = amp_yolo_next(head, at + 1, thresh)) >= 0) {
        struct amp_centre_box b;
        float objectness = amp_yolo_read(head, &picture, at, thresh, &b, prob);
        printf("%.9g %.9g %.9g %.9g %.9g", (double)b.x, (double)b.y, (double)b.w, (double)b.h,
               (double)objectness);
        print_floats(prob, head->classes);
    }
    free(prob);
}

int main(void)
{
    char word[32];
    struct read_head head = {.mask = NULL};
    while (scanf("%31s", word) == 1) {
        if (!strcmp(word, "nms"))
            suppress();
        else if (!strcmp(word, "head"))
            read_head(&head);
        else if (!strcmp(word, "picture"))
            decode(&head.head);
        else
            fail("no such line");
    }
    free_head(&head);
    return 0;
}
