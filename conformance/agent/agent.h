/* What the files of the agent share. */
#ifndef AGENT_H
#define AGENT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Answers an order with a line. Returns 0. */
int answer(const char *format, ...);
/* Answers that a call failed, with the text of errno. */
int unable(const char *what);
/* Returns the next word of the order, or "". */
const char *word(void);
/* Returns the next word of the order as a number. */
uint64_t number(void);
int is(const char *a, const char *b);

/* Executes an order of the connection manager, whose name begins with "cm-". */
int manage(const char *order, const char *device_address);

/* Sets the token that the first order must state. Makes one up if none is given and one must
 * exist. */
int choose_token(const char *given, int must_exist);
/* Returns true if the agent wants a token. */
int wants_token(void);
/* Compares a token with the agent's in constant time. */
int is_token(const char *given);
/* Accepts one connection at a TCP port of an address whose first line states the token. */
int serve(const char *address, int tcp_port, FILE **in, FILE **out);

#endif
