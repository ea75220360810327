/* WHISPER and SHOUT of ZRE by the batch, in both versions: a part of api.h. */
#ifndef KLK_ZRE_H
#define KLK_ZRE_H
#include "api.h"

enum klk_zre_limits {
    KLK_ZRE_ROUTING_MAX = 17,        /* octets of a routing id: 16 in v1, 17 in v2 */
    KLK_ZRE_FRAMES_MAX = 1024,       /* of one content */
    KLK_ZRE_EVENT_NUMBERS = 7,
    KLK_ZRE_HEAD_NUMBERS = 4,        /* before the events of klk_zre_receive */
    KLK_ZRE_RECEIVE_MAX = 16         /* events of klk_zre_receive */
};

enum klk_zre_kind { KLK_ZRE_WHISPER = 2, KLK_ZRE_SHOUT = 3, KLK_ZRE_PING_OK = 7 };

/* The part of a peer that each message needs. */
struct klk_zre_peer {
    struct klk_messages *out;  /* its outgoing messages; NULL: it can't be sent to */
    int64_t heard_ms;
    uint32_t want;             /* sequence of the last received message */
    uint32_t sent;             /* sequence of the last sent message */
    uint32_t key_slot;         /* with CURVE: of the key whose connection its messages come by */
    uint32_t sequences;        /* how many there are before they restart at 0 */
    uint8_t version;           /* of its messages: 1 or 2; 0: it has not greeted us */
    uint8_t send_version;       /* of our messages: 1 or 2 */
    uint8_t routing_size;
    uint8_t routing_id[17];
};

/* All peers of a node, and an index by routing id. */
struct klk_zre_peers {
    struct klk_zre_peer *peers;
    uint32_t *index;           /* slot + 1, or 0; a power of two, at least twice count */
    uint64_t seed;             /* secret, so that no peer can choose ids that collide */
    uint32_t count;
    uint32_t index_size;
};

/* Rebuilds the index of the peers that have a version. */
void klk_zre_index(struct klk_zre_peers *peers);

/* Decodes WHISPERs, SHOUTs and PING-OKs from *position on, while they are well formed, in sequence,
 * and from peers that have greeted us. It stops at any other message, which the caller handles, and
 * at group names beyond ASCII. With CURVE it also stops at messages from other connections than
 * those of the peer's key.
 *
 *   sender     slot of the peer that sent all messages: [header][content ..];
 *              or the count of peers: [routing id][address][header][content ..]
 *   position   in, out: the next message
 *   events     room for KLK_ZRE_EVENT_NUMBERS for each message: the peer's slot, the kind, first
 *              frame of the content, frame behind its last one, where in bytes the content begins
 *              (a group ends there), the group's size, where the content ends
 *
 * Returns the number of events. */
uint32_t klk_zre_take(struct klk_zre_peers *peers, const struct klk_messages *in, uint32_t sender,
                      int64_t now_ms, uint32_t *position, uint32_t *events);

/* klk_drain_receive() into an empty arena, and klk_zre_take() of its messages: for a mailbox with
 * few messages.
 *
 *   numbers   out: number of messages, their bytes, the position where klk_zre_take() stopped,
 *             number of events, and the events. All are 0 when the drain returns an error; with
 *             many messages there are no events
 *
 * Returns what klk_drain_receive() returns. */
int klk_zre_receive(struct klk_zre_peers *peers, struct klk_drain *drain, void *socket,
                    int64_t now_ms, uint32_t *numbers);

/* Appends a message with one frame of content to the outgoing messages of each peer.
 *
 *   places     slots of the peers, each of which has `out`
 *   group      of a SHOUT, at most 255 octets; NULL: a WHISPER
 *   position   in, out: the first peer that lacks the message
 *
 * Returns KLK_OK, or KLK_EFULL when that peer's `out` must grow: call it again then. */
int klk_zre_say(struct klk_zre_peers *peers, const uint32_t *places, uint32_t count,
                const uint8_t *group, uint32_t group_size, const uint8_t *content,
                uint32_t content_size, uint32_t *position);

/* Sends a WHISPER of one frame at once, past `out`, if nothing waits there.
 *
 *   place    slot of the peer, which has `out`
 *   socket   libzmq's, to that peer
 *
 * Returns KLK_OK; otherwise nothing was sent or changed: KLK_MORE (messages wait, or the socket has
 * no room), KLK_EFULL (`out` is too small) or KLK_EOS. */
int klk_zre_whisper(struct klk_zre_peers *peers, uint32_t place, const uint8_t *content,
                    uint32_t content_size, void *socket);

#endif
