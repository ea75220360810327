/* WHISPER and SHOUT of ZRE by the batch, in both versions: a part of api.h. */
#ifndef KLK_ZRE_H
#define KLK_ZRE_H
#include "api.h"

enum klk_zre_limits {
    KLK_ZRE_ROUTING_MAX = 17,        /* octets of a routing id: 16 in v1, 17 in v2 */
    KLK_ZRE_FRAMES_MAX = 1024,       /* of one content */
    KLK_ZRE_EVENT_NUMBERS = 7,
    KLK_ZRE_HEAD_NUMBERS = 4,        /* of klk_zre_receive, before its events */
    KLK_ZRE_RECEIVE_MAX = 16         /* events of it */
};

enum klk_zre_kind { KLK_ZRE_WHISPER = 2, KLK_ZRE_SHOUT = 3, KLK_ZRE_PING_OK = 7 };

/* What of a peer is needed for each message. */
struct klk_zre_peer {
    struct klk_messages *out;  /* messages for it; NULL: it can't be sent to */
    int64_t heard_ms;
    uint32_t want;             /* sequence of the last message taken in */
    uint32_t sent;             /* of the last one sent */
    uint32_t sequences;        /* so many there are before they begin at 0 again */
    uint8_t version;           /* of what comes from it: 1 or 2; 0: it has not greeted us */
    uint8_t send_version;       /* of what it is sent: 1 or 2 */
    uint8_t routing_size;
    uint8_t routing_id[17];
};

/* All peers of a node, and which of them are found by routing id. */
struct klk_zre_peers {
    struct klk_zre_peer *peers;
    uint32_t *index;           /* place + 1, or 0; a power of two, at least twice count */
    uint64_t seed;             /* secret, so that nobody can choose ids that collide */
    uint32_t count;
    uint32_t index_size;
};

/* Makes the index anew: of those that have a version. */
void klk_zre_index(struct klk_zre_peers *peers);

/* Takes in messages from *position on that are WHISPERs, SHOUTs or PING-OKs of peers that have
 * greeted us, well formed and next in sequence. It stops at any other one, which the caller judges.
 * Group names beyond ASCII are left to the caller, too.
 *
 *   sender     place of the peer that all are from: a message is [header][content ..];
 *              count of peers: it is found by routing id: [routing id][address][header][content ..]
 *   position   in, out: the next message
 *   events     room for KLK_ZRE_EVENT_NUMBERS for each message: the peer's place, the kind, first
 *              frame of the content, frame behind its last one, where in bytes the content begins
 *              (a group ends there), the group's size, where the content ends
 *
 * Returns how many events there are. */
uint32_t klk_zre_take(struct klk_zre_peers *peers, const struct klk_messages *in, uint32_t sender,
                      int64_t now_ms, uint32_t *position, uint32_t *events);

/* klk_drain_take(), afresh, and klk_zre_take() of what has come: for a mailbox that few messages
 * wait in.
 *
 *   numbers   out: how many messages there are, their bytes, the position where klk_zre_take()
 *             stopped, how many events there are, and these. All are 0 when the drain returns what
 *             must be dealt with first, and of many messages none is taken
 *
 * Returns what klk_drain_take() returns. */
int klk_zre_receive(struct klk_zre_peers *peers, struct klk_drain *drain, void *socket,
                    int64_t now_ms, uint32_t *numbers);

/* Adds a message of one frame of content to what goes to each of the peers.
 *
 *   places     of the peers, each of which has `out`
 *   group      of a SHOUT, at most 255 octets; NULL: a WHISPER
 *   position   in, out: the first peer that it has not been added to
 *
 * Returns KLK_OK, or KLK_EFULL when that peer's `out` must grow: go on then. */
int klk_zre_say(struct klk_zre_peers *peers, const uint32_t *places, uint32_t count,
                const uint8_t *group, uint32_t group_size, const uint8_t *content,
                uint32_t content_size, uint32_t *position);

/* Sends a WHISPER of one frame at once, past `out`, where nothing must wait.
 *
 *   place    of the peer, which has `out`
 *   socket   libzmq's, to that peer
 *
 * Returns KLK_OK; else nothing was sent or changed: KLK_MORE (something waits, or the socket has no
 * room), KLK_EFULL (`out` is too small for it) or KLK_EOS. */
int klk_zre_whisper(struct klk_zre_peers *peers, uint32_t place, const uint8_t *content,
                    uint32_t content_size, void *socket);

#endif
