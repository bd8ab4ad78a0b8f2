/* Memory of a batch's pictures, kept from batch to batch. A row is some MiB, which malloc gets from
 * the system and gives back each time: the page faults of that take as long as placing a picture.
 */
#ifndef AMP_ROWS_H
#define AMP_ROWS_H

#include <stddef.h>

/* Of [3][h][w] floats, of no meaning; free may free it. Does not return without memory. */
float *amp_row_take(int w, int h);
/* Of any origin, from malloc: it is the caller's no longer. As many rows are kept as were taken and
 * did not come back, of the size taken last; all others are freed. */
void amp_row_give(float *row, size_t floats);
/* Frees what is kept. */
void amp_rows_free(void);

#endif
