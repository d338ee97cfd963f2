/* Multicast groups that no other program on this host uses. */
#ifndef ROCADE_TESTS_GROUPS_H
#define ROCADE_TESTS_GROUPS_H

#include "rig.h"

#include <arpa/inet.h>

/* Returns the group whose last three bytes are those of this program's own address. */
static inline union ibv_gid own_group(void)
{
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff } };
	const char *ip = getenv("ROCADE_IP");
	CHECK(ip);
	CHECK_INT(inet_pton(AF_INET, ip, group.raw + 12), 1);
	group.raw[12] = 239;
	return group;
}

#endif
