/* One process at a time trains a cfg of one name in one folder. */
#ifndef AMP_CLAIM_H
#define AMP_CLAIM_H

/* Ends the program if another process saves weights named base in this folder; else keeps others
 * out until this process ends. cfg_path: for the message. */
void amp_claim_folder(const char *cfg_path, const char *folder, const char *base);

#endif
