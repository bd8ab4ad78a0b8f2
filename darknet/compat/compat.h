// Included in front of every file of Darknet (compiler option -include): supplies what newer
// toolkits removed. In a build without CUDA there is nothing to supply.
#ifndef AMP_COMPAT_H
#define AMP_COMPAT_H
#endif
