/* Addresses of peers, and those that connect so often that the kernel has to refuse them. */
#ifndef KLK_REFUSED_H
#define KLK_REFUSED_H
#include <netinet/in.h>
#include <sys/socket.h>

#include "connections.h"

union klk_peer {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage all;
};

/* The address family of the other end, AF_UNSPEC if there is none. */
int klk_peer_of(int fd, union klk_peer *peer);

/* The address of the other end. */
struct klk_address klk_address_of(int fd);

/* Counts a connection that was ended at once: its address has too many. After many of them the
 * kernel refuses the address for a while: libzmq and we would take 70 us of processor time each. */
void klk_refused_count(struct klk_connections *connections, const struct klk_address *address,
                       int64_t now_ms);

/* Ends the refusals whose time has come. */
void klk_refused_end(struct klk_connections *connections, int64_t now_ms);

#endif
