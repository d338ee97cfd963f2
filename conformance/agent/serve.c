/*
 * The token of the agent, and the TCP port at which it takes orders. A connection whose first line
 * is not `token TOKEN` is refused, and the agent waits for the next one.
 */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TOKEN_LEN = 128, FIRST_LINE_SECONDS = 10 };

static char token[TOKEN_LEN + 1];

int choose_token(const char *given, int must_exist)
{
	unsigned char random[16];
	if (given) {
		if (!*given || strlen(given) > TOKEN_LEN || strpbrk(given, " \n"))
			return -1;
		strcpy(token, given);
	} else if (must_exist) {
		if (getrandom(random, sizeof random, 0) != sizeof random)
			return -1;
		for (size_t i = 0; i < sizeof random; i++)
			sprintf(token + 2 * i, "%02x", random[i]);
		fprintf(stderr, "agent: start the suite with --token %s\n", token);
	}
	return 0;
}

int wants_token(void)
{
	return *token != 0;
}

/* Both texts are padded to the same length, so that the time tells nothing about the token. */
int is_token(const char *given)
{
	char padded[sizeof token] = {0};
	volatile unsigned char difference = strlen(given) > TOKEN_LEN;
	strncpy(padded, given, TOKEN_LEN);
	for (size_t i = 0; i < sizeof token; i++)
		difference |= (unsigned char)(padded[i] ^ token[i]);
	return !difference;
}

static int listen_at(const char *address, int tcp_port)
{
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(tcp_port)};
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(tcp_port)};
	int is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
	errno = EINVAL;
	if (!is_v4 && inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)
		return -1;
	struct sockaddr *at = is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	int yes = 1, no = 0, listener = socket(at->sa_family, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (!is_v4)
		setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
	if (bind(listener, at, is_v4 ? sizeof v4 : sizeof v6) || listen(listener, 1))
		return -1;
	return listener;
}

/* Reads a line byte by byte, so that the rest remains for the stream. Returns false if it does not
 * come in time. */
static int first_line(int peer, char *line, size_t room)
{
	struct timeval limit = {.tv_sec = FIRST_LINE_SECONDS}, none = {0};
	size_t len = 0;
	setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	while (len + 1 < room && read(peer, line + len, 1) == 1 && line[len] != '\n')
		len++;
	int is_whole = line[len] == '\n';
	line[len] = 0;
	setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
	return is_whole;
}

static int is_admitted(int peer)
{
	static const char prefix[] = "token ", yes[] = "ok\n";
	static const char no[] = "unable another token than the agent's: give both sides the same one\n";
	char line[sizeof prefix + TOKEN_LEN + 2] = {0};
	int is_whole = first_line(peer, line, sizeof line);
	int is_right = is_whole && !strncmp(line, prefix, sizeof prefix - 1) && is_token(line + sizeof prefix - 1);
	const char *reply = is_right ? yes : no;
	if (write(peer, reply, strlen(reply)) < 0)
		return 0;
	if (!is_right)
		fputs("agent: refused a connection with another token, and waits for the next one\n", stderr);
	return is_right;
}

int serve(const char *address, int tcp_port, FILE **in, FILE **out)
{
	int yes = 1, peer, listener = listen_at(address, tcp_port);
	if (listener < 0)
		return -1;
	for (;;) {
		peer = accept(listener, NULL, NULL);
		if (peer < 0)
			return -1;
		if (is_admitted(peer))
			break;
		close(peer);
	}
	close(listener);
	setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	*in = fdopen(peer, "r");
	*out = fdopen(dup(peer), "w");
	return *in && *out ? 0 : -1;
}
