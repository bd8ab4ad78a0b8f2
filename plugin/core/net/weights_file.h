/* Compares a Darknet weights file with the network that is to load it: sizes, and whether
 * its numbers are finite; nothing is loaded.
 *
 * The file: three 32-bit version numbers, the count of images seen (64 bits from version 0.2 on, 32
 * before), then each layer's tensors as 32-bit floats, without names or sizes. Only the place where
 * it ends shows whether a file belongs to a network. Darknet itself checks no read. */
#ifndef AMP_WEIGHTS_FILE_H
#define AMP_WEIGHTS_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "net.h"

#define AMP_LAYER_TENSORS_MAX 40 /* lstm: 8 matrices of up to 5 tensors */

struct amp_weight_tensor {
    char name[32];   /* "weights", "wz biases" */
    uint64_t floats; /* UINT64_MAX: too many to count */
};

enum amp_weights_use { AMP_WEIGHTS_LOAD, AMP_WEIGHTS_SAVE };

/* Lists the layer's tensors in file order, as Darknet's load_weights (which honours dontload,
 * numload and dontloadscales) or save_weights (dontsave) handles them. Returns their number. */
int amp_weights_layer_tensors(const struct amp_layer_desc *, enum amp_weights_use,
                              struct amp_weight_tensor[AMP_LAYER_TENSORS_MAX]);

/* Bytes of the file that save_weights writes; UINT64_MAX: too many to count. */
uint64_t amp_weights_saved_bytes(const struct amp_net_desc *);

struct amp_weights_info {
    uint64_t seen;
    int layers;       /* layers that load weights */
    int layers_found; /* the file has the first so many of them */
    int first_absent; /* index of the first layer that it lacks, or -1 */
};

/* 0, or -1 with text in err: the file is unreadable, ends inside a layer, has bytes left over, has
 * no layer at all, or the network has a layer that Darknet crashes on when it loads weights. A file
 * may end exactly between layers: a pretrained backbone does. */
int amp_weights_check(const char *path, const struct amp_net_desc *, struct amp_weights_info *,
                      char *err, size_t err_size);

/* 0, or -1 with text in err: one of its numbers is inf or NaN. Reads all of it; call it after
 * amp_weights_check. */
int amp_weights_check_numbers(const char *path, char *err, size_t err_size);

#endif
