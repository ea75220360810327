"""Makes and splits answers by their headers."""

from . import answers, ops, requests, values
from .codec import decode_request, error_code, peek
from .requests import Request, RequestError
from .values import Extension, decode_extension
from .worker_pipe import Message

SYNC_FLAGS = values.PARTSYNC | values.FULLSYNC


def is_acknowledged_first(header: bytes) -> bool:
    """Whether the server acknowledges a write before it is done: writes of the specification
    without a sync flag. WRITE_TABLES (0x24) ignores PARTSYNC."""
    request_type = header[2]
    if request_type not in values.WRITE_TYPES or request_type > values.WRITE_TABLES:
        return False
    awaited = values.FULLSYNC if request_type == values.WRITE_TABLES else SYNC_FLAGS
    return not header[3:4] or not header[3] & awaited


def acknowledgement(header: bytes) -> Message:
    """The answer to a write that is acknowledged before it is decoded."""
    try:
        extension = decode_extension(header, 4)
    except ValueError:
        extension = values.NO_EXTENSION
    return [answers.encode_head(header[2], values.OK, extension)]


def success(request: Request) -> Message:
    if isinstance(request, requests.Session):
        return answers.encode_session(request, request.session)
    return answers.encode_ok(request)


def result_answer(header: bytes, result: bytes) -> Message:
    """The answer to a transaction, or to a put that ran as a transaction."""
    done = result[:1] != bytes([ops.NOT_ALIVE])
    if header[2] == values.TRANSACTION and done:
        return [header, result]
    if header[2] == values.PUT and result[:1] == bytes([ops.THEN]):
        return [header]
    text = "nothing was written: the session has ended, or was never opened"
    return answers.encode_refusal(
        RequestError(header[2], values.SESSION_ENDED, text, echoed(header)), retry=False
    )


def request_of(frames: Message) -> tuple[int, Extension]:
    """The type and the extension of a request that may be malformed."""
    try:
        return peek(frames)[0], decode_request(frames).extension
    except RequestError as error:
        return peek(frames)[0], error.extension


def split(answer: Message) -> tuple[Message, bytes]:
    """The prefix and the header of a finished answer."""
    behind = 1 if answer[1] else 2
    return answer[:behind], answer[behind]


def echoed(header: bytes) -> Extension:
    """The extension that an answer's header echoes."""
    reqid = answers.decode_answer([header]).reqid
    return Extension(reqid=reqid) if reqid else values.NO_EXTENSION


def too_much_unread(answer: Message) -> tuple[Message, Message]:
    """The prefix and the error for a client that reads its answers too slowly."""
    prefix, header = split(answer)
    # In a chunk the byte behind the type is no code.
    request_type = values.PROTOCOL_ERROR if header[2] == values.CLIENT_DATA else header[2]
    text = "the client has too many unread answers; read them, then ask again"
    error = RequestError(request_type, error_code(request_type), text, echoed(header))
    return prefix, answers.encode_refusal(error, retry=True)
