/* Multicast groups. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

/* Notes each attached group once, because it is detached once. */
static void remember(struct end *end, const union ibv_gid *group, int is_leave)
{
	int at = 0;
	while (at < end->group_count && memcmp(&end->groups[at], group, sizeof *group))
		at++;
	if (is_leave && at < end->group_count)
		end->groups[at] = end->groups[--end->group_count];
	else if (!is_leave && at == end->group_count)
		end->groups[end->group_count++] = *group;
}

/* Returns the index of the interface that has an IPv6 address, or 0. */
static unsigned interface_of(const struct in6_addr *address)
{
	struct ifaddrs *all = NULL;
	unsigned index = 0;
	if (getifaddrs(&all))
		return 0;
	for (struct ifaddrs *at = all; at && !index; at = at->ifa_next) {
		struct sockaddr_in6 *own = (struct sockaddr_in6 *)at->ifa_addr;
		if (own && own->sin6_family == AF_INET6 && !memcmp(&own->sin6_addr, address, sizeof *address))
			index = if_nametoindex(at->ifa_name);
	}
	freeifaddrs(all);
	return index;
}

static int group_socket(struct end *end, int family)
{
	if (!end->group_socket)
		end->group_socket = socket(family, SOCK_DGRAM, 0);
	return end->group_socket;
}

/* Joins a group at the IP level, where the device has its address. */
static void join_ip(struct end *end, const char *group, const char *device_address)
{
	struct ip_mreq v4;
	struct ipv6_mreq v6;
	struct in6_addr own;
	if (inet_pton(AF_INET, group, &v4.imr_multiaddr) == 1 &&
	    inet_pton(AF_INET, device_address, &v4.imr_interface) == 1) {
		setsockopt(group_socket(end, AF_INET), IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4);
	} else if (inet_pton(AF_INET6, group, &v6.ipv6mr_multiaddr) == 1 &&
		   inet_pton(AF_INET6, device_address, &own) == 1) {
		v6.ipv6mr_interface = interface_of(&own);
		setsockopt(group_socket(end, AF_INET6), IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &v6, sizeof v6);
	}
}

int join(struct end *end, const char *device_address, int is_leave)
{
	union ibv_gid group;
	const char *address = word();
	gid_of(address, &group);
	if (!end->qp || end->group_count == GROUPS)
		return answer("unable no such queue pair, or too many groups");
	errno = is_leave ? ibv_detach_mcast(end->qp, &group, 0) : ibv_attach_mcast(end->qp, &group, 0);
	if (errno)
		return unable(is_leave ? "ibv_detach_mcast" : "ibv_attach_mcast");
	remember(end, &group, is_leave);
	if (!is_leave)
		join_ip(end, address, device_address);
	return answer("ok");
}

void leave_groups(struct end *end)
{
	for (int i = 0; end->qp && i < end->group_count; i++)
		ibv_detach_mcast(end->qp, &end->groups[i], 0);
	if (end->group_socket > 0)
		close(end->group_socket);
}
