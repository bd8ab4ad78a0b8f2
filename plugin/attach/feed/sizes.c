/* Decides which size is drawn. It must not know when: Darknet's trainer does. */
#include "sizes.h"

#include "plugin/images/draw.h"
#include "seed.h"

#include <stdio.h>

static const struct amp_yolo_desc *rules_of(const struct amp_session *s)
{
    const struct amp_yolo_desc *y = &s->desc->layers[s->desc->n - 1].loss.yolo;
    return !s->measures && y->own_rules && y->random > 0 ? y : NULL;
}

static int next(void *user)
{
    (void)user;
    return amp_seed_rand();
}

/* The largest size comes first, so that memory ends at once if it does, and last, for the weights
 * that are kept. A run that is resumed where a size is drawn draws what the unbroken one does. */
enum { LAST_ITERATIONS = 100 };
static bool is_largest(const struct amp_session *s)
{
    size_t done = amp_iterations_in(s->net, *s->net->seen);
    return !done || done + LAST_ITERATIONS > (size_t)s->net->max_batches;
}

static void draw(struct amp_session *s, const struct amp_yolo_desc *y)
{
    static const struct amp_random numbers = {.next = next};
    struct amp_size_rules rules = {y->random == 1 ? 1.4f : y->random, s->desc->drawn_step};
    float scale = is_largest(s) ? rules.coefficient : amp_size_draw(&rules, &numbers);
    s->drawn.w = amp_size_of(&rules, amp_net_int(s->cfg, "width"), scale);
    s->drawn.h = amp_size_of(&rules, amp_net_int(s->cfg, "height"), scale);
    printf("%d x %d\n", s->drawn.w, s->drawn.h);
}

void amp_sizes_choose(struct amp_session *s, bool redraws, load_args *a)
{
    const struct amp_yolo_desc *y = s ? rules_of(s) : NULL;
    if (!y || a->type != DETECTION_DATA) return;
    if (redraws) draw(s, y);
    if (!s->drawn.w) return;
    a->w = s->drawn.w;
    a->h = s->drawn.h;
}

void amp_sizes_apply(const struct amp_session *s, int *w, int *h)
{
    if (!s->drawn.w) return;
    *w = s->drawn.w;
    *h = s->drawn.h;
}
