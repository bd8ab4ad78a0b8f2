/* Draws a training run: loss, mAP and loss scale over the iterations, in one SVG file that is
 * replaced as a whole. Pure C.
 *
 * The picture has AMP_CHART_POINTS points at most, so the file stays small however long the run is.
 * The points are kept in the file too (in its <metadata>): a run that goes on reads them from the
 * chart that it finds, up to the iteration at which it starts. */
#ifndef AMP_CHART_H
#define AMP_CHART_H

#include <stdbool.h>
#include <stddef.h>

#define AMP_CHART_POINTS 400
#define AMP_CHART_MARKS  16

struct amp_chart_setup {
    const char *title;
    const char *figures[2];         /* what is measured: the thick curve, the thin one */
    size_t total;                   /* iterations of the run */
    size_t burn_in;                 /* the first of these; 0: none */
    size_t mark[AMP_CHART_MARKS];   /* iterations at which the learning rate steps */
    double factor[AMP_CHART_MARKS]; /* by which */
    int n_marks;
};

/* State of the run, for the text above the picture. */
struct amp_chart_state {
    size_t iteration;
    double loss, average; /* NAN: lost; none yet */
    double rate;          /* learning rate */
    double map50, best50; /* NAN: none yet */
    size_t best_iteration;
    double seconds_left; /* negative: unknown */
};

struct amp_chart;

/* resumed: read the points that the file holds. NULL with text in err: the file exists and is not
 * one of our charts, or cannot be written. The setup is copied, its texts are not. */
struct amp_chart *amp_chart_open(const char *path, const struct amp_chart_setup *, bool resumed,
                                 char *err, size_t err_size);
void amp_chart_free(struct amp_chart *); /* for tests: a program keeps its chart to the end */

/* scale 0: none. average: of the losses, smoothed. A loss that is not finite gives no point. */
void amp_chart_add_loss(struct amp_chart *, size_t iteration, double loss, double average,
                        double scale);
void amp_chart_add_map(struct amp_chart *, size_t iteration, double map50, double map);

/* seconds: since the first loss that this run added; from its iterations only. -1 after the first,
 * which tells nothing. */
double amp_chart_seconds_left(const struct amp_chart *, size_t iteration, double seconds);

/* 0, or -1 with text in err; the file is then as it was. */
int amp_chart_write(const struct amp_chart *, const struct amp_chart_state *, char *err,
                    size_t err_size);

#endif
