/* Detection images by the rules of AlexeyAB's Darknet (plugin/images/draw.h): cuts of pictures with
 * their mean colour around them, stretched to the network's size, colours changed in 8 bits; alone
 * or several mixed in one. Labels lie beside the picture, where that Darknet looks for them, or
 * where stock does; a picture without a label file has no objects. */
#ifndef AMP_CROPS_H
#define AMP_CROPS_H

#include "darknet.h"
#include "pictures.h"
#include "plugin/core/net/net.h"
#include "plugin/images/mix.h"

struct amp_crops {
    struct amp_crop_rules cut;
    struct amp_truth_rules truths;
    enum amp_mixing mixing;
    bool bounded;
};

/* For a batch of these arguments. False: the net's images are loaded by stock's rules. */
bool amp_crops_of(const struct amp_net_desc *, const load_args *, struct amp_crops *);

/* Loads one row into *a->d. *name: the file that it begins with, drawn from a->paths here. Any
 * number of threads may call it. */
void amp_crops_load(const struct amp_image_loader *, const struct amp_crops *, const load_args *a,
                    char **name);

#endif
