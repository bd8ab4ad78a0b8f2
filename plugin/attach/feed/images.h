/* Image files that Darknet reads, above all those that cannot be decoded.
 *
 * Darknet's load_image_cv prints the name, runs the shell command `echo NAME >> bad.list`, built in
 * a buffer of 256 bytes, and goes on with a black image of 10x10. With the plugin no name reaches a
 * shell or overruns that buffer, and if OpenCV throws, the program ends with status 1 and names the
 * file.
 *
 * The line in bad.list and the black image stay, unless a network is trained with the plugin. Then
 * another image is drawn in its place, and the file is named; the program ends with status 1 if
 * more than AMP_BAD_IMAGES_FEW were and they are more than 1 in AMP_BAD_IMAGES_SHARE of those
 * drawn, or with a Darknet without OpenCV, which ends the program by itself, with
 * status 0: that becomes 1. Training goes on from the last backup. A label file that has gone ends
 * the program, too. */
#ifndef AMP_IMAGES_H
#define AMP_IMAGES_H

#include "darknet.h"
#include "plugin/images/jpeg.h"

#include <stdbool.h>

/* Adds a thread that trains (true) or takes one away. While there is one, an image that cannot be
 * decoded ends the program, on any thread. */
void amp_images_refuse(bool);
/* The program itself wants that (amp_refuse_bad_images). */
bool amp_images_are_refused(void);

#define AMP_BAD_IMAGES_FEW   10
#define AMP_BAD_IMAGES_SHARE 100

/* The calling thread begins (true) or ends loading an image of a batch with its labels. It draws
 * another if amp_images_is_bad says so when it has ended. */
void amp_images_loading(bool);
/* The image that this thread loaded last cannot be decoded. */
bool amp_images_is_bad(void);
/* How many have been replaced so far, in the whole program. */
long long amp_images_replaced(void);

/* amp_jpeg_decode (plugin/images/jpeg.h) of the file in the memory. NULL: Darknet must read it. */
const struct amp_pixels *amp_image_decode_jpeg(char *filename, int least, struct amp_jpeg_memory *);

/* ---- in the places of Darknet's functions ---- */

/* load_image_color. */
image amp_image_load_color(char *filename, int w, int h);
/* load_image. */
image amp_image_load(char *filename, int w, int h, int c);
/* load_image_cv. */
image amp_image_decode(char *filename, int channels);
/* For system: takes Darknet's command that notes an image which cannot be decoded. False: Darknet
 * is decoding none, so the command is another one. */
bool amp_images_take_command(int *status);
/* For file_error: does not return while a batch is loaded, or if the program refuses bad images. */
void amp_images_miss(const char *file);
/* make_image. */
image amp_image_make(int w, int h, int c);

#endif
