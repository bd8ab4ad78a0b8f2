/* What the loader of AlexeyAB's Darknet draws, each in its order, as functions of a source of
 * random numbers: the cut of a picture, the order of its labels, what is mixed, the network's size.
 * The rules are restated from reading, and held against recordings of its functions
 * (tests/recordings/loader.c). */
#ifndef AMP_DRAW_H
#define AMP_DRAW_H

#include <stdbool.h>
#include <stddef.h>

/* Numbers from 0 to 2^31 - 1, as glibc's rand gives them. */
struct amp_random {
    int (*next)(void *user);
    void *user;
};

/* Keys of a cfg, with AlexeyAB's defaults where it has none. w and h: the network's. */
struct amp_crop_rules {
    int w, h;
    float jitter, resize; /* of the last head; resize 1: none */
    bool letter_box;
    bool flip;
    float hue, saturation, exposure; /* 0, 1, 1: as it is */
};

/* What of a picture becomes the network's input, and how its colours change. The cut may reach over
 * the picture: there is its mean colour. Pixels, counted from the picture's left and top edge. */
struct amp_crop {
    int left, top, w, h;
    int right, bottom; /* borders as drawn: what is cut off there, below 0 what is added */
    int picture_w, picture_h;
    bool flip;
    float hue, saturation, exposure; /* 179 * hue is added to a hue of 0 to 179; factors */
};

/* Rounds of a mosaic: top left, top right, bottom left, bottom right. */
enum { AMP_NO_MOSAIC = -1, AMP_MOSAIC_ROUNDS = 4 };

/* Two numbers for the resize, four for left, right, top, bottom, one for the flip if there is one,
 * an unused one, one for the hue, two each for saturation and exposure; for a round of a mosaic one
 * more: whether the picture is pushed into its corner. */
void amp_crop_draw(const struct amp_crop_rules *, int picture_w, int picture_h, int mosaic_round,
                   const struct amp_random *, struct amp_crop *);

/* The order of n labels: index[i] of them is at place i. n numbers. */
void amp_label_order_draw(int n, const struct amp_random *, int *index);

/* [net] mixup; 2, cutmix, is for classifiers. */
enum amp_mixing { AMP_MIX_NONE = 0, AMP_MIX_TWO = 1, AMP_MIX_MOSAIC = 3, AMP_MIX_ANY = 4 };

/* What the pictures of one chunk are made of. */
struct amp_mix {
    enum amp_mixing mixing; /* NONE, TWO or MOSAIC */
    int rounds;             /* 1, 2 or 4: as many pictures make one */
};

/* Where the four pictures of a mosaic meet, in pixels of the network. */
struct amp_cut {
    int x, y;
};

/* The coin of a chunk, drawn in every mode: two numbers, of which the first is not used; for
 * AMP_MIX_ANY a third between the two ways. For a mosaic then two for each of n cuts; else cuts are
 * left alone. */
struct amp_mix amp_mix_draw(enum amp_mixing, int w, int h, int n, const struct amp_random *,
                            struct amp_cut *cuts);

/* A side of the network where cfgs have `random`: coefficient is 1.4 for random=1, else its value;
 * initial: the cfg's width or height; step: resize_step. One draw serves both sides. */
struct amp_size_rules {
    float coefficient;
    int step;
};
/* Two numbers. */
float amp_size_draw(const struct amp_size_rules *, const struct amp_random *);
/* scale: of amp_size_draw; the coefficient itself the first time and in the last 100 iterations. */
int amp_size_of(const struct amp_size_rules *, int initial, float scale);

#endif
