// The functions and variables of Darknet that the plugin replaces or uses. One line adds one.
//
// This is the only list: run-time lookup (symbols.c), the tests and, through the archive's own
// symbols, the linker options of scripts/amp-ldflags follow from it.
#ifndef AMP_INTERPOSED_H
#define AMP_INTERPOSED_H

// Replaced: defined by us with AMP_INTERPOSE, Darknet's own is AMP_REAL(name).
#define AMP_INTERPOSED(X) X(parse_network_cfg)

// Used only: AMP_USE(name) is Darknet's function or the address of its variable.
#define AMP_USED(X) X(gpu_index)

#endif
