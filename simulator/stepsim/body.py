"""What a request brings along."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

LARGEST_BODY_BYTES = 1 << 20


class BadRequest(ValueError):
    """A body that is not what the route takes."""


async def json_object(request: Request) -> dict[str, Any]:
    """The request's JSON object. Raises ``BadRequest``."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_BODY_BYTES:
            raise BadRequest(f"the body is larger than {LARGEST_BODY_BYTES} bytes")
    try:
        value = json.loads(content, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be sent back
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest('the body must be a JSON object, such as {"fault": "straggler"}')
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
