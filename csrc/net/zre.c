/* WHISPER and SHOUT of ZRE by the batch. */
#include "zre.h"

#include "bytes.h"
#include "messages.h"

enum { SIGNATURE_FIRST = 0xaa, SIGNATURE_SECOND = 0xa1, HEADER_MAX = 6 + 1 + 255 };

void klk_zre_index(struct klk_zre_peers *peers) {
    uint32_t mask = peers->index_size - 1;
    memset(peers->index, 0, sizeof *peers->index * peers->index_size);
    for (uint32_t place = 0; place < peers->count; place++) {
        const struct klk_zre_peer *peer = &peers->peers[place];
        if (!peer->version) continue;
        uint64_t slot = klk_id_hash(peers->seed, peer->routing_id, peer->routing_size) & mask;
        while (peers->index[slot]) slot = (slot + 1) & mask;
        peers->index[slot] = place + 1;
    }
}

/* The slot of the peer with that routing id, or count. */
static uint32_t peer_find(const struct klk_zre_peers *peers, const uint8_t *id, uint32_t size) {
    uint32_t mask = peers->index_size - 1;
    uint64_t slot = klk_id_hash(peers->seed, id, size) & mask;
    for (; peers->index[slot]; slot = (slot + 1) & mask) {
        const struct klk_zre_peer *peer = &peers->peers[peers->index[slot] - 1];
        if (peer->routing_size == size && memcmp(peer->routing_id, id, size) == 0)
            return peers->index[slot] - 1;
    }
    return peers->count;
}

static uint32_t header_size(uint32_t version) { return version == 1 ? 5 : 6; }

/* Whether the rest of the header is a group name that this file handles: ASCII. */
static int group_fits(const uint8_t *group, uint32_t size) {
    if (!size || size - 1 != group[0]) return 0;
    for (uint32_t i = 1; i < size; i++)
        if (group[i] & 0x80) return 0;
    return 1;
}

/* The kind of a well-formed header with so many frames of content behind it, or 0. */
static uint32_t header_kind(const uint8_t *header, uint32_t size, uint32_t version,
                            uint32_t contents) {
    uint32_t fixed = header_size(version);
    if (size < fixed || header[0] != SIGNATURE_FIRST || header[1] != SIGNATURE_SECOND) return 0;
    if (version == 2 && header[3] != 2) return 0;
    if (header[2] == KLK_ZRE_PING_OK) return size == fixed && !contents ? KLK_ZRE_PING_OK : 0;
    if (contents > KLK_ZRE_FRAMES_MAX || (version == 1 && !contents)) return 0;
    if (header[2] == KLK_ZRE_WHISPER) return size == fixed ? KLK_ZRE_WHISPER : 0;
    if (header[2] != KLK_ZRE_SHOUT) return 0;
    return group_fits(header + fixed, size - fixed) ? KLK_ZRE_SHOUT : 0;
}

uint32_t klk_zre_take(struct klk_zre_peers *peers, const struct klk_messages *in, uint32_t sender,
                      int64_t now_ms, uint32_t *position, uint32_t *events) {
    uint32_t found = 0, before = sender < peers->count ? 0 : 2, place = sender;
    for (; *position < in->messages; ++*position) {
        uint32_t frames = klk_messages_frames(in, *position), size;
        if (frames <= before) break;
        if (before) {
            const uint8_t *id = klk_messages_at(in, *position, 0, &size);
            place = peer_find(peers, id, size);
            if (place == peers->count) break;
        }
        struct klk_zre_peer *peer = &peers->peers[place];
        if (!peer->version) break;
        if (in->slots && in->slots[*position] != peer->key_slot) break;
        const uint8_t *header = klk_messages_at(in, *position, before, &size);
        uint32_t fixed = header_size(peer->version), contents = frames - before - 1;
        uint32_t kind = header_kind(header, size, peer->version, contents);
        if (!kind) break;
        uint32_t sequence = (uint32_t)header[fixed - 2] << 8 | header[fixed - 1];
        if (sequence != (peer->want + 1) % peer->sequences) break;
        peer->want = sequence;
        peer->heard_ms = now_ms;
        if (kind == KLK_ZRE_PING_OK) continue;
        uint32_t first = in->firsts[*position] + before + 1;
        uint32_t *event = events + KLK_ZRE_EVENT_NUMBERS * found++;
        event[0] = place;
        event[1] = kind;
        event[2] = first;
        event[3] = first + contents;
        event[4] = in->offsets[first];
        event[5] = kind == KLK_ZRE_SHOUT ? size - fixed - 1 : 0;
        event[6] = in->offsets[first + contents];
    }
    return found;
}

int klk_zre_receive(struct klk_zre_peers *peers, struct klk_drain *drain, void *socket,
                    int64_t now_ms, uint32_t *numbers) {
    const struct klk_messages *in = drain->arena;
    memset(numbers, 0, sizeof *numbers * KLK_ZRE_HEAD_NUMBERS);
    int result = klk_drain_receive(drain, socket, 1);
    if (result != KLK_OK && result != KLK_MORE) return result;
    numbers[0] = in->messages;
    numbers[1] = klk_messages_bytes(in);
    if (in->messages <= KLK_ZRE_RECEIVE_MAX)
        numbers[3] = klk_zre_take(peers, in, peers->count, now_ms, &numbers[2],
                                  numbers + KLK_ZRE_HEAD_NUMBERS);
    return result;
}

int klk_zre_say(struct klk_zre_peers *peers, const uint32_t *places, uint32_t count,
                const uint8_t *group, uint32_t group_size, const uint8_t *content,
                uint32_t content_size, uint32_t *position) {
    uint8_t header[HEADER_MAX] = {SIGNATURE_FIRST, SIGNATURE_SECOND,
                                  group ? KLK_ZRE_SHOUT : KLK_ZRE_WHISPER};
    for (; *position < count; ++*position) {
        struct klk_zre_peer *peer = &peers->peers[places[*position]];
        uint32_t size = header_size(peer->send_version);
        uint32_t sequence = (peer->sent + 1) % peer->sequences;
        header[3] = 2;
        header[size - 2] = (uint8_t)(sequence >> 8);
        header[size - 1] = (uint8_t)sequence;
        if (group) {
            header[size++] = (uint8_t)group_size;
            memcpy(header + size, group, group_size);
            size += group_size;
        }
        if (!klk_messages_fit(peer->out, (uint64_t)size + content_size, 2)) return KLK_EFULL;
        klk_messages_frame(peer->out, header, size);
        klk_messages_frame(peer->out, content, content_size);
        klk_messages_end(peer->out);
        peer->sent = sequence;
    }
    return KLK_OK;
}

int klk_zre_whisper(struct klk_zre_peers *peers, uint32_t place, const uint8_t *content,
                    uint32_t content_size, void *socket) {
    struct klk_zre_peer *peer = &peers->peers[place];
    uint32_t sent = peer->sent, position = 0, dropped = 0;
    if (peer->out->messages) return KLK_MORE;
    int result = klk_zre_say(peers, &place, 1, NULL, 0, content, content_size, &position);
    if (result != KLK_OK) return result;
    position = 0;
    result = klk_send(socket, peer->out, 0, KLK_KEEP, &position, &dropped);
    peer->out->frames = peer->out->messages = 0;
    if (result != KLK_OK) peer->sent = sent;
    return result;
}
