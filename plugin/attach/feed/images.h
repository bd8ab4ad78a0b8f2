/* Image files that Darknet reads, above all those that cannot be decoded.
 *
 * Darknet's load_image_cv prints the name, runs the shell command `echo NAME >> bad.list`, built in
 * a buffer of 256 bytes, and goes on with a black image of 10x10. With the plugin no name reaches a
 * shell or overruns that buffer, and if OpenCV throws, the program ends with status 1 and names the
 * file.
 *
 * The line in bad.list and the black image stay, unless a network is trained with the plugin. Then
 * the program ends with status 1 and names the file; training goes on from the last backup. (A
 * Darknet without OpenCV ends the program by itself, with status 0: that becomes 1.) A label file
 * that has gone ends the program, too. */
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
/* The calling thread begins (true) or ends loading images of a batch with their labels. */
void amp_images_loading(bool);

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
/* load_alphabet: the letters beside boxes. */
image **amp_images_of_letters(void);

#endif
