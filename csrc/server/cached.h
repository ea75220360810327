/* Reads of a table server that the rows in shared memory answer (row_cache.h), without the table
 * worker: a part of api.h. */
#ifndef KLK_CACHED_H
#define KLK_CACHED_H
#include "channels.h"
#include "row_cache.h"

/* Answers reads whose rows are all here:
 * [routing id]([empty])[31 01 10 00, echo of our extension][value ..]. Their rows get the shape
 * KLK_REQUEST_OTHER. A request without our extension waits for earlier ones of its client,
 * which tells answers apart by their order.
 *
 *   readers, channels   of each worker
 *   rows                of the arena's messages; those of the shape KLK_REQUEST_READ ask for keys
 *   index               that must be applied
 *   now_us              when they have arrived
 *   answers             is emptied; the caller gives it room
 *
 * Returns how many reads are left. */
uint32_t klk_cached_answer(struct klk_row_reader *readers, struct klk_channel *channels,
                           uint32_t workers, const struct klk_messages *arena,
                           struct klk_request *rows, uint64_t index, int64_t now_us,
                           struct klk_messages *answers);

#endif
