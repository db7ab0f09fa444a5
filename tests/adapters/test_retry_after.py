"""A Retry-After is seconds or a date, and a date counts from the server's own clock."""

from __future__ import annotations

import pytest

from engine_adapters.retry_after import advised_wait_s

NOON_S = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT
DATE = "Wed, 21 Oct 2015 07:28:30 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 12 "}, 12.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": DATE}, 30.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2015 07:28:20 GMT"}, 10.0),
        ({"retry-after": DATE, "date": "nonsense"}, 30.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2015 09:00:00 GMT"}, 0.0),
    ],
)
def test_the_advice_is_read(headers: dict[str, str], wait_s: float | None) -> None:
    assert advised_wait_s(headers, NOON_S) == wait_s


def test_an_advice_of_400_digits_is_a_finite_time() -> None:
    wait_s = advised_wait_s({"retry-after": "9" * 400}, 0.0)
    assert wait_s is not None
    assert wait_s < 1e9
