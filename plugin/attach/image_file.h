/* Image files that cannot be decoded.
 *
 * Darknet's load_image_cv prints the name, runs the shell command
 * `echo NAME >> bad.list`, built in a buffer of 256 bytes, and goes on with a black image of 10x10.
 * With the plugin no name reaches a shell or overruns that buffer, and a file at which OpenCV
 * throws is an error that names the file, with status 1. The line in bad.list and the black image
 * stay, unless a network is trained with the plugin: then it is an error that names the file and
 * ends the program with status 1; training goes on from the last backup. (A Darknet without OpenCV
 * ends the program by itself, but with status 0: then 1.) A label file that has gone is one,
 * too. */
#ifndef AMP_IMAGE_FILE_H
#define AMP_IMAGE_FILE_H

#include <stdbool.h>

/* One more thread that trains, in which an image that cannot be decoded ends the program; or one
 * less. Holds for all threads as long as there is one. */
void amp_image_file_refuse(bool);
/* The calling thread loads images of a batch, with their labels; or it has. */
void amp_image_loading(bool);

#endif
