"""Schedules against the calendar, minute by minute."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.queue.cron import CronSchedule

MINUTE_MS = 60_000
HOURS = 5  # They pass midnight.
START = datetime(2026, 2, 27, 22, 58, tzinfo=UTC)
FIELD = st.sampled_from(["*", "*/7", "5", "0-3", "1,4-6/2", "2/3"])


def ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000


@pytest.mark.parametrize(
    ("text", "after", "next_time"),
    [
        ("*/5 * * * *", START, datetime(2026, 2, 27, 23, 0, tzinfo=UTC)),
        ("0 3 * * *", START, datetime(2026, 2, 28, 3, 0, tzinfo=UTC)),
        ("30 6 * * mon-fri", START, datetime(2026, 3, 2, 6, 30, tzinfo=UTC)),
        ("0 0 29 feb *", START, datetime(2028, 2, 29, tzinfo=UTC)),
        ("0 0 1 * sun", START, datetime(2026, 3, 1, tzinfo=UTC)),
        ("0 0 13 * 5", START, datetime(2026, 3, 6, tzinfo=UTC)),  # Either day, as cron has it.
        ("0 12 * * 7", START, datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("@yearly", START, datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_times(text: str, after: datetime, next_time: datetime) -> None:
    assert CronSchedule.parse(text).after(ms(after)) == ms(next_time)


@given(FIELD, FIELD, st.sampled_from(["*", "28", "*/2"]), st.sampled_from(["*", "1", "sun"]))
def test_a_schedule_is_that_of_its_fields(minute: str, hour: str, day: str, week: str) -> None:
    """Each minute of some hours is one of the schedule if its fields say so."""
    schedule = CronSchedule.parse(f"{minute} {hour} {day} * {week}")
    found = []
    at_ms = schedule.after(ms(START))
    while at_ms is not None and at_ms <= ms(START) + HOURS * 60 * MINUTE_MS:
        found.append(at_ms)
        at_ms = schedule.after(at_ms)
    expected = []
    for number in range(1, HOURS * 60 + 1):
        at = START + timedelta(minutes=number)
        days = at.day in schedule.days, at.isoweekday() % 7 in schedule.weekdays
        fits = all(days) if "*" in (day[0], week[0]) else any(days)
        if fits and at.minute in schedule.minutes and at.hour in schedule.hours:
            expected.append(ms(at))
    assert found == expected
    for late_ms in (0, 90 * 1000, 3600 * 1000):
        now_ms = ms(START) + 2 * 60 * MINUTE_MS + late_ms
        last = max((it for it in expected if it <= now_ms), default=None)
        assert schedule.last(ms(START), now_ms) == last


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *",
     "5-1 * * * *", "*/0 * * * *", "0 0 30 2 *", "1-2-3 * * * *", "-1 * * * *"],
)  # fmt: skip
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|is \d+ to|has no time"):
        CronSchedule.parse(text)
